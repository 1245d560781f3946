// @ts-check
// Numbers and texts as the page writes them.

import { inLanguage, say } from "./words.js";

const LEAST_P = 1e-12;

/**
 * Significant digits; 0 and 1 are written only where they are exact.
 * @param {number | null} value
 */
export function digits(value, count = 4) {
  if (value === null) return "–";
  if (value === 0 || value === 1) return String(value);
  const written = value < 0.001 ? value.toExponential(count - 1) : value.toPrecision(count);
  const [number, exponent] = written.split("e");
  if (!exponent) return inLanguage(number);
  return `${inLanguage(number)} × 10${[...exponent].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
}

/**
 * A p-value. One that is too small for its digits to mean anything is a bound, never 0.
 * @param {number} value
 */
export function pValue(value) {
  return value < LEAST_P ? "< 10⁻¹²" : digits(value, 2);
}

/**
 * Three decimals, for tables.
 * @param {number | null} value
 */
export function short(value) {
  if (value === null) return "–";
  if (value === 0 || value === 1) return String(value);
  return inLanguage(value < 0.0005 ? "<.001" : value.toFixed(3));
}

/**
 * Two numbers with as many digits as it takes to see which is larger, four at least.
 * @param {number} a
 * @param {number} b
 */
export function apart(a, b) {
  for (let count = 4; count < 18; count++) {
    const differ = Number(a.toPrecision(count)) !== Number(b.toPrecision(count));
    if (a === b || differ) return [digits(a, count), digits(b, count)];
  }
  return [inLanguage(String(a)), inLanguage(String(b))];
}

/**
 * A share in whole percent, rounded to the even one of two as the server does.
 * @param {number} part
 * @param {number} whole
 */
export function percent(part, whole) {
  return inLanguage(`${rounded((part / whole) * 100, 0)}%`);
}

/**
 * A number with thousands apart.
 * @param {number} value
 */
export function grouped(value, decimals = 0) {
  const [whole, fraction] = rounded(value, decimals).split(".");
  const apart = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return inLanguage(fraction ? `${apart}.${fraction}` : apart);
}

/**
 * A number with this many decimals. One that is exactly between two is rounded as Python does, to the even
 * one: the server's sentences have the same number.
 * @param {number} value
 */
export function fixed(value, decimals = 2) {
  return inLanguage(rounded(value, decimals));
}

/**
 * @param {number} value
 * @param {number} decimals
 */
function rounded(value, decimals) {
  const halves = value * 2 ** (decimals + 1); // only a whole number of these is exactly between two
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(decimals);
  const below = Math.floor(value * 10 ** decimals);
  return ((below % 2 === 0 ? below : below + 1) / 10 ** decimals).toFixed(decimals);
}

/**
 * A speed-up.
 * @param {number} value
 */
export function times(value) {
  return `${fixed(value)} ×`;
}

/** @param {number} value */
export function milliseconds(value) {
  return `${inLanguage(value < 100 ? value.toFixed(1) : value.toFixed(0))} ms`;
}

// Control characters, what Unicode calls ignorable (joiners, bidi marks, soft hyphens), line and paragraph
// separators.
export const INVISIBLE = /((?!\p{VS})[\p{Cc}\p{DI}\p{Zl}\p{Zp}])/u;
const ESCAPED = /(?!\p{VS})[\p{Cc}\p{Cf}\p{Co}\p{DI}\p{Zl}\p{Zp}\u00a0]/gu;

/**
 * A text as a program would write it, so that spaces, line ends and invisible characters are seen.
 * @param {string} text
 */
export function inQuotes(text) {
  if (text === "") return say("view.noText");
  return JSON.stringify(text).replace(ESCAPED, (sign) => {
    const hex = codePoint(sign).toString(16);
    return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
  });
}

/**
 * An invisible character's code point, as Unicode writes it.
 * @param {string} sign
 */
export function codeOf(sign) {
  return codePoint(sign).toString(16).toUpperCase().padStart(4, "0");
}

/** @param {string} sign */
function codePoint(sign) {
  return /** @type {number} */ (sign.codePointAt(0));
}

/**
 * The smallest of 1, 2, 3, 5 and 10 times a power of ten that is not below the value.
 * @param {number} value above 0
 */
export function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 3, 5].find((factor) => factor * power >= value) ?? 10;
  return Number((step * power).toPrecision(1));
}

/**
 * About how long something takes: no more digits than an estimate has.
 * @param {number} seconds
 */
export function durationInWords(seconds) {
  if (seconds >= 90) return say("view.minutes", { number: grouped(seconds / 60) });
  return say("view.seconds", { number: seconds < 10 ? Math.max(1, Math.round(seconds)) : 5 * Math.round(seconds / 5) });
}
