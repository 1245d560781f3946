// @ts-check
// Every verdict of a run once more, from the p, q and u that the engine sent.

import { apart, digits, grouped } from "./format.js";
import { isBlock, keptIn, passes, probabilityOf, ruleOf } from "./rules.js";
import { acceptedIn, inText, rejectedOf } from "./run.js";
import { judgement, placeOf } from "./verdict.js";
import { fateNamed } from "./textless.js";
import { inLanguage, say } from "./words.js";

/** @import { Drafted, Round, Run } from "./run.js" */
/** @typedef {{ token: Drafted, what: string }} Difference */

/**
 * verdicts: how many tokens were judged; follow: how many of the verdicts are those that p, q and u give.
 * afterEnd: tokens accepted after the end of the text, which are in no rate. afterRejection: tokens of a block
 * that follow the rejected one, and were judged with it.
 * @typedef {object} Recomputed
 * @property {number} verdicts
 * @property {number} follow
 * @property {number} accepted
 * @property {number} rejected
 * @property {number} afterEnd
 * @property {number} afterRejection
 * @property {Difference[]} differences
 * @property {[round: Round, what: string][]} brokenRounds
 * @property {string | null} brokenText
 */

// A device may round p/q in its last bit.
const ROUNDING = 1e-12;
// By a rule with a threshold a draft with a larger p is accepted, whatever the other tokens have. Of another rule it is
// not known.
/** @type {Record<string, number>} */
const SURELY_ABOVE = { typical: 0.09 };

/**
 * @param {Pick<Run, "rounds" | "numbers" | "outcome" | "complete">} run
 * @returns {Recomputed}
 */
export function recomputed(run) {
  const { rounds } = run;
  /** @type {Recomputed} */
  const found = {
    verdicts: 0, follow: 0, accepted: 0, rejected: 0, afterEnd: 0, afterRejection: 0, differences: [],
    brokenRounds: [],
    brokenText: wrongText(run),
  };
  for (const round of rounds) {
    for (const token of round.draft) {
      if (token.u === null) continue;
      const what = wrongVerdict(token);
      found.verdicts++;
      if (what) found.differences.push({ token, what });
      else found.follow++;
      if (token.fate === "accepted") found.accepted++;
      else if (token.fate === "rejected") found.rejected++;
      else if (token.place < keptIn(round)) found.afterEnd++;
      else found.afterRejection++;
    }
    const what = wrongRound(round, round === rounds.at(-1));
    if (what) found.brokenRounds.push([round, what]);
  }
  return found;
}

/** @param {Recomputed} found */
export function isExact({ differences, brokenRounds, brokenText }) {
  return !differences.length && !brokenRounds.length && !brokenText;
}

/**
 * In what a verdict differs from the rule, or null.
 * @param {Drafted} token one that was judged
 */
function wrongVerdict(token) {
  const { p, q, accept_prob, fate, round, place } = token;
  if (p === null || q === null) return say("exactness.differs.unrecorded");
  if (!(q > 0)) return say("exactness.differs.zero");
  const probability = probabilityOf(token) ?? accept_prob;
  if (probability === null) return say("exactness.differs.undecided");
  const off = Math.abs((accept_prob ?? Infinity) - probability);
  if (off > ROUNDING * probability) {
    const { symbol } = ruleOf(token);
    if (accept_prob === null) return say("exactness.differs.none", { symbol, is: inLanguage(String(probability)) });
    const [is, was] = apart(probability, accept_prob);
    return say("exactness.differs.other", { symbol, is, was });
  }
  const { name, threshold } = ruleOf(token);
  if (threshold !== null && (p > SURELY_ABOVE[name] ? accept_prob !== 1 : accept_prob !== 0 && accept_prob !== 1)) {
    return say("exactness.differs.verdict", { p: digits(p), verdict: String(accept_prob) });
  }
  const kept = keptIn(round);
  const isKept = isBlock(round) ? place < kept : token.u !== null && token.u < probability;
  const isDropped = isBlock(round) && place > kept; // by a block, together with the rejected one
  if (fate === "discarded" ? isKept || isDropped : isKept === (fate === "accepted") && !isDropped) return null;
  return say(BUT[fate], { judgement: judgement(token) });
}

const BUT = {
  accepted: "exactness.differs.butAccepted",
  rejected: "exactness.differs.butRejected",
  discarded: "exactness.differs.butDiscarded",
};

/**
 * In what a round differs from the rule, or null.
 * @param {Round} round
 * @param {boolean} isLast
 */
function wrongRound(round, isLast) {
  const { draft, next, isTree } = round;
  const rejections = rejectedOf(round).length;
  if (!isTree && rejections > 1) return say("exactness.differs.rejections", { rejections });
  const { toJudge, accepted, refused } = isBlock(round)
    ? { toJudge: draft, accepted: keptIn(round), refused: draft.length - keptIn(round) } : pathOf(round);
  const wrong = draft.find((token) => (token.u !== null) !== toJudge.includes(token));
  if (wrong) return say(toJudge.includes(wrong) ? "exactness.differs.unjudged" : "exactness.differs.judgedAfter");
  if (!next) return isLast ? null : say("exactness.differs.missing");
  const source = refused ? "resampled" : draft.length ? "bonus" : "sampled";
  if (next.fate !== source) {
    const [is, should] = [fateNamed(next, next.fate), fateNamed(next, source)];
    return say("exactness.differs.source", { is, should });
  }
  return acceptedIn(round) < accepted ? say("exactness.differs.lost") : null;
}

/**
 * By the recorded fates: the guesses at the first place, and at the place after each token that is followed, are judged one
 * after another up to the first that is accepted, though that may be after the end of the text. refused: how many at the
 * last place, where all are.
 * @param {Round} round
 */
function pathOf({ draft }) {
  const isFollowed = (/** @type {Drafted} */ token) => (
    token.fate === "accepted" || (token.fate === "discarded" && passes(token)));
  /** @type {Drafted[]} */
  const toJudge = [];
  let family = draft.filter(({ parent }) => parent === null);
  let accepted = 0;
  for (let end = family.findIndex(isFollowed); end >= 0; end = family.findIndex(isFollowed)) {
    for (const token of family.slice(0, end + 1)) toJudge.push(token);
    const { place } = family[end];
    family = draft.filter(({ parent }) => parent === place);
    accepted++;
  }
  return { toJudge: [...toJudge, ...family], accepted, refused: family.length };
}

/**
 * In what the text differs from the accepted tokens and the target's own, or null. While a run goes on, its
 * numbers can be a round ahead.
 * @param {Pick<Run, "rounds" | "numbers" | "outcome" | "complete">} run
 */
function wrongText({ rounds, numbers, outcome, complete }) {
  if (!complete) return null;
  const tokens = rounds.reduce((sum, round) => sum + acceptedIn(round) + (round.next ? 1 : 0), 0);
  const said = numbers.tokens ?? grouped(0);
  if (said !== grouped(tokens)) return say("exactness.differs.count", { tokens: grouped(tokens), said });
  if (!outcome) return null;
  const joined = rounds.flatMap(inText).map(({ text }) => text).join("");
  return joined === outcome.text ? null : say("exactness.differs.text");
}

/**
 * The parts, the rest and the whole with three decimals, of which the others add up to the last.
 * @param {number} whole
 * @param {number[]} parts
 */
export function addends(whole, ...parts) {
  const sums = parts.map((_, at) => parts.slice(0, at + 1).reduce((sum, one) => sum + one, 0));
  const ends = [...sums, whole].map((one) => Math.round(1000 * one));
  const written = [...ends.map((end, at) => end - (ends[at - 1] ?? 0)), ends[ends.length - 1]];
  return written.map((thousandths) => inLanguage((thousandths / 1000).toFixed(3)));
}

/** @param {Difference} difference */
export function differenceInWords({ token, what }) {
  return say("exactness.differs.at", { place: placeOf(token), what });
}
