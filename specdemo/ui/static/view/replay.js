// @ts-check
// The replay: how far a run is played by the engine's own times, and the numbers of the rounds that are visible.

import { fixed, grouped, percent } from "./format.js";
import { acceptedIn, msOf, rejectedOf, summed } from "./run.js";
import { draftedIn, draftingSteps } from "./steps.js";
import { say } from "./words.js";

/** @import { Round } from "./run.js" */
/** @import { Place } from "./steps.js" */

/** What the first so many rounds have brought, and the engine's ms of them. */
const sumsAfter = summed({ accepted: 0, rejected: 0, tokens: 0, untold: false, ms: 0 }, (sums, round) => {
  const more = acceptedIn(round);
  return {
    accepted: sums.accepted + more,
    rejected: sums.rejected + rejectedOf(round).length,
    tokens: sums.tokens + more + (round.next ? 1 : 0),
    untold: sums.untold || round.drafts_told === false,
    ms: sums.ms + msPlayed(round),
  };
});

/**
 * How many rounds are over, with their verdicts, after so many ms of the engine, and the tokens of the text by then.
 * @param {Round[]} rounds
 * @param {number} ms
 */
export function overAfter(rounds, ms) {
  let count = 0;
  while (count < rounds.length && sumsAfter(rounds, count + 1).ms <= ms) count++;
  return { count, tokens: sumsAfter(rounds, count).tokens };
}

/**
 * How far it is played after so many ms of the engine; in slow motion with a part of the draft of the round that goes on.
 * @param {Round[]} rounds
 * @param {number} ms
 * @param {number} speed engine time by screen time
 * @returns {Place}
 */
export function playedTo(rounds, ms, speed) {
  const { count } = overAfter(rounds, ms);
  const round = rounds[count];
  // When a server drafted is not told: its rounds come whole.
  if (!round || round.draft_ms === null || speed >= 1) return { round: count, step: 0 };
  const time = ms - sumsAfter(rounds, count).ms;
  return draftedIn(round, time < round.draft_ms ? time / round.draft_ms : 1);
}

/**
 * The engine's ms from the start to the place. What of a draft is there already is not drafted again.
 * @param {Round[]} rounds
 * @param {Place} place
 */
export function msTo(rounds, { round, step }) {
  const { ms } = sumsAfter(rounds, round);
  return step ? ms + (rounds[round].draft_ms ?? 0) * Math.min(1, step / draftingSteps(rounds[round])) : ms;
}

/**
 * The speed at which it takes about ten seconds on the screen.
 * @param {number} ms of the engine
 * @param {number[]} speeds to choose from
 */
export function usualSpeed(ms, speeds) {
  const PLEASANT = 10_000; // ms
  const away = (/** @type {number} */ speed) => Math.abs(Math.log(ms / speed / PLEASANT));
  return speeds.reduce((best, speed) => (away(speed) < away(best) ? speed : best));
}

/**
 * The engine's ms of a round in a replay. Before a server's first is its prefill, which is no part of it, as that of the
 * engine here is none.
 * @param {Round} round
 */
export function msPlayed(round) {
  return round.index === 0 && round.draft_ms === null ? 0 : msOf(round);
}

/**
 * The numbers of the first `count` rounds, as the page writes them. The others are known for whole runs only.
 * @param {Round[]} rounds
 * @param {number} count
 * @returns {Record<string, string>}
 */
export function numbersAfter(rounds, count) {
  const { accepted, rejected, tokens, untold } = sumsAfter(rounds, count);
  /** @type {Record<string, string>} */
  const numbers = { tokens: grouped(tokens), rounds: grouped(count), saved: grouped(tokens - count) };
  const judged = accepted + rejected;
  if (untold) numbers.acceptance_rate = say("player.notTold");
  else if (judged) numbers.acceptance_rate = percent(accepted, judged);
  if (count) numbers.mean_tokens_per_round = fixed(tokens / count);
  return numbers;
}

/**
 * The verdict while only the first `count` rounds are visible.
 * @param {Round[]} rounds
 * @param {number} count
 */
export function soFarInWords(rounds, count) {
  if (!count) return "";
  const number = numbersAfter(rounds, count).tokens;
  const tokens = say("view.tokens", { count: number === "1" ? 1 : 2, number });
  return say("player.soFar", { count, tokens, forwards: grouped(count) });
}
