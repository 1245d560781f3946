// @ts-check
// The timeline: a column for each round. What the round brought is above the line, what it cost below. A
// column is one element, painted by the style sheet from a few custom properties, so that thousands of them
// stay cheap.

import { append, around, fill, h, neighbour, within } from "./dom.js";
import { roundedUp } from "./format.js";
import { acceptedIn, rejectedOf } from "./run.js";
import { isFromServer } from "./served.js";
import { roundInWords } from "./verdict.js";
import { say } from "./words.js";

/** @import { Attributes, Child } from "./dom.js" */
/** @import { Round } from "./run.js" */
/** @typedef {ReturnType<typeof makeTimeline>} Timeline */

const content = () => [
  h("p", { class: "at-first" }, say("timeline.atFirst")),
  h("p", { class: "key" },
    h("span", { class: "name" }, say("timeline.name")),
    keyed("accepted-brick", {}, say("view.fates.accepted")),
    keyed("bonus-brick", {}, words(say("timeline.bonusSampled"), { greedy: say("timeline.bonusGreedy") })),
    keyed("resampled-brick", {}, words(say("view.fates.resampled"), { greedy: say("view.greedyFates.resampled") })),
    keyed("dropped-line", {}, say("timeline.rejectedDiscarded")),
    keyed("fork", { class: "of-trees" }, say("timeline.ofTree")),
    keyed("draft-bar", { "data-only": "engine" }, say("timeline.drafting")),
    keyed("verify-bar", {}, [words(say("timeline.verifying"), { served: say("timeline.arrival") }), h("span", { class: "scale" })])),
  h("div", { class: "rail", role: "toolbar", "aria-label": say("timeline.rail") }),
  h("p", { class: "readout", "aria-hidden": "true" }),
];
const keyed = (/** @type {string} */ sign, /** @type {Attributes} */ attributes, /** @type {Child} */ meaning) => (
  h("span", attributes, h("i", { class: sign }), meaning));
/** Words that are others in a greedy run, or in a server's: `showWordsOfRun` puts them in. */
const words = (/** @type {string} */ usual, { greedy = "", served = "" }) => (
  h("span", { "data-greedy-words": greedy || null, "data-served-words": served || null }, usual));

const FIRST_PLACES = 40;
const FIRST = 2 * 8; // costs, two for each round

/**
 * @param {HTMLElement} strip
 * @param {{ jump: (index: number) => void, point: (index: number | null) => void }} reader
 */
export function makeTimeline(strip, { jump, point }) {
  fill(strip, content());
  const [rail, readout, scale] = [".rail", ".readout", ".scale"].map(within(strip));
  const room = h("span", { class: "room" }); // after the columns
  /** @type {HTMLElement[]} */
  const marks = []; // by the round's index
  /** @type {number[]} */
  let costs = []; // milliseconds of everything that was drafted and verified; a server's prefill is none of it
  let places = FIRST_PLACES; // that there is room for, while the run goes on
  let longest = 0; // milliseconds of a full bar; 0 until there is one
  let isWhole = false; // whether the scale is that of the whole run
  let tallest = 0; // the most bricks in a column
  /** @type {number | null} */
  let lit = null; // the round that is lit
  let tabStop = 0; // the round that Tab comes to
  let following = true; // the end stays in view until the reader scrolls back
  let scrolledTo = 0;
  let frame = 0;
  rail.addEventListener("click", onClick);
  rail.addEventListener("keydown", onKey);
  rail.addEventListener("scroll", onScroll, { passive: true });
  rail.addEventListener("pointerover", (event) => pointAt(event.target));
  rail.addEventListener("pointerleave", () => pointAt(null));
  rail.addEventListener("focusin", (event) => pointAt(event.target));
  rail.addEventListener("focusout", () => pointAt(null));
  clear();
  return { clear, add, cut, leaveRoom, light, scaleBy };

  function clear() {
    cancelAnimationFrame(frame);
    rail.replaceChildren(room);
    places = FIRST_PLACES;
    marks.length = 0;
    costs = [];
    longest = 0;
    isWhole = false;
    tallest = 0;
    lit = null;
    tabStop = 0;
    following = true;
    scrolledTo = 0;
    frame = 0;
    readout.textContent = scale.textContent = "";
    strip.dataset.rounds = "0";
    delete strip.dataset.trees;
  }

  /** @param {Round[]} rounds */
  function add(rounds) {
    if (!rounds.length) return;
    append(rail, [rounds.map(draw), room]);
    strip.dataset.rounds = String(marks.length);
    const before = costs.length;
    let most = tallest;
    for (const round of rounds) {
      most = Math.max(most, acceptedIn(round) + droppedOf(round) + 1);
      if (isWhole || 2 * round.index < costs.length) continue;
      const [drafting, verifying] = scaledCosts(round);
      costs.push(drafting, verifying);
    }
    if (most > tallest) rail.style.setProperty("--bricks", String((tallest = most)));
    // Only when their number has doubled: a new scale paints every column again.
    if (Math.floor(Math.log2(costs.length)) > Math.floor(Math.log2(before))) setScale();
    if (following && !frame) frame = requestAnimationFrame(showEnd);
  }

  /**
   * The scale of a run that is complete, whichever part of it is shown, and however it came.
   * @param {Round[]} rounds all
   */
  function scaleBy(rounds) {
    if (isWhole) return;
    costs = rounds.flatMap(scaledCosts);
    isWhole = true;
    setScale(0);
  }

  /** @param {Round} round */
  function scaledCosts(round) {
    return round.index === 0 && isFromServer(round) ? [0, 0] : costsOf(round);
  }

  // The costs stay, and with them the scale: the same rounds come again.
  /** @param {number} count the first rounds, which stay */
  function cut(count) {
    for (const mark of marks.splice(count)) mark.remove();
    if (lit !== null && lit >= count) light(null);
    if (tabStop >= count) {
      tabStop = 0;
      if (marks[0]) marks[0].tabIndex = 0;
    }
    strip.dataset.rounds = String(marks.length);
  }

  /**
   * Leaves room for the rounds that are still to come, or not all columns would become narrower, and be painted
   * again, with each round.
   * @param {number | null} all of the run's rounds; null while it goes on
   */
  function leaveRoom(all) {
    while (all === null && places < marks.length) places = Math.ceil(1.5 * places);
    room.style.setProperty("--places", String((all ?? places) - marks.length));
  }

  /** @param {Round} round */
  function draw(round) {
    const { index, next } = round;
    const [draft_ms, verify_ms] = costsOf(round);
    if (round.isTree) strip.dataset.trees = "";
    return marks[index] = h("span", {
      class: round.isTree ? "mark of-tree" : "mark",
      "data-index": index,
      "data-own": next ? next.fate : "none",
      role: "button",
      tabindex: index === tabStop ? 0 : -1,
      "aria-label": roundInWords(round),
      "--accepted": acceptedIn(round),
      "--own": next ? 1 : 0,
      "--dropped": droppedOf(round),
      "--draft": draft_ms,
      "--verify": verify_ms,
    });
  }

  /** The drafts that stand above the others: of a tree those that were judged. @param {Round} round */
  function droppedOf(round) {
    return round.isTree ? rejectedOf(round).length : round.draft.length - acceptedIn(round);
  }

  /**
   * The two bars of a round; of a server's only the second one, until it arrived.
   * @param {Round} round
   * @returns {[number, number]}
   */
  function costsOf({ draft_ms, verify_ms, arrival_ms }) {
    return [draft_ms ?? 0, arrival_ms ?? verify_ms ?? 0];
  }

  function setScale(soFar = longest) {
    const before = longest;
    longest = scaleFor(costs, soFar);
    if (longest === before) return;
    rail.style.setProperty("--longest", String(longest));
    scale.textContent = say("timeline.scale", { ms: longest });
  }

  // In a frame of its own, when the layout is due anyway.
  function showEnd() {
    frame = 0;
    rail.scrollLeft = 1e7;
  }

  // Only the reader scrolls back. A late event of the page's own scrolling finds the end farther on, which is
  // no reason to stop following it.
  function onScroll() {
    const now = rail.scrollLeft;
    if (now < scrolledTo - 1) following = false;
    else if (now + rail.clientWidth > rail.scrollWidth - 24) following = true;
    scrolledTo = now;
  }

  /**
   * @param {EventTarget | null} target
   * @returns {number | null}
   */
  function roundOf(target) {
    const mark = around(target, ".mark");
    return mark && Number(mark.dataset.index);
  }

  /** @param {EventTarget | null} target */
  function pointAt(target) {
    const index = roundOf(target);
    light(index);
    point(index);
  }

  /**
   * The round whose column is nearest: beside the last one, or where a finger missed.
   * @param {number} x
   */
  function nearest(x) {
    if (!marks.length) return null;
    const { left, width } = marks[0].getBoundingClientRect();
    return Math.min(Math.max(Math.floor((x - left) / width), 0), marks.length - 1);
  }

  /** @param {MouseEvent} event */
  function onClick(event) {
    const index = roundOf(event.target) ?? nearest(event.clientX);
    if (index === null) return;
    setTabStop(index);
    jump(index);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key, ctrlKey, metaKey, altKey } = event;
    const [index, next] = [roundOf(event.target), neighbour(event, marks, ["ArrowLeft", "ArrowRight"])];
    if (index === null || ctrlKey || metaKey || altKey) return;
    if (key === "Enter" || key === " ") jump(index);
    else if (next) {
      setTabStop(marks.indexOf(next));
      next.focus();
    } else if (key !== "ArrowLeft" && key !== "ArrowRight") return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} index */
  function setTabStop(index) {
    if (marks[tabStop]) marks[tabStop].tabIndex = -1;
    tabStop = index;
    marks[index].tabIndex = 0;
  }

  /**
   * Lights a round's column, or none.
   * @param {number | null} index
   * @param {boolean} reveal scrolls to the column, for a round that was chosen and not merely passed
   */
  function light(index, reveal = false) {
    if (lit !== null) marks[lit]?.classList.remove("lit");
    lit = index;
    const mark = index === null ? undefined : marks[index];
    mark?.classList.add("lit");
    readout.textContent = mark?.getAttribute("aria-label") ?? "";
    if (index === null || !mark || !reveal) return;
    setTabStop(index);
    const [left, right] = [mark.offsetLeft, mark.offsetLeft + mark.offsetWidth];
    const inView = left >= rail.scrollLeft && right <= rail.scrollLeft + rail.clientWidth;
    if (!inView) rail.scrollLeft = left - rail.clientWidth / 2; // scrollIntoView would scroll the page, too
  }
}

/**
 * How many milliseconds a full bar is: nearly all costs stay below, and longer ones end there. It is chosen with the
 * first rounds and later only ever doubles, so that bars that are there already rarely change.
 * @param {number[]} costs of drafting and verifying, in turns
 * @param {number} before the scale so far; 0 if there is none
 */
function scaleFor(costs, before) {
  if (!costs.length) return before;
  // The first rounds can be disturbed, and then they took too long: the least of them is a fair beginning.
  const verifying = costs.filter((_, at) => at % 2 === 1 && costs[at] > 0);
  const least = verifying.reduce((least, ms) => Math.min(least, ms), Infinity);
  const sorted = Float64Array.from(costs).sort();
  const usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
  let scale = (costs.length > FIRST && before) || roundedUp(Number.isFinite(least) ? 1.5 * least : Math.max(usual, 0.001));
  while (scale < usual) scale *= 2;
  return scale;
}
