// @ts-check
// Drafts that are really drawn and judged, by random numbers from a seed, and how far what came out is from p.

import { distanceOf, pick } from "./identity.js";
import { sumOf } from "./shaping.js";

/** @import { Trial } from "./identity.js" */
/** How often each token came out, as an accepted draft and as a replacement. @typedef {{ accepted: number[], replaced: number[] }} Counts */
/**
 * What came out against p. distance: total variation. statistic: Pearson's chi-square; infinite where something
 * came out that p gives 0, and how often that was. freedom: its degrees of freedom; with 0 there is nothing to test. chance:
 * its p-value, the probability that draws from p differ at least as much.
 * @typedef {{ shares: number[], distance: number, statistic: number, impossible: number, freedom: number, chance: number }} Comparison
 */

const FEWEST = 5; // draws that a cell is expected to have, or the p-value would not be right

/**
 * Random numbers in [0, 1): the sum of a shift register (Marsaglia 2003, "Xorshift RNGs": 13, 17, 5) and a
 * congruential generator (factor 69069). The same seed gives the same numbers.
 * @param {number} seed a whole number
 */
export function randomNumbers(seed) {
  let register = Math.imul(seed, 0x9e3779b1) ^ 0x5bd1e995 || 1; // never 0
  let sum = Math.imul(seed, 0x85ebca6b);
  const next = () => {
    register ^= register << 13;
    register ^= register >>> 17;
    register ^= register << 5;
    sum = Math.imul(sum, 69069) + 12345;
    return ((register + sum) >>> 0) / 2 ** 32;
  };
  for (let skipped = 0; skipped < 20; skipped++) next(); // until small seeds have spread
  return next;
}

/** @param {number} tokens */
export function noCounts(tokens) {
  const zeros = () => Array.from({ length: tokens }, () => 0);
  return { accepted: zeros(), replaced: zeros() };
}

/**
 * Drafts and judges so many tokens, and counts them.
 * @param {Trial} trial
 * @param {() => number} random
 * @param {number} count
 * @param {Counts} counts
 */
export function draw({ drawn, accept, replacement }, random, count, counts) {
  for (let done = 0; done < count; done++) {
    const draft = pick(drawn, random());
    if (random() < accept[draft]) counts.accepted[draft]++;
    else counts.replaced[pick(replacement, random())]++;
  }
}

/**
 * @param {Counts} counts of which some are above 0
 * @param {number[]} p
 * @returns {Comparison}
 */
export function compared({ accepted, replaced }, p) {
  const counts = accepted.map((one, at) => one + replaced[at]);
  const total = sumOf(counts);
  const shares = counts.map((one) => one / total);
  const distance = distanceOf(shares, p);
  const possible = counts.filter((_, at) => p[at] > 0);
  const cells = joined(possible, p.filter((one) => one > 0).map((one) => one * total));
  const freedom = cells.length - 1;
  const impossible = total - sumOf(possible);
  const statistic = impossible ? Infinity : sumOf(cells.map(([count, expected]) => (count - expected) ** 2 / expected));
  return { shares, distance, statistic, impossible, freedom, chance: impossible ? 0 : rightTail(statistic, freedom) };
}

/**
 * The degrees of freedom of so many draws.
 * @param {number[]} p
 * @param {number} total
 */
export function freedomOf(p, total) {
  return joined(p, p.map((one) => one * total)).length - 1;
}

/**
 * The counts with what is expected, the rarest of them joined until each cell expects enough.
 * @param {number[]} counts
 * @param {number[]} expected
 * @returns {[count: number, expected: number][]}
 */
function joined(counts, expected) {
  /** @type {[number, number][]} */
  const cells = counts.map((count, at) => [count, expected[at]]);
  const byExpected = () => cells.sort((a, b) => b[1] - a[1]);
  byExpected();
  while (cells.length > 1 && cells[cells.length - 1][1] < FEWEST) {
    const [rarest, next] = [cells.pop(), cells.pop()];
    if (rarest && next) cells.push([rarest[0] + next[0], rarest[1] + next[1]]);
    byExpected();
  }
  return cells;
}

/**
 * The probability that a chi-square variable is at least as large as `statistic`: a finite sum (Abramowitz and Stegun 1964,
 * 26.4.4 and 26.4.5).
 * @param {number} statistic
 * @param {number} freedom degrees of freedom; with 0 there is nothing to differ
 */
export function rightTail(statistic, freedom) {
  if (freedom === 0 || statistic <= 0) return 1;
  const [half, odd] = [statistic / 2, freedom % 2];
  let term = Math.exp(-half) * (odd ? 2 * Math.sqrt(half / Math.PI) : 1);
  let sum = odd ? erfc(Math.sqrt(half)) : 0;
  for (let at = 2 + odd; at <= freedom; at += 2) {
    sum += term;
    term *= statistic / at;
  }
  return sum;
}

const ERFC = [ // from the constant on
  -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
];

/** The complementary error function, to 1.2e-7 of itself (Press et al. 1992, 6.2). @param {number} x at least 0 */
function erfc(x) {
  const t = 1 / (1 + x / 2);
  return t * Math.exp(ERFC.reduceRight((sum, one) => sum * t + one) - x * x);
}
