import assert from "node:assert/strict";
import { test } from "node:test";
import { copiedFrom } from "../../specdemo/ui/static/view/run.js";
import { Run } from "../../specdemo/ui/static/view/run.js";
import { SETTING, drafted, own, update } from "./runs.js";

const LOOKUP = { ...SETTING, draft_with: "lookup", manner: "copy", ngram: 2 };

function round(draft, next) {
  return { draft: draft.map((id) => drafted(id)), next: own(next), draft_ms: 1, verify_ms: 1 };
}

/** A run whose prompt has these ids. */
function runOf(prompt, rounds, setting = LOOKUP) {
  const run = new Run();
  run.take(1, update(0, rounds, { prompt: prompt.map((id) => ({ id, text: ` ${id}`, fate: "prompt" })), setting }));
  return run;
}

test("the copy is of what followed the last place where the same tokens stood", () => {
  const run = runOf([1, 2, 3, 4, 1, 2, 5, 6, 1, 2], [round([5, 6], 9)]);
  assert.deepEqual(copiedFrom(run, 0), run.prompt.slice(6, 8));
});

test("what was written counts as text, what was rejected does not", () => {
  const rejected = { ...round([7], 3), draft: [drafted(7), drafted(1, { fate: "rejected" })] };
  const run = runOf([1, 2, 7], [rejected, round([], 7), round([3, 7], 8)]);
  // The text is 1 2 7 7 3 7, in which 3 followed the last 7 before the end.
  assert.deepEqual(copiedFrom(run, 2), [run.rounds[0].next, run.rounds[1].next]);
});

test("a copy can run into itself", () => {
  const run = runOf([4, 1, 4], [round([1, 4, 1, 4], 9)]);
  assert.deepEqual(copiedFrom(run, 0), [run.prompt[1], run.prompt[2], ...run.rounds[0].draft.slice(0, 2)]);
});

test("nothing is said where the text does not tell it", () => {
  const [prompt, rounds] = [[1, 2, 3, 1, 2], () => [round([3], 9)]];
  assert.equal(copiedFrom(runOf(prompt, rounds()), 0).length, 1);
  const silent = [
    runOf(prompt, rounds(), { ...LOOKUP, draft_with: "ngram" }), runOf([null], rounds()), runOf(prompt, [round([], 9)]),
    runOf(prompt, [round([4], 9)]),
  ];
  for (const run of silent) assert.deepEqual(copiedFrom(run, 0), []);
});
