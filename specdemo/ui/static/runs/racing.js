// @ts-check
// A race: two runs on one clock. Where each is at a time, and what it took. Without a clock of its own.

import { fixed, grouped } from "../view/format.js";
import { acceptedIn, linked, msOf } from "../view/run.js";
import { say } from "../view/words.js";

/** @import { Lane } from "../view/messages.d.ts" */
/** @import { Round } from "../view/run.js" */
/**
 * A lane with its rounds on the clock: `ends` are the engine's ms at which they are over, `counts` the tokens
 * of the text by then.
 * @typedef {object} Course
 * @property {Round[]} rounds
 * @property {number[]} ends
 * @property {number[]} counts
 * @property {number} ms
 * @property {number} tokens
 */
/** @typedef {{ rounds: number, tokens: number, ms: number, finished: boolean }} Place */

/**
 * @param {Lane} lane
 * @returns {Course}
 */
export function courseOf({ rounds: wire, ms, tokens }) {
  const rounds = wire.map((one) => linked(one));
  const ends = [];
  const counts = [];
  let time = 0;
  let count = 0;
  for (const round of rounds) {
    time += msOf(round);
    count += acceptedIn(round) + (round.next ? 1 : 0);
    ends.push(Math.min(time, ms));
    counts.push(count);
  }
  if (rounds.length) ends[rounds.length - 1] = ms; // the rounds' own times are rounded
  return { rounds, ends, counts, ms, tokens };
}

/**
 * Where the lane is at an engine time: how many of its rounds are over, and the tokens that they brought.
 * @param {Course} course
 * @param {number} ms
 * @returns {Place}
 */
export function placeAt({ ends, counts, ms: total, tokens }, ms) {
  const next = ends.findIndex((end) => end > ms);
  if (next < 0) return { rounds: ends.length, tokens, ms: total, finished: true };
  return { rounds: next, tokens: next ? Math.min(counts[next - 1], tokens) : 0, ms, finished: false };
}

/**
 * The engine time at which the last lane is finished.
 * @param {Pick<Lane, "ms">[]} lanes
 */
export function lengthOf(lanes) {
  return lanes.reduce((most, { ms }) => Math.max(most, ms), 0);
}

/**
 * Which of the lanes was first, and when each was finished.
 * @param {Pick<Lane, "ms">[]} lanes
 */
export function placesInWords(lanes) {
  const times = lanes.map(({ ms }) => Math.round(ms));
  const [first, last] = [...times].sort((a, b) => a - b);
  return times.map((ms) => {
    const place = first === last ? "tied" : ms === first ? "first" : "second";
    return say(`race.${place}`, { time: fixed(ms / 1000, 3) });
  });
}

/**
 * What a finished lane took.
 * @param {Pick<Lane, "ms" | "tokens">} lane
 * @param {boolean} isServed whether the time is a server's, which has the wait for the first token in it
 */
export function timeInWords({ ms, tokens }, isServed) {
  const took = { ms: grouped(ms), tokens: say("view.tokens", { count: tokens, number: grouped(tokens) }) };
  if (!tokens || !ms) return say("race.took", took);
  const speed = { speed: grouped((1000 * tokens) / ms, 1), each: fixed(ms / tokens) };
  return say(isServed ? "race.tookEachServed" : "race.tookEach", { ...took, ...speed });
}
