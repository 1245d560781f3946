// @ts-check
// Why a check can pay, where the inspector has nothing to tell: the target reads its weights once, for one row or for
// all rows of a check. The lengths are this run's own times.

import { fill, h } from "./dom.js";
import { fixed } from "./format.js";
import { say } from "./words.js";

/** @import { Checks } from "./messages.d.ts" */
/** @import { Run } from "./run.js" */
/**
 * A lane of the figure, by the clock of both. tokens: how many can come. from, to: when the weights are read, as shares of
 * the longer lane.
 * @typedef {{ tokens: number, from: number, to: number }} Lane
 */

/** @param {HTMLElement} panel the inspector */
export function makeCheck(panel) {
  const figure = h("figure", { class: "one-check", hidden: true });
  panel.append(figure);
  /** @type {Checks | null} */
  let shown = null;
  return { show };

  /** @param {Run} run */
  function show(run) {
    const checks = run.outcome?.checks ?? null;
    figure.hidden = checks === null;
    if (checks && checks !== shown) draw(checks);
    shown = checks;
  }

  /** @param {Checks} checks */
  function draw(checks) {
    const { rows } = checks;
    const [alone, together] = lanesOf(checks);
    fill(figure,
      h("figcaption", {}, say("check.title", { tokens: rows })),
      heading(say("check.alone"), fixed(checks.plain_ms)),
      lane(alone),
      heading(say("check.together", { count: rows - 1 }), `${fixed(checks.draft_ms)} + ${fixed(checks.verify_ms)}`),
      lane(together),
      h("p", { class: "later" }, [say("check.once", { rows }), comparedInWords(checks)].join(" ")));
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
  if (high < 1) return say("check.noLonger", told);
  if (low <= 1) return say("check.alike", told);
  return say("check.took", { ...told, ratio: fixed(ratio) });
}

/**
 * @param {string} words
 * @param {string} ms
 */
function heading(words, ms) {
  return h("p", {}, h("span", {}, words), h("b", {}, ms, say("check.ms")));
}

/** The words beside it say the same. @param {Lane} lane */
function lane({ tokens, from, to }) {
  return h("div", { class: "lane", "aria-hidden": "true", "--from": from, "--to": to },
    h("span", { class: "drafted" }),
    h("span", { class: "weights" }),
    h("span", { class: "rows" }, Array.from({ length: tokens }, () => h("i"))));
}
