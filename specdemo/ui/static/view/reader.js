// @ts-check
// Reading the stage: pointing shows a token in the inspector, a click or Enter pins it, arrow keys move to
// another, Escape unpins it.

import { around, find, neighbour } from "./dom.js";
import { hasSelection } from "./text.js";

/** @import { Inspector } from "./inspector.js" */
/** @import { Token } from "./run.js" */
/** @import { Known } from "./verdict.js" */
/** @import { Text } from "./text.js" */
/** @import { Timeline } from "./timeline.js" */
/** @typedef {ReturnType<typeof makeReader>} Reader */

/**
 * @param {HTMLElement} page
 * @param {HTMLElement} stage
 * @param {Text} text
 * @param {Inspector} inspector
 * @param {Pick<Timeline, "light">} timeline
 */
export function makeReader(page, stage, text, inspector, timeline) {
  /** @type {Token | null} */
  let pinned = null;
  /** @type {Token | null} */
  let tabStop = null; // the token that Tab comes to; until there is one, the stage itself
  /** @type {Element[]} */
  let lit = [];
  /** @type {Element[]} */
  /** @type {Token | null} */
  let seen = null; // what the inspector shows
  /** @type {Known} */
  let seenAs = "all"; // how far its round was known when it was shown
  /** @type {Token | null} */
  let now = null; // the token of the step that the player has just made
  stage.addEventListener("pointerover", (event) => point(text.tokenAt(event.target)));
  stage.addEventListener("pointerleave", () => lightPinned());
  stage.addEventListener("click", onClick);
  stage.addEventListener("focusin", (event) => point(text.tokenAt(event.target), true));
  stage.addEventListener("keydown", onKey);
  page.addEventListener("keydown", (event) => event.key === "Escape" && unpin());
  page.addEventListener("unpin", unpin);
  const legend = page.querySelector(".legend");
  if (legend instanceof HTMLElement) watchLegend(legend, stage);
  return {
    clear, refresh, releaseHidden, pointAtRound, jump, choose, chooseInTree, present, withdraw, pinned: () => pinned,
  };

  function clear() {
    present(null);
    setTabStop(null);
    // After Generate by keyboard the eye is on the text, and so is the focus.
    const isWaiting = page.dataset.state === "waiting";
    if (isWaiting && document.activeElement?.matches("#go:focus-visible")) stage.focus({ preventScroll: true });
  }

  // After the stage has changed: some tokens may have left, and others got their verdicts.
  function refresh() {
    releaseHidden();
    if (seen && knownOf(seen) !== seenAs) show(seen, seen === pinned);
  }

  /**
   * Shows what a step of the player was about, in place of anything else.
   * @param {Token | null} token
   * @param {number} [depths] of its round's tree that are drafted
   */
  function present(token, depths) {
    if (now) text.elementOf(now).classList.remove("now");
    now = token;
    pin(null);
    if (!token) {
      seen = null;
      return inspector.clear();
    }
    text.elementOf(token).classList.add("now");
    light(roundOf(token), true);
    show(token, false, false, depths);
  }

  // What was presented is no longer what has just happened.
  function withdraw() {
    if (now && now === seen && !pinned) return present(null);
    if (now) text.elementOf(now).classList.remove("now");
    now = null;
  }

  /**
   * @param {Token} token
   * @param {boolean} isPinned
   * @param {number} [depths]
   */
  function show(token, isPinned, chosen = isPinned, depths) {
    seen = token;
    seenAs = knownOf(token);
    inspector.show(token, isPinned, chosen, seenAs, seenAs === "place" ? null : text.kindOf(token), depths);
  }

  /**
   * @param {Token} token
   * @returns {Known}
   */
  function knownOf(token) {
    if (text.isPlace(token)) return "place";
    if (text.fateNow(token) === "pending") return "draft";
    const own = token.fate === "prompt" ? null : token.round.next;
    return own && !text.isOnStage(own) ? "verdict" : "all";
  }

  // A token that is hidden now can be neither pinned nor reached by Tab.
  function releaseHidden() {
    if (pinned && !text.isShown(pinned)) unpin();
    if (tabStop && !text.isShown(tabStop)) setTabStop(null);
  }

  /**
   * @param {Token | undefined} token
   * @param {boolean} chosen by keyboard
   */
  function point(token, chosen = false) {
    if (!token) return;
    light(roundOf(token), chosen);
    if (!pinned) show(token, false, chosen);
  }

  /** @param {number | null} index of a round in the timeline */
  function pointAtRound(index) {
    if (index === null) lightPinned();
    else light(index);
  }

  /** @param {MouseEvent} event */
  function onClick(event) {
    const token = text.tokenAt(event.target);
    if (!token || hasSelection()) return; // the end of selecting is no click
    setTabStop(token);
    focus(token);
    toggle(token);
  }

  /** @param {Token} token */
  function toggle(token) {
    if (token === pinned) unpin();
    else pin(token);
  }

  /** @param {Token | null} token */
  function pin(token) {
    mark(pinned, false);
    pinned = token;
    mark(pinned, true);
    text.hold(token !== null);
    page.toggleAttribute("data-pinned", token !== null);
    page.dispatchEvent(new CustomEvent("pin", { detail: token }));
    lightPinned();
    if (!token) return;
    show(token, true);
    text.elementOf(token).scrollIntoView({ block: "nearest" });
  }

  function unpin() {
    if (!pinned) return;
    const element = text.elementOf(pinned);
    const takesFocus = !stage.contains(document.activeElement) && element.hasAttribute("tabindex");
    pin(null);
    seen = null;
    inspector.clear();
    if (takesFocus) element.focus({ preventScroll: true }); // the button that had it is gone
  }

  /**
   * @param {Token | null} token
   * @param {boolean} isPinned
   */
  function mark(token, isPinned) {
    if (!token) return;
    text.elementOf(token).classList.toggle("pinned", isPinned);
    text.elementOf(token).setAttribute("aria-selected", String(isPinned));
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (event.ctrlKey || event.metaKey) return selectAll(event);
    if (event.altKey || event.shiftKey) return;
    const from = text.tokenAt(event.target) ?? tabStop; // after a click the focus is on the stage
    const { key } = event;
    if (key === "ArrowLeft" || key === "ArrowRight") moveTo(neighbour(from, key === "ArrowRight" ? 1 : -1));
    else if (key === "Home" || key === "End") moveTo(text.shown().at(key === "Home" ? 0 : -1));
    else if (!from) return;
    else if (key === "ArrowUp" || key === "ArrowDown") moveTo(vertical(from, key === "ArrowDown" ? 1 : -1));
    else if (key === "Enter" || key === " ") toggle(from);
    else return;
    event.preventDefault();
  }

  /** @param {KeyboardEvent} event */
  function selectAll(event) {
    if (event.key.toLowerCase() !== "a") return;
    getSelection()?.selectAllChildren(stage);
    event.preventDefault();
  }

  /**
   * @param {Token | null} from
   * @param {1 | -1} step
   */
  function neighbour(from, step) {
    const shown = text.shown();
    return from ? shown[shown.indexOf(from) + step] : shown[0];
  }

  /**
   * The token of the next line that is nearest to below or above this one.
   * @param {Token} from
   * @param {1 | -1} step
   */
  function vertical(from, step) {
    const shown = text.shown();
    const box = (/** @type {Token} */ token) => find(text.elementOf(token), "b").getBoundingClientRect();
    const start = box(from);
    let nearest, line;
    let least = Infinity;
    for (let at = shown.indexOf(from) + step; shown[at]; at += step) {
      const { top, left } = box(shown[at]);
      if (Math.abs(top - start.top) < 4) continue;
      line ??= top;
      const distance = Math.abs(left - start.left);
      if (Math.abs(top - line) > 4 || distance > least) break;
      nearest = shown[at];
      least = distance;
    }
    return nearest;
  }

  /** @param {Token | undefined} token */
  function moveTo(token) {
    if (!token) return;
    setTabStop(token);
    focus(token);
    if (pinned) pin(token);
    else text.elementOf(token).scrollIntoView({ block: "nearest" });
  }

  /** @param {Token} token the one that Tab comes to */
  function focus(token) {
    text.elementOf(token).focus({ preventScroll: true });
  }

  /** @param {Token | null} token */
  function setTabStop(token) {
    if (token === tabStop) return; // without its tabindex it would lose the focus
    const leaves = !token && stage.contains(document.activeElement);
    if (tabStop) text.elementOf(tabStop).removeAttribute("tabindex");
    tabStop = token;
    stage.tabIndex = token ? -1 : 0;
    if (token) text.elementOf(token).tabIndex = 0;
    if (leaves) stage.focus({ preventScroll: true });
  }

  /** @param {Token} token */
  function roundOf(token) {
    return token.fate === "prompt" ? null : token.round.index;
  }

  function lightPinned() {
    light(pinned && roundOf(pinned));
  }

  /**
   * Lights the tokens of one round, or none, and the round's mark in the timeline.
   * @param {number | null} index
   */
  function light(index, reveal = false) {
    for (const element of lit) element.classList.remove("lit");
    lit = index === null ? [] : [...stage.querySelectorAll(`[data-round="${index}"]`)];
    for (const element of lit) element.classList.add("lit");
    timeline.light(index, reveal);
  }

  /** @param {Token} token to be pinned, as by a click */
  function choose(token) {
    setTabStop(token);
    pin(token);
  }

  /**
   * One that the text does not show is not pinned.
   * @param {Token} token
   */
  function chooseInTree(token) {
    if (text.isShown(token)) choose(token);
    else show(token, false, true);
  }

  /** @param {number} index */
  function jump(index) {
    light(index, true);
    const first = lit.map(text.tokenAt).find(text.isShown);
    if (!first) return;
    choose(first);
    focus(first);
  }
}

/**
 * Pointing at a fate in the legend marks its tokens on the stage; the style sheet shows what it means. Tab comes to the
 * first fate and to the switches, and arrow keys to all.
 * @param {HTMLElement} legend
 * @param {HTMLElement} stage
 */
function watchLegend(legend, stage) {
  legend.addEventListener("pointerover", ({ target }) => point(target));
  legend.addEventListener("pointerleave", () => point(null));
  legend.addEventListener("focusin", ({ target }) => point(target));
  legend.addEventListener("focusout", () => point(null));
  const entries = /** @type {HTMLElement[]} */ ([...legend.querySelectorAll("[data-explains] > :first-child")]);
  legend.addEventListener("keydown", (event) => neighbour(event, entries, ["ArrowLeft", "ArrowRight"])?.focus());

  /** @param {EventTarget | null} target */
  function point(target) {
    const entry = around(target, "[data-explains]");
    if (entry) stage.dataset.points = entry.dataset.explains;
    else delete stage.dataset.points;
  }
}
