// @ts-check
// What is chosen in the figure: the tokens with their p and q, the temperature, the mistakes, and one draft with its
// random numbers. As it begins, and as a token of a run has it.

import { inQuotes } from "../view/format.js";
import { ruleOf } from "../view/rules.js";
import { isAfterRefused } from "../view/run.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";
import { trialOf } from "./identity.js";
import { shaped, sumOf } from "./shaping.js";

/** @import { Token } from "../view/run.js" */
/** @import { Mistake, Trial } from "./identity.js" */
/** @import { Others, Place } from "./place.js" */
/** @typedef {"p" | "q"} Which */
/**
 * The figure's parts read it and set what is theirs.
 * @typedef {object} Chosen
 * @property {string[]} names
 * @property {Others[]} others the last of the names: those that stand for more than one token
 * @property {boolean} asTaken whether p and q are the pinned token's, unchanged
 * @property {Record<Which, number[]>} raw before the sampler, or after that of the run
 * @property {number | null} done the temperature of the run's sampler; null where p and q are before any
 * @property {number} temperature
 * @property {Set<Mistake>} mistakes
 * @property {number} draft
 * @property {number} u
 * @property {number} other the random number that draws the replacement
 * @property {string} place where p and q are from
 */

/** The bars that the figure begins with: a drafter that is right half of the time, and wrong in each way. */
export const DEFAULTS = {
  p: [0.42, 0.22, 0.14, 0.1, 0.08, 0.04],
  q: [0.2, 0.38, 0.08, 0.22, 0.04, 0.08],
  draft: 1,
  u: 0.8,
  other: 0.3, // the random number that draws the replacement
};
const TOKENS = ["one", "two", "three", "four", "five", "six"]; // the keys of their words

/** @returns {Chosen} */
export function byDefault() {
  const { p, q, draft, u, other } = DEFAULTS;
  const names = TOKENS.map((key) => inQuotes(say(`figure.tokens.${key}`)));
  return {
    names,
    others: [],
    asTaken: false,
    raw: { p, q },
    done: null,
    temperature: 1,
    mistakes: new Set(),
    draft,
    u,
    other,
    place: say("figure.after_default"),
  };
}

/**
 * @param {Token} token
 * @param {Place} found its place
 * @returns {Chosen}
 */
export function asAt(token, { names, others, p, q, done, temperature, draft, u, replacement }) {
  const where = { token: named(token) };
  const ofLeft = isAfterRefused(token) ? say("figure.after_refused") : "";
  const { name: rule } = ruleOf(token);
  const ofRule = rule === "speculative" ? "" : say("figure.other_rule", { rule });
  const sampled = ["figure.after_pinned.listed", "figure.after_pinned.one", "figure.after_pinned.two"][others.length];
  const trial = trialOf(shaped(p, temperature, done), shaped(q, temperature, done));
  return {
    names: [...names, ...others.map((kind) => say(`figure.others.${kind}`))],
    others,
    asTaken: true,
    raw: { p, q },
    done,
    temperature,
    mistakes: new Set(),
    draft: draft ?? 0,
    u: u ?? DEFAULTS.u,
    other: replacement === null ? DEFAULTS.other : middleOf(trial.replacement, replacement),
    place: [say(done === null ? "figure.after_greedy" : sampled, where), ofLeft, ofRule].filter(Boolean).join("; "),
  };
}

/**
 * Whether only the drafter's likeliest token is drafted.
 * @param {Chosen} chosen
 * @param {Trial} trial
 */
export function draftsGreedily({ temperature }, { drawn }) {
  return temperature === 0 && drawn.includes(1);
}

/**
 * The place of the token that is drafted.
 * @param {Chosen} chosen
 * @param {Trial} trial
 */
export function draftOf(chosen, trial) {
  return draftsGreedily(chosen, trial) ? trial.drawn.indexOf(1) : chosen.draft;
}

/** Random numbers are below 1. @param {number} value */
export function belowOne(value) {
  return Math.min(value, 0.999);
}

/**
 * The middle of a token's part of the cumulative distribution.
 * @param {number[]} weights
 * @param {number} index
 */
function middleOf(weights, index) {
  return belowOne((sumOf(weights.slice(0, index)) + weights[index] / 2) / sumOf(weights));
}
