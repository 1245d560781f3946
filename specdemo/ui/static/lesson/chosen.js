// @ts-check
// What is chosen in the figure: the tokens with their p and q, the sampler, the mistakes, and one draft with its
// random numbers. As it begins, and as a token of a run has it.

import { inQuotes } from "../view/format.js";
import { isAfterRefused } from "../view/run.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";
import { DEFAULTS } from "./defaults.js";
import { NEUTRAL, sumOf } from "./shaping.js";

/** @import { Token } from "../view/run.js" */
/** @import { Mistake, Trial } from "./identity.js" */
/** @import { Others, Place } from "./place.js" */
/** @import { Shaping } from "./shaping.js" */
/** @typedef {"p" | "q"} Which */
/**
 * The figure's parts read it and set what is theirs.
 * @typedef {object} Chosen
 * @property {string[]} names
 * @property {Others[]} others the last of the names: those that stand for more than one token
 * @property {boolean} asTaken whether p and q are the pinned token's, unchanged
 * @property {Record<Which, number[]>} raw before the sampler
 * @property {Shaping} shaping
 * @property {Set<Mistake>} mistakes
 * @property {number} draft
 * @property {number} u
 * @property {number} other the random number that draws the replacement
 * @property {string} place where p and q are from
 */

const TOKENS = [
  "figure.tokens.one", "figure.tokens.two", "figure.tokens.three", "figure.tokens.four", "figure.tokens.five", "figure.tokens.six",
];
/** @type {Record<Others, string>} */
const OTHERS = { above: "figure.others.above", below: "figure.others.below", all: "figure.others.all" };

/** @returns {Chosen} */
export function byDefault() {
  const { p, q, draft, u, other } = DEFAULTS;
  return {
    names: TOKENS.map((key) => inQuotes(say(key))),
    others: [],
    asTaken: false,
    raw: { p, q },
    shaping: { ...NEUTRAL },
    mistakes: new Set(),
    draft,
    u,
    other,
    place: say("figure.after_default"),
  };
}

/**
 * All but the number that draws the replacement, which depends on what it is drawn from.
 * @param {Token} token
 * @param {Place} found its place
 * @returns {Omit<Chosen, "other">}
 */
export function asAt(token, { names, others, p, q, shaping, draft, u }) {
  const where = { token: named(token) };
  const ofLeft = isAfterRefused(token) ? say("figure.after_refused") : "";
  const sampled = ["figure.after_pinned.listed", "figure.after_pinned.one", "figure.after_pinned.two"][others.length];
  return {
    names: [...names, ...others.map((kind) => say(OTHERS[kind]))],
    others,
    asTaken: true,
    raw: { p, q },
    shaping: { ...shaping },
    mistakes: new Set(),
    draft: draft ?? 0,
    u: u ?? DEFAULTS.u,
    place: [say(shaping.temperature === 0 ? "figure.after_greedy" : sampled, where), ofLeft].filter(Boolean).join("; "),
  };
}

/** Whether only the drafter's likeliest token is drafted. @param {Chosen} chosen */
export function draftsGreedily({ shaping }) {
  return shaping.temperature === 0;
}

/**
 * The place of the token that is drafted.
 * @param {Chosen} chosen
 * @param {Trial} trial
 */
export function draftOf(chosen, { drawn }) {
  return draftsGreedily(chosen) ? drawn.indexOf(1) : chosen.draft;
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
export function middleOf(weights, index) {
  return belowOne((sumOf(weights.slice(0, index)) + weights[index] / 2) / sumOf(weights));
}
