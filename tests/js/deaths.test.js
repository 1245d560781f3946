import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { deathsIn, inWords, kindOf } from "../../specdemo/ui/static/view/deaths.js";
import { percent } from "../../specdemo/ui/static/view/format.js";
import { numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { PROMPT, allAccepted, drafted, linked, own, plain, rejection } from "./runs.js";

const ROUNDS = [rejection, allAccepted, plain, rejection].map((made, index) => linked(made(), index));

/** The rows that are not empty, as [accepted, rejected] by key. */
function counts(rows) {
  const some = rows.filter(({ tokens }) => tokens.length);
  return Object.fromEntries(some.map(({ key, accepted, rejected }) => [key, [accepted, rejected]]));
}

/** One round that rejects its draft at each of these places, from 1. */
function rejectedAt(places) {
  return places.map((place, index) => {
    const draft = Array.from({ length: place }, (_, at) => drafted(at));
    Object.assign(draft[place - 1], { fate: "rejected" });
    return linked({ draft, next: own(9, { source: "resampled" }), draft_ms: 1, verify_ms: 1 }, index);
  });
}

/** Of as many rounds that reject at each place, by the place. */
function sentence(counts) {
  const places = Object.entries(counts).flatMap(([place, count]) => Array(count).fill(Number(place)));
  return inWords(deathsIn({ prompt: [], rounds: rejectedAt(places) }));
}

test("every judged draft is in one row of each table, and the sums are the run's numbers", () => {
  const { places, kinds, all } = deathsIn({ prompt: PROMPT, rounds: ROUNDS });
  assert.deepEqual(counts(places), { "place-1": [3, 0], "place-2": [1, 2] });
  assert.deepEqual(places.map(({ label }) => label), ["place 1", "place 2", "place 3"]);
  assert.deepEqual(counts(kinds), { start: [2, 2], digits: [2, 0] });
  for (const rows of [places, kinds, [all]]) {
    const sum = (of) => rows.reduce((so, row) => so + of(row), 0);
    assert.deepEqual([sum((row) => row.accepted), sum((row) => row.rejected)], [4, 2]);
    assert.equal(sum((row) => row.tokens.length), 6, "reached is accepted and rejected together");
  }
  assert.equal(percent(all.accepted, all.tokens.length), numbersAfter(ROUNDS, 4).acceptance_rate);
  assert.ok(all.tokens.every((token) => token.fate === "accepted" || token.fate === "rejected"));
});

test("the kind of a token follows from its text and from what is before it", () => {
  const kinds = [
    ["Once", " upon", "start"], ["the", "re", "inside"], ["don", "'t", "inside"], ["well", "-known", "inside"], ["foo", "_bar", "inside"],
    ["a girl named", " Mia", "name"], ["a girl.", " Mia", "start"], ['she said, "', "Mia", "start"], ['"Yes," ', "Mia", "name"],
    ["a girl named M", "ia", "inside"], ["by (", "Mia", "name"], ["a", ' "', "punctuation"], ["a", "👍", "punctuation"],
    ["1", "2", "digits"], ["a", " ٣", "digits"], ["a", " 3D", "start"], ["a", ".\n", "line"], ["a", "", "other"], ["a", "  ", "other"],
    ["звали", " Маша", "name"], ["Ма", "ша", "inside"], ["小さな", "猫", "start"], ["猫", "。", "punctuation"], ["न", "ा", "inside"],
  ];
  for (const [before, text, kind] of kinds) assert.equal(kindOf(text, before), kind, `${before}|${text}`);
});

test("what is before a token is the text, without what was rejected", () => {
  const first = { draft: [drafted(1, { text: " named" }), drafted(2, { text: ".", fate: "rejected" })] };
  const second = { draft: [drafted(3, { text: " Mia" })], next: own(4) };
  const rounds = [
    linked({ ...first, next: own(5, { text: " Anna", source: "resampled" }), draft_ms: 1, verify_ms: 1 }, 0),
    linked({ ...second, draft_ms: 1, verify_ms: 1 }, 1),
  ];
  assert.deepEqual(counts(deathsIn({ prompt: PROMPT, rounds }).kinds).name, [1, 0]);
});

test("the places with the most rejections are named", () => {
  assert.match(sentence({ 1: 20, 2: 2, 3: 18 }), /place 1: 20 of 40\.$/);
  assert.match(sentence({ 1: 2, 2: 2 }), /place 1, place 2: 2 of 4 at each\.$/);
});
