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

// The chi-square distribution, by the regularised incomplete gamma function (NIST Digital Library of Mathematical
// Functions, chapter 8).

const MOST_TERMS = 10_000;
const ENOUGH = 1e-16;
const TINY = 1e-300; // in place of a 0 that would be divided by

/**
 * The probability that a chi-square variable is at least as large as `statistic`.
 * @param {number} statistic
 * @param {number} freedom degrees of freedom; with 0 there is nothing to differ
 */
export function rightTail(statistic, freedom) {
  if (freedom === 0 || statistic <= 0) return 1;
  return upperGamma(freedom / 2, statistic / 2);
}

/**
 * Q(a, x), the regularised upper incomplete gamma function, for x > 0 and 2a a whole number above 0.
 * @param {number} a
 * @param {number} x
 */
function upperGamma(a, x) {
  const front = Math.exp(a * Math.log(x) - x - logGamma(a)); // x^a e^-x / Γ(a)
  return x < a + 1 ? 1 - front * series(a, x) : front * fraction(a, x);
}

/**
 * The sum of x^n / (a (a + 1) ... (a + n)), 8.7.1: front times this is P(a, x).
 * @param {number} a
 * @param {number} x
 */
function series(a, x) {
  let term = 1 / a;
  let sum = term;
  for (let n = 1; n < MOST_TERMS && term > ENOUGH * sum; n++) {
    term *= x / (a + n);
    sum += term;
  }
  return sum;
}

/**
 * The continued fraction 1/(x + 1 - a - 1(1 - a)/(x + 3 - a - 2(2 - a)/(x + 5 - a - ...))), 8.9.2 contracted, from
 * the front by Lentz's method: front times this is Q(a, x).
 * @param {number} a
 * @param {number} x
 */
function fraction(a, x) {
  let below = x + 1 - a;
  let up = 1 / TINY;
  let down = 1 / below;
  let value = down;
  for (let n = 1; n < MOST_TERMS; n++) {
    const part = -n * (n - a);
    below += 2;
    down = 1 / (part * down + below || TINY);
    up = below + part / up || TINY;
    value *= up * down;
    if (Math.abs(up * down - 1) < ENOUGH) break;
  }
  return value;
}

/** ln Γ(a) for 2a a whole number above 0: from Γ(1) or Γ(1/2) = √π upward. @param {number} a */
function logGamma(a) {
  let from = a % 1 === 0 ? 1 : 0.5;
  let sum = from === 1 ? 0 : Math.log(Math.PI) / 2;
  for (; from < a; from++) sum += Math.log(from);
  return sum;
}
