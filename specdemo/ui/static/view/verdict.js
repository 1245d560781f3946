// @ts-check
// What the inspector says about a token: what decided its fate, in a sentence and in numbers.

import { apart, digits, milliseconds } from "./format.js";
import { isBlock, keptIn, massAt, partsOf, ruleOf, shareAt } from "./rules.js";
import { acceptedIn, comesAtOnce, isDrafted, rejectedIn } from "./run.js";
import {
  isFromServer, isServed, isUnknown, isUntold, servedRoundInWords, servedValues, servedVerdict,
} from "./served.js";
import { named } from "./textless.js";

/** @import { RunSetting } from "./messages.js" */
/** @import { Drafted, Own, Round, Token } from "./run.js" */
/** @typedef {"p" | "q" | "residual" | "raw_p"} Column */
/**
 * How far a token's round is known: that it has this place, its draft, or the token's verdict, too, or all of it.
 * @typedef {"place" | "draft" | "verdict" | "all"} Known
 */

/**
 * A row of the table of likely tokens. drawn: from which distribution the token was really drawn, if it was.
 * @typedef {object} Row
 * @property {number | null} id
 * @property {string} text
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} residual with what probability the rule drew it after the rejection here
 * @property {{ from: Column, how: string } | null} drawn
 */

/**
 * The token that was rejected, if this one was drawn in its place.
 * @param {Token} token
 */
export function replacedBy(token) {
  return token.fate === "resampled" ? rejectedIn(token.round) : undefined;
}

/** @param {Token} token */
export function placeOf(token) {
  if (token.fate === "prompt") return "prompt";
  const { index, draft } = token.round;
  if (isDrafted(token) && isUntold(token.round)) return `round ${index + 1}, draft ${token.place + 1}`;
  return isDrafted(token)
    ? `round ${index + 1}, draft ${token.place + 1} of ${draft.length}`
    : `round ${index + 1}, the target's own`;
}

/**
 * @param {Token} token
 * @param {RunSetting | null} setting of its run
 * @param {Known} known
 */
export function verdictOn(token, setting = null, known = "all") {
  if (known === "place") return "A place of the block. It has no token yet.";
  if (known === "draft") return waitingInWords(token);
  if (token.fate !== "prompt" && isServed(token)) return servedVerdict(token);
  switch (token.fate) {
    case "prompt":
      return "Given: part of the prompt.";
    case "accepted":
      return `Accepted: ${judgement(token)}.`;
    case "rejected": {
      const { next } = token.round;
      const then = ` ${next ? named(next) : "Nothing"} was drawn in its place.`;
      return `Rejected: ${judgement(token, setting)}.${known === "all" ? then : ""}`;
    }
    case "discarded": {
      if (isBlock(token.round) && token.place >= keptIn(token.round)) {
        return `Discarded: ${judgement(token)}, and no later draft passes, so the draft is kept only up to before it.`;
      }
      if (token.u !== null) {
        return `Discarded: ${judgement(token)}, so it was accepted, but the text had already ended.`;
      }
      const rejected = rejectedIn(token.round);
      const first = rejected && `draft ${rejected.place + 1}, ${named(rejected)},`;
      const why = `${first ?? "an earlier draft"} was rejected, and everything drafted after it was dropped`;
      return `Discarded without being judged: ${why}.`;
    }
    case "resampled": {
      const replaced = replacedBy(token);
      const why = replaced
        ? `${named(replaced)} was rejected, because ${judgement(replaced, setting)}`
        : "the draft here was rejected";
      const from = ruleOf(token).residual === null ? "p" : `the residual, the part of ${residualInWords(token)},`;
      const how = `This token was drawn in its place from ${from}`;
      return `Resampled: ${why}. ${how} with u = ${digits(token.u)}.`;
    }
    case "bonus": {
      const count = token.round.draft.length;
      const drafts = count === 1 ? "the round's only draft was" : `all ${count} drafts of the round were`;
      const more = "so the same forward gives one more token";
      return `Bonus: ${drafts} accepted, ${more}, drawn from p with u = ${digits(token.u)}.`;
    }
    case "sampled": {
      const one = "so the target's forward gives one token";
      const why = whyNoMore(token.round);
      return `Sampled: nothing was drafted in this round${why && ` (${why})`}, ${one}, drawn from p with u = ${digits(token.u)}.`;
    }
  }
}

/** Whether the token's verdict is known. @param {Known} known */
export function isJudged(known) {
  return known === "verdict" || known === "all";
}

/**
 * Of a drafted token that waits for its verdict.
 * @param {Token} token
 */
function waitingInWords(token) {
  const q = token.fate === "prompt" || token.q === null ? "" : ` with probability q = ${digits(token.q)}`;
  return `Drafted${q}. The target has not judged it yet.`;
}

/** @param {Own} token that was resampled */
function residualInWords(token) {
  const { of, over } = partsOf(ruleOf(token));
  return `${of} that exceeds ${over}`;
}

/**
 * How u compares with what decides.
 * @param {Drafted} token one that was judged
 * @param {RunSetting | null} setting
 */
export function judgement(token, setting = null) {
  const { accept_prob, p, raw_p, round, place } = token;
  if (ruleOf(token).threshold !== null || accept_prob === null) return comparison(token);
  if (isBlock(round)) {
    const isKept = place < keptIn(round) && !passes(token);
    return `${comparison(token)}${isKept ? ", but a later draft passes, and all before it are kept with it" : ""}`;
  }
  const { over: least } = partsOf(ruleOf(token));
  const always = accept_prob === 1 && least ? ` (p is at least ${least}, so it is always accepted)` : "";
  const never = p === 0 ? ` (p is 0${whyZero(raw_p, setting)})` : "";
  return `${comparison(token)}${always}${never}`;
}

/** @param {Drafted} token */
function passes({ u, accept_prob }) {
  return u !== null && accept_prob !== null && u < accept_prob;
}

/**
 * Why p is 0. Which of several filters removed a token is not recorded.
 * @param {number | null} raw_p
 * @param {RunSetting | null} setting
 */
function whyZero(raw_p, setting) {
  if (!setting || raw_p === 0) return ", so it is never accepted";
  const before = digits(raw_p, 2);
  if (setting.greedy) {
    const adjusted = setting.adjusted && `with ${setting.adjusted} `;
    return `: ${adjusted}the target's likeliest token is another one; at temperature 1 it gave this one ${before}`;
  }
  const filters = [...filtersOf(setting), ...(setting.adjusted ? [setting.adjusted] : [])].join(" or ");
  const cold = `too little for temperature ${written(setting.temperature)}`;
  const why = filters ? `${filters} removed it` : cold;
  return `: ${why}; before the sampler, at temperature 1 and unfiltered, the target gave it ${before}`;
}

/**
 * The filters that are on, with their values.
 * @param {RunSetting} setting
 */
function filtersOf({ top_k, top_p, min_p }) {
  const filters = [];
  if (top_k > 0) filters.push(`top-k ${top_k}`);
  if (top_p < 1) filters.push(`top-p ${written(top_p)}`);
  if (min_p > 0) filters.push(`min-p ${written(min_p)}`);
  return filters;
}

/** @param {number} value of a control, as the line above the run has it */
function written(value) {
  return String(Number(value.toPrecision(6)));
}

/**
 * The same without its reason.
 * @param {Drafted} token one that was judged
 */
export function comparison(token) {
  const { u, accept_prob, p } = token;
  if (u === null || accept_prob === null) return "it was judged";
  const { symbol, threshold } = ruleOf(token);
  if (threshold !== null) return `p = ${digits(p)} is ${accept_prob ? "" : "not "}above ${threshold}, the rule's threshold`;
  const [drawn, least] = apart(u, accept_prob);
  return `u = ${drawn} is ${passes(token) ? "" : "not "}below ${symbol} = ${least}`;
}

/**
 * Symbol, meaning and value of each number that the token has; without its verdict only q. Of a server's token
 * the value is null where it is not told.
 * @param {Token} token
 * @param {Known} known
 * @returns {[symbol: string, meaning: string, value: number | null][]}
 */
export function valuesOf(token, known = "all") {
  if (token.fate === "prompt" || known === "place") return [];
  if (isServed(token)) return known === "draft" ? [] : servedValues(token);
  const { p, q, u } = token;
  /** @type {[string, string, number | null][]} */
  const rows = [["p", "the target's probability", p], ["q", "the drafter's probability", q]];
  const { symbol, meaning, residual } = ruleOf(token);
  if (isDrafted(token)) {
    rows.push([symbol, meaning, token.accept_prob]);
    rows.push(["distance", "of what the rule emits here from p", token.distance ?? null]);
  }
  if (residual !== null && known === "all") {
    rows.push([`Σ (${residual})₊`, "the residual's mass", massAt(token)]);
    if (!isDrafted(token)) rows.push([`r = (${residual})₊ / Σ`, "probability in the residual", shareAt(token, p, q)]);
  }
  rows.push(["u", "uniform random number", u]);
  const values = rows.filter(/** @returns {row is [string, string, number]} */ (row) => row[2] !== null);
  return known === "draft" ? values.filter(([symbol]) => symbol === "q") : values;
}

/**
 * The tokens that were really drawn at the token's place, and then the likeliest others there.
 * @param {Token} token
 * @param {Known} known
 * @returns {Row[]}
 */
export function alternativesTo(token, known = "all") {
  if (token.fate === "prompt" || !isJudged(known) || isUnknown(token)) return [];
  /** @type {Map<number | string, Row>} */
  const rows = new Map();
  for (const [at, [id, text, p, q, raw_p, raw_q]] of token.top.entries()) {
    rows.set(id ?? `${at} of a server`, { id, text, p, q, raw_p, raw_q, residual: shareAt(token, p, q), drawn: null });
  }
  for (const drawn of known === "all" ? drawnAt(token) : [token]) {
    const { id, text, p, q, raw_p, raw_q } = drawn;
    if (id === null) continue; // nobody knows it
    if (rows.get(id)?.drawn) continue; // by a lossy rule, the token that was rejected can be drawn again
    const residual = shareAt(token, p, q);
    rows.set(id, { id, text, p, q, raw_p, raw_q, residual, drawn: drawnFrom(drawn) });
  }
  return [...rows.values()].sort((a, b) => Number(b.drawn !== null) - Number(a.drawn !== null));
}

/**
 * The token itself; with it the one that it replaced, or the one that replaced it.
 * @param {Drafted | Own} token
 */
function drawnAt(token) {
  const other = token.fate === "rejected" ? token.round.next : replacedBy(token);
  return other ? [token, other] : [token];
}

/**
 * @param {Drafted | Own} token
 * @returns {{ from: Column, how: string }}
 */
export function drawnFrom(token) {
  if (isServed(token)) return { from: "raw_p", how: isDrafted(token) ? "drafted" : "drawn" };
  if (isDrafted(token)) return { from: "q", how: "drafted" };
  const isResidual = token.fate === "resampled" && ruleOf(token).residual !== null;
  return { from: isResidual ? "residual" : "p", how: "drawn" };
}

/**
 * A round in words, for its mark in the timeline.
 * @param {Round} round
 */
export function roundInWords(round) {
  if (isFromServer(round)) return servedRoundInWords(round);
  const { index, draft, next, draft_ms, verify_ms } = round;
  const accepted = acceptedIn(round);
  const drafts = draft.length ? `${accepted} of ${draft.length} drafts accepted` : "nothing drafted";
  const tokens = accepted + (next ? 1 : 0);
  const drafting = draft.length && comesAtOnce(round) ? "drafting a block" : "drafting";
  const times = `${drafting} ${milliseconds(draft_ms ?? 0)}, verifying ${milliseconds(verify_ms ?? 0)}`;
  const length = lengthInWords(round);
  const most = length && `, ${length}`;
  const again = fedAgainInWords(round);
  const replayed = again && `, ${again}`;
  return `round ${index + 1}: ${drafts}, ${tokens} token${tokens === 1 ? "" : "s"}, ${times}${most}${replayed}`;
}

/**
 * How much of the text had to be computed once more; empty where neither model keeps a state, and in older traces.
 * @param {Round} round
 */
export function fedAgainInWords({ fed_again, target_forwards }) {
  if (fed_again === null || fed_again === undefined) return "";
  const tokens = `${fed_again} token${fed_again === 1 ? "" : "s"} of the text fed again`;
  return target_forwards > 1 ? `${tokens}, ${target_forwards} target forwards` : tokens;
}

/** @type {Record<string, string>} */
const ENDINGS = {
  confidence: "the drafter was not sure enough of the next token",
  eos: "the drafter ended the text",
  length: "the text has no room for more",
  drafter: "the drafter had nothing more to offer",
};

/**
 * Why the round's draft has no more tokens; empty where it has gamma of them, or where it is not known.
 * @param {Round} round
 */
export function whyNoMore({ ended_by }) {
  return ENDINGS[ended_by ?? ""] ?? "";
}

/**
 * How long the round's draft could be, and why it is shorter; empty in plain decoding and in older traces.
 * @param {Round} round
 */
export function lengthInWords(round) {
  const why = whyNoMore(round);
  return round.gamma ? `γ ${round.gamma}${why && ` (shorter: ${why})`}` : "";
}
