import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { fastest, pointsFor, rowsOf } from "../../specdemo/ui/static/view/chart.js";

const estimate = (gamma, more = {}) => ({
  gamma, tokens: 1 + gamma / 4, speedup: 1 + gamma / 9,
  interval: gamma ? [1 + gamma / 10, 1 + gamma / 8] : null, ...more,
});
const point = (gamma, speedup, low = null, high = null) => (
  { gamma, speedup, low, high, tokens_per_round: 1 + gamma / 5, runs: 3 }
);
const all = (more = {}) => Array.from({ length: 17 }, (_, gamma) => estimate(gamma, more));
const OUTCOME = { estimates: all(), best_gamma: 16 };
const UNKNOWN = { estimates: all({ speedup: null, interval: null }), best_gamma: null };
const POINTS = [point(0, 1), point(2, 1.234, 1.1, 1.4), point(4, 1.3, 1.2, 9), point(8, 0.9, 0.85, 0.95)];
const ROWS = rowsOf(OUTCOME, POINTS, 4);

test("there is a row for each draft length, and none where nothing is known", () => {
  assert.deepEqual(ROWS.map(({ gamma }) => gamma), Array.from({ length: 17 }, (_, gamma) => gamma));
  assert.deepEqual(ROWS.filter(({ isOwn }) => isOwn).map(({ gamma }) => gamma), [4]);
  assert.deepEqual(rowsOf(null, [], 4), []);
  assert.deepEqual(rowsOf({ estimates: [], best_gamma: null }, [], null), []);
  assert.equal(rowsOf(null, POINTS, null).length, 17);
});

test("the fastest that were measured are those whose intervals meet that of the fastest", () => {
  assert.deepEqual(fastest(POINTS), { gamma: 4, alike: [2] });
  assert.deepEqual(fastest([point(8, 1.5, 1.45, 1.55), point(4, 1.4, 1.3, 1.46), point(2, 1.3, 1.2, 1.44)]), { gamma: 8, alike: [4] });
  assert.deepEqual(fastest([point(0, 1), point(4, 0.7, 0.6, 0.8)]), { gamma: 0, alike: [] });
  assert.deepEqual(fastest([point(0, 1), point(4, null)]), null, "nothing to compare the target alone with");
  assert.deepEqual(fastest([]), null);
});

test("one draft length is held up as the best, the estimate's only before anything was measured", () => {
  const best = (outcome, points) => rowsOf(outcome, points, 4).filter((row) => row.best).map((row) => [row.gamma, row.best]);
  assert.deepEqual(best(OUTCOME, POINTS), [[4, "measured"]]);
  assert.deepEqual(best(OUTCOME, []), [[16, "seen"]]);
  assert.deepEqual(best({ estimates: all(), best_gamma: 0 }, []), [[0, "seen"]]);
  assert.deepEqual(best(UNKNOWN, []), []);
});

test("what was measured stands beside the estimates of a run of the same pair, drafter, device and sampler only", () => {
  assert.deepEqual(pointsFor(POINTS, "same", { conditions: "same" }), POINTS);
  assert.deepEqual(pointsFor(POINTS, "same", { conditions: "another drafter" }), []);
  assert.deepEqual(pointsFor(POINTS, "same", null), []);
});
