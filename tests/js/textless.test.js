// What a token without a text stands for.

import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { kindInRound, kindsInPrompt } from "../../specdemo/ui/static/view/textless.js";

/** A token whose own row among the alternatives has this text. */
const own = (alone) => ({ id: 7, text: "", top: [[3, " a"], [7, alone]], round: { draft: [], ended_by: null, setting: null } });

test("its text by itself tells the end of the text from a part of a character", () => {
  assert.equal(kindInRound(own("")), "end");
  assert.equal(kindInRound(own("\ufffd")), "part");
  assert.equal(kindInRound(own("ing")), "nothing", "a stop string has cut it");
});

test("a mark of the chat template is no end of the text", () => {
  const round = { draft: [], ended_by: null, setting: { marks: { 7: "<think>" } } };
  assert.deepEqual(kindInRound({ ...own(""), round }), { mark: "<think>" });
  assert.equal(kindInRound({ ...own(""), id: 8, top: [[8, ""]], round }), "end");
});

test("a prompt begins with the start, and its parts of characters come before a character beyond ASCII", () => {
  const prompt = ["", "A", "", "", "é", "", "b", ""].map((text) => ({ text }));
  const kinds = new Map(kindsInPrompt(prompt));
  assert.deepEqual(prompt.map((token) => kinds.get(token)), [
    "start", undefined, "part", "part", undefined, "nothing", undefined, "nothing",
  ]);
});
