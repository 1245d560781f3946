import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { placeAt } from "../../specdemo/ui/static/runs/race.js";
import { allAccepted, linked, plain, rejection } from "./runs.js";

// Its rounds end at 30, 70 and 90 ms and bring 2, 3 and 1 tokens.
const course = () => (
  { rounds: [rejection(), allAccepted(2, 10, 30), plain()].map((round, index) => linked(round, index)), ms: 90, tokens: 6 }
);

test("the tokens of a round are there when the round is over", () => {
  const seen = [0, 29.9, 30, 69, 70, 89].map((ms) => placeAt(course(), ms));
  assert.deepEqual(seen.map(({ rounds }) => rounds), [0, 0, 1, 1, 2, 2]);
  assert.deepEqual(seen.map(({ tokens }) => tokens), [0, 0, 2, 2, 5, 5]);
});

test("a lane's clock stops at its finish", () => {
  assert.deepEqual(placeAt(course(), 50), { rounds: 1, tokens: 2, finished: false });
  for (const ms of [90, 1000]) {
    assert.deepEqual(placeAt(course(), ms), { rounds: 3, tokens: 6, finished: true });
  }
});

test("a server's prefill is a part of the lane's time, and of no round in a replay", () => {
  const rounds = [0, 1].map((index) => linked({ ...plain(), draft_ms: null, verify_ms: null, arrival_ms: index ? 20 : 200 }, index));
  const seen = [199, 200, 239, 240].map((ms) => placeAt({ rounds, ms: 240, tokens: 2 }, ms));
  assert.deepEqual(seen.map(({ rounds }) => rounds), [0, 1, 1, 2]);
});
