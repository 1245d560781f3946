import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { percent } from "../../specdemo/ui/static/view/format.js";
import { deathsIn, inWords } from "../../specdemo/ui/static/view/positions.js";
import { numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { allAccepted, drafted, linked, own, plain, rejection } from "./runs.js";

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
  return inWords(deathsIn({ rounds: rejectedAt(places) }));
}

test("every judged draft is in one row, and the sums are the run's numbers", () => {
  const { places, all } = deathsIn({ rounds: ROUNDS });
  assert.deepEqual(counts(places), { "place-1": [3, 0], "place-2": [1, 2] });
  assert.deepEqual(places.map(({ label }) => label), ["place 1", "place 2", "place 3"]);
  for (const rows of [places, [all]]) {
    const sum = (of) => rows.reduce((so, row) => so + of(row), 0);
    assert.deepEqual([sum((row) => row.accepted), sum((row) => row.rejected)], [4, 2]);
    assert.equal(sum((row) => row.tokens.length), 6, "reached is accepted and rejected together");
  }
  assert.equal(percent(all.accepted, all.tokens.length), numbersAfter(ROUNDS, 4).acceptance_rate);
  assert.ok(all.tokens.every((token) => token.fate === "accepted" || token.fate === "rejected"));
});

test("the places with the most rejections are named", () => {
  assert.match(sentence({ 1: 20, 2: 2, 3: 18 }), /place 1: 20 of 40\.$/);
  assert.match(sentence({ 1: 2, 2: 2 }), /place 1, place 2: 2 of 4 at each\.$/);
});
