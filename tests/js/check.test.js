import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { comparedInWords, lanesOf } from "../../specdemo/ui/static/view/check.js";

test("lanes are as long as their times, drafting first, and the longer one fills the width", () => {
  const [alone, together] = lanesOf({ rows: 5, plain_ms: 2, draft_ms: 1, verify_ms: 3 });
  assert.deepEqual(alone, { tokens: 1, from: 0, to: 0.5 });
  assert.deepEqual(together, { tokens: 5, from: 0.25, to: 1 });
  const [slow, quick] = lanesOf({ rows: 5, plain_ms: 8, draft_ms: 1, verify_ms: 3 });
  assert.deepEqual([slow.to, quick.to], [1, 0.5]);
});

test("a check is longer than a plain round only where the interval says so", () => {
  const said = (ratio, low, high) => comparedInWords({ rows: 5, ratio, interval: [low, high] });
  assert.match(said(1.39, 1.26, 1.52), /took 1\.39 × as long/);
  for (const alike of [said(1.05, 0.89, 1.2), said(0.97, 0.89, 1.2), said(1.1, 1, 1.2), said(0.75, 0.5, 1)]) assert.match(alike, /can't be told apart/);
  assert.match(said(0.8, 0.7, 0.95), /machine's pace differed/);
});
