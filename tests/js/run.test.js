import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { numbersAfter, overAfter } from "../../specdemo/ui/static/view/replay.js";
import { Run } from "../../specdemo/ui/static/view/run.js";
import { PROMPT, allAccepted, plain, rejection, update } from "./runs.js";

function begun(rounds = [rejection()], more = {}) {
  const run = new Run();
  assert.equal(run.take(1, update(0, rounds, { prompt: PROMPT, ...more })).result, "begun");
  return run;
}

test("a run is put together from its updates", () => {
  const run = begun();
  assert.equal(run.take(1, update(1, [allAccepted()])).result, "continued");
  assert.equal(run.take(1, update(2, [], { finish: "eos", numbers: { rounds: "2" } })).result, "continued");
  assert.deepEqual(run.rounds.map(({ index }) => index), [0, 1]);
  assert.deepEqual([run.prompt, run.finish, run.complete], [PROMPT, "eos", true]);
  assert.deepEqual(run.numbers, { rounds: "2" });
});

test("what is known is not taken twice, and an overlap is taken once", () => {
  const run = begun([rejection(), plain()]);
  assert.equal(run.take(1, update(0, [rejection()])).result, "known");
  assert.equal(run.take(1, update(1, [plain(), allAccepted()])).result, "continued");
  assert.deepEqual(run.rounds.map(({ draft }) => draft.length), [3, 0, 2]);
});

test("an update with rounds missing before it is not taken", () => {
  const run = begun();
  assert.equal(run.take(1, update(2, [plain()])).result, "missed");
  assert.equal(new Run().take(1, update(1, [plain()])).result, "missed");
  assert.equal(run.take(2, update(1, [plain()])).result, "missed");
  assert.equal(run.rounds.length, 1);
});

test("a snapshot at the end corrects the texts that were cut", () => {
  const run = begun([rejection(), plain()]);
  const last = plain();
  last.next.text = " 3";
  const { result, corrected } = run.take(1, update(0, [rejection(), last, plain()], { finish: "stop" }));
  assert.equal(result, "continued");
  assert.deepEqual(corrected, [run.rounds[1].next]);
  assert.deepEqual(run.rounds.map((round) => round.next.text), [" d", " 3", " 30"]);
});

test("a snapshot whose rounds have other fates begins the run anew", () => {
  const run = begun([plain(), plain()]);
  assert.equal(run.take(1, update(0, [plain(), rejection()], { finish: "length", prompt: PROMPT })).result, "begun");
  assert.deepEqual(run.rounds.map(({ draft }) => draft.length), [0, 3]);
  assert.deepEqual([run.finish, run.prompt], ["length", PROMPT]);
  assert.equal(run.take(1, update(0, [plain(), rejection()], { finish: "length" })).result, "continued");
});

test("a run may be as long as a file is", () => {
  const length = 150_000; // more than a call can have arguments
  const run = begun(Array.from({ length }, plain), { finish: "length" });
  const snapshot = update(0, Array.from({ length }, plain), { finish: "stop" });
  assert.deepEqual(run.take(1, snapshot).corrected, []);
  assert.equal(run.rounds.length, length);
  assert.equal(numbersAfter(run.rounds, length).tokens, "150,000");
  assert.equal(overAfter(run.rounds, Infinity).count, length);
});
