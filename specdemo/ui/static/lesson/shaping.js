// @ts-check
// What a sampler makes of a few tokens' probabilities, as specdemo/engine/sampling.py does: temperature, top-k,
// top-p and min-p, in this order. Temperature 0 is one-hot at the likeliest token, whatever the others are.

/** @typedef {{ temperature: number, top_k: number, top_p: number, min_p: number }} Shaping named as in Params */

/** Changes nothing. @type {Shaping} */
export const NEUTRAL = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };

/**
 * @param {number[]} raw probabilities, unfiltered and at temperature 1, or what a sampler has made of them
 * @param {Shaping} shaping
 * @param {Shaping} [done] what that sampler has done, which is not done again
 */
export function shaped(raw, { temperature, top_k, top_p, min_p }, done = NEUTRAL) {
  const largest = raw.reduce((most, one) => Math.max(most, one), 0);
  if (temperature === 0 && done.temperature > 0) return oneHot(raw.indexOf(largest), raw.length);
  // The largest logit is 0.
  const relative = temperature === done.temperature ? 1 : temperature / (done.temperature || 1);
  let logits = raw.map((one) => (Math.log(one) - Math.log(largest)) / relative);
  if (top_k !== done.top_k && top_k < raw.length) logits = atLeast(logits, descending(logits)[top_k - 1]);
  if (top_p !== done.top_p) logits = nucleus(logits, top_p);
  if (min_p !== done.min_p) logits = atLeast(logits, Math.log(min_p)); // min-p is relative to the likeliest token
  return normalised(logits.map(Math.exp));
}

/**
 * A value of a slider; the sampler's own where that filters more, since what it has removed does not come back.
 * @param {keyof Shaping} name
 * @param {number} value
 * @param {Shaping} done
 */
export function noLooser(name, value, done) {
  if (name === "temperature") return value;
  if (name === "top_k") return done.top_k ? Math.min(value || Infinity, done.top_k) : value;
  return name === "top_p" ? Math.min(value, done.top_p) : Math.max(value, done.min_p);
}

/** @param {number[]} weights of which one is above 0 */
export function normalised(weights) {
  const all = sumOf(weights);
  return weights.map((one) => one / all);
}

/** @param {number[]} numbers */
export function sumOf(numbers) {
  return numbers.reduce((sum, one) => sum + one, 0);
}

/**
 * The weights after one of them is set to a value between 0 and 1; the others keep their proportions, and all
 * sum to 1. Others that are all 0 get equal parts.
 * @param {number[]} weights that sum to 1
 * @param {number} index
 * @param {number} value
 */
export function rescaled(weights, index, value) {
  const others = sumOf(weights.filter((_, at) => at !== index));
  return weights.map((one, at) => {
    if (at === index) return value;
    return (1 - value) * (others > 0 ? one / others : 1 / (weights.length - 1));
  });
}

/**
 * @param {number} index
 * @param {number} count
 */
export function oneHot(index, count) {
  return Array.from({ length: count }, (_, at) => Number(at === index));
}

/** @param {number[]} numbers */
function descending(numbers) {
  return [...numbers].sort((a, b) => b - a);
}

/**
 * @param {number[]} logits
 * @param {number} least
 */
function atLeast(logits, least) {
  return logits.map((one) => (one < least ? -Infinity : one));
}

/**
 * The fewest likeliest tokens whose probabilities sum to at least top_p. Of equally likely ones the last stay.
 * @param {number[]} logits
 * @param {number} top_p
 */
function nucleus(logits, top_p) {
  const p = normalised(logits.map(Math.exp));
  const kept = new Set();
  let likelier = 0;
  for (const at of p.map((_, at) => at).sort((a, b) => logits[b] - logits[a] || b - a)) {
    if (likelier < top_p) kept.add(at);
    likelier += p[at];
  }
  return logits.map((one, at) => (kept.has(at) ? one : -Infinity));
}
