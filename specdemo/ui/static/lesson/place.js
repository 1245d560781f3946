// @ts-check
// The p and q of a token of a run, for the figure.

import { massAt, ruleOf } from "../view/rules.js";
import { replacementOf } from "../view/run.js";
import { quoted } from "../view/textless.js";
import { alternativesTo, replacedBy } from "../view/verdict.js";
import { normalised, sumOf } from "./shaping.js";

/** @import { Token } from "../view/run.js" */
/** @import { Row } from "../view/verdict.js" */
/**
 * Tokens that are not listed, taken as one: those with p > q, those with p < q, or all of them.
 * @typedef {"above" | "below" | "all"} Others
 */
/** @typedef {{ kind: Others, p: number, q: number }} Group */
/**
 * names: of the listed tokens. others: what comes after them in p and q. done: the temperature of the run's sampler, which
 * has made these, null where they are before it; temperature: what the figure's is set to.
 * draft: the place of what was drafted; u: what decided on it; replacement: the place of what replaced it. Null where
 * there is none.
 * @typedef {object} Place
 * @property {string[]} names
 * @property {Others[]} others
 * @property {number[]} p
 * @property {number[]} q
 * @property {number | null} done
 * @property {number} temperature
 * @property {number | null} draft
 * @property {number | null} u
 * @property {number | null} replacement
 */

const LISTED = 5; // tokens by name
const ROUNDING = 1e-5; // what sums of a trace's numbers, which have six digits, may be off by

/**
 * The likeliest tokens at the token's place, and all others as one or two. Null where there is no p and q.
 * What the run's sampler made of p and q, which the figure then leaves as they are. Of a greedy run, where those are 1
 * or 0, the likeliest tokens' p and q before the sampler, at temperature 0, if that makes the same of them.
 * @param {Token | null} token
 * @returns {Place | null}
 */
export function placeAt(token) {
  if (!token || token.fate === "prompt") return null;
  const alternatives = alternativesTo(token);
  const { greedy = false, temperature = 1 } = token.round.setting ?? {};
  const isRaw = greedy && isLikeliest(alternatives, "p") && isLikeliest(alternatives, "q");
  const drafted = "place" in token ? token : replacedBy(token);
  const isSpeculative = ruleOf(token).name === "speculative";
  const replaced = isSpeculative ? replacementOf(drafted) : null;
  const own = [drafted?.id, replaced?.id];
  const rows = alternatives.flatMap(({ id, text, kind, p, q, raw_p, raw_q }) => {
    const [ofTarget, ofDrafter] = isRaw ? [raw_p, raw_q] : [p, q];
    return ofTarget === null || ofDrafter === null ? [] : [{ id, name: quoted({ text, kind }), p: ofTarget, q: ofDrafter }];
  });
  const weight = (/** @type {typeof rows[number]} */ { id, p, q }) => (own.includes(id) ? 2 : Math.max(p, q));
  const listed = rows.sort((a, b) => weight(b) - weight(a)).slice(0, LISTED).sort((a, b) => b.p - a.p);
  const [p, q] = [listed.map((row) => row.p), listed.map((row) => row.q)];
  if (listed.length < 2 || sumOf(p) <= 0 || sumOf(q) <= 0) return null;
  const judged = drafted && drafted.u !== null;
  const at = (/** @type {number | null | undefined} */ id) => {
    const found = listed.findIndex((row) => row.id === id);
    return found < 0 ? null : found;
  };
  const found = {
    names: listed.map(({ name }) => name),
    draft: drafted ? at(drafted.id) : null,
    u: judged ? drafted.u : null,
    replacement: replaced ? at(replaced.id) : null,
  };
  if (isRaw) {
    return { ...found, others: [], p: normalised(p), q: normalised(q), done: null, temperature: 0 };
  }
  const mass = isSpeculative ? massAt(token) : null;
  const others = othersOf(p, q, mass).filter((group) => Math.max(group.p, group.q) >= ROUNDING);
  return {
    ...found,
    others: others.map(({ kind }) => kind),
    p: normalised([...p, ...others.map((group) => group.p)]),
    q: normalised([...q, ...others.map((group) => group.q)]),
    done: temperature,
    temperature,
  };
}

/**
 * Whether the token that has all of p, or of q, is the likeliest before the sampler, too.
 * @param {Row[]} rows
 * @param {"p" | "q"} which
 */
function isLikeliest(rows, which) {
  const before = (/** @type {Row} */ row) => row[`raw_${which}`] ?? 0;
  const only = rows.find((row) => row[which] === 1);
  return only !== undefined && rows.every((row) => before(row) <= before(only));
}

/**
 * The tokens that are not listed. As one they can hide a part of the residual, since p − q of some is above 0 and
 * of others below. So they are two where the residual's mass is known, with as much of it as the listed tokens
 * leave.
 * @param {number[]} p of the listed tokens
 * @param {number[]} q
 * @param {number | null} mass the sum of (p − q)₊ over all tokens, which is that of (q − p)₊
 * @returns {Group[]}
 */
function othersOf(p, q, mass) {
  const [ofTarget, ofDrafter] = [p, q].map((some) => Math.max(0, 1 - sumOf(some)));
  /** @type {Group[]} */
  const all = [{ kind: "all", p: ofTarget, q: ofDrafter }];
  if (mass === null) return all;
  const missing = mass - sumOf(p.map((one, at) => Math.max(0, one - q[at])));
  const over = mass - sumOf(p.map((one, at) => Math.max(0, q[at] - one)));
  const shared = ofTarget - missing; // the sum of min(p, q)
  if (Math.min(missing, over, shared) < -ROUNDING) return all; // the numbers are not those of one place
  const [more, less, half] = [missing, over, shared / 2].map((one) => Math.max(0, one));
  return [{ kind: "above", p: more + half, q: half }, { kind: "below", p: half, q: less + half }];
}
