// @ts-check
// A round in slow motion, where the inspector has nothing to tell: the target reads its weights once, for one row
// or for all rows of a check. The lengths are this run's own times.

import { fill, h } from "./dom.js";
import { fixed } from "./format.js";
import { say } from "./words.js";

/** @import { RunSetting, Checks } from "./messages.d.ts" */
/** @import { Run } from "./run.js" */
/**
 * A lane of the figure, by the clock of both. tokens: how many can come. from, to: when the weights are read, as shares of
 * the longer lane.
 * @typedef {{ tokens: number, from: number, to: number }} Lane
 */

const LONGEST = 6000; // ms on the screen that the longer lane takes
const LATER = "later"; // what a newcomer is spared at first

/**
 * @param {HTMLElement} panel the inspector
 */
export function makeSlowMotion(panel) {
  const figure = h("figure", { class: "slow-motion", hidden: true });
  panel.append(figure);
  /** @type {Checks | null} */
  let shown = null;
  /** @type {RunSetting | null} */
  let setting = null;
  let isAtRest = false; // whether all of the run is on the stage
  let isSeen = false;
  let hasPlayed = matchMedia("(prefers-reduced-motion: reduce)").matches; // it plays by itself once
  new IntersectionObserver(([entry]) => {
    isSeen = entry.isIntersecting;
    playOnce();
  }, { threshold: 0.5 }).observe(figure);
  return { show };

  /**
   * @param {Run} run
   * @param {boolean} whole whether all of it is on the stage
   */
  function show(run, whole) {
    const checks = run.outcome?.checks ?? null;
    isAtRest = whole;
    setting = run.setting;
    figure.hidden = checks === null;
    if (checks && checks !== shown) draw(checks);
    shown = checks;
    playOnce();
  }

  function playOnce() {
    if (hasPlayed || !isSeen || !isAtRest || !shown) return;
    hasPlayed = true;
    play();
  }

  /** @param {Checks} checks */
  function draw(checks) {
    const { rows } = checks;
    const [alone, together] = lanesOf(checks);
    fill(figure,
      h("figcaption", {}, say("slowMotion.title", { tokens: rows })),
      heading(say("slowMotion.alone"), fixed(checks.plain_ms)),
      picture(alone),
      heading(say("slowMotion.together", { count: rows - 1 }), `${fixed(checks.draft_ms)} + ${fixed(checks.verify_ms)}`),
      picture(together),
      h("p", { class: LATER }, [say("slowMotion.once", { rows }), comparedInWords(checks)].join(" ")),
      h("button", { class: LATER, onclick: play }, say("slowMotion.again")));
  }

  function play() {
    if (!shown) return;
    const pictures = figure.querySelectorAll(".lane");
    lanesOf(shown).forEach((lane, at) => animate(pictures[at], lane, setting?.manner === "chain"));
  }
}

/** @param {Checks} checks @returns {[alone: Lane, together: Lane]} */
export function lanesOf({ rows, plain_ms, draft_ms, verify_ms }) {
  const longest = Math.max(plain_ms, draft_ms + verify_ms);
  return [
    { tokens: 1, from: 0, to: plain_ms / longest },
    { tokens: rows, from: draft_ms / longest, to: (draft_ms + verify_ms) / longest },
  ];
}

/**
 * How many times as long a check took, as far as it can be told.
 * @param {Checks} checks
 */
export function comparedInWords({ rows, ratio, interval }) {
  const [low, high] = interval;
  const told = { rows, low: fixed(low), high: fixed(high) };
  if (high < 1) return say("slowMotion.noLonger", told);
  if (low <= 1) return say("slowMotion.alike", told);
  return say("slowMotion.took", { ...told, ratio: fixed(ratio) });
}

/**
 * @param {string} words
 * @param {string} ms
 */
function heading(words, ms) {
  return h("p", {}, h("span", {}, words), h("b", {}, ms, say("slowMotion.ms")));
}

/** The words beside it say the same. @param {Lane} lane */
function picture({ tokens, from, to }) {
  return h("div", { class: "lane", "aria-hidden": "true", "--from": from, "--to": to },
    h("span", { class: "drafted" }, h("i")),
    h("span", { class: "weights" }, h("i")),
    h("span", { class: "rows" }, Array.from({ length: tokens }, () => h("i"))));
}

/**
 * Lets it come about as in the round: the tokens are drafted, the rows pass through the weights, and only then are
 * they tokens of the text.
 * @param {Element} picture
 * @param {Lane} lane
 * @param {boolean} inTurn whether tokens are drafted one after another
 */
function animate(picture, { tokens, from, to }, inTurn) {
  const [start, end] = [from * LONGEST, to * LONGEST];
  const reading = { delay: start, duration: end - start, fill: /** @type {const} */ ("backwards") };
  const wiped = { clipPath: ["inset(0 100% 0 0)", "inset(0)"] };
  const way = (to - from) * picture.clientWidth;
  const [drafting, weights] = picture.querySelectorAll(".drafted > i, .weights > i");
  drafting.animate(wiped, start);
  weights.animate(wiped, reading);
  picture.querySelector(".rows")?.animate({ transform: [`translateX(${-way}px)`, "none"] }, reading);
  picture.querySelectorAll(".rows > i").forEach((row, at) => {
    const drafted = inTurn ? (start * at) / Math.max(1, tokens - 1) : at && start;
    row.animate({ opacity: [0, 0] }, drafted);
    row.animate({ background: ["var(--ink)", "var(--ink)"] }, end);
  });
}
