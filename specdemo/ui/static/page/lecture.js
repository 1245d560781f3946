// @ts-check
// The lecture: one sequence of scenes, each large enough for a hall, and keys that work wherever the focus is. The arrow
// keys go through what a scene shows, and from its end to the next one. Presenters send PageDown and PageUp. In the end
// the page is as it was.

import { fill, find, h } from "../view/dom.js";
import { say } from "../view/words.js";
import { mark } from "./address.js";

/** @import { Move, Player, Whereabouts } from "../view/player.js" */
/** @import { Text } from "../view/text.js" */
/** @import { Stage } from "./stage.js" */
/** @import { Tabs } from "./tabs.js" */
/**
 * A scene. tab: that it is on. lends: a recorded run that it is about; the others are about the run on the stage. aside:
 * whether it is shown when it is asked for only.
 * @typedef {{ name: string, tab: string, lends?: string, aside?: boolean }} Scene
 */

/** @type {Scene[]} */
const SCENES = [
  ...["text", "figure", "trials", "worlds"].map((name) => ({ name, tab: name })),
  { name: "tree", tab: "text", lends: "tree" },
  ...["exercises", "guess"].map((name) => ({ name, tab: name })),
  ...["gamma", "race", "compare", "advise", "positions", "exactness"].map((name) => ({ name, tab: name, aside: true })),
];
/** In the text. @type {Record<string, Move>} */
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
/** @type {Record<string, 1 | -1>} */
const WAYS = { " ": 1, ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };
const NAME = "lecture"; // in the address
const nameOf = (/** @type {string} */ scene) => say(scene === "tree" ? "lecture.tree" : `page.tabs.${scene}`);

/**
 * @param {HTMLElement} page
 * @param {object} around
 * @param {Player} around.player
 * @param {Text} around.text
 * @param {Stage | null} around.stage null: there are no other runs
 * @param {Tabs} around.tabs
 * @param {Record<string, (by: 1 | -1) => boolean>} around.steps of some tabs, by their names: what the arrow keys do
 *   there, and whether there was anything left to do
 */
export function makeLecture(page, { player, text, stage, tabs, steps }) {
  const root = document.documentElement;
  const button = find(page, ".lecture");
  const menu = /** @type {HTMLSelectElement} */ (find(page, ".scenes select"));
  const recorded = (page.dataset.recorded ?? "").split(" ");
  const scenes = SCENES.filter(({ tab, lends }) => page.querySelector(`.tabs [data-tab="${tab}"]`)
    && (!lends || recorded.includes(lends)));
  const last = scenes.filter(({ aside }) => !aside).length - 1; // of the sequence
  let at = -1; // which scene is shown; -1 outside of a lecture
  let main = 0; // that of the sequence which was shown last
  /** What the page showed before. @type {Whereabouts & { tab: string, scrolled: number } | null} */
  let before = null;
  let stays = false; // the lecture goes on in the window
  /** Of the notes. @type {Window | null} */
  let desk = null;
  const isOn = () => at >= 0;
  const blank = () => page.toggleAttribute("data-blank");
  /** What the keys do wherever the focus is. @type {Record<string, () => void>} */
  const commands = { Escape: leave, l: leave, b: blank, ".": blank, f: fillOrStay, n: openNotes, k: lock };
  fill(menu, scenes.map(({ name }, index) => h("option", { value: name }, `${index + 1} ${nameOf(name)}`)));
  menu.addEventListener("change", () => {
    go(menu.selectedIndex);
    menu.blur(); // the keys are the lecture's again
  });
  button.addEventListener("click", () => (isOn() ? leave() : begin()));
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("keyup", (event) => doneBy(event) && event.preventDefault(), true);
  document.addEventListener("fullscreenchange", onScreen);
  return { enter };

  function begin() {
    enter(page.dataset.tab);
    fillScreen();
  }

  /** @param {string | null} [name] of a scene; else the first begins */
  function enter(name) {
    if (isOn()) leave();
    before = { ...player.whereabouts(), tab: page.dataset.tab ?? "text", scrolled: root.scrollTop };
    toggle(true);
    player.prefer("steps");
    go(Math.max(0, scenes.findIndex((scene) => scene.name === name)));
  }

  function leave() {
    if (!isOn() || !before) return;
    if (scenes[at].lends) stage?.giveBack();
    at = -1;
    mark(NAME, null);
    player.prefer("");
    toggle(false);
    tabs.select(before.tab);
    player.returnTo(before);
    root.scrollTop = before.scrolled;
    if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
    desk?.close();
  }

  /** @param {boolean} on */
  function toggle(on) {
    page.toggleAttribute("data-lecture", on);
    page.removeAttribute("data-blank");
    lock(false);
    root.classList.toggle("lecture-mode", on);
    button.setAttribute("aria-pressed", String(on));
    button.textContent = say(on ? "lecture.leave" : "lecture.begin");
    text.follow();
    text.reflow();
  }

  /**
   * Shows a scene.
   * @param {number} to
   * @param {1 | -1} [way] by which it is come to
   */
  async function go(to, way = 1) {
    if (!scenes[to] || to === at) return;
    const { name, tab, lends, aside } = scenes[to];
    if (scenes[at]?.lends) stage?.giveBack();
    at = to;
    if (!aside) main = to;
    menu.selectedIndex = to;
    mark(NAME, name);
    tabs.select(tab);
    drawNotes();
    if (lends && !await stage?.lend(lends)) return;
    if (at !== to) return lends ? stage?.giveBack() : undefined;
    if (tab === "text" && way > 0) player.toStart();
  }

  /** From the end of a scene to the next. What was asked for leads back. @param {1 | -1} way */
  function next(way) {
    const to = scenes[at].aside ? main : at + way;
    if (to <= last) go(to, way);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const does = doneBy(event);
    if (!does) return;
    does();
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * What a key does in the lecture; null where it is for something that takes keys itself.
   * @param {KeyboardEvent} event
   * @returns {(() => void) | null}
   */
  function doneBy({ key, target, shiftKey, ctrlKey, metaKey, altKey }) {
    if (!isOn() || ctrlKey || metaKey || altKey) return null;
    const isAt = (/** @type {string} */ selector) => target instanceof Element && target.matches(selector);
    if (isAt('select, textarea, input:not([type="range"])') && !key.startsWith("Page")) return null;
    const command = commands[key.length === 1 ? key.toLowerCase() : key];
    if (command) return command;
    if (/^[1-9]$/.test(key)) return () => go(Number(key) - 1);
    if (page.dataset.tab === "text" || page.dataset.tab === "positions") {
      const move = (shiftKey && { ArrowRight: /** @type {Move} */ ("token-on"), ArrowLeft: /** @type {Move} */ ("token-back") }[key])
        || KEYS[key];
      return move ? () => player.move(move) || (!shiftKey && key in WAYS && next(WAYS[key])) : null;
    }
    if (key === " " && isAt(".panel *")) return null; // it presses what has the focus
    const isMoving = key.startsWith("Arrow") && isAt('input, [role="slider"], [role="listbox"]');
    return key in WAYS && !isMoving ? () => step(WAYS[key]) || next(WAYS[key]) : null;
  }

  /** @param {1 | -1} way */
  function step(way) {
    const { tab } = scenes[at];
    if (steps[tab]) return steps[tab](way);
    const cards = find(page, ".panel.selected").querySelector(".cards");
    const from = cards?.scrollLeft;
    cards?.scrollBy({ left: way * cards.clientWidth, behavior: "instant" });
    return cards?.scrollLeft !== from;
  }

  /** Nothing but the keys changes anything. */
  function lock(on = !page.hasAttribute("data-locked")) {
    page.toggleAttribute("data-locked", on);
    for (const part of page.querySelectorAll(".workspace, .panel")) part.toggleAttribute("inert", on);
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

  // The notes, in a window of their own: for a second screen, or to be printed.

  function openNotes() {
    stays = document.fullscreenElement !== null; // another window can end the full screen
    desk = open("", "specdemo-notes", "popup,width=640,height=800");
    drawNotes();
  }

  function drawNotes() {
    if (!desk || desk.closed) return;
    const { document: paper } = desk;
    paper.title = say("lecture.notes.title");
    fill(paper.head, h("style", {}, "body { font: 20px/1.5 sans-serif; margin: 1em } .now { background: #fe9 }"));
    fill(paper.body, scenes.map(({ name }, index) => h("section", { class: index === at && "now" },
      h("h2", {}, `${index + 1} ${nameOf(name)}`), h("p", {}, say(`lecture.notes.${name}`)))));
    paper.querySelector(".now")?.scrollIntoView({ block: "center" });
  }
}
