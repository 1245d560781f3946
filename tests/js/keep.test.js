import assert from "node:assert/strict";
import { test } from "node:test";
import { roundsAsCsv } from "../../specdemo/ui/static/keep/csv.js";
import { brokenInto, inXml, partsOf, pictureOf } from "../../specdemo/ui/static/keep/picture.js";
import { drafted, linked, own, rejection } from "./runs.js";

const inked = (text, fate = "accepted", sign = "") => ({ text, fate, sign });
const widthOf = ({ text, sign }) => 10 * [...(sign || text)].length;
const words = (lines) => lines.map((line) => line.map(({ text }) => text).join(""));

test("a row tells all of a token, unrounded", () => {
  const third = drafted(1, { text: " a", p: 0.1 + 0.2, q: 0.9, u: 1 / 3 });
  const csv = roundsAsCsv([linked({ draft: [third], next: own(2, { text: "b" }), draft_ms: 1.25, verify_ms: null }, 4)]);
  const [head, first, second, end] = csv.split("\r\n");
  assert.equal(head, "round,place,fate,id,text,p,q,u,accept_prob,raw_p,raw_q,draft_ms,verify_ms");
  assert.equal(first, `4,0,accepted,1,""" a""",${0.1 + 0.2},0.9,${1 / 3},${(0.1 + 0.2) / 0.9},0.3,0.6,1.25,`);
  assert.equal(second, '4,1,bonus,2,"""b""",0.5,,0.25,,0.3,,1.25,');
  assert.equal(end, "");
});

test("a line breaks at spaces, and a word of several tokens stays together", () => {
  const lines = brokenInto(partsOf([inked("one two"), inked(" th", "rejected"), inked("ree", "resampled")]), 80, widthOf);
  assert.deepEqual(words(lines), ["one two ", "three"]);
  assert.deepEqual(lines[1].map(({ x, width }) => [x, width]), [[0, 20], [20, 30]]);
});

test("a word longer than a line is cut, and never between halves of a character", () => {
  const lines = brokenInto(partsOf([inked("ab 🟢🟢🟢🟢🟢🟢")]), 50, widthOf);
  assert.deepEqual(words(lines), ["ab ", "🟢🟢🟢🟢🟢", "🟢"]);
  assert.ok(lines.flat().every(({ x, width }) => x + width <= 50));
});

test("a line end ends a line, and is seen", () => {
  const lines = brokenInto(partsOf([inked("a\n\nb")]), 500, widthOf);
  assert.deepEqual(words(lines), ["a\n", "\n", "b"]);
  assert.equal(lines[0][1].sign, "⏎");
});

test("a line end that is not in the text ends no line, as on the stage", () => {
  const lines = brokenInto(partsOf([inked("a"), inked("\n", "rejected"), inked(" b", "resampled")]), 500, widthOf);
  assert.deepEqual(words(lines), ["a\n b"]);
});

test("what XML cannot hold is replaced, and nothing is markup", () => {
  assert.equal(inXml("a\0\ud800b\ufffe<\"&'>🟢"), "a\ufffd\ufffdb\ufffd&#60;&#34;&#38;'&#62;🟢");
});

test("every token is in the picture, and its height grows with the text", () => {
  const tokens = rejection();
  const shown = [...tokens.draft, tokens.next].map(({ text, fate, source }) => inked(text, fate ?? source));
  const content = (times) => ({
    tokens: Array.from({ length: times }, () => shown).flat(), legend: [inked("accepted")], verdict: ["One.", "Two."], whose: "me",
    colour: (name) => `var(${name})`, measure: (text, size) => size * text.length / 2,
  });
  const [one, many] = [pictureOf(content(1)), pictureOf(content(90))];
  for (const fate of ["accepted", "rejected", "discarded", "resampled"]) assert.match(one.svg, new RegExp(`data-fate="${fate}">${" ?"}`));
  assert.ok(one.svg.includes("var(--rejected-paper)") && one.svg.includes(">One.<") && one.svg.includes(">me<"));
  assert.ok(many.height > one.height + 200 && many.width === one.width);
});
