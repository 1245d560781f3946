// @ts-check
// What is chosen in the figure: the tokens with their p and q, the sampler, the mistakes, and one draft with its
// random numbers. As it begins, and as a token of a run has it.

import { inQuotes } from "../view/format.js";
import { ruleOf } from "../view/rules.js";
import { isAfterRefused } from "../view/run.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";
import { MISTAKES, pick, trialOf } from "./identity.js";
import { NEUTRAL, noLooser, normalised, shaped, sumOf } from "./shaping.js";

/** @import { Token } from "../view/run.js" */
/** @import { Mistake, Trial } from "./identity.js" */
/** @import { Others, Part, Place } from "./place.js" */
/** @import { Shaping } from "./shaping.js" */
/** @typedef {"p" | "q"} Which */
/**
 * The figure's parts read it and set what is theirs.
 * @typedef {object} Chosen
 * @property {string[]} names
 * @property {Others[]} others the last of the names: those that stand for more than one token
 * @property {boolean} asTaken whether p and q are the pinned token's, unchanged
 * @property {Record<Which, number[]>} raw before the sampler, or after that of the run
 * @property {Shaping} done what the run's sampler has done to them
 * @property {Shaping} shaping
 * @property {Set<Mistake>} mistakes
 * @property {number} draft
 * @property {number} u
 * @property {number} other the random number that draws the replacement
 * @property {Part[]} order in which the draw goes through the parts
 * @property {number | null} middle what stands for the run's own number, if where that fell is not known
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
    done: NEUTRAL,
    shaping: { ...NEUTRAL },
    mistakes: new Set(),
    draft,
    u,
    other,
    order: names.map((name, at) => ({ at, name, share: 1, otherwise: 1 })),
    middle: null,
    place: say("figure.after_default"),
  };
}

/**
 * @param {Token} token
 * @param {Place} found its place
 * @returns {Chosen}
 */
export function asAt(token, { names, others, p, q, done, shaping, draft, u, replacement, number, order }) {
  const where = { token: named(token) };
  const ofLeft = isAfterRefused(token) ? say("figure.after_refused") : "";
  const { name: rule } = ruleOf(token);
  const ofRule = rule === "speculative" ? "" : say("figure.other_rule", { rule });
  const sampled = ["figure.after_pinned.listed", "figure.after_pinned.one", "figure.after_pinned.two"][others.length];
  const all = [...names, ...others.map((kind) => say(`figure.others.${kind}`))];
  const chosen = {
    names: all,
    others,
    asTaken: true,
    raw: { p, q },
    done,
    shaping: { ...shaping },
    mistakes: new Set(),
    draft: draft ?? 0,
    u: u ?? DEFAULTS.u,
    other: DEFAULTS.other,
    order: order.map((part) => ({ ...part, name: part.name ?? all[part.at] })),
    middle: null,
    place: [say(shaping === done ? sampled : "figure.after_greedy", where), ofLeft, ofRule].filter(Boolean).join("; "),
  };
  if (replacement === null) return chosen;
  const weights = weightsOf(chosen, trialOf(shaped(p, shaping, done), shaped(q, shaping, done)).replacement);
  if (number !== null && order[pick(weights, number)].at === replacement) return { ...chosen, other: number };
  const middle = middleOf(weights, order.findIndex(({ at }) => at === replacement));
  return { ...chosen, other: middle, middle };
}

/**
 * The parts that the number for the draw is in one of, in their order. Once p and q are no longer as they were taken, only
 * the columns are known.
 * @param {Pick<Chosen, "order" | "asTaken" | "mistakes">} chosen
 * @param {number[]} replacement of each column
 */
export function weightsOf({ order, asTaken, mistakes }, replacement) {
  const isKnown = asTaken && mistakes.size === 0;
  return order.map(({ at, share, otherwise }) => replacement[at] * (isKnown ? share : otherwise));
}

/**
 * Whether only the drafter's likeliest token is drafted.
 * @param {Chosen} chosen
 * @param {Trial} trial
 */
export function draftsGreedily({ shaping }, { drawn }) {
  return shaping.temperature === 0 && drawn.includes(1);
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

// What the figure shows, as names of an address: only what differs from what it begins with. page/links.py refuses wrong
// values in a sentence; here they are left out.

/** @typedef {Record<string, string>} Query */

const SLIDERS = /** @type {const} */ (["temperature", "top_k", "top_p", "min_p"]);
const SUMS = 0.01; // what a sum of written probabilities may be off by

/** What is the figure's in an address. @param {string} search */
export function figureIn(search) {
  return Object.fromEntries([...new URLSearchParams(search)].filter(([name]) => name.startsWith("figure_")));
}

/**
 * @param {Chosen} chosen
 * @param {Chosen} base what the figure began with
 */
export function written(chosen, base) {
  /** @type {Query} */
  const query = {};
  const put = (/** @type {string} */ name, /** @type {string} */ now, /** @type {string} */ before) => {
    if (now !== before) query[`figure_${name}`] = now;
  };
  const list = (/** @type {number[]} */ numbers) => numbers.map(short).join(",");
  for (const which of /** @type {const} */ (["p", "q"])) put(which, list(chosen.raw[which]), list(base.raw[which]));
  for (const name of SLIDERS) put(name, short(chosen.shaping[name]), short(base.shaping[name]));
  for (const name of /** @type {const} */ (["draft", "u", "other"])) put(name, short(chosen[name]), short(base[name]));
  put("mistakes", MISTAKES.filter((one) => chosen.mistakes.has(one)).join(","), "");
  return query;
}

/**
 * @param {Query} query
 * @param {Chosen} base
 * @returns {Partial<Chosen>} what the figure then shows
 */
export function readFrom(query, base) {
  const number = (/** @type {string} */ name, /** @type {number} */ before, most = Infinity) => {
    const text = query[`figure_${name}`];
    return text && Number(text) >= 0 && Number(text) <= most ? Number(text) : before;
  };
  const shares = (/** @type {"p" | "q"} */ which) => {
    const numbers = (query[`figure_${which}`] ?? "").split(",").map(Number);
    const fits = numbers.length === base.names.length && numbers.every((one) => one >= 0);
    return fits && Math.abs(sumOf(numbers) - 1) <= SUMS ? normalised(numbers) : base.raw[which];
  };
  const raw = { p: shares("p"), q: shares("q") };
  const shaping = Object.fromEntries(SLIDERS.map((name) => [name, noLooser(name, number(name, base.shaping[name]), base.done)]));
  const isShaped = SLIDERS.some((name) => shaping[name] !== base.shaping[name]);
  return {
    raw,
    shaping: /** @type {Chosen["shaping"]} */ (shaping),
    asTaken: base.asTaken && raw.p === base.raw.p && raw.q === base.raw.q && !isShaped,
    draft: number("draft", base.draft, base.names.length - 1),
    u: belowOne(number("u", base.u)),
    other: belowOne(number("other", base.other)),
    mistakes: new Set(MISTAKES.filter((one) => (query.figure_mistakes ?? "").split(",").includes(one))),
  };
}

/** In six digits. @param {number} value */
function short(value) {
  return String(Number(value.toPrecision(6)));
}
