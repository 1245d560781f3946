// @ts-check
// What draft lengths bring: the rows that the table writes and the chart draws, and where the chart has them.

import { fixed, times } from "./format.js";
import { isUntold } from "./served.js";
import { say } from "./words.js";

/** @import { Estimate, GammaPoint, RunOutcome, RunSetting } from "./messages.d.ts" */
/** @import { Run } from "./run.js" */
/**
 * A draft length: what is estimated for it, and what was measured. best: by what was measured, or by the estimates
 * where nothing tells it.
 * @typedef {object} Row
 * @property {number} gamma
 * @property {Estimate | null} estimate
 * @property {GammaPoint | null} point
 * @property {Line | null} best
 * @property {boolean} isOwn the run's own
 */
/** @typedef {"seen" | "measured"} Line */
/** @typedef {"speedup" | "tokens"} Measure */
/** @typedef {ReturnType<typeof scaleOf>} Scale */

/** @type {Measure[]} */
export const MEASURES = ["speedup", "tokens"];
/** @type {Line[]} */
export const LINES = ["seen", "measured"];
const LONGEST = 16; // gamma
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5]; // between two ticks
const MOST_TICKS = 6;
const MARGIN = { left: 38, right: 10, top: 24, bottom: 38 }; // px

/**
 * @param {RunOutcome | null} outcome
 * @param {GammaPoint[]} points
 * @param {number | null} own the run's own gamma
 * @returns {Row[]} none where nothing is known
 */
export function rowsOf(outcome, points, own) {
  const estimates = outcome?.estimates ?? [];
  if (!estimates.length && !points.length) return [];
  const measured = fastest(points)?.gamma ?? null;
  const bestOf = (/** @type {number} */ gamma) => {
    if (measured !== null) return measured === gamma ? "measured" : null;
    return outcome?.best_gamma === gamma ? "seen" : null;
  };
  return Array.from({ length: LONGEST + 1 }, (_, gamma) => ({
    gamma,
    estimate: estimates.find((one) => one.gamma === gamma) ?? null,
    point: points.find((one) => one.gamma === gamma) ?? null,
    best: bestOf(gamma),
    isOwn: own === gamma,
  }));
}

/**
 * The fastest measured draft length, and those that do not clearly differ from it, since their intervals meet, the
 * shortest first. Null where nothing could be timed.
 * @param {GammaPoint[]} points
 */
export function fastest(points) {
  const known = points.flatMap(({ gamma, speedup, low, high }) => (
    speedup === null ? [] : [{ gamma, speedup, low: low ?? speedup, high: high ?? speedup }]
  )).sort((a, b) => a.gamma - b.gamma);
  if (!known.some(({ gamma }) => gamma > 0)) return null; // the target alone has nobody to be compared with
  const first = known.reduce((most, one) => (one.speedup > most.speedup ? one : most));
  const alike = known.filter((one) => one !== first && one.high >= first.low).map(({ gamma }) => gamma);
  return { gamma: first.gamma, alike };
}

/**
 * A row's value in a line of a chart; null where it is not known.
 * @param {Row} row
 * @param {Measure} measure
 * @param {Line} line
 */
export function valueOf({ estimate, point }, measure, line) {
  if (line === "measured") return (measure === "speedup" ? point?.speedup : point?.tokens_per_round) ?? null;
  return estimate?.[measure] ?? null;
}

/**
 * The interval of that value; null where it has none, such as tokens a round, which are counted.
 * @param {Row} row
 * @param {Measure} measure
 * @param {Line} line
 * @returns {[low: number, high: number] | null}
 */
function endsOf({ estimate, point }, measure, line) {
  if (measure === "tokens") return null;
  if (line === "seen") return estimate?.interval ?? null;
  const { low = null, high = null } = point ?? {};
  return low === null || high === null ? null : [low, high];
}

/**
 * The same, as the table writes them: the value, and the interval or nothing.
 * @param {Row} row
 * @param {Measure} measure
 * @param {Line} line
 */
export function cellOf(row, measure, line) {
  const [value, ends] = [valueOf(row, measure, line), endsOf(row, measure, line)];
  return { text: value === null ? "–" : fixed(value), interval: ends ? ends.map((end) => fixed(end)).join("–") : "" };
}

/**
 * The row in words, for its column of the chart.
 * @param {Row} row
 */
export function rowInWords(row) {
  const facts = MEASURES.flatMap((measure) => LINES.flatMap((line) => {
    const { text, interval } = cellOf(row, measure, line);
    if (text === "–") return [];
    const how = line === "measured" ? "measured" : row.isOwn ? "own" : "estimated";
    if (measure === "tokens") return [say(`gamma.${how}Tokens`, { tokens: text })];
    return [say(`gamma.${how}${interval ? "SpeedupBetween" : "Speedup"}`, { speedup: text, interval })];
  }));
  return say("gamma.row", { length: nameOf(row.gamma), facts: facts.join(", ") || say("gamma.nothing") });
}

/**
 * The points that may stand beside a run's estimates: those measured with the same pair, drafter, device and
 * sampler.
 * @param {GammaPoint[]} points
 * @param {string} conditions under which they were measured
 * @param {Pick<RunSetting, "conditions"> | null} setting of the run
 */
export function pointsFor(points, conditions, setting) {
  return setting?.conditions === conditions ? points : [];
}

/** @param {number} gamma */
export function nameOf(gamma) {
  return gamma === 0 ? say("gamma.alone") : `γ ${gamma}`;
}

/**
 * The best draft length in words, by what was measured or else by the estimates; nothing where neither tells it.
 * @param {Row[]} rows
 * @returns {{ gamma: number, words: string } | null}
 */
export function bestInWords(rows) {
  const row = rows.find(({ best }) => best);
  if (!row?.best) return null;
  const said = { length: nameOf(row.gamma), speedup: speedupOf(row, row.best) };
  return { gamma: row.gamma, words: say(row.best === "measured" ? "gamma.bestMeasured" : "gamma.bestEstimated", said) };
}

/**
 * @param {Row} row
 * @param {Line} line
 */
function speedupOf(row, line) {
  const { interval } = cellOf(row, "speedup", line);
  return `${times(valueOf(row, "speedup", line) ?? 1)}${interval && ` (${interval})`}`;
}

/**
 * Which of the measured draft lengths do not clearly differ from the best; empty where none is so.
 * @param {Row[]} rows
 */
export function unclearInWords(rows) {
  const best = fastest(rows.flatMap(({ point }) => point ?? []));
  if (!best?.alike.length) return "";
  return say("gamma.alike", { lengths: best.alike.map(nameOf).join(", "), length: nameOf(best.gamma) });
}

/**
 * Why the estimates of a run are missing, or their speed-ups; nothing where all are there.
 * @param {Pick<Run, "complete" | "rounds" | "outcome"> & Partial<Pick<Run, "setting">>} run
 */
export function whatIsMissing({ complete, rounds, outcome, setting }) {
  if (!complete) return say("gamma.missing.goesOn");
  if (!outcome) return say("gamma.missing.unfinished");
  if (setting?.served) {
    if (outcome.estimates.length) return say("gamma.missing.served");
    return say(rounds.some(isUntold) ? "gamma.missing.untold" : "gamma.missing.unjudged");
  }
  if (!outcome.estimates.length) {
    if (setting?.gamma === "auto") return say("gamma.missing.auto");
    return say(rounds.some(({ isTree }) => isTree) ? "gamma.missing.tree" : "gamma.missing.unjudged");
  }
  if (outcome.estimates.some(({ speedup }) => speedup !== null)) return "";
  return say("gamma.missing.speedup", { why: String(outcome.no_speedup) });
}

/**
 * The chart's axes in pixels.
 * @param {Row[]} rows
 * @param {number} width
 * @param {number} height
 */
export function scaleOf(rows, width, height) {
  const values = rows.flatMap((row) => LINES.flatMap((line) => (
    [valueOf(row, "speedup", line) ?? 0, endsOf(row, "speedup", line)?.[1] ?? 0])));
  const reach = values.reduce((most, value) => Math.max(most, value), 1);
  const step = STEPS.find((one) => reach / one <= MOST_TICKS - 1) ?? 10;
  const count = Math.ceil(reach / step - 1e-9);
  const top = count * step;
  const column = (width - MARGIN.left - MARGIN.right) / (LONGEST + 1);
  const bottom = height - MARGIN.bottom;
  return {
    top,
    column,
    ticks: Array.from({ length: count + 1 }, (_, at) => Number((at * step).toFixed(1))),
    left: MARGIN.left,
    right: width - MARGIN.right,
    ceiling: MARGIN.top,
    floor: bottom,
    x: (/** @type {number} */ gamma) => MARGIN.left + (gamma + 0.5) * column,
    y: (/** @type {number} */ value) => bottom - (Math.min(value, top) / top) * (bottom - MARGIN.top),
  };
}

/**
 * Where a line's values are; rows without one are left out.
 * @param {Row[]} rows
 * @param {Line} line
 * @param {Scale} scale
 */
export function marksOf(rows, line, scale) {
  return rows.flatMap((row) => {
    const value = valueOf(row, "speedup", line);
    return value === null ? [] : [{ x: scale.x(row.gamma), y: scale.y(value) }];
  });
}

/**
 * Where the ends of their intervals are.
 * @param {Row[]} rows
 * @param {Line} line
 * @param {Scale} scale
 */
export function intervalsOf(rows, line, scale) {
  return rows.flatMap((row) => {
    const ends = endsOf(row, "speedup", line);
    return ends ? [{ x: scale.x(row.gamma), low: scale.y(ends[0]), high: scale.y(ends[1]) }] : [];
  });
}

/**
 * The area between the ends of the estimates' intervals, for an SVG path; empty where there are none. It begins at the
 * target alone.
 * @param {Row[]} rows
 * @param {Scale} scale
 */
export function bandOf(rows, scale) {
  const known = intervalsOf(rows, "seen", scale);
  if (!known.length) return "";
  const all = [{ x: scale.x(0), low: scale.y(1), high: scale.y(1) }, ...known];
  const [above, below] = [all.map(({ x, high: y }) => ({ x, y })), all.map(({ x, low: y }) => ({ x, y }))];
  return `${pathThrough([...above, ...below.reverse()])}Z`;
}

/**
 * The way through the marks, for an SVG path.
 * @param {{ x: number, y: number }[]} marks
 */
export function pathThrough(marks) {
  return marks.map(({ x, y }, at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}
