// @ts-check
// The replay: which rounds are visible when. It goes by the engine's own times, stretched; this module has no
// clock of its own and is given the time (ms) at every call.

import { fixed, grouped, percent } from "./format.js";
import { acceptedIn, msOf, rejectedOf } from "./run.js";
import { say } from "./words.js";

/** @import { Round } from "./run.js" */

export class Replay {
  /** Engine time by screen time. At Infinity everything is visible at once. */
  speed = Infinity;
  /** How many rounds are visible with their verdicts. */
  judged = 0;
  #time = 0; // engine ms since the last of those was judged
  #now = 0; // screen ms, when #time was set

  /**
   * @param {number} speed
   * @param {number} now
   * @param {number} judged the rounds that are visible already
   * @param {number} time engine ms since the last of those was judged
   */
  restart(speed, now, judged = 0, time = 0) {
    Object.assign(this, { speed, judged });
    this.#time = time;
    this.#now = now;
  }

  /**
   * @param {number} speed
   * @param {number} now
   */
  setSpeed(speed, now) {
    this.#advance(now);
    this.speed = speed;
  }

  /**
   * The rounds that have become visible since the last call, about `limit` tokens at most; and in slow motion
   * the round after them, with the share of its drafting time that has passed.
   * @param {Round[]} rounds
   * @param {number} now
   * @param {number} limit
   * @returns {{ judged: Round[], drafting: { round: Round, share: number } | null }}
   */
  next(rounds, now, limit) {
    this.#advance(now);
    const judged = [];
    for (let size = 0; this.judged < rounds.length && size < limit; this.judged++) {
      const round = rounds[this.judged];
      if (this.speed < Infinity) {
        const ms = msPlayed(round);
        if (this.#time < ms) break;
        this.#time -= ms;
      }
      judged.push(round);
      size += round.draft.length + 1;
    }
    const round = rounds[this.judged];
    // When a server drafted is not told: its rounds come whole.
    if (!round || round.draft_ms === null || this.speed >= 1) return { judged, drafting: null };
    const share = this.#time < round.draft_ms ? this.#time / round.draft_ms : 1;
    return { judged, drafting: { round, share } };
  }

  /** @param {number} now */
  #advance(now) {
    if (this.speed < Infinity) this.#time += (now - this.#now) * this.speed;
    this.#now = now;
  }
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
 * What the first `count` rounds have brought. Earlier sums are kept, since a run that goes on only grows.
 * @param {Round[]} rounds
 * @param {number} count
 */
function sumsAfter(rounds, count) {
  const sums = SUMS.get(rounds) ?? [{ accepted: 0, rejected: 0, tokens: 0, untold: false }];
  SUMS.set(rounds, sums);
  for (const round of rounds.slice(sums.length - 1, count)) {
    const { accepted, rejected, tokens, untold } = sums[sums.length - 1];
    const more = acceptedIn(round);
    sums.push({
      accepted: accepted + more,
      rejected: rejected + rejectedOf(round).length,
      tokens: tokens + more + (round.next ? 1 : 0),
      untold: untold || round.drafts_told === false,
    });
  }
  return sums[count];
}

/** @type {WeakMap<Round[], { accepted: number, rejected: number, tokens: number, untold: boolean }[]>} */
const SUMS = new WeakMap();

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
