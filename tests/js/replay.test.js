import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { msTo, numbersAfter, playedTo } from "../../specdemo/ui/static/view/replay.js";
import { allAccepted, linked, plain, rejection } from "./runs.js";

// They end at 30, 70 and 90 ms of engine time.
const ROUNDS = [rejection(), allAccepted(2, 10, 30), plain()].map((round, index) => linked(round, index));

test("in slow motion a draft appears before its verdict, each at its engine time", () => {
  const steps = [[3, 0, 0], [4, 0, 1], [29, 0, 3], [30, 1, 0], [40, 1, 2], [70, 2, 0], [90, 3, 0], [500, 3, 0]];
  for (const [ms, round, step] of steps) {
    assert.deepEqual(playedTo(ROUNDS, ms, 0.1), { round, step }, `after ${ms} ms`);
    assert.deepEqual(playedTo(ROUNDS, ms, 1), { round, step: 0 }, "at the engine's speed rounds come whole");
  }
  assert.deepEqual(playedTo(ROUNDS.slice(0, 1), 500, 1), { round: 1, step: 0 }, "rounds that come later are awaited");
});

test("playing on from a place begins at its engine time, and drafts nothing again", () => {
  const places = [{ round: 0, step: 0 }, { round: 0, step: 4 }, { round: 1, step: 1 }, { round: 3, step: 0 }];
  assert.deepEqual(places.map((place) => msTo(ROUNDS, place)), [0, 10, 35, 90]);
});

test("the numbers are those of the rounds that are visible", () => {
  assert.deepEqual(numbersAfter(ROUNDS, 0), { tokens: "0", rounds: "0", saved: "0" });
  assert.deepEqual(numbersAfter(ROUNDS, 1), {
    tokens: "2", rounds: "1", saved: "1", acceptance_rate: "50%", mean_tokens_per_round: "2.00",
  });
  assert.deepEqual(numbersAfter(ROUNDS, 3), {
    tokens: "6", rounds: "3", saved: "3", acceptance_rate: "75%", mean_tokens_per_round: "2.00",
  });
});
