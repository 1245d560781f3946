// @ts-check
// The p and q of a token of a run, for the figure.

import { inQuotes } from "../view/format.js";
import { ruleOf } from "../view/rules.js";
import { rejectedIn } from "../view/run.js";
import { alternativesTo } from "../view/verdict.js";
import { NEUTRAL, normalised, sumOf } from "./shaping.js";

/** @import { Token } from "../view/run.js" */
/** @import { Shaping } from "./shaping.js" */
/**
 * names: of the tokens, null for all others together. p and q are before the figure's sampler. draft: the place of
 * what was drafted; u: what decided on it; replacement: the place of what replaced it. Null where there is none.
 * @typedef {object} Place
 * @property {(string | null)[]} names
 * @property {number[]} p
 * @property {number[]} q
 * @property {Shaping} shaping
 * @property {number | null} draft
 * @property {number | null} u
 * @property {number | null} replacement
 */

const LISTED = 5; // tokens by name
const NEGLIGIBLE = 1e-9; // probability of all others that are left out

/**
 * The likeliest tokens at the token's place, and all others as one. Null where there is no p and q.
 * Of a sampled run, what its sampler made of p and q, which the figure then leaves as they are. Of a greedy
 * run, where those are 1 or 0, the likeliest tokens' p and q before the sampler, at temperature 0.
 * @param {Token | null} token
 * @returns {Place | null}
 */
export function placeAt(token) {
  if (!token || token.fate === "prompt") return null;
  const greedy = token.round.setting?.greedy ?? false;
  const drafted = "place" in token ? token : rejectedIn(token.round);
  const replaced = drafted?.fate === "rejected" ? token.round.next : null;
  const own = [drafted?.id, replaced?.id];
  const rows = alternativesTo(token).flatMap(({ id, text, p, q, raw_p, raw_q }) => {
    const [ofTarget, ofDrafter] = greedy ? [raw_p, raw_q] : [p, q];
    return ofTarget === null || ofDrafter === null ? [] : [{ id, name: inQuotes(text), p: ofTarget, q: ofDrafter }];
  });
  const weight = (/** @type {typeof rows[number]} */ { id, p, q }) => (own.includes(id) ? 2 : Math.max(p, q));
  const listed = rows.sort((a, b) => weight(b) - weight(a)).slice(0, LISTED).sort((a, b) => b.p - a.p);
  const [p, q] = [listed.map((row) => row.p), listed.map((row) => row.q)];
  if (listed.length < 2 || sumOf(p) <= 0 || sumOf(q) <= 0) return null;
  const judged = drafted && ruleOf(token).name === "speculative" && drafted.u !== null;
  const at = (/** @type {number | null | undefined} */ id) => {
    const found = listed.findIndex((row) => row.id === id);
    return found < 0 ? null : found;
  };
  /** @type {(string | null)[]} */
  const names = listed.map(({ name }) => name);
  const found = {
    draft: drafted ? at(drafted.id) : null,
    u: judged ? drafted.u : null,
    replacement: replaced ? at(replaced.id) : null,
  };
  const rest = [p, q].map((some) => Math.max(0, 1 - sumOf(some)));
  if (greedy) return { names, p: normalised(p), q: normalised(q), shaping: { ...NEUTRAL, temperature: 0 }, ...found };
  if (rest.every((one) => one < NEGLIGIBLE)) return { names, p: normalised(p), q: normalised(q), shaping: NEUTRAL, ...found };
  return {
    names: [...names, null], p: normalised([...p, rest[0]]), q: normalised([...q, rest[1]]), shaping: NEUTRAL, ...found,
  };
}
