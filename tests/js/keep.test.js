import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { roundsAsCsv } from "../../specdemo/ui/static/keep/csv.js";
import { brokenInto, inXml, partsOf, pictureOf } from "../../specdemo/ui/static/keep/picture.js";
import { branchesOf, shapeInWords } from "../../specdemo/ui/static/view/tree.js";
import { drafted, linked, own, rejection, tree } from "./runs.js";

const inked = (text, fate = "accepted", sign = "") => ({ text, fate, sign });
const widthOf = ({ text, sign }) => 10 * [...(sign || text)].length;
const words = (lines) => lines.map((line) => line.map(({ text }) => text).join(""));

test("a row tells all of a token, unrounded", () => {
  const third = drafted(1, { text: " a", p: 0.1 + 0.2, q: 0.9, u: 1 / 3 });
  const csv = roundsAsCsv([linked({ draft: [third], next: own(2, { text: "b" }), draft_ms: 1.25, verify_ms: null }, 4)]);
  const [head, first, second, end] = csv.split("\r\n");
  assert.equal(head, "round,place,fate,id,text,p,q,u,accept_prob,raw_p,raw_q,draft_ms,verify_ms");
  assert.equal(first, `5,1,accepted,1,""" a""",${0.1 + 0.2},0.9,${1 / 3},${(0.1 + 0.2) / 0.9},0.3,0.6,1.25,`);
  assert.equal(second, '5,2,bonus,2,"""b""",0.5,,0.25,,0.3,,1.25,');
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

const known = ({ fate }) => fate;

test("a tree's guesses stand by depth, each in the middle of those that follow it, and the target's own token last", () => {
  const branches = branchesOf(linked(tree(), 0), known, Infinity);
  assert.deepEqual(branches.map(({ text, column, row, after }) => [text, column, row, after]), [
    ["1", 0, 0, null], ["4", 1, 0, 0], ["2", 0, 2, null], ["5", 1, 1, 2], ["6", 1, 2, 2], ["7", 1, 3, 2], ["3", 0, 4, null],
  ]);
});

test("of a tree that is still drafted or judged, nothing is given away", () => {
  const round = linked(tree(), 0);
  const first = branchesOf(round, () => "pending", 1);
  assert.deepEqual(first.map(({ text, fate, p, q }) => [text, fate, p, q]), [["1", "pending", null, 0.8], ["2", "pending", null, 0.5], ["3", "pending", null, 0.5]]);
  assert.equal(branchesOf(round, (token) => token === round.next ? "pending" : token.fate, 2).length, 6);
  assert.equal(shapeInWords(round, known), "Tree of 6 guesses: 4 judged, 1 accepted");
});

test("a tree's picture has each guess once, its line green on the path, and a long word whole in its box", () => {
  const round = linked(tree(), 0);
  round.draft[2].text = " a<very>longword";
  const content = {
    tokens: [inked("Once", "prompt")], legend: [], verdict: [], whose: "",
    colour: (name) => `var(${name})`, measure: (text, size) => size * text.length * 0.8,
  };
  const { svg, height } = pictureOf({ ...content, tree: branchesOf(round, known, Infinity) });
  const fates = [...svg.matchAll(/data-fate="(\w+)"/g)].map(([, fate]) => fate).filter((fate) => fate !== "prompt").sort();
  assert.deepEqual(fates, ["accepted", "discarded", "discarded", "rejected", "rejected", "rejected", "resampled"]);
  assert.equal(svg.match(/stroke="var\(--accepted-line\)" stroke-width="3"/g).length, 1);
  assert.ok(svg.includes(">a&#60;very&#62;longword<") && !svg.includes("<very>"));
  assert.ok(height > pictureOf(content).height + 5 * 40);
});
