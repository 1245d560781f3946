// @ts-check
// What each rule compares u with, and what the target's own token is drawn from after a rejection.

/** @import { Drafted, Round, Token } from "./run.js" */

const SPECULATIVE = { symbol: "min(1, p/q)", meaning: "acceptance probability", residual: "p − q" };
/** @type {Record<string, { symbol: string, meaning: string, residual: string | null }>} */
const RULES = {
  speculative: SPECULATIVE,
  block: { symbol: "h", meaning: "this place passes if u is below it", residual: "w·p − q" },
  typical: { symbol: "p > min(ε, δ·e^−H)", meaning: "1 if it holds", residual: null },
  lenient: { symbol: "min(1, p/(l·q))", meaning: "acceptance probability", residual: "p − l·q" },
};

/** @param {Token} token */
export function ruleOf(token) {
  return token.fate === "prompt" ? "speculative" : token.round.setting?.rule ?? "speculative";
}

/** @param {Token} token */
export function symbolsOf(token) {
  return RULES[ruleOf(token)] ?? SPECULATIVE;
}

/** Whether the whole draft is judged at once. @param {Round} round */
export function isBlock({ setting }) {
  return setting?.rule === "block";
}

/** How many drafts a round's verdicts keep. @param {Round} round */
export function keptIn(round) {
  const passed = round.draft.map(({ u, accept_prob }) => {
    return u !== null && accept_prob !== null && u < accept_prob;
  });
  if (isBlock(round)) return passed.lastIndexOf(true) + 1;
  const first = passed.indexOf(false);
  return first < 0 ? passed.length : first;
}

/**
 * w of block verification after the first so many drafts.
 * @param {Round} round
 * @param {number} count
 */
export function weightAfter({ draft }, count) {
  return draft.slice(0, count).reduce((weight, { p, q }) => {
    return p === null || q === null ? weight : Math.min(1, weight * (p / q));
  }, 1);
}

/**
 * What a verdict was decided by, as the recorded p and q give it; null where they alone do not.
 * @param {Drafted} token
 */
export function probabilityOf(token) {
  const { p, q, round, place } = token;
  if (p === null || q === null) return null;
  switch (ruleOf(token)) {
    case "block":
      return place === round.draft.length - 1 ? weightAfter(round, place + 1) : null;
    case "typical":
      return null;
    case "lenient":
      return Math.min(1, p / q / (round.setting?.lenience ?? 1));
  }
  return Math.min(1, p / q);
}

/**
 * The residual of a token with these p and q at the place of `token`; null where there is none.
 * @param {Token} token
 * @param {number | null} p
 * @param {number | null} q
 */
export function residualAt(token, p, q) {
  if (p === null || q === null || token.fate === "prompt" || symbolsOf(token).residual === null) return null;
  const { round } = token;
  const weight = isBlock(round) ? weightAfter(round, "place" in token ? token.place : keptIn(round)) : 1;
  const lenience = ruleOf(token) === "lenient" ? round.setting?.lenience ?? 1 : 1;
  return Math.max(weight * p - lenience * q, 0);
}

/**
 * How many of the same drafts each lossless rule keeps in a round, on average; null where nothing was drafted
 * or it is not recorded.
 * @param {Round[]} rounds
 */
export function keptByBoth(rounds) {
  const kept = rounds.flatMap((round) => round.kept ?? []);
  if (!kept.length) return null;
  const mean = (/** @type {number[]} */ counts) => counts.reduce((sum, one) => sum + one, 0) / counts.length;
  return {
    rounds: kept.length,
    speculative: mean(kept.map(({ speculative }) => speculative)),
    block: mean(kept.map(({ block }) => block)),
  };
}
