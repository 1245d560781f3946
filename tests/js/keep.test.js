// test_exports.py reads the files with other programs; the browser shows the picture.
import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { brokenInto, inXml, partsOf } from "../../specdemo/ui/static/keep/picture.js";
import { branchesOf } from "../../specdemo/ui/static/view/tree.js";
import { linked, tree } from "./runs.js";

const inked = (text, fate = "accepted", sign = "") => ({ text, fate, sign });
const broken = (tokens, width) => (
  brokenInto(partsOf(tokens), width, ({ text, sign }) => 10 * [...(sign || text)].length).map((line) => line.map(({ text }) => text).join(""))
);

test("a line breaks at spaces and at line ends that are in the text, and never between halves of a character", () => {
  assert.deepEqual(broken([inked("one two"), inked(" th", "rejected"), inked("ree", "resampled")], 80), ["one two ", "three"]);
  assert.deepEqual(broken([inked("ab 🟢🟢🟢🟢🟢🟢")], 50), ["ab ", "🟢🟢🟢🟢🟢", "🟢"]);
  assert.deepEqual(broken([inked("a\n\nb")], 500), ["a\n", "\n", "b"]);
  assert.deepEqual(broken([inked("a"), inked("\n", "rejected"), inked(" b", "resampled")], 500), ["a\n b"]);
});

test("what XML cannot hold is replaced, and nothing is markup", () => {
  assert.equal(inXml("a\0\ud800b\ufffe<\"&'>🟢"), "a\ufffd\ufffdb\ufffd&#60;&#34;&#38;'&#62;🟢");
});

test("of a tree that is still drafted or judged, nothing is given away", () => {
  const round = linked(tree(), 0);
  const first = branchesOf(round, () => "pending");
  assert.ok(first.length === 6 && first.every(({ fate, p }) => fate === "pending" && p === null));
  assert.equal(branchesOf(round, ({ fate }) => fate).length, 7);
});
