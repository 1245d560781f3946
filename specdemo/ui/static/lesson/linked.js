// @ts-check
// What the figure shows, as names of an address: only what differs from what it begins with. page/links.py refuses wrong
// values in a sentence; here they are left out.

import { belowOne } from "./chosen.js";
import { MISTAKES } from "./identity.js";
import { noLooser, normalised, sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
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
