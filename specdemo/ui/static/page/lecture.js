// @ts-check
// The lecture mode: nothing but the text, the inspector, the outcome and the player, large enough for a hall,
// and keys that work wherever the focus is. It begins at the first token. Presenters send PageDown and PageUp.

import { find } from "../view/dom.js";
import { say } from "../view/words.js";

/** @import { Move, Player } from "../view/player.js" */
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
/** @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowUp: 1, PageDown: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: -1 }; // of a slider
const LEAVING = ["Escape", "l", "L"];
const BLANKING = ["b", "B", "."]; // presenters send one of them
const FILLING = ["f", "F"];

/**
 * @param {HTMLElement} page
 * @param {Player} player
 * @param {Text} text
 * @param {() => void} showText selects the tab with the text and the inspector
 * @param {Record<string, (by: number) => void>} kept tabs that a lecture can be held on as well, and what the arrow
 * keys do there
 */
export function makeLecture(page, player, text, showText, kept) {
  const root = document.documentElement;
  const button = find(page, ".lecture");
  let scrolled = 0; // how far the page was, to return there
  let stays = false; // the lecture goes on in the window
  button.addEventListener("click", () => (isOn() ? leave() : enter()));
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("keyup", (event) => meant(event) && event.preventDefault(), true);
  document.addEventListener("fullscreenchange", onScreen);

  function isOn() {
    return page.hasAttribute("data-lecture");
  }

  function stepper() {
    return kept[page.dataset.tab ?? ""];
  }

  function enter() {
    scrolled = root.scrollTop;
    if (!stepper()) showText();
    toggle(true);
    if (!stepper()) player.toStart();
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
    else if (stepper()) stepper()(STEPS[event.key] ?? 0);
    else player.move(event.shiftKey ? byToken(event.key) : KEYS[event.key]);
    event.preventDefault();
    event.stopPropagation();
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
    const typing = target instanceof Element && target.matches('select, textarea, input:not([type="range"])');
    return !typing && (key in KEYS || [...LEAVING, ...BLANKING, ...FILLING].includes(key));
  }
}
