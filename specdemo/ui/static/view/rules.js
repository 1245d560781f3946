// @ts-check
// The rules' arithmetic once more: what decided a verdict, and what the target's own token was drawn from after
// a rejection. What is said of a rule comes with the run (events/choices.py).

import { familyOf, isAfterRefused, rejectedIn } from "./run.js";

/** @import { PromptToken, WireRule } from "./messages.d.ts" */
/** @import { Drafted, Own, Round, Token } from "./run.js" */

/** Where no run tells its rule. @type {WireRule} */
const UNKNOWN = {
  name: "", symbol: "", meaning: "", residual: null, accepted: "", recorded: "", about: "", judges_whole_draft: false,
  threshold: null,
};

/**
 * What a verdict was decided by, as the recorded p and q give it; null where they alone do not. A rule that is not
 * here is judged by what was recorded.
 * @type {Record<string, (token: Drafted, p: number, q: number) => number | null>}
 */
const DECIDED_BY = {
  speculative: (token, p, q) => Math.min(1, p / q),
  block: ({ round, place }) => place === round.draft.length - 1 ? weightAfter(round, place + 1) : null,
  lenient: ({ round }, p, q) => Math.min(1, p / q / ofRule(round, "lenience")),
};

/**
 * The residual of a token with these p and q, not cut at 0.
 * @type {Record<string, (token: Exclude<Token, PromptToken>, p: number, q: number) => number>}
 */
const RESIDUAL = {
  speculative: (token, p, q) => p - q,
  block: (token, p, q) => weightAfter(token.round, "place" in token ? token.place : keptIn(token.round)) * p - q,
  lenient: ({ round }, p, q) => p - ofRule(round, "lenience") * q,
};

/** A value that the run's rule was given. @param {Round} round @param {string} field */
function ofRule({ setting }, field) {
  return setting?.of_rule[field] ?? NaN;
}

/** @param {Token} token */
export function ruleOf(token) {
  return token.fate === "prompt" ? UNKNOWN : token.round.setting?.rule ?? UNKNOWN;
}

/** Whether the whole draft is judged at once. @param {Round} round */
export function isBlock({ setting }) {
  return setting?.rule.judges_whole_draft ?? false;
}

/** The two parts of a rule's residual "A − B". @param {WireRule} rule */
export function partsOf({ residual }) {
  const [of = "", over = ""] = (residual ?? "").split(" − ");
  return { of, over };
}

/**
 * Whether u can decide about a token. In greedy decoding p and q are 1 or 0, so it cannot, whatever it is. Of a
 * greedy trace with other numbers it can.
 * @param {Drafted | Own} token
 */
export function uMatters(token) {
  const probability = "accept_prob" in token ? token.accept_prob : token.p;
  return !(token.round.setting?.greedy && (probability === 0 || probability === 1));
}

/** Whether its verdict is to accept it. @param {Drafted} token */
export function passes({ u, accept_prob }) {
  return u !== null && accept_prob !== null && u < accept_prob;
}

/** How many drafts a round's verdicts keep. @param {Round} round */
export function keptIn(round) {
  const passed = round.draft.map(passes);
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

/** What a verdict was decided by; null where p and q alone do not tell. @param {Drafted} token */
export function probabilityOf(token) {
  const { p, q } = token;
  return p === null || q === null ? null : DECIDED_BY[ruleOf(token).name]?.(token, p, q) ?? null;
}

/**
 * The residual of a token with these p and q at the place of `token`; null where there is none.
 * @param {Token} token
 * @param {number | null} p
 * @param {number | null} q
 */
export function residualAt(token, p, q) {
  if (p === null || q === null || token.fate === "prompt") return null;
  const residual = RESIDUAL[ruleOf(token).name]?.(token, p, q);
  return residual === undefined ? null : Math.max(residual, 0);
}

/**
 * The residual's mass at the token's place, which is the probability of a rejection there; null where it is
 * not recorded.
 * @param {Token} token
 */
export function massAt(token) {
  if (token.fate === "rejected") {
    if ("residual_mass" in token && typeof token.residual_mass === "number") return token.residual_mass;
    return rejectedIn(token.round) === token ? token.round.next?.residual_mass ?? null : null;
  }
  return token.fate === "resampled" ? token.residual_mass : null;
}

/**
 * What is left of the target's p after a guess of a tree is refused, as a share of all of it: the product of the masses
 * up to there. Null where one of them is not recorded.
 * @param {Drafted} token
 */
export function leftAfter(token) {
  const family = familyOf(token);
  const masses = family.slice(0, family.indexOf(token) + 1).map(massAt);
  return masses.reduce((left, mass) => (left === null || mass === null ? null : left * mass), 1);
}

/**
 * Words about p and q at the token's place, which are p′ and q′ there if refused guesses before it have left them.
 * @param {Token} token
 * @param {string} words
 */
export function primed(token, words) {
  return isAfterRefused(token) ? words.replace(/(?<![-\w])[pq](?!\w)/g, "$&′") : words;
}

/**
 * The probability with which a token of these p and q was drawn after the rejection at the place of `token`:
 * its part of the residual. Null where nothing was rejected or its mass is not recorded.
 * @param {Token} token
 * @param {number | null} p
 * @param {number | null} q
 */
export function shareAt(token, p, q) {
  const [residual, mass] = [residualAt(token, p, q), massAt(token)];
  return residual === null || !mass ? null : residual / mass;
}
