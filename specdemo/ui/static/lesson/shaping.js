// @ts-check
// What a temperature makes of a few tokens' probabilities, as specdemo/engine/sampling.py does. Temperature 0 is one-hot
// at the likeliest token, whatever the others are.

/**
 * @param {number[]} raw probabilities at temperature 1, or what a run's sampler has made of them
 * @param {number} temperature
 * @param {number | null} [done] the temperature of that sampler, which acts no second time
 */
export function shaped(raw, temperature, done = null) {
  const before = done ?? 1;
  if (temperature === before) return raw;
  const largest = raw.reduce((most, one) => Math.max(most, one), 0);
  if (temperature === 0) return oneHot(raw.indexOf(largest), raw.length);
  return normalised(raw.map((one) => (one / largest) ** ((before || 1) / temperature)));
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
