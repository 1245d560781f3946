// @ts-check
// A race: two runs on one clock. Where each is at a time, and which was faster. Without a clock of its own.

import { fixed, grouped, times } from "./format.js";
import { acceptedIn, linked, msOf } from "./run.js";

/** @import { Lane } from "./messages.js" */
/** @import { Round } from "./run.js" */
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

const PLEASANT = 10_000; // ms on the screen

/**
 * @param {Lane} lane
 * @returns {Course}
 */
export function courseOf({ rounds: wire, ms, tokens }) {
  const rounds = wire.map((one, index) => linked(one, index));
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
 * The speed at which the race takes about ten seconds.
 * @param {number} ms of the engine
 * @param {number[]} speeds to choose from
 */
export function usualSpeed(ms, speeds) {
  const away = (/** @type {number} */ speed) => Math.abs(Math.log(ms / speed / PLEASANT));
  return speeds.reduce((best, speed) => (away(speed) < away(best) ? speed : best));
}

/**
 * What a finished lane took.
 * @param {Pick<Lane, "ms" | "tokens">} lane
 */
export function timeInWords({ ms, tokens }) {
  const time = `${grouped(ms)} ms for ${grouped(tokens)} token${tokens === 1 ? "" : "s"}`;
  if (!tokens || !ms) return time;
  return `${time}: ${grouped((1000 * tokens) / ms, 1)} tokens/s, ${fixed(ms / tokens)} ms a token`;
}

/**
 * What the lane that finishes first can say of itself. By the time a token takes, because texts that were
 * sampled can differ in length.
 * @param {Pick<Lane, "ms" | "tokens">[]} lanes
 * @param {number} at
 * @returns {{ factor: string, why: string } | null} null for the other lane
 */
export function leadOf(lanes, at) {
  const [own, other] = [lanes[at], lanes[1 - at]];
  const isFirst = own.ms < other.ms || (own.ms === other.ms && at === 0);
  if (!isFirst || !(own.tokens && other.tokens && own.ms)) return null;
  const ratio = other.ms / other.tokens / (own.ms / own.tokens);
  const factor = `${times(ratio)} as fast`;
  if (own.tokens === other.tokens) return { factor, why: "" };
  if (ratio >= 1) return { factor, why: "by time per token; the texts differ in length" };
  return { factor, why: "by time per token; it finishes first because its text is shorter" };
}
