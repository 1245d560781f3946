// @ts-check
// One drafted token by the speculative rule, and by the rule with a mistake in it: what is drafted, when it is
// accepted, what replaces it, and what comes out. By formula, for all tokens at once. Leviathan et al. 2023,
// algorithm 1; the same as `speculative` in specdemo/engine/rules.py.

import { normalised, oneHot, sumOf } from "./shaping.js";

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

/**
 * The second guess at the place, after the first one, which was rejected: it is drawn from q without that, and judged by
 * what the first has left of p. Where nothing is left of q, it is the drafter's next likeliest token, as in
 * specdemo/engine/tree.py.
 * @param {Trial} trial of one guess
 * @param {number} first
 * @param {number[]} rawQ before the sampler
 * @param {boolean} [isAgain] the mistake: it is judged by p, as if there had been no first one
 * @returns {Trial}
 */
export function secondOf({ p, drawn, replacement }, first, rawQ, isAgain = false) {
  const rest = drawn.map((one, at) => (at === first ? 0 : one));
  const others = rawQ.map((one, at) => (at === first ? -1 : one));
  const likeliest = others.reduce((best, one, at) => (one > others[best] ? at : best), 0);
  const left = sumOf(rest) > 0 ? normalised(rest) : oneHot(likeliest, others.length);
  return trialOf(isAgain ? p : replacement, left);
}

/**
 * What comes out with two guesses: of each token the probability that it comes as the second guess, and as what replaces
 * both. `trial.accepted` is what comes as the first one.
 * @param {Trial} trial of one guess
 * @param {number[]} rawQ
 * @param {boolean} [isAgain]
 */
export function twoOf(trial, rawQ, isAgain = false) {
  const [second, replaced] = [trial.p.map(() => 0), trial.p.map(() => 0)];
  trial.drawn.forEach((q, first) => {
    const rejected = q * (1 - trial.accept[first]);
    if (rejected <= 0) return;
    const next = secondOf(trial, first, rawQ, isAgain);
    next.accepted.forEach((one, at) => { second[at] += rejected * one; });
    next.replaced.forEach((one, at) => { replaced[at] += rejected * one; });
  });
  const out = trial.accepted.map((one, at) => one + second[at] + replaced[at]);
  return { second, replaced, out, distance: distanceOf(out, trial.p) };
}

/** Whether what comes out is p. @param {Pick<Trial, "distance">} trial */
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
