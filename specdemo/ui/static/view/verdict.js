// @ts-check
// What the inspector says about a token: what decided its fate, in a sentence and in numbers.

import { apart, digits, milliseconds } from "./format.js";
import { isBlock, keptIn, massAt, partsOf, passes, primed, ruleOf, shareAt, uMatters } from "./rules.js";
import {
  acceptedIn, comesAtOnce, familyOf, isAfterRefused, isChosen, isDrafted, rejectedIn, replacementOf, siblingAfter,
} from "./run.js";
import {
  isFromServer, isServed, isUnknown, isUntold, roundOf, servedRoundInWords, servedValues, servedVerdict,
} from "./served.js";
import { kindInRound, named } from "./textless.js";
import { inLanguage, say } from "./words.js";

/** @import { RunSetting } from "./messages.d.ts" */
/** @import { Drafted, Own, Round, Token } from "./run.js" */
/** @import { Kind } from "./textless.js" */
/** @typedef {"p" | "q" | "residual" | "raw_p"} Column */
/**
 * How far a token's round is known: that it has this place, its draft, or the token's verdict, too, or all of it.
 * @typedef {"place" | "draft" | "verdict" | "all"} Known
 */

/**
 * A row of the table of likely tokens. kind: of a token without a text. drawn: from which distribution the token was really drawn, if it was.
 * @typedef {object} Row
 * @property {number | null} id
 * @property {string} text
 * @property {Kind | null} kind
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
  if (token.fate === "prompt") return say("inspector.where.prompt");
  const { index, draft } = token.round;
  if (!isDrafted(token)) return say("inspector.where.own", { round: index + 1 });
  if (token.round.isTree) {
    const family = familyOf(token);
    const guess = { guess: family.indexOf(token) + 1, guesses: family.length };
    return say("inspector.where.tree", { round: index + 1, depth: token.depth + 1, ...guess });
  }
  const where = { round: index + 1, draft: token.place + 1, drafts: draft.length };
  return say(isUntold(token.round) ? "inspector.where.draft" : "inspector.where.draftOf", where);
}

/**
 * @param {Token} token
 * @param {RunSetting | null} setting of its run
 * @param {Known} known
 */
export function verdictOn(token, setting = null, known = "all") {
  return [fateInWords(token, known), allowedInWords(token, setting, known)].filter(Boolean).join(" ");
}

/**
 * How much the grammar of the text allowed at the token's place, or that it had not begun; empty without one.
 * @param {Token} token
 * @param {RunSetting | null} setting
 * @param {Known} known
 */
function allowedInWords(token, setting, known) {
  if (token.fate === "prompt" || known === "place") return "";
  if (!token.allowed) return setting?.bound ? say("inspector.verdict.notBound") : "";
  if (isDrafted(token) && token.forbidden) return "";
  if (token.allowed === 1) return say("inspector.verdict.noChoice");
  return say("inspector.verdict.allowed", { number: inLanguage(String(token.allowed)) });
}

/**
 * @param {Token} token
 * @param {Known} known
 */
function fateInWords(token, known) {
  if (known === "place") return say("inspector.verdict.place");
  if (token.fate === "prompt") return say("inspector.verdict.prompt");
  if (known === "draft") {
    return token.q === null ? say("inspector.verdict.waiting") : say("inspector.verdict.waitingWith", { q: digits(token.q) });
  }
  if (isServed(token)) return servedVerdict(token);
  const { round } = token;
  const how = uMatters(token) ? "" : "Greedy";
  const [count, number, why] = [acceptedIn(round), digits(token.u), whyNoMore(round)];
  switch (token.fate) {
    case "accepted":
      return say("inspector.verdict.accepted", { why: judgement(token) });
    case "rejected": {
      const rejected = say("inspector.verdict.rejected", { why: judgement(token) });
      const [next, after] = [replacementOf(token), siblingAfter(token)];
      if (after) return `${rejected} ${say(how ? "inspector.verdict.next" : "inspector.verdict.leftToNext", { token: named(after) })}`;
      if (known !== "all") return rejected;
      if (!next) return `${rejected} ${say("inspector.verdict.nothingInstead")}`;
      const instead = uMatters(next) ? "inspector.verdict.drawnInstead" : "inspector.verdict.standsInstead";
      return `${rejected} ${say(instead, { token: named(next) })}`;
    }
    case "discarded":
      return discardedInWords(token);
    case "resampled": {
      const [replaced, rule] = [replacedBy(token), ruleOf(token)];
      const because = how ? "inspector.verdict.replaced" : "inspector.verdict.resampled";
      const rejected = replaced
        ? say(because, { token: named(replaced), why: judgement(replaced) }) : say("inspector.verdict.resampledUnknown");
      if (how) return `${rejected} ${say("inspector.verdict.likeliestInstead")}`;
      const { of, over } = partsOf(rule);
      const from = rule.residual === null ? "inspector.verdict.fromP" : "inspector.verdict.fromResidual";
      return `${rejected} ${say(from, { of: primed(token, of), over: primed(token, over), number })}`;
    }
    case "bonus":
      return say(`inspector.verdict.bonus${round.isTree ? "Tree" : ""}${how}`, { count, number });
    case "sampled":
      return say(`inspector.verdict.sampled${why && "Why"}${how}`, { why, number });
  }
}

/** @param {Drafted} token */
function discardedInWords(token) {
  const { round, place, u } = token;
  const rejected = rejectedIn(round);
  const behind = rejected && { draft: rejected.place + 1, token: named(rejected) };
  if (isBlock(round) && place >= keptIn(round)) {
    if (behind && !uMatters(token)) return say("inspector.verdict.droppedAfter", behind);
    return say("inspector.verdict.failed", { why: judgement(token) });
  }
  if (u !== null) {
    return say(passes(token) ? "inspector.verdict.afterEnd" : "inspector.verdict.refusedAfterEnd", { why: judgement(token) });
  }
  if (round.isTree) return unreachedInWords(token);
  return behind ? say("inspector.verdict.unjudged", behind) : say("inspector.verdict.unjudgedUnknown");
}

/** Why a guess of a tree was not judged. @param {Drafted} token */
function unreachedInWords(token) {
  const followed = familyOf(token).find(({ fate }) => fate === "accepted");
  if (followed) return say("inspector.verdict.notNeeded", { token: named(followed) });
  const parent = token.round.draft[token.parent ?? -1];
  if (!parent) return say("inspector.verdict.unjudgedUnknown");
  return say("inspector.verdict.notReached", { token: named(parent) });
}

/** Whether the token's verdict is known. @param {Known} known */
export function isJudged(known) {
  return known === "verdict" || known === "all";
}

/**
 * How u compares with what decides; in greedy decoding, what decides without it.
 * @param {Drafted} token one that was judged
 */
export function judgement(token) {
  return primed(token, judgementOfPAndQ(token));
}

/** @param {Drafted} token */
function judgementOfPAndQ(token) {
  const { accept_prob, p, raw_p, round, place } = token;
  if (ruleOf(token).threshold !== null || accept_prob === null) return comparison(token);
  const [words, before] = [comparison(token), digits(raw_p, 2)];
  if (token.forbidden) return say("inspector.judged.forbidden", { before });
  if (byLikeliest(token)) return likeliestInWords(token);
  if (isBlock(round)) {
    const isKept = place < keptIn(round) && !passes(token);
    return isKept ? say("inspector.judged.keptByLater", { comparison: words }) : words;
  }
  const { over: least } = partsOf(ruleOf(token));
  if (p === 0 && isAfterRefused(token)) return say("inspector.judged.nothingLeft", { comparison: words, before });
  if (p === 0 && accept_prob === 0) return say(`inspector.judged.${raw_p ? "removed" : "never"}`, { comparison: words, before });
  return accept_prob === 1 && least ? say("inspector.judged.always", { comparison: words, least }) : words;
}

/** Whether greedy decoding decided it: by whether it is the target's likeliest token. @param {Drafted} token */
function byLikeliest(token) {
  const { p, accept_prob } = token;
  return p === accept_prob && !uMatters(token) && ruleOf(token).threshold === null;
}

/** Why greedy decoding keeps a draft, or does not. @param {Drafted} token */
function likeliestInWords({ p, raw_p, allowed }) {
  if (p === 1) return say(allowed ? "inspector.judged.likeliestAllowed" : "inspector.judged.likeliestOnly");
  if (!raw_p) return say("inspector.judged.notLikeliestAtAll");
  return say(`inspector.judged.${allowed ? "notLikeliestAllowed" : "notLikeliestBefore"}`, { before: digits(raw_p, 2) });
}

/**
 * The same without its reason.
 * @param {Drafted} token one that was judged
 */
export function comparison(token) {
  const { u, accept_prob, p } = token;
  if (u === null || accept_prob === null) return say("inspector.judged.unknown");
  const { symbol, threshold } = ruleOf(token);
  if (threshold !== null) {
    return say(accept_prob ? "inspector.judged.above" : "inspector.judged.notAbove", { p: digits(p), threshold });
  }
  if (byLikeliest(token)) return say(accept_prob ? "inspector.judged.likeliest" : "inspector.judged.notLikeliest");
  const [drawn, least] = apart(u, accept_prob);
  return say(passes(token) ? "inspector.judged.below" : "inspector.judged.notBelow", { u: drawn, symbol, least });
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
  const isLeft = isAfterRefused(token);
  const ofQ = isDrafted(token) && isChosen(token.round) ? "qChosen" : isLeft ? "qLeft" : "q";
  /** @type {[string, string, number | null][]} */
  const rows = [["p", say(`inspector.meaning.${isLeft ? "pLeft" : "p"}`), p], ["q", say(`inspector.meaning.${ofQ}`), q]];
  const { symbol, meaning, residual } = ruleOf(token);
  if (isDrafted(token)) {
    rows.push([symbol, meaning, token.accept_prob]);
    rows.push([say("inspector.distance"), say("inspector.meaning.distance"), token.distance ?? null]);
  }
  if (residual !== null && known === "all") {
    rows.push([`Σ (${residual})₊`, say("inspector.meaning.mass"), massAt(token)]);
    if (!isDrafted(token)) rows.push([`r = (${residual})₊ / Σ`, say("inspector.meaning.share"), shareAt(token, p, q)]);
  }
  if (uMatters(token)) {
    rows.push(isDrafted(token)
      ? ["u", say("inspector.meaning.u"), u]
      : [say("inspector.number"), say("inspector.meaning.number"), u]);
  }
  const values = rows.filter(/** @returns {row is [string, string, number]} */ (row) => row[2] !== null);
  const shown = known === "draft" ? values.filter(([symbol]) => symbol === "q") : values;
  return shown.map(([symbol, meaning, value]) => [primed(token, symbol), meaning, value]);
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
  const add = (/** @type {number | string} */ key, /** @type {Omit<Row, "kind" | "residual">} */ row, of = { ...token, id: row.id }) => {
    rows.set(key, { ...row, kind: row.text === "" ? kindInRound(of) : null, residual: shareAt(token, row.p, row.q) });
  };
  for (const [at, [id, text, p, q, raw_p, raw_q]] of token.top.entries()) {
    add(id ?? `${at} of a server`, { id, text, p, q, raw_p, raw_q, drawn: null });
  }
  for (const drawn of known === "all" ? drawnAt(token) : [token]) {
    const { id, text, p, q, raw_p, raw_q } = drawn;
    // Nobody knows it; or by a lossy rule the token that was rejected was drawn again.
    if (id !== null && !rows.get(id)?.drawn) add(id, { id, text, p, q, raw_p, raw_q, drawn: drawnFrom(drawn) }, drawn);
  }
  return [...rows.values()].sort((a, b) => Number(b.drawn !== null) - Number(a.drawn !== null));
}

/**
 * The token itself; with it the one that it replaced, or the one that replaced it.
 * @param {Drafted | Own} token
 */
function drawnAt(token) {
  const other = token.fate === "rejected" ? replacementOf(token) : replacedBy(token);
  return other ? [token, other] : [token];
}

/**
 * @param {Drafted | Own} token
 * @returns {{ from: Column, how: string }}
 */
export function drawnFrom(token) {
  const isOwn = !isDrafted(token);
  const how = say(isOwn ? (uMatters(token) ? "inspector.drawn" : "inspector.chosen") : "inspector.drafted");
  if (isServed(token)) return { from: "raw_p", how };
  if (isDrafted(token)) return { from: "q", how };
  const isResidual = token.fate === "resampled" && ruleOf(token).residual !== null;
  return { from: isResidual ? "residual" : "p", how };
}

/**
 * A round in words, for its mark in the timeline.
 * @param {Round} round
 */
export function roundInWords(round) {
  if (isFromServer(round)) return servedRoundInWords(round);
  const { index, draft, next, draft_ms, verify_ms } = round;
  const accepted = acceptedIn(round);
  const tokens = accepted + (next ? 1 : 0);
  const judged = draft.filter(({ fate }) => fate !== "discarded").length;
  const ofTree = () => say("timeline.tree", { accepted, judged, count: draft.length });
  const times = { drafting: milliseconds(draft_ms ?? 0), verifying: milliseconds(verify_ms ?? 0) };
  return roundOf(index, [
    round.isTree ? ofTree() : draft.length ? say("timeline.accepted", { accepted, drafts: draft.length }) : say("timeline.nothingDrafted"),
    say("view.tokens", { count: tokens, number: tokens }),
    say(draft.length && comesAtOnce(round) ? "timeline.timesOfBlock" : "timeline.times", times),
    lengthInWords(round),
    fedAgainInWords(round),
  ]);
}

/**
 * How much of the text had to be computed once more; empty where neither model keeps a state, and in older traces.
 * @param {Round} round
 */
export function fedAgainInWords({ fed_again, target_forwards }) {
  if (fed_again === null || fed_again === undefined) return "";
  const tokens = say("timeline.fedAgain", { count: fed_again });
  return target_forwards > 1 ? `${tokens}, ${say("timeline.forwards", { forwards: target_forwards })}` : tokens;
}

/**
 * Why the round's draft has no more tokens; empty where it has gamma of them, or where it is not known.
 * @param {Round} round
 */
export function whyNoMore({ ended_by }) {
  return ended_by && ended_by !== "gamma" ? say(`view.endings.${ended_by}`) : "";
}

/**
 * How long the round's draft could be, and why it is shorter; empty in plain decoding and in older traces.
 * @param {Round} round
 */
export function lengthInWords(round) {
  const { gamma } = round;
  if (!gamma || round.isTree) return "";
  const why = whyNoMore(round);
  return why ? say("timeline.shorter", { gamma, why }) : `γ ${gamma}`;
}
