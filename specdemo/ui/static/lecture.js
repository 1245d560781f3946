// @ts-check
// The lecture mode: nothing but the text, the inspector, the outcome and the player, large enough for a hall,
// and keys that work wherever the focus is. Presenters send PageDown and PageUp.

import { find } from "./dom.js";

/** @import { Move, Player } from "./player.js" */
/** @import { Text } from "./text.js" */

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
const LEAVING = ["Escape", "l", "L"];

/**
 * @param {HTMLElement} page
 * @param {Player} player
 * @param {Text} text
 */
export function makeLecture(page, player, text) {
  const root = document.documentElement;
  const button = find(page, ".lecture");
  let scrolled = 0; // how far the page was, to return there
  button.addEventListener("click", () => (isOn() ? leave() : enter()));
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("keyup", (event) => meant(event) && event.preventDefault(), true);
  document.addEventListener("fullscreenchange", () => !document.fullscreenElement && leave());

  function isOn() {
    return page.hasAttribute("data-lecture");
  }

  function enter() {
    scrolled = root.scrollTop;
    toggle(true);
    root.requestFullscreen?.().catch(() => {}); // a frame may not; it is as good within the window
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
    root.classList.toggle("lecture-mode", on);
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Leave" : "Lecture";
    text.follow();
    text.reflow();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (!meant(event)) return;
    if (LEAVING.includes(event.key)) leave();
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
    return !typing && (key in KEYS || LEAVING.includes(key));
  }
}
