// @ts-check
// What is known of a round that a server has made, in words. It tells which tokens it has emitted, each with the
// target's probability; not p, q and u, and not what was rejected. Nothing is guessed in place of that.

import { milliseconds } from "./format.js";
import { acceptedIn, isDrafted } from "./run.js";
import { named } from "./textless.js";
import { say } from "./words.js";

/** @import { Drafted, Own, Round, Token } from "./run.js" */

/** @param {Token} token */
export function isServed(token) {
  return token.fate !== "prompt" && isFromServer(token.round);
}

/** @param {Round} round */
export function isFromServer({ setting }) {
  return Boolean(setting?.served);
}

/** Whether a token was drafted that nobody here knows. @param {Token} token */
export function isUnknown(token) {
  return isServed(token) && token.id === null;
}

/** A token as a sentence about it begins. @param {Drafted | Own} token */
export function nameOf(token) {
  return isUnknown(token) ? say("view.untold") : named(token).replace(/^./, (first) => first.toUpperCase());
}

/** Whether it is the round of the prefill, which comes before anything is drafted. @param {Round} round */
function isPrefill(round) {
  return isFromServer(round) && round.index === 0 && round.draft.length === 0;
}

/** Whether only the accepted drafts are known. @param {Round} round */
export function isUntold(round) {
  return round.drafts_told === false;
}

/**
 * What the counts say of a token's fate.
 * @param {Drafted | Own} token of a server's round
 */
export function servedVerdict(token) {
  const { round } = token;
  const accepted = acceptedIn(round);
  const counts = { count: round.draft.length, accepted };
  switch (token.fate) {
    case "accepted":
      return round.next
        ? say("inspector.served.accepted", { count: accepted, tokens: accepted + 1 })
        : say("inspector.served.acceptedAtEnd");
    case "rejected":
      return say("inspector.served.rejected", counts);
    case "discarded": {
      const isRejected = round.draft.some(({ fate }) => fate === "rejected");
      return say(isRejected ? "inspector.served.afterRejected" : "inspector.served.afterEnd", counts);
    }
    case "resampled":
      return say("inspector.served.resampled", counts);
    case "bonus":
      return say("inspector.served.bonus", counts);
    case "sampled":
      return say(isCut(round) ? "inspector.served.last" : "inspector.served.own", { why: whySampled(round) });
  }
}

/**
 * Whether the end of the text has cut the round, so that its last token may be a draft or the target's own.
 * @param {Round} round
 */
function isCut({ next, ended_by }) {
  return next?.fate === "sampled" && (ended_by === "length" || ended_by === "eos");
}

/** @param {Round} round */
function whySampled(round) {
  if (isPrefill(round)) return say("inspector.served.prefill");
  if (isCut(round)) return say("inspector.served.cut");
  return say(isUntold(round) ? "inspector.served.unknown" : "inspector.served.nothing");
}

/**
 * The numbers of a token, null for those that are not told.
 * @param {Token} token
 * @returns {[symbol: string, meaning: string, value: number | null][]}
 */
export function servedValues(token) {
  if (token.fate === "prompt") return [];
  /** @type {[string, string, number | null][]} */
  const rows = [["p", say("inspector.meaning.p"), token.p], ["u", say("inspector.meaning.u"), token.u]];
  const hasDraft = isDrafted(token) || token.fate === "resampled" || isUntold(token.round);
  if (hasDraft) rows.splice(1, 0, ["q", say("inspector.meaning.q"), token.q]);
  return [[say("inspector.rawP"), say("inspector.meaning.rawP"), token.raw_p], ...rows];
}

/**
 * A round in words, for its mark in the timeline.
 * @param {Round} round
 */
export function servedRoundInWords(round) {
  const { index, next, gamma, arrival_ms } = round;
  const tokens = acceptedIn(round) + (next ? 1 : 0);
  const since = index ? "timeline.arrivedAfterRound" : "timeline.arrivedAfterRequest";
  return roundOf(index, [
    fatesInWords(round),
    say("view.tokens", { count: tokens, number: tokens }),
    arrival_ms === null ? "" : say(since, { time: milliseconds(arrival_ms) }),
    gamma ? `γ ${gamma}` : "",
  ]);
}

/** @param {Round} round */
function fatesInWords(round) {
  const [drafts, accepted] = [round.draft.length, acceptedIn(round)];
  if (isPrefill(round)) return say("timeline.prefill");
  if (isUntold(round)) return say("timeline.acceptedOnly", { count: accepted });
  return drafts ? say("timeline.accepted", { accepted, drafts }) : say("timeline.nothingDrafted");
}

/**
 * What there is to say of a round.
 * @param {number} index
 * @param {string[]} facts empty where there is nothing
 */
export function roundOf(index, facts) {
  return say("timeline.round", { round: index + 1, what: facts.filter(Boolean).join(", ") });
}
