// @ts-check
// The lecture mode: nothing but the text, the inspector, the outcome and the player, large enough for a hall,
// and keys that work wherever the focus is. It begins at the first token. Presenters send PageDown and PageUp.
// "Where drafts die" has its panel beside the whole text. Other tabs fill the screen alone (LECTURED in frame.py); the
// keys then do a step there, or bring the next cards. In the end the run is shown as it was.

import { find } from "../view/dom.js";
import { say } from "../view/words.js";

/** @import { Move, Player, Whereabouts } from "../view/player.js" */
/** @import { Text } from "../view/text.js" */

/** @type {Record<string, Move>} */
const KEYS = {
  " ": "play",
  ArrowRight: "round-on",
  PageDown: "round-on",
  ArrowLeft: "round-back",
  PageUp: "round-back",
  ArrowDown: "token-on",
  ArrowUp: "token-back",
  End: "end",
};
/** Keys for a panel's next cards, and for those before. @type {Record<string, 1 | -1>} */
const CARDS = { " ": 1, ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };
const LEAVING = ["Escape", "l", "L"];
const BLANKING = ["b", "B", "."]; // presenters send one of them
const FILLING = ["f", "F"];

/**
 * @param {HTMLElement} page
 * @param {Player} player
 * @param {Text} text
 * @param {Record<string, (by: number) => void>} steps of kept tabs, by their names: what the keys do there
 */
export function makeLecture(page, player, text, steps) {
  const root = document.documentElement;
  const button = find(page, ".lecture");
  let scrolled = 0; // how far the page was, to return there
  /** Where the run was, to return there. @type {Whereabouts | null} */
  let before = null;
  let stays = false; // the lecture goes on in the window
  button.addEventListener("click", () => (isOn() ? leave() : enter()));
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("keyup", (event) => meant(event) && event.preventDefault(), true);
  document.addEventListener("fullscreenchange", onScreen);

  function isOn() {
    return page.hasAttribute("data-lecture");
  }

  /** The panel that the lecture shows in place of the text. */
  function kept() {
    return page.querySelector(".lectured.selected");
  }

  function enter() {
    scrolled = root.scrollTop;
    toggle(true);
    before = kept() ? null : player.whereabouts();
    if (page.dataset.tab === "text") player.toStart();
    fillScreen();
  }

  function fillScreen() {
    root.requestFullscreen?.().catch(() => {}); // a frame may not; it is as good within the window
  }

  function fillOrStay() {
    if (!document.fullscreenElement) return fillScreen();
    stays = true;
    document.exitFullscreen().catch(() => {});
  }

  // Escape leaves the full screen before the page hears of it.
  function onScreen() {
    if (!document.fullscreenElement && !stays) leave();
    stays = false;
  }

  function leave() {
    if (!isOn()) return;
    toggle(false);
    if (before) player.returnTo(before);
    root.scrollTop = scrolled;
    if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
  }

  /** @param {boolean} on */
  function toggle(on) {
    page.toggleAttribute("data-lecture", on);
    page.removeAttribute("data-blank");
    root.classList.toggle("lecture-mode", on);
    button.setAttribute("aria-pressed", String(on));
    button.textContent = say(on ? "lecture.leave" : "lecture.begin");
    text.follow();
    text.reflow();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (!meant(event)) return;
    if (LEAVING.includes(event.key)) leave();
    else if (FILLING.includes(event.key)) fillOrStay();
    else if (BLANKING.includes(event.key)) page.toggleAttribute("data-blank");
    else if (kept()) step(CARDS[event.key]);
    else player.move(event.shiftKey ? byToken(event.key) : KEYS[event.key]);
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {1 | -1} way */
  function step(way) {
    const own = steps[page.dataset.tab ?? ""];
    if (own) return own(way);
    const cards = kept()?.querySelector(".cards");
    cards?.scrollBy({ left: way * cards.clientWidth });
  }

  /** @param {string} key */
  function byToken(key) {
    return { ArrowRight: /** @type {Move} */ ("token-on"), ArrowLeft: /** @type {Move} */ ("token-back") }[key]
      ?? KEYS[key];
  }

  /**
   * Whether a key is for the lecture and not for something that takes keys itself.
   * @param {KeyboardEvent} event
   */
  function meant({ key, target, ctrlKey, metaKey, altKey }) {
    if (!isOn() || ctrlKey || metaKey || altKey) return false;
    const isAt = (/** @type {string} */ selector) => target instanceof Element && target.matches(selector);
    if (isAt('select, textarea, input:not([type="range"])')) return false;
    if ([...LEAVING, ...BLANKING, ...FILLING].includes(key)) return true;
    if (!kept()) return key in KEYS;
    if (key === " " && isAt(".lectured *")) return false; // it presses what has the focus
    return key in CARDS && !(key.startsWith("Arrow") && isAt('input, [role="slider"]'));
  }
}
