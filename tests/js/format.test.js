import { catalogue } from "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { apart, digits, fixed, grouped, inQuotes, milliseconds, pValue, percent, short, times } from "../../specdemo/ui/static/view/format.js";
import { speak } from "../../specdemo/ui/static/view/words.js";

test("0 and 1 are written only where they are exact, in a table and in a sentence", () => {
  assert.deepEqual([0, 1, 0.99999, 0.12345678, 0.00012345].map((value) => digits(value)), ["0", "1", "1.000", "0.1235", "1.234 × 10⁻⁴"]);
  assert.deepEqual([null, 0, 1, 0.5, 0.0004, 0.9999].map(short), ["–", "0", "1", "0.500", "<.001", "1.000"]);
  assert.deepEqual([0.25, 1e-11, 1e-13, 0].map(pValue), ["0.25", "1.0 × 10⁻¹¹", "< 10⁻¹²", "< 10⁻¹²"]);
});

test("two numbers are written with the digits that tell them apart", () => {
  assert.deepEqual(apart(0.25, 0.5), ["0.2500", "0.5000"]);
  assert.deepEqual(apart(0.123456, 0.123457), ["0.123456", "0.123457"]);
  assert.deepEqual(apart(0.3, 0.3), ["0.3000", "0.3000"]);
  assert.deepEqual(apart(0.1 + 0.2, 0.3), ["0.30000000000000004", "0.29999999999999999"]);
});

test("what is exactly between two is rounded to the even one, as the server does", () => {
  const shares = [[1, 8], [3, 8], [81, 121], [29, 200], [23, 40], [0, 3], [3, 3]];
  assert.deepEqual(shares.map(([part, whole]) => percent(part, whole)), ["12%", "38%", "67%", "14%", "57%", "0%", "100%"]);
  assert.deepEqual([0.125, 0.375, 2.675, 1.005].map((value) => fixed(value)), ["0.12", "0.38", "2.67", "1.00"]);
  assert.deepEqual([0.5, 1.5, 2.5].map((value) => fixed(value, 0)), ["0", "2", "2"]);
});

test("a text in quotes shows what cannot be seen", () => {
  const written = { " a": '" a"', "a\n\t": '"a\\n\\t"', "\u202e": '"\\u202e"', "\u{e0001}": '"\\u{e0001}"', "né 👍🏽": '"né 👍🏽"' };
  for (const [text, expected] of Object.entries(written)) assert.equal(inQuotes(text), expected);
});

test("German writes numbers its own way", () => {
  speak("de", catalogue("de"));
  const written = [digits(0.00012345), short(0.0004), fixed(1.5), times(2.25), milliseconds(0.24), grouped(1234.56, 1), percent(81, 121)];
  speak("en", catalogue("en"));
  assert.deepEqual(written, ["1,234 × 10⁻⁴", "<,001", "1,50", "2,25 ×", "0,2 ms", "1.234,6", "67\u00a0%"]);
});
