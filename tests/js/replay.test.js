import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { Replay, numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { draftedIn } from "../../specdemo/ui/static/view/steps.js";
import { allAccepted, linked, plain, rejection } from "./runs.js";

// They end at 30, 70 and 90 ms of engine time.
const ROUNDS = [rejection(), allAccepted(2, 10, 30), plain()].map((round, index) => linked(round, index));

function replayed(speed, now = 1000) {
  const replay = new Replay();
  replay.restart(speed, now);
  return replay;
}

/** The rounds with their verdicts, and the one after them if a part of its draft is there. */
function seen({ judged, drafting }) {
  return [judged.map(({ index }) => index), drafting && draftedIn(drafting.round, drafting.share).step ? drafting.round.index : null];
}

test("in slow motion a draft appears before its verdict, each at its engine time", () => {
  const replay = replayed(0.1);
  const steps = [
    [1033, [], null], [1034, [], 0], [1299, [], 0], [1301, [0], null], [1401, [], 1], [1701, [1], null],
    [1901, [2], null],
  ];
  for (const [now, judged, drafted] of steps) {
    assert.deepEqual(seen(replay.next(ROUNDS, now, 200)), [judged, drafted], `at ${now} ms`);
  }
});

test("a change of speed does not change what has passed", () => {
  const replay = replayed(0.1);
  replay.setSpeed(1, 1200); // 20 ms of the engine
  assert.deepEqual(seen(replay.next(ROUNDS, 1209, 200)), [[], null]);
  assert.deepEqual(seen(replay.next(ROUNDS, 1211, 200)), [[0], null]);
});

test("rounds that come later are awaited", () => {
  const replay = replayed(Infinity);
  assert.deepEqual(seen(replay.next(ROUNDS.slice(0, 1), 1000, 200)), [[0], null]);
  assert.deepEqual(seen(replay.next(ROUNDS.slice(0, 1), 1100, 200)), [[], null]);
  assert.deepEqual(seen(replay.next(ROUNDS, 1200, 200)), [[1, 2], null]);
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
