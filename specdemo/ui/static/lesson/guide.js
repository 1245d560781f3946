// @ts-check
// The guided path: its steps, and which token of a run each of them is about. Nothing here touches the page.

import { milliseconds } from "../view/format.js";
import { isDrafted, tokensOf } from "../view/run.js";
import { say } from "../view/words.js";

/** @import { Drafted, Own, Round, Run } from "../view/run.js" */
/** @typedef {Pick<Run, "rounds" | "numbers" | "setting" | "recorded">} Shown */

const INSPECTOR = '[data-testid="inspector"]';
const OUTCOME = ".outcome";

/**
 * A step. lit: a selector of what is lit; of what there is, the first. pins: the token that is pinned. opens:
 * the recorded run that it is about; all others are about the run on the stage. shows: the tab that it is on, if
 * not the text. formula: whether it has one.
 * tabs: those that it offers to open, where they are.
 * @typedef {object} Step
 * @property {string} name its key in the words
 * @property {string} lit
 * @property {(rounds: Round[]) => Drafted | Own | undefined} [pins]
 * @property {string} [opens]
 * @property {string} [shows]
 * @property {boolean} [formula]
 * @property {string[]} [tabs]
 */

/** @type {Step[]} */
export const STEPS = [
  { name: "slow", lit: '[data-testid="stage"]' },
  { name: "check", lit: '[data-testid="timeline"]' },
  { name: "coin", lit: INSPECTOR, pins: doubtful, formula: true },
  { name: "replacement", lit: INSPECTOR, pins: (rounds) => own(rounds, "resampled"), formula: true },
  { name: "bonus", lit: INSPECTOR, pins: (rounds) => own(rounds, "bonus") },
  { name: "pays", lit: OUTCOME, formula: true },
  { name: "costs", lit: OUTCOME, opens: "poor" },
  { name: "worlds", lit: '[data-testid="worlds"] .both', shows: "worlds" },
  { name: "exact", lit: '.tabs [data-tab="figure"]', formula: true, tabs: ["figure", "trials"] },
];

/**
 * The number of a step, as an address may have it; the nearest that there is.
 * @param {string | null} text
 */
export function stepOf(text) {
  if (text === null || !/^\d{1,9}$/.test(text)) return null;
  return Math.min(Math.max(Number(text), 1), STEPS.length);
}

/**
 * A drafted token whose fate shows the rule: one that u decided, accepted if there is one.
 * @param {Round[]} rounds
 * @returns {Drafted | undefined}
 */
function doubtful(rounds) {
  const judged = rounds.flatMap(tokensOf).filter(isDrafted).filter(({ u, fate }) => u !== null && fate !== "discarded");
  const open = judged.filter(({ accept_prob }) => accept_prob !== null && accept_prob > 0 && accept_prob < 1);
  const accepted = (/** @type {Drafted} */ { fate }) => fate === "accepted";
  return open.find(accepted) ?? open[0] ?? judged.find(accepted) ?? judged[0];
}

/**
 * @param {Round[]} rounds
 * @param {Own["source"]} source
 */
function own(rounds, source) {
  return rounds.map(({ next }) => next).find((next) => next?.source === source) ?? undefined;
}

/**
 * The recorded run that the path takes in place of one that cannot show all of its steps; null if this one can.
 * @param {Shown} run
 */
export function substitute({ rounds, setting }) {
  const shows = setting?.rule.name === "speculative" && !setting.served
    && STEPS.every(({ pins }) => !pins || pins(rounds));
  return shows ? null : setting?.greedy ? "greedy" : "warm";
}

/**
 * What a token from the target alone takes, in words, and on which machine; null where it is not known.
 * @typedef {{ ms: string, machine: string }} Alone
 * @param {Shown} run
 * @returns {Alone | null}
 */
export function aloneOf({ numbers: { target_step = "–" }, setting }) {
  return target_step === "–" ? null : { ms: target_step, machine: setting?.machine ?? "" };
}

/**
 * The words of a step about this run: *so* stands around a word that they explain.
 * @param {Step} step
 * @param {Shown} run
 * @param {Alone | null} here of a run of the visitor's own, whatever stands in for it
 */
export function wordsOf({ name }, run, here = null) {
  const { acceptance_rate = "–", mean_tokens_per_round = "–", speedup = "–" } = run.numbers;
  const text = say(`tour.${name}.${run.setting?.greedy && GREEDY.includes(name) ? "greedy" : "text"}`);
  const alone = aloneOf(run);
  const verifying = run.rounds.reduce((sum, { verify_ms }) => sum + (verify_ms ?? 0), 0);
  if (name === "slow" && here) return `${text} ${say("tour.slow.here", { ...here })}`;
  if (name === "slow" && alone) return `${text} ${say(run.recorded ? "tour.slow.recorded" : "tour.slow.here", { ...alone })}`;
  if (name === "check" && alone && verifying) {
    const mean = verifying / run.rounds.length;
    const told = `${text} ${say("tour.check.here", { check: milliseconds(mean), ms: alone.ms })}`;
    return mean <= Number(alone.ms.match(NUMBER)?.[0].replace(",", ".")) ? `${told} ${say("tour.check.close")}` : told;
  }
  if ((name === "pays" || name === "costs") && ![acceptance_rate, speedup].includes("–")) {
    const values = { rate: acceptance_rate, tokens: mean_tokens_per_round, speedup };
    return `${text} ${say(`tour.${name}.here`, values)}`;
  }
  return text;
}

const NUMBER = /\d+[.,]\d+/; // of milliseconds, in the page's language
const GREEDY = ["coin", "replacement"]; // steps that have a sentence of their own for greedy decoding

/**
 * A text in parts: every second one is a word that it explains.
 * @param {string} words
 */
export const parted = (words) => words.split("*");
