// @ts-check
// What is known of a round that a server has made, in words. It tells which tokens it has emitted, each with the
// target's probability; not p, q and u, and not what was rejected. Nothing is guessed in place of that.

import { milliseconds } from "./format.js";
import { acceptedIn, isDrafted } from "./run.js";
import { named } from "./textless.js";

/** @import { Drafted, Own, Round, Token } from "./run.js" */

export const NOT_TOLD = "not told by the server";
export const UNKNOWN = "A token that is not told";

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
  return isUnknown(token) ? UNKNOWN : named(token).replace(/^./, (first) => first.toUpperCase());
}

/** Whether it is the round of the prefill, which comes before anything is drafted. @param {Round} round */
export function isPrefill(round) {
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
  const drafted = count(round.draft.length, "token");
  switch (token.fate) {
    case "accepted":
      return `Accepted: ${whyAccepted(round, accepted)}.`;
    case "rejected":
      return `Rejected: the server drafted ${drafted} and the target accepted ${accepted}, so it rejected the next one. `
        + "Which token that was is not told.";
    case "discarded": {
      const why = round.draft.some(({ fate }) => fate === "rejected") ? "after the rejected one" : "after the end of the text";
      return `Discarded: the server drafted ${drafted}, and this one is ${why}. Which token it was is not told.`;
    }
    case "resampled":
      return `Resampled: the server drafted ${drafted} and the target accepted ${accepted}, so this token of its own came in `
        + "place of the next one. Which that was is not told.";
    case "bonus":
      return `Bonus: the target accepted all ${drafted} that the server drafted, so the same forward gives one token more.`;
    case "sampled":
      return `${isCut(round) ? "The text's last token" : "The target's own token"}: ${whySampled(round)}.`;
  }
}

/**
 * @param {Round} round
 * @param {number} accepted
 */
function whyAccepted({ next }, accepted) {
  if (!next) return "the text ended inside the drafts that the target accepted";
  const first = accepted === 1 ? "the first one is a draft" : `the first ${accepted} are drafts`;
  return `the server's round brought ${accepted + 1} tokens, so ${first} that the target accepted`;
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
  if (isPrefill(round)) return "from the prefill, before anything was drafted";
  if (isCut(round)) {
    return "it is the target's own or a draft that the target accepted. Which is not told, since the text ends in this round";
  }
  if (!isUntold(round)) return "nothing was drafted in this round";
  return "whether it replaced a rejected draft (resampled) or followed a full one (bonus) is not known, since the server "
    + "does not tell how many tokens it drafted";
}

/**
 * What has happened in a round, for the player.
 * @param {Round} round
 */
export function servedRoundDone(round) {
  const { draft, next } = round;
  const accepted = acceptedIn(round);
  const drafts = isUntold(round) || isCut(round)
    ? `${count(accepted, "drafted token")} accepted, of how many is not told`
    : draft.length ? `${accepted} of ${count(draft.length, "drafted token")} accepted` : "Nothing was drafted";
  if (!next) return `${drafts}; the text ends here.`;
  if (isPrefill(round)) return `${nameOf(next)} comes from the prefill, before anything is drafted.`;
  const source = next.fate === "sampled" ? "the target's own token" : OWN[next.fate];
  return `${drafts}; ${named(next)} is ${source}.`;
}

const OWN = { resampled: "resampled in place of the rejected one", bonus: "the bonus token" };

/**
 * What happens as the round's own token comes, for the player.
 * @param {Own} token
 */
export function servedDrawn(token) {
  const { fate, round } = token;
  if (isCut(round)) return `${nameOf(token)} is the text's last token: ${whySampled(round)}.`;
  if (fate === "sampled") return `${nameOf(token)} is the target's own token: ${whySampled(round)}.`;
  return fate === "bonus"
    ? `The whole draft was accepted: ${named(token)} is the bonus token.`
    : `${nameOf(token)} is resampled in place of the rejected token.`;
}

/**
 * The numbers of a token, null for those that are not told.
 * @param {Token} token
 * @returns {[symbol: string, meaning: string, value: number | null][]}
 */
export function servedValues(token) {
  if (token.fate === "prompt") return [];
  /** @type {[string, string, number | null][]} */
  const rows = [["p", "the target's probability", token.p], ["u", "uniform random number", token.u]];
  const hasDraft = isDrafted(token) || token.fate === "resampled" || isUntold(token.round);
  if (hasDraft) rows.splice(1, 0, ["q", "the drafter's probability", token.q]);
  return [["raw p", "the target's probability, before temperature and filters", token.raw_p], ...rows];
}

/**
 * A round in words, for its mark in the timeline.
 * @param {Round} round
 */
export function servedRoundInWords(round) {
  const { index, draft, next, gamma, arrival_ms } = round;
  const accepted = acceptedIn(round);
  const told = isUntold(round)
    ? `${count(accepted, "draft")} accepted, of how many is not told`
    : draft.length ? `${accepted} of ${draft.length} drafts accepted` : "nothing drafted";
  const drafts = isPrefill(round) ? "from the prefill" : told;
  const since = index ? "after the round before" : "after the request";
  const arrived = arrival_ms === null ? "" : `, arrived ${milliseconds(arrival_ms)} ${since}`;
  return `round ${index + 1}: ${drafts}, ${count(accepted + (next ? 1 : 0), "token")}${arrived}${gamma ? `, γ ${gamma}` : ""}`;
}

/**
 * @param {number} number
 * @param {string} noun
 */
function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
