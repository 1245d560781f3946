// @ts-check
// A round in slow motion, where the inspector has nothing to tell: the target reads its weights once, for one row
// or for all rows of a check. The lengths are this run's own times.

import { fill, h } from "./dom.js";
import { fixed } from "./format.js";
import { depthsOf } from "./run.js";
import { say } from "./words.js";

/** @import { RunSetting, Checks } from "./messages.d.ts" */
/** @import { Round, Run } from "./run.js" */
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
  let tokens = 0; // that such a check can bring
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
    if (checks && checks !== shown) {
      tokens = tokensAtMost(run.rounds, checks.rows);
      draw(checks);
    }
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
    const [alone, together] = lanesOf(checks, tokens);
    fill(figure,
      h("figcaption", {}, say("slowMotion.title", { tokens })),
      heading(say("slowMotion.alone"), fixed(checks.plain_ms)),
      picture(alone),
      h("small", { class: LATER }, say("slowMotion.spread", range(checks.plain_spread))),
      heading(say("slowMotion.together", { count: rows - 1 }), `${fixed(checks.draft_ms)} + ${fixed(checks.verify_ms)}`,
        tokens < rows ? say("slowMotion.ofTree") : ""),
      picture(together),
      h("small", { class: LATER }, say("slowMotion.checking", range(checks.verify_spread))),
      h("p", { class: LATER }, [say("slowMotion.once", { rows }), comparedInWords(checks)].join(" ")),
      h("button", { class: LATER, onclick: play }, say("slowMotion.again")));
  }

  function play() {
    if (!shown) return;
    const pictures = figure.querySelectorAll(".lane");
    lanesOf(shown, tokens).forEach((lane, at) => animate(pictures[at], lane, setting?.manner === "chain"));
  }
}

/**
 * How many tokens a check of so many rows can bring: those of the longest path that was drafted for one, and one more.
 * @param {Round[]} rounds
 * @param {number} rows
 */
export function tokensAtMost(rounds, rows) {
  return rounds.filter(({ draft }) => draft.length === rows - 1).reduce((most, round) => Math.max(most, depthsOf(round)), 0) + 1;
}

/** @param {Checks} checks @param {number} tokens that can come @returns {[alone: Lane, together: Lane]} */
export function lanesOf({ plain_ms, draft_ms, verify_ms }, tokens) {
  const longest = Math.max(plain_ms, draft_ms + verify_ms);
  return [
    { tokens: 1, from: 0, to: plain_ms / longest },
    { tokens, from: draft_ms / longest, to: (draft_ms + verify_ms) / longest },
  ];
}

/**
 * How many times as long a check took, as far as it can be told.
 * @param {Checks} checks
 */
export function comparedInWords({ rows, ratio, interval }) {
  const [low, high] = interval;
  const told = { rows, ...range(interval) };
  if (high < 1) return say("slowMotion.noLonger", told);
  if (low <= 1) return say("slowMotion.alike", told);
  return say("slowMotion.took", { ...told, ratio: fixed(ratio) });
}

/** @param {number[]} ends */
function range([low, high]) {
  return { low: fixed(low), high: fixed(high) };
}

/**
 * @param {string} words
 * @param {string} ms
 * @param {string} more
 */
function heading(words, ms, more = "") {
  return h("p", {}, h("span", {}, words, h("span", { class: LATER }, more)), h("b", {}, ms, say("slowMotion.ms")));
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
