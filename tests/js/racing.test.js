import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { courseOf, placeAt } from "../../specdemo/ui/static/runs/race.js";
import { allAccepted, plain, rejection } from "./runs.js";

const lane = (rounds, ms, tokens) => (
  { title: "", forwards: rounds.length, prefill_ms: 1, rounds, ms, tokens }
);

// Its rounds end at 30, 70 and 90 ms and bring 2, 3 and 1 tokens.
const course = () => courseOf(lane([rejection(), allAccepted(2, 10, 30), plain()], 90, 6));

test("the tokens of a round are there when the round is over", () => {
  const seen = [0, 29.9, 30, 69, 70, 89].map((ms) => placeAt(course(), ms));
  assert.deepEqual(seen.map(({ rounds }) => rounds), [0, 0, 1, 1, 2, 2]);
  assert.deepEqual(seen.map(({ tokens }) => tokens), [0, 0, 2, 2, 5, 5]);
});

test("a lane's clock stops at its finish", () => {
  assert.deepEqual(placeAt(course(), 50), { rounds: 1, tokens: 2, ms: 50, finished: false });
  for (const ms of [90, 1000]) {
    assert.deepEqual(placeAt(course(), ms), { rounds: 3, tokens: 6, ms: 90, finished: true });
  }
});
