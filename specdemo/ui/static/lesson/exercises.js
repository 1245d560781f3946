// @ts-check
// Exercises made from a run: a question with its choices, and why the right one is right. Nothing here touches the page.

import { digits, fixed, grouped } from "../view/format.js";
import { massAt } from "../view/rules.js";
import { rejectedIn } from "../view/run.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";
import { DEFAULTS } from "./chosen.js";
import { draw, noCounts, randomNumbers } from "./draws.js";
import { trialOf } from "./identity.js";

/** @import { Run, Token } from "../view/run.js" */
/** @import { Mistake } from "./identity.js" */
/**
 * A question. rows: of a table, its head first; maybe none. right: the number of the right choice, and why it is right.
 * @typedef {{ question: string, rows: string[][], choices: string[], right: number, why: string }} Question
 */
/**
 * A question with the picture that shows why: a tab, and the token or the mistake that it is about.
 * @typedef {Question & { shows: { tab: string, token?: Token, mistake?: Mistake } }} Exercise
 */

const DRAWS = 10_000;
/** A mistake that a student can find in the counts; "none" is none. @type {("none" | Mistake)[]} */
const FOUND = ["none", "from_p", "told", "likelier"];
const KINDS = [kept, share, mistake, even];

/**
 * The exercise of a number, in which the kinds take turns; those that the run cannot have are left out.
 * @param {Pick<Run, "rounds" | "setting" | "outcome">} run
 * @param {number} number from 0 on
 * @returns {Exercise}
 */
export function exerciseOf(run, number) {
  const can = KINDS.filter((kind) => kind(run, 0));
  return can[number % can.length](run, Math.floor(number / can.length)) ?? mistake(run, number);
}

/** The number that `digits` writes. @param {number} value */
const asWritten = (value) => Number(value.toPrecision(4));

/** One of the list, another for each turn. @template T @param {T[]} list @param {number} turn */
const turned = (list, turn) => list[turn * (list.length % 7 ? 7 : 1) % list.length]; // not neighbours

/**
 * Will this guess be kept?
 * @param {Pick<Run, "rounds" | "setting">} run
 * @param {number} turn
 * @returns {Exercise | null}
 */
function kept(run, turn) {
  const judged = isPlain(run) ? run.rounds.flatMap(({ draft }) => draft).filter(({ u }) => u !== null) : [];
  const clear = judged.filter(({ p, q, u }) => p && q && u && p > 0.01 && p < q && Math.abs(u - p / q) > 0.01
    && digits(asWritten(p) / asWritten(q)) === digits(p / q));
  const token = turned(clear, turn);
  if (!token) return null;
  const { p, q, u, fate } = /** @type {Record<"p" | "q" | "u", number> & Token} */ (token);
  const threshold = digits(asWritten(p) / asWritten(q));
  const values = { token: named(token), p: digits(p), q: digits(q), u: digits(u), threshold };
  const right = fate === "accepted" ? 0 : 1;
  return {
    question: say("exercises.kept.question", values),
    rows: [],
    choices: [say("exercises.kept.yes"), say("exercises.kept.no")],
    right,
    why: say(right ? "exercises.kept.why_not" : "exercises.kept.why", values),
    shows: { tab: "text", token },
  };
}

/**
 * With what probability was this token drawn after the rejection?
 * @param {Pick<Run, "rounds" | "setting">} run
 * @param {number} turn
 * @returns {Exercise | null}
 */
function share(run, turn) {
  const clear = run.rounds.flatMap(({ next }) => {
    if (next?.source !== "resampled" || next.p === null || next.q === null || next.q < 0.001 || !isPlain(run)) return [];
    const mass = massAt(next);
    const apart = asWritten(next.p) - asWritten(next.q); // as who calculates with what is written
    const over = asWritten(apart);
    if (!mass || over <= 0.01) return [];
    const all = [over / asWritten(mass), over, next.p, next.p * mass].map((one) => fixed(one, 3));
    const isClear = [apart / asWritten(mass), (next.p - next.q) / mass].every((one) => fixed(one, 3) === all[0]);
    return isClear && new Set(all).size === 4 ? [{ next, mass, over, all }] : [];
  });
  const found = turned(clear, turn);
  if (!found) return null;
  const { next, mass, over, all: [share, ...wrong] } = found;
  const rejected = rejectedIn(next.round);
  const choices = [share, ...wrong].sort();
  const values = {
    token: named(next), rejected: rejected ? named(rejected) : "", p: digits(next.p ?? 0), q: digits(next.q ?? 0),
    over: digits(over), mass: digits(mass), share,
  };
  return {
    question: say("exercises.share.question", values),
    rows: [],
    choices,
    right: choices.indexOf(share),
    why: say("exercises.share.why", values),
    shows: { tab: "figure", token: next },
  };
}

/**
 * Which mistake is switched on?
 * @param {unknown} _ whatever the run is
 * @param {number} turn
 * @returns {Exercise}
 */
function mistake(_, turn) {
  const made = turned(FOUND, turn + 1);
  const { p, q } = DEFAULTS;
  const counts = noCounts(p.length);
  draw(trialOf(p, q, new Set(made === "none" ? [] : [made])), randomNumbers(turn + 1), DRAWS, counts);
  const names = ["one", "two", "three", "four", "five", "six"].map((key) => say(`figure.tokens.${key}`));
  const came = counts.accepted.map((one, at) => (one + counts.replaced[at]) / DRAWS);
  const row = (/** @type {string} */ head, /** @type {number[]} */ numbers) => [head, ...numbers.map((one) => fixed(one, 3))];
  return {
    question: say("exercises.mistake.question", { count: grouped(DRAWS) }),
    rows: [["", ...names], row("p", p), row("q", q), row(say("exercises.mistake.came"), came)],
    choices: FOUND.map((one) => say(one === "none" ? "exercises.mistake.none" : `figure.mistakes.${one}.name`)),
    right: FOUND.indexOf(made),
    why: say(made === "none" ? "exercises.mistake.why_none" : `figure.mistakes.${made}.why`),
    shows: { tab: "figure", ...(made !== "none" && { mistake: made }) },
  };
}

/**
 * At which acceptance rate does this pair break even?
 * @param {Pick<Run, "outcome">} run
 * @param {number} turn
 * @returns {Exercise | null}
 */
function even({ outcome }, turn) {
  if (!outcome?.checks || turn) return null;
  const { rows, plain_ms, draft_ms, verify_ms } = outcome.checks;
  const cost = asWritten(draft_ms + verify_ms) / asWritten(plain_ms);
  if (cost <= 1.05 || cost >= rows) return null;
  const rate = breakEven(cost, rows);
  const rates = [rate, rate > 0.5 ? rate - 0.2 : rate + 0.2, rate > 0.5 ? rate - 0.35 : rate + 0.35].sort();
  const inPercent = (/** @type {number} */ one) => `${fixed(100 * one, 1)}%`;
  const choices = rates.map(inPercent);
  const values = {
    gamma: rows - 1, plain: digits(plain_ms), round: digits(draft_ms + verify_ms), cost: fixed(cost), rate: inPercent(rate),
  };
  return {
    question: say("exercises.even.question", values),
    rows: [],
    choices,
    right: choices.indexOf(values.rate),
    why: say("exercises.even.why", values),
    shows: { tab: "gamma" },
  };
}

/**
 * The acceptance rate at which a round of so many rows brings as many tokens as it costs plain rounds, where each draft is
 * accepted as often: (1 − α^rows) / (1 − α) = cost (Leviathan et al. 2023, equation 1).
 * @param {number} cost
 * @param {number} rows
 */
function breakEven(cost, rows) {
  let [low, high] = [0, 1];
  for (let step = 0; step < 40; step++) {
    const rate = (low + high) / 2;
    if ((1 - rate ** rows) / (1 - rate) < cost) low = rate;
    else high = rate;
  }
  return low;
}

/** Whether the speculative rule judged chains by u. @param {Pick<Run, "rounds" | "setting">} run */
function isPlain({ rounds, setting }) {
  return setting?.rule.name === "speculative" && !setting.greedy && !rounds.some(({ isTree }) => isTree);
}
