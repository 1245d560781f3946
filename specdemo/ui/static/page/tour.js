// @ts-check
// The guided path over the page: a card with a step's words, and one thing lit. It begins by its button or by
// link (?tour=3), and leaves everything as it was.

import { STEPS, aloneOf, parted, stepOf, substitute, wordsOf } from "../lesson/guide.js";
import { append, fill, find, h } from "../view/dom.js";
import { say } from "../view/words.js";
import { mark } from "./address.js";

/** @import { Alone, Shown, Step } from "../lesson/guide.js" */
/** @import { Drafted, Own, Run, Token } from "../view/run.js" */
/** @typedef {ReturnType<typeof makeTour>} Tour */

const NAME = "tour"; // in the address
const NARROW = "(max-width: 800px)"; // where the card lies at the bottom, as in layout.css
const GAP = 16; // px between what is lit and what lights it

/**
 * @typedef {object} Stage what the tour does with the page
 * @property {Run} run on the stage
 * @property {() => Token | null} pinned
 * @property {(token: Drafted | Own) => void} pin
 * @property {() => void} unpin
 * @property {() => void} showAll shows the whole run, whatever plays
 * @property {(name: string) => Promise<boolean>} lend shows a recorded run for a while; false if it could not
 * @property {() => void} giveBack shows the run before again
 * @property {(tab: string) => void} select a tab
 * @property {() => void} unfold shows the tabs
 */

/**
 * @param {HTMLElement} page
 * @param {Stage} stage
 */
export function makeTour(page, stage) {
  const root = document.documentElement;
  const button = /** @type {HTMLButtonElement} */ (find(page, ".show-how"));
  const { card, light, part } = build();
  let at = 0; // the number of the step that is shown; 0 while there is none
  /** What the tour found, and leaves behind. @type {{ focus: Element | null, tab: string, pinned: Token | null } | null} */
  let found = null;
  /** The recorded run that is lent to the tour. @type {string | null} */
  let lent = null;
  /** What was measured in the visitor's own run, the latest there was. @type {Alone | null} */
  let here = null;
  /** The recorded run in place of one that cannot show the steps. @type {string | null} */
  let standIn = null;
  /** What is lit. @type {HTMLElement | null} */
  let lit = null;
  let revealed = 0; // px, its height when the page was scrolled to it
  let isFollowing = false; // whether the light follows it
  let opening = Promise.resolve(); // until the run that was last asked for is on the stage
  const isReduced = root.classList.contains("reduced"); // within another page there is no room for it
  /** The step that the address asks for, until the page can show it. */
  let wanted = isReduced ? null : stepOf(new URLSearchParams(location.search).get(NAME));
  button.addEventListener("click", () => begin(1));
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("click", ({ target }) => {
    if (at && target instanceof Element && target.closest(".lecture")) end();
  }, true);
  return { allow, end, isOpen: () => at > 0 };

  /**
   * @param {boolean} allowed whether a complete run is on the stage
   * @param {boolean} isLast whether it is the one that the address asks for
   */
  function allow(allowed, isLast) {
    button.disabled = !allowed;
    if (!allowed || !isLast || wanted === null) return;
    const step = wanted;
    wanted = null;
    begin(step);
  }

  /** @param {number} step */
  async function begin(step) {
    if (at) return go(step);
    found = { focus: document.activeElement, tab: page.dataset.tab ?? "text", pinned: stage.pinned() };
    standIn = substitute(stage.run);
    if (!stage.run.recorded) here = aloneOf(stage.run) ?? here;
    root.classList.add("touring");
    card.hidden = false;
    await go(step);
    card.focus({ preventScroll: true });
  }

  /** @param {number} step */
  async function go(step) {
    if (step < 1) return;
    if (step > STEPS.length) return end();
    at = step;
    const { name, lit: selector, pins, opens, shows } = STEPS[step - 1];
    stage.select(shows ?? "text");
    if (selector.startsWith(".tabs")) stage.unfold();
    opening = opening.then(() => open(step, opens ?? standIn));
    await opening;
    if (at !== step) return; // another one was asked for meanwhile, or the end
    stage.showAll();
    const token = pins?.(stage.run.rounds);
    const focused = document.activeElement; // unpinning moves the focus to the token
    if (token) stage.pin(token);
    else stage.unpin();
    if (focused instanceof HTMLElement && card.contains(focused)) focused.focus({ preventScroll: true });
    write(STEPS[step - 1]);
    mark(NAME, String(step));
    lit = page.querySelector(selector);
    card.dataset.step = name;
    reveal();
    if (!isFollowing) follow();
  }

  /**
   * @param {number} step
   * @param {string | null} name of the recorded run that it is about; null: the visitor's own
   */
  async function open(step, name) {
    if (at !== step || name === lent) return;
    if (lent) stage.giveBack();
    lent = null;
    if (!name || !await stage.lend(name)) return;
    if (at) lent = name;
    else stage.giveBack(); // the tour has ended meanwhile
  }

  /** @param {boolean} restores whether the stage stays as it was, and no other run comes */
  function end(restores = true) {
    if (!at) return;
    if (STEPS[at - 1].shows) stage.select("text");
    at = 0;
    wanted = null;
    card.hidden = light.hidden = true;
    root.classList.remove("touring");
    mark(NAME, null);
    lit = null;
    if (lent) stage.giveBack();
    if (restores) {
      stage.unpin();
      if (found?.pinned) stage.pin(/** @type {Drafted | Own} */ (found.pinned));
      stage.select(found?.tab ?? "text");
      const { focus } = found ?? {};
      const back = focus instanceof HTMLElement && focus !== document.body && focus.isConnected ? focus : button;
      back.focus({ preventScroll: true });
    }
    lent = found = null;
  }

  /** @param {Step} step */
  function write(step) {
    const { name, formula, tabs = [] } = step;
    const shown = /** @type {Shown} */ (stage.run);
    part("title").textContent = say(`tour.${name}.title`);
    part("place").textContent = say("tour.place", { step: at, steps: STEPS.length });
    fill(part("words"), parted(wordsOf(step, shown, here)).map((text, place) => (place % 2 ? h("dfn", {}, text) : text)));
    part("lent").textContent = lent ? say("tour.lent", { name: say(`recorded.${lent}.name`) }) : "";
    const details = /** @type {HTMLDetailsElement} */ (part("details"));
    details.hidden = !formula;
    details.open = false;
    part("formula").textContent = formula ? say(`tour.${name}.formula`) : "";
    fill(part("tabs"), tabs.filter((tab) => page.querySelector(`.tabs [data-tab="${tab}"]`)).map(opener));
    const [back, next] = [part("back"), part("next")];
    if (at === 1 && document.activeElement === back) next.focus(); // what is hidden loses the focus
    back.hidden = at === 1;
    part("end").hidden = at === STEPS.length; // it is done there
    next.textContent = say(at === STEPS.length ? "tour.done" : "tour.next");
  }

  /** @param {string} tab */
  function opener(tab) {
    const selected = find(page, `.tabs [data-tab="${tab}"]`);
    return h("button", {
      onclick() {
        end();
        stage.select(tab);
        selected.focus({ preventScroll: true });
        selected.scrollIntoView({ block: "nearest" });
      },
    }, selected.textContent ?? "");
  }

  // Scrolls so that what is lit is seen, on a narrow screen above the card.
  function reveal() {
    if (!lit) return;
    makeRoom();
    revealed = lit.offsetHeight;
    lit.scrollIntoView({ block: "nearest", inline: "center", behavior: "instant" }); // a tab can be beside the screen
    const box = lit.getBoundingClientRect();
    const room = innerHeight - (matchMedia(NARROW).matches ? card.offsetHeight : 0);
    if (box.top >= GAP && box.bottom <= room - GAP) return;
    scrollBy({ top: box.top - Math.max(GAP, room - box.height - GAP), behavior: "instant" });
  }

  // What is lit can move at any time, and nothing tells of that.
  function follow() {
    isFollowing = at > 0;
    if (lit && STEPS[at - 1]?.shows && lit.offsetHeight !== revealed) reveal(); // a tab's content can come late
    place();
    if (isFollowing) requestAnimationFrame(follow);
  }

  // Puts the light around what is lit, and the card where it hides none of it.
  function place() {
    if (!at || !lit) {
      light.hidden = true;
      return;
    }
    const { left, top, width, height } = lit.getBoundingClientRect();
    light.hidden = width === 0;
    Object.assign(light.style, {
      left: `${left - GAP / 2}px`, top: `${top - GAP / 2}px`, width: `${width + GAP}px`, height: `${height + GAP}px`,
    });
    card.dataset.side = left > innerWidth / 2 ? "left" : "right";
    makeRoom();
  }

  // On a narrow screen the page ends above the card.
  function makeRoom() {
    root.style.setProperty("--tour-card", `${card.offsetHeight}px`);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key, target, ctrlKey, metaKey, altKey, shiftKey } = event;
    if (!at || ctrlKey || metaKey || altKey || shiftKey || !(target instanceof Element)) return;
    const isOurs = target === document.body || card.contains(target);
    if (key === "Escape" && !target.closest("#settings, #examples")) end();
    else if (isOurs && key === "ArrowRight") go(Math.min(at + 1, STEPS.length));
    else if (isOurs && key === "ArrowLeft") go(at - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function build() {
    /** @type {Record<string, HTMLElement>} */
    const parts = {
      title: h("h2", { class: "title" }), place: h("span", { class: "place" }), words: h("p", { class: "words" }),
      lent: h("p", { class: "lent" }), tabs: h("p", { class: "tabs" }), formula: h("code", { class: "formula" }),
      end: h("button", { class: "end", onclick: () => end() }, say("tour.end")),
      back: h("button", { class: "back", onclick: () => go(at - 1) }, say("tour.back")),
      next: h("button", { class: "next", onclick: () => go(at + 1) }),
    };
    parts.details = h("details", { class: "details" }, h("summary", {}, say("tour.formula")), parts.formula);
    const card = h("div", { class: "tour", hidden: true, tabindex: -1, role: "dialog", "aria-label": say("tour.name") },
      h("div", { "aria-live": "polite" }, parts.title, parts.words, parts.lent), parts.details, parts.tabs,
      h("div", { class: "buttons" }, parts.place, parts.end, parts.back, parts.next));
    const light = h("div", { class: "tour-light", hidden: true, "aria-hidden": "true" });
    append(document.body, [light, card]);
    return { card, light, part: (/** @type {string} */ name) => parts[name] };
  }
}
