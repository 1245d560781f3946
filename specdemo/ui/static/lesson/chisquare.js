// @ts-check
// The chi-square distribution, by the regularised incomplete gamma function (NIST Digital Library of
// Mathematical Functions, chapter 8).

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
