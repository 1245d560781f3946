import { catalogue } from "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  apart, digits, fixed, grouped, inQuotes, milliseconds, pValue, percent, roundedUp, short, times,
} from "../../specdemo/ui/static/view/format.js";
import { say, speak } from "../../specdemo/ui/static/view/words.js";

test("a number has four significant digits, and 0 and 1 only where they are exact", () => {
  const written = [0, 1, 0.99999, 0.5, 0.12345678, 0.001].map((value) => digits(value));
  assert.deepEqual(written, ["0", "1", "1.000", "0.5000", "0.1235", "0.001000"]);
});

test("a small number is written with a power of ten", () => {
  assert.equal(digits(0.00012345), "1.234 × 10⁻⁴");
  assert.equal(digits(1e-12, 2), "1.0 × 10⁻¹²");
});

test("a number in a table has three decimals, and a tiny one is not 0", () => {
  assert.deepEqual([null, 0, 1, 0.5, 0.0004, 0.9999].map(short), ["–", "0", "1", "0.500", "<.001", "1.000"]);
});

test("two numbers are written with the digits that tell them apart", () => {
  assert.deepEqual(apart(0.25, 0.5), ["0.2500", "0.5000"]);
  assert.deepEqual(apart(0.123456, 0.123457), ["0.123456", "0.123457"]);
  assert.deepEqual(apart(0.3, 0.3), ["0.3000", "0.3000"]);
  assert.deepEqual(apart(0.1 + 0.2, 0.3), ["0.30000000000000004", "0.29999999999999999"]);
});

test("a share is rounded as the server rounds it: between two to the even one", () => {
  const shares = [[1, 8], [3, 8], [81, 121], [29, 200], [23, 40], [0, 3], [3, 3]];
  const written = shares.map(([part, whole]) => percent(part, whole));
  assert.deepEqual(written, ["12%", "38%", "67%", "14%", "57%", "0%", "100%"]);
});

test("a text in quotes shows what cannot be seen", () => {
  const written = {
    "": "no text",
    " a": '" a"',
    "a\n\t": '"a\\n\\t"',
    "\u202e": '"\\u202e"',
    "\u00a0": '"\\u00a0"',
    "\u{e0001}": '"\\u{e0001}"',
    "né 👍🏽": '"né 👍🏽"',
  };
  for (const [text, expected] of Object.entries(written)) assert.equal(inQuotes(text), expected);
});

test("a scale ends at 1, 2, 3 or 5 times a power of ten", () => {
  const scales = { 0.001: 0.001, 0.7: 1, 1: 1, 1.2: 2, 2.5: 3, 4: 5, 7: 10, 61: 100, 0.03: 0.03 };
  for (const [value, expected] of Object.entries(scales)) assert.equal(roundedUp(Number(value)), expected);
});

test("a number exactly between two is rounded to the even one, as the server does", () => {
  const written = [0.125, 0.375, 2.625, 2.675, 1.005, 0.1].map((value) => fixed(value));
  assert.deepEqual(written, ["0.12", "0.38", "2.62", "2.67", "1.00", "0.10"]);
  assert.deepEqual([0.5, 1.5, 2.5].map((value) => fixed(value, 0)), ["0", "2", "2"]);
});

test("German writes numbers its own way", () => {
  speak("de", catalogue("de"));
  const written = [
    digits(0.12345678), digits(0.00012345), short(0.0004), ...apart(0.25, 0.5), fixed(1.5), times(2.25), milliseconds(0.24),
    grouped(12345), grouped(1234.56, 1), percent(81, 121),
  ];
  const scale = say("timeline.scale", { ms: 0.5 });
  speak("en", catalogue("en"));
  assert.deepEqual(written, [
    "0,1235", "1,234 × 10⁻⁴", "<,001", "0,2500", "0,5000", "1,50", "2,25 ×", "0,2 ms", "12.345", "1.234,6", "67\u00a0%",
  ]);
  assert.ok(scale.includes("0,5 ms"));
  assert.equal(grouped(12345), "12,345");
});

test("a p-value is never written as 0: one below what its digits can mean is a bound", () => {
  assert.deepEqual([0.25, 1e-11, 1e-13, 0].map(pValue), ["0.25", "1.0 × 10⁻¹¹", "< 10⁻¹²", "< 10⁻¹²"]);
});
