import assert from "node:assert/strict";
import { test } from "node:test";
import { Replay, numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { allAccepted, linked, plain, rejection } from "./runs.js";

// They end at 30, 70 and 90 ms of engine time.
const ROUNDS = [rejection(), allAccepted(2, 10, 30), plain()].map((round, index) => linked(round, index));

function replayed(speed, now = 1000) {
  const replay = new Replay();
  replay.restart(speed, now);
  return replay;
}

function seen({ judged, drafted }) {
  return [judged.map(({ index }) => index), drafted?.index ?? null];
}

test("without a speed everything is visible at once", () => {
  assert.deepEqual(seen(replayed(Infinity).next(ROUNDS, 1000, 200)), [[0, 1, 2], null]);
});

test("in slow motion a draft appears before its verdict, each at its engine time", () => {
  const replay = replayed(0.1);
  const steps = [
    [1099, [], null], [1101, [], 0], [1299, [], 0], [1301, [0], null], [1401, [], 1], [1701, [1], 2],
    [1901, [2], null],
  ];
  for (const [now, judged, drafted] of steps) {
    assert.deepEqual(seen(replay.next(ROUNDS, now, 200)), [judged, drafted], `at ${now} ms`);
  }
});

test("at engine speed there are only verdicts", () => {
  const replay = replayed(1);
  const steps = [[1011, []], [1031, [0]], [1091, [1, 2]]];
  for (const [now, judged] of steps) assert.deepEqual(seen(replay.next(ROUNDS, now, 200)), [judged, null]);
});

test("a change of speed does not change what has passed", () => {
  const replay = replayed(0.1);
  replay.setSpeed(1, 1200); // 20 ms of the engine
  assert.deepEqual(seen(replay.next(ROUNDS, 1209, 200)), [[], null]);
  assert.deepEqual(seen(replay.next(ROUNDS, 1211, 200)), [[0], null]);
});

test("a replay can go on from any round, and from a draft that is there already", () => {
  const replay = new Replay();
  replay.restart(0.1, 1000, 1, 10);
  assert.deepEqual(seen(replay.next(ROUNDS, 1001, 200)), [[], 1]);
  assert.deepEqual(seen(replay.next(ROUNDS, 1301, 200)), [[1], 2]);
});

test("rounds that come later are awaited", () => {
  const replay = replayed(Infinity);
  assert.deepEqual(seen(replay.next(ROUNDS.slice(0, 1), 1000, 200)), [[0], null]);
  assert.deepEqual(seen(replay.next(ROUNDS.slice(0, 1), 1100, 200)), [[], null]);
  assert.deepEqual(seen(replay.next(ROUNDS, 1200, 200)), [[1, 2], null]);
});

test("a step shows no more tokens than it may", () => {
  const many = Array.from({ length: 100 }, (_, index) => linked(allAccepted(4), index));
  const replay = replayed(Infinity);
  assert.equal(replay.next(many, 1000, 200).judged.length, 40);
  assert.equal(replay.judged, 40);
  replay.restart(Infinity, 0);
  assert.equal(replay.judged, 0);
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
