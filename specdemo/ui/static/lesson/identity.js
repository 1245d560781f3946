// @ts-check
// One drafted token by the speculative rule, and by the rule with a mistake in it: what is drafted, when it is
// accepted, what replaces it, and what comes out. By formula, for all tokens at once. Leviathan et al. 2023,
// algorithm 1; the same as `speculative` in specdemo/engine/rules.py.

import { normalised, sumOf } from "./shaping.js";

/**
 * What can be done wrong. from_p: a rejected draft is replaced by a draw from p. told: the drafter draws from q
 * and tells a flatter one. soft: greedy drafts are judged by the probabilities before the sampler. likelier: a
 * draft is accepted when p > q, and never otherwise.
 * @typedef {"from_p" | "told" | "soft" | "likelier"} Mistake
 */
/**
 * Every list has a number for each token.
 * @typedef {object} Trial
 * @property {number[]} p what should come out
 * @property {number[]} drawn what the draft is drawn from: q
 * @property {number[]} judged what stands for p in the rule
 * @property {number[]} told what stands for q in the rule
 * @property {number[]} accept the probability that this token is accepted once it is drafted: min(1, p/q)
 * @property {number[]} replacement what the replacement is drawn from
 * @property {number[]} accepted the probability that this token comes out as an accepted draft: min(p, q)
 * @property {number[]} replaced the probability that it comes out as a replacement: (p − q)₊
 * @property {number[]} out their sum
 * @property {number} rate the acceptance rate: the sum of `accepted`
 * @property {number} distance the total variation distance between `out` and p
 */

/** @type {Mistake[]} */
export const MISTAKES = ["from_p", "told", "soft", "likelier"];
const TOLD_TEMPERATURE = 2; // at which the drafter tells its q, where it tells another than it drew from
const ROUNDING = 1e-9; // what sums may be off by

/**
 * @param {number[]} p
 * @param {number[]} q
 * @param {Set<Mistake>} [mistakes]
 * @param {{ p: number[], q: number[] }} [raw] before the sampler; what the mistake "soft" judges by
 * @returns {Trial}
 */
export function trialOf(p, q, mistakes = new Set(), raw = { p, q }) {
  const [judged, known] = mistakes.has("soft") ? [raw.p, raw.q] : [p, q];
  const told = mistakes.has("told") ? flattened(known) : known;
  const accept = told.map((one, at) => {
    if (mistakes.has("likelier")) return Number(judged[at] > one);
    return one > 0 ? Math.min(1, judged[at] / one) : 1;
  });
  const accepted = q.map((one, at) => one * accept[at]);
  const rate = sumOf(accepted);
  const replacement = mistakes.has("from_p") ? judged : residualOf(judged, told);
  const replaced = replacement.map((one) => one * Math.max(0, 1 - rate));
  const out = accepted.map((one, at) => one + replaced[at]);
  const distance = distanceOf(out, p);
  return { p, drawn: q, judged, told, accept, replacement, accepted, replaced, out, rate, distance };
}

/** Whether what comes out is p. @param {Trial} trial */
export function isExact({ distance }) {
  return distance < ROUNDING;
}

/**
 * The residual (p − q)₊ divided by its mass; p where that is 0, as it is where p = q.
 * @param {number[]} p
 * @param {number[]} q
 */
function residualOf(p, q) {
  const residual = p.map((one, at) => Math.max(0, one - q[at]));
  return sumOf(residual) > 0 ? normalised(residual) : p;
}

/** The same at a higher temperature. @param {number[]} q */
function flattened(q) {
  return normalised(q.map((one) => one ** (1 / TOLD_TEMPERATURE)));
}

/**
 * The total variation distance: the share of the probability that is at the wrong tokens.
 * @param {number[]} a
 * @param {number[]} b
 */
export function distanceOf(a, b) {
  return sumOf(a.map((one, at) => Math.abs(one - b[at]))) / 2;
}

/**
 * The token at `u` of the cumulative distribution; never one of weight 0.
 * @param {number[]} weights
 * @param {number} u in [0, 1)
 */
export function pick(weights, u) {
  const point = u * sumOf(weights);
  let sum = 0;
  let found = 0;
  for (const [at, weight] of weights.entries()) {
    if (weight <= 0) continue;
    found = at;
    sum += weight;
    if (sum > point) break;
  }
  return found;
}
