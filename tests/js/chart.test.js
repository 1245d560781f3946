import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  LINES, apartInWords, bandOf, bestInWords, cellsOf, fastest, intervalsOf, marksOf, pointsFor, rowInWords, rowsOf, scaleOf, unclearInWords, whatIsMissing,
} from "../../specdemo/ui/static/view/chart.js";
import { fixed } from "../../specdemo/ui/static/view/format.js";

const estimate = (gamma, more = {}) => ({
  gamma, formula_tokens: 1 + gamma / 3, formula_speedup: 1 + gamma / 7, seen_tokens: 1 + gamma / 4,
  seen_speedup: 1 + gamma / 9, seen_interval: gamma ? [1 + gamma / 10, 1 + gamma / 8] : null, ...more,
});
const point = (gamma, speedup, low = null, high = null) => (
  { gamma, speedup, low, high, tokens_per_round: 1 + gamma / 5, runs: 3 }
);
const all = (more = {}) => Array.from({ length: 17 }, (_, gamma) => estimate(gamma, more));
const OUTCOME = { estimates: all(), best_gamma: 16 };
const UNKNOWN = { estimates: all({ seen_speedup: null, seen_interval: null, formula_speedup: null }), best_gamma: null };
const POINTS = [point(0, 1), point(2, 1.234, 1.1, 1.4), point(4, 1.3, 1.2, 9), point(8, 0.9, 0.85, 0.95)];
const ROWS = rowsOf(OUTCOME, POINTS, 4);
const MEASURES = ["speedup", "tokens"];

test("there is a row for each draft length, and none where nothing is known", () => {
  assert.deepEqual(ROWS.map(({ gamma }) => gamma), Array.from({ length: 17 }, (_, gamma) => gamma));
  assert.deepEqual(ROWS.filter(({ isOwn }) => isOwn).map(({ gamma }) => gamma), [4]);
  assert.deepEqual(rowsOf(null, [], 4), []);
  assert.deepEqual(rowsOf({ estimates: [], best_gamma: null }, [], null), []);
  assert.equal(rowsOf(null, POINTS, null).length, 17);
});

test("the chart has the numbers of the table", () => {
  for (const measure of MEASURES) {
    const scale = scaleOf(ROWS, measure, 600, 300);
    const valueAt = (y) => ((scale.floor - y) / (scale.floor - scale.ceiling)) * scale.top;
    for (const line of LINES) {
      const name = measure + line[0].toUpperCase() + line.slice(1);
      const inTable = ROWS.map((row) => [row.gamma, cellsOf(row)[name]]).filter(([, text]) => text !== "–");
      const marks = marksOf(ROWS, measure, line, scale);
      assert.deepEqual(marks.map(({ gamma, value }) => [gamma, fixed(value)]), inTable);
      assert.ok(inTable.length >= 4);
      for (const { gamma, x, y, value } of marks) {
        assert.ok(Math.abs(valueAt(y) - value) < 1e-9 && x === scale.x(gamma));
      }
    }
  }
});

test("what is measured has its interval, which the axis holds", () => {
  const scale = scaleOf(ROWS, "speedup", 600, 300);
  const [, two] = marksOf(ROWS, "speedup", "measured", scale);
  const [ofTwo, ofFour] = intervalsOf(ROWS, "speedup", scale);
  assert.ok(ofTwo.low > two.y && two.y > ofTwo.high && ofTwo.x === two.x);
  assert.ok(scale.top >= 9 && ofFour.high === scale.y(9));
  assert.equal(cellsOf(ROWS[2]).interval, "1.10–1.40");
  assert.equal(cellsOf(ROWS[0]).interval, "");
  assert.deepEqual(intervalsOf(ROWS, "tokens", scale), []);
});

test("the axes hold all lines, and end at a tick", () => {
  for (const largest of [0.5, 1, 1.05, 2.31, 4.9, 17, 120]) {
    const estimates = all({ seen_speedup: largest, seen_interval: null, formula_speedup: null });
    const rows = rowsOf({ estimates, best_gamma: 0 }, [], 4);
    const { top, ticks, left, right, x, y, floor, ceiling } = scaleOf(rows, "speedup", 390, 200);
    assert.ok(top >= Math.max(1, largest) && ticks[0] === 0 && Math.abs(ticks.at(-1) - top) < 1e-9);
    assert.ok(largest > 30 || ticks.length <= 7);
    assert.deepEqual([y(0), Math.round(y(top))], [floor, ceiling]);
    assert.ok(x(0) > left && x(16) < right);
  }
});

test("the fastest that were measured are those whose intervals meet that of the fastest", () => {
  assert.deepEqual(fastest(POINTS), { gamma: 4, alike: [2] });
  assert.deepEqual(fastest([point(8, 1.5, 1.45, 1.55), point(4, 1.4, 1.3, 1.46), point(2, 1.3, 1.2, 1.44)]), { gamma: 8, alike: [4] });
  assert.deepEqual(fastest([point(0, 1), point(4, 0.7, 0.6, 0.8)]), { gamma: 0, alike: [] });
  assert.deepEqual(fastest([point(0, 1), point(4, null)]), null, "nothing to compare the target alone with");
  assert.deepEqual(fastest([]), null);
});

test("one draft length is held up as the best, the estimate's only before anything was measured", () => {
  const { speedupSeen: seen, seenInterval } = cellsOf(ROWS[16]);
  const best = (rows) => rows.filter((row) => row.best).map((row) => [row.gamma, row.best]);
  assert.deepEqual(bestInWords(ROWS), { gamma: 4, words: "Best: γ 4, measured 1.30 × (1.20–9.00)" });
  assert.deepEqual(best(ROWS), [[4, "measured"]]);
  const before = rowsOf(OUTCOME, [], 4);
  assert.deepEqual(bestInWords(before), { gamma: 16, words: `Best by the estimate: γ 16, ${seen} × (${seenInterval})` });
  assert.deepEqual(best(before), [[16, "seen"]]);
  const alone = rowsOf({ estimates: all(), best_gamma: 0 }, [], 4);
  assert.deepEqual(bestInWords(alone), { gamma: 0, words: "Best by the estimate: target alone, 1.00 ×" });
  assert.equal(bestInWords(rowsOf(UNKNOWN, [], 4)), null);
});

test("which lengths do not clearly differ is said, which could not be timed, and what the estimate would suggest", () => {
  const said = (points, estimated = null) => unclearInWords(rowsOf(OUTCOME, points, 4), estimated);
  const near = [2, 4, 6].map((gamma) => point(gamma, 1.4, 1.3, 1.5));
  assert.equal(said([point(0, 1), ...near]), "γ 4, γ 6: no clear difference from γ 2.");
  assert.equal(said([point(0, 1), point(3, 1.1, 1, 1.2), ...near]), "γ 4, γ 6: no clear difference from γ 2.");
  assert.match(said(near, 16), / This run alone, which is one text, would suggest γ 16: 2.78 × \(2.60–3.00\) by the estimate\.$/);
  const slow = [point(0, 1), point(4, 1.05, 0.95, 1.15)];
  assert.equal(said(slow), "target alone: no clear difference from γ 4.");
  const wide = [point(0, 1), point(2, null)];
  assert.equal(said(wide, 16), "γ 2: this machine was too busy to time; only the tokens a round are shown.");
  assert.equal(said([], 16), "");
});

test("a band holds the estimates, and there is none without intervals", () => {
  const scale = scaleOf(ROWS, "speedup", 600, 300);
  const band = bandOf(ROWS, "speedup", scale);
  assert.equal(band.match(/[ML]/g)?.length, 2 * 17);
  assert.equal(bandOf(ROWS, "tokens", scale), "");
  assert.equal(bandOf(rowsOf(UNKNOWN, [], 4), "speedup", scale), "");
});

test("a sentence says why estimates are missing", () => {
  const rounds = [{ draft: [{}] }];
  const ended = { complete: true, finish: "eos", rounds, outcome: OUTCOME };
  const missing = (more) => whatIsMissing({ ...ended, ...more });
  const none = { estimates: [], best_gamma: null };
  assert.equal(missing({}), "");
  assert.match(missing({ complete: false, outcome: null }), /when the run has ended/);
  assert.match(missing({ finish: null, outcome: null }), /had not ended when it was saved/);
  assert.match(missing({ rounds: [{ draft: [] }], outcome: none }), /^Nothing was drafted/);
  const unsure = { draft: [], ended_by: "confidence" };
  assert.match(missing({ rounds: [unsure], outcome: none }), /^Every draft was dropped in this run/);
  assert.match(missing({ outcome: none }), /^No draft was judged/);
  const dropped = { ...OUTCOME, estimates: all({ formula_speedup: null }) };
  assert.match(missing({ outcome: dropped }), /^Leviathan’s formula gives no speed-up .* were dropped\.$/);
  const stopped = { ...UNKNOWN, no_speedup: "it was stopped" };
  assert.equal(missing({ outcome: stopped }), "No speed-up can be estimated from this run: it was stopped.");
});

test("what was measured stands beside the estimates of a run of the same pair, drafter, device and sampler only", () => {
  assert.deepEqual(pointsFor(POINTS, "same", { conditions: "same" }), POINTS);
  assert.deepEqual(pointsFor(POINTS, "same", { conditions: "another drafter" }), []);
  assert.deepEqual(pointsFor(POINTS, "same", null), []);
});

test("the run's own figures are said to be measured, and those of other lengths to be estimated", () => {
  assert.match(rowInWords(rowsOf(OUTCOME, [], 4)[4]), /× in this run \(.*\), 2.00 tokens a round in this run$/);
  assert.match(rowInWords(rowsOf(OUTCOME, [], 4)[5]), /× estimated \(.*\), .* tokens a round estimated$/);
});

test("where a measured interval and an estimated one do not meet, one sentence says so and why", () => {
  assert.match(apartInWords(ROWS), /^At γ 8 the measured interval and the estimated one do not meet: .* Tokens a round are counted /);
  assert.match(apartInWords(rowsOf(OUTCOME, [point(2, 1.22, 1.1, 1.4)], 4)), /^Tokens a round are counted /);
  assert.equal(apartInWords(rowsOf(OUTCOME, [], 4)), "");
  const own = apartInWords(rowsOf(OUTCOME, [point(4, 9, 8, 10)], 4));
  assert.match(own, /^At γ 4, this run's own, other texts were measured than this run's/);
});
