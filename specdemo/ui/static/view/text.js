// @ts-check
// The text on the stage: one element for each token, in reading order, whose textContent is the token's text
// and nothing else. The style sheet draws signs for invisible characters; they are seen but are not in the
// text.

import { append, around, find, h } from "./dom.js";
import { INVISIBLE, codeOf } from "./format.js";
import { familyOf, isDrafted } from "./run.js";
import { isUnknown } from "./served.js";
import { fateNamed, kindInRound, kindsInPrompt, sign, standsFor } from "./textless.js";
import { say } from "./words.js";

/** @import { Token } from "./run.js" */
/** @import { Shown } from "./steps.js" */
/** @import { Kind } from "./textless.js" */
/** @typedef {ReturnType<typeof makeText>} Text */

const NOT_IN_TEXT = '[data-fate="rejected"], [data-fate="discarded"]';
const MANY = 5; // signs, marks on them not counted; fewer can be too narrow for a finger (touch.css)
const BLOCK = 150; // tokens; a longer block is cut

/** @param {HTMLElement} stage a list, or a list box whose tokens can be chosen */
export function makeText(stage) {
  /** @type {WeakMap<Element, Token>} */
  const tokens = new WeakMap();
  /** @type {WeakMap<Token, HTMLElement>} */
  const elements = new WeakMap();
  /** @type {WeakMap<Token, Kind>} */
  const kinds = new WeakMap(); // of the prompt's tokens without a text
  const isChosenFrom = stage.getAttribute("role") === "listbox";
  const blank = isChosenFrom ? h("span", { role: "option", "aria-selected": "false" }) : h("span", { role: "listitem" }); // copied for each token
  /** @type {Set<Token>} */
  let outlined = new Set();
  /** @type {HTMLElement | null} */
  let block = null; // where tokens are added
  let following = false; // whether the end stays in view: once it was asked for, until the reader scrolls back
  let isBegun = false; // whether the first token after the prompt was in view
  let isHeld = false; // it stays where it is, since a token is pinned
  let scrolledTo = 0;
  let frame = 0;
  let width = 0;
  stage.addEventListener("scroll", onScroll, { passive: true });
  document.addEventListener("copy", onCopy);
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width !== width) reflow();
    width = contentRect.width;
  }).observe(stage);
  clear();
  return {
    clear, add, removeFrom, setShown, isOpen, isPlace, isOnStage, hold, follow, rewrite, reflow, outline, reveal, shown,
    fateNow, isShown, tokenAt, elementOf, kindOf,
  };

  /** @param {boolean} follows whether the end is to stay in view */
  function clear(follows = false) {
    cancelAnimationFrame(frame);
    stage.replaceChildren();
    block = null;
    following = follows;
    isBegun = false;
    scrolledTo = 0;
    frame = 0;
  }

  /** @param {Token[]} added those that are there already are moved to the end */
  function add(added) {
    if (!added.length) return;
    if (added[0].fate === "prompt") for (const [token, kind] of kindsInPrompt(added)) kinds.set(token, kind);
    if (!block) stage.append((block = makeBlock("run-on")));
    append(block, added.map((token) => elements.get(token) ?? draw(token)));
    frame ||= requestAnimationFrame(afterLayout);
  }

  /** @param {Token} token the first of those at the end that leave the stage */
  function removeFrom(token) {
    const range = document.createRange();
    range.setStartBefore(elementOf(token));
    range.setEnd(stage, stage.childNodes.length);
    range.deleteContents();
    block = /** @type {HTMLElement | null} */ (stage.lastElementChild);
    frame ||= requestAnimationFrame(afterLayout);
  }

  /**
   * @param {Token} token a drafted one
   * @param {Shown} shown
   */
  function setShown(token, shown) {
    const element = elementOf(token);
    const [open, place] = [shown !== "judged", shown === "place"];
    if (open === isOpen(token) && place === isPlace(token)) return;
    element.classList.toggle("open", open);
    element.dataset.fate = open ? "pending" : token.fate;
    if (place === isPlace(token)) return setName(element, token);
    element.classList.toggle("place", place);
    fill(element, token);
  }

  /** Whether it waits for its verdict. @param {Token} token */
  function isOpen(token) {
    return elements.get(token)?.dataset.fate === "pending";
  }

  /** Its fate as far as it is known. @param {Token} token */
  function fateNow(token) {
    return (isOnStage(token) && elementOf(token).dataset.fate) || "pending";
  }

  /** Whether only its place in a block is shown, and not which token it is. @param {Token} token */
  function isPlace(token) {
    return elements.get(token)?.classList.contains("place") ?? false;
  }

  /** @param {Token} token */
  function isOnStage(token) {
    return Boolean(elements.get(token)?.isConnected);
  }

  /** @param {boolean} held whether it stays where it is, though more comes */
  function hold(held) {
    isHeld = held;
  }

  // Brings the end into view and keeps it there.
  function follow() {
    following = true;
    frame ||= requestAnimationFrame(afterLayout);
  }

  /** @param {string} className */
  function makeBlock(className) {
    return h("div", { class: className, role: "presentation" });
  }

  // In a frame of its own, when the layout is due anyway.
  function afterLayout() {
    frame = 0;
    if (following && !isHeld) stage.scrollTop = 1e7;
    else if (!isBegun) showBeginning();
    stage.toggleAttribute("data-more", stage.scrollTop + stage.clientHeight < stage.scrollHeight - 40);
    if (block && block.childElementCount > BLOCK) cut(block);
  }

  // What is read first is what comes after the prompt, which can be longer than the stage.
  function showBeginning() {
    const first = stage.querySelector("[data-round]");
    if (!first || isHeld || !stage.clientHeight) return; // nothing is in view while another tab is selected
    isBegun = true;
    const below = first.getBoundingClientRect().bottom - stage.getBoundingClientRect().bottom;
    if (below <= 0 || stage.scrollTop) return;
    stage.scrollTop = below + stage.clientHeight - 80;
    scrolledTo = stage.scrollTop;
  }

  /**
   * A new token makes the browser lay out and paint its whole block again. So a long block is cut where a
   * line begins, which looks the same, until reflow joins all blocks.
   * @param {HTMLElement} long
   */
  function cut(long) {
    const shown = [...long.children].filter((element) => isShown(tokenAt(element)));
    if (shown.length < BLOCK / 2 || hasSelection()) return; // a selection would not survive it
    const last = shown.slice(-BLOCK / 2);
    const boxes = last.map((element) => find(element, "b").getBoundingClientRect());
    const first = boxes.findIndex(({ top }, at) => at > 0 && top > boxes[at - 1].bottom);
    if (first < 0) return;
    const breaksByItself = !last[first - 1].textContent?.endsWith("\n");
    const next = makeBlock(breaksByItself ? "run-on goes-on" : "run-on");
    long.after(next);
    const children = [...long.children];
    move(children.slice(children.indexOf(last[first])), next);
  }

  // After a change of where lines end.
  function reflow() {
    const all = [...stage.querySelectorAll("[data-token]")];
    if (!all.length) return;
    const before = [...stage.children];
    const top = stage.getBoundingClientRect().top;
    const isMoved = !following && stage.scrollTop > 0;
    const place = isMoved && all.find((element) => element.getBoundingClientRect().bottom > top);
    const joined = makeBlock("run-on");
    stage.append(joined);
    move(all, joined);
    for (const empty of before) empty.remove();
    if (place) stage.scrollTop += place.getBoundingClientRect().top - top; // what was read stays in view
    frame ||= requestAnimationFrame(afterLayout);
  }

  /**
   * @param {Element[]} moved
   * @param {HTMLElement} to
   */
  function move(moved, to) {
    const focused = moved.find((element) => element === document.activeElement);
    append(to, moved);
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
    block = to;
  }

  /** @param {Token} token */
  function draw(token) {
    const span = /** @type {HTMLElement} */ (blank.cloneNode());
    span.dataset.fate = token.fate;
    span.dataset.token = token.id === null ? "" : String(token.id);
    if (token.fate !== "prompt") span.dataset.round = String(token.round.index);
    span.classList.toggle("outlined", outlined.has(token));
    if (isOtherGuess(token)) span.classList.add("other-guess");
    tokens.set(span, token);
    elements.set(token, span);
    fill(span, token);
    return span;
  }

  /**
   * For screen readers: its word, its fate and its round.
   * @param {HTMLElement} element
   * @param {Token} token
   */
  function setName(element, token) {
    const [word, fate] = [wordOf(token), fateNamed(token, element.dataset.fate ?? token.fate)];
    const name = token.fate === "prompt"
      ? say("view.token", { word, fate })
      : say("view.tokenInRound", { word, fate, round: token.round.index + 1 });
    element.setAttribute("aria-label", name);
  }

  /** @param {Token} token */
  function wordOf(token) {
    if (isPlace(token)) return say("view.emptyPlace");
    if (isUnknown(token)) return say("view.untold");
    const kind = kindOf(token);
    if (kind) return standsFor(kind);
    if (/^ +$/.test(token.text)) return say("view.space");
    if (/^\n+$/.test(token.text)) return say("view.lineBreak");
    return token.text.trim() || JSON.stringify(token.text);
  }

  /**
   * What a token without a text stands for; null for any other.
   * @param {Token} token
   */
  function kindOf(token) {
    if (token.text !== "" || isUnknown(token)) return null;
    return token.fate === "prompt" ? kinds.get(token) ?? null : kindInRound(token);
  }

  /** @param {Token} token whose text has changed */
  function rewrite(token) {
    const element = elements.get(token);
    if (element) fill(element, token);
  }

  /**
   * The background and the line of a token belong to its word. Spaces around the word are outside of it, or a
   * space at the end of a line would show as a sliver there.
   * @param {HTMLElement} element
   * @param {Token} token
   */
  function fill(element, token) {
    const text = isPlace(token) ? "" : token.text;
    setName(element, token);
    const word = h("b");
    const signs = [...text.trim()].filter((sign) => !/\p{M}/u.test(sign)).length;
    if (signs < MANY) element.style.setProperty("--signs", String(signs));
    else element.style.removeProperty("--signs");
    if (text.trim() === "" && !INVISIBLE.test(text)) {
      const kind = isPlace(token) ? null : kindOf(token);
      if (kind) sign(word, kind);
      else word.className = isPlace(token) ? "" : isUnknown(token) ? "unknown" : "space";
      word.textContent = text;
      element.replaceChildren(word);
      return;
    }
    const bare = text.replace(/^ +| +$/g, "");
    for (const part of bare.split(INVISIBLE)) if (part) word.append(INVISIBLE.test(part) ? markFor(part) : part);
    const start = text.indexOf(bare);
    const [before, after] = [text.slice(0, start), text.slice(start + bare.length)];
    element.replaceChildren(word);
    if (before) word.before(before);
    if (after) word.after(after);
  }

  /** @param {string} character an invisible one */
  function markFor(character) {
    const known = { "\n": "newline", "\t": "tab" }[character];
    return h("i", known ? { class: known } : { class: "invisible", "data-sign": codeOf(character) }, character);
  }

  /**
   * Outlines these tokens and no others; those that are not there yet, when they appear.
   * @param {Token[]} chosen
   */
  function outline(chosen) {
    for (const token of outlined) elements.get(token)?.classList.remove("outlined");
    outlined = new Set(chosen);
    for (const token of chosen) elements.get(token)?.classList.add("outlined");
  }

  /** @param {Token | undefined} token is scrolled to, and the page no farther than to the stage */
  function reveal(token) {
    const element = token && elements.get(token);
    if (!element?.isConnected) return;
    stage.scrollIntoView({ block: "nearest" });
    stage.scrollTop += element.getBoundingClientRect().top - stage.getBoundingClientRect().top - 40;
  }

  /** The tokens that can be seen, in reading order. */
  function shown() {
    return [...stage.querySelectorAll("[data-token]")].map(tokenOf).filter(isShown);
  }

  /** @param {Token | undefined} token */
  function isShown(token) {
    return token !== undefined && isOnStage(token)
      && !stage.classList.contains(`hide-${elementOf(token).dataset.fate}`);
  }

  /**
   * The token that a node belongs to.
   * @param {EventTarget | null} node
   */
  function tokenAt(node) {
    const element = around(node, "[data-token]");
    return element ? tokens.get(element) : undefined;
  }

  /** @param {Element} element a token's own */
  function tokenOf(element) {
    return /** @type {Token} */ (tokens.get(element));
  }

  /** @param {Token} token one that has been added */
  function elementOf(token) {
    return /** @type {HTMLElement} */ (elements.get(token));
  }

  // Who scrolls back from the end no longer follows it. A late event of the page's own scrolling finds the end
  // farther on, which is no reason to stop following it; nor is a text that became shorter.
  function onScroll() {
    const now = stage.scrollTop;
    if (now === scrolledTo) return; // the page's own scrolling
    const isAtEnd = now + stage.clientHeight > stage.scrollHeight - 40;
    stage.toggleAttribute("data-more", !isAtEnd);
    if (isAtEnd) following ||= stage.scrollHeight > stage.clientHeight;
    else if (now < scrolledTo - 1) following = false;
    scrolledTo = now;
  }

  /**
   * What is selected is copied without the tokens that are not part of the text.
   * @param {ClipboardEvent} event
   */
  function onCopy(event) {
    const selection = getSelection();
    if (!selection || selection.isCollapsed || !stage.contains(selection.anchorNode)) return;
    const range = selection.getRangeAt(0).cloneRange();
    if (!stage.contains(range.startContainer)) range.setStart(stage, 0);
    if (!stage.contains(range.endContainer)) range.setEnd(stage, stage.childNodes.length);
    const copied = range.cloneContents();
    for (const dropped of copied.querySelectorAll(`${NOT_IN_TEXT}, .open`)) dropped.remove();
    event.clipboardData?.setData("text/plain", copied.textContent ?? "");
    event.preventDefault();
  }
}

/**
 * Whether a tree has another guess at its place, which stands before it.
 * @param {Token} token
 */
function isOtherGuess(token) {
  return token.fate !== "prompt" && isDrafted(token) && familyOf(token).indexOf(token) > 0;
}

export function hasSelection() {
  return !(getSelection()?.isCollapsed ?? true);
}
