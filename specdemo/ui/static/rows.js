// @ts-check
// The comparison's rows as texts: the columns and the digits of specdemo/bench/methods.py.

import { fixed, grouped } from "./format.js";

/** @import { MethodRow } from "./messages.js" */

/** @type {Record<string, (row: MethodRow) => string>} */
export const COLUMNS = {
  "drafter": ({ name }) => name,
  "drafted/round": ({ drafted_per_round }) => fixed(drafted_per_round),
  "accepted/round": ({ accepted_per_round }) => fixed(accepted_per_round),
  "tokens/round": ({ tokens_per_round }) => fixed(tokens_per_round),
  "draft ms/round": ({ draft_ms_per_round }) => fixed(draft_ms_per_round),
  "verify ms/round": ({ verify_ms_per_round }) => fixed(verify_ms_per_round),
  "tokens/s": ({ tokens_per_second }) => fixed(tokens_per_second, 1),
  "speed-up (90 %)": speedupOf,
  "memory": ({ drafter_bytes }) => (drafter_bytes === null ? "–" : size(drafter_bytes)),
  "same text": ({ texts_equal }) => texts_equal ?? "–",
};

/** @param {MethodRow} row */
function speedupOf({ speedup, speedup_interval, noisy }) {
  const value = speedup === null ? "–" : fixed(speedup);
  if (!speedup_interval) return value;
  return `${noisy ? "too noisy to say" : value} (${between(speedup_interval)})`;
}

/** @param {number[]} interval */
export function between([low, high]) {
  return `${fixed(low)}-${fixed(high)}`;
}

/** @param {number} bytes */
function size(bytes) {
  return bytes >= 1e9 ? `${grouped(bytes / 1e9, 2)} GB` : `${grouped(bytes / 1e6, 1)} MB`;
}

/**
 * How often each row was measured.
 * @param {MethodRow[]} rows
 */
export function samplesInWords(rows) {
  const counts = rows.map(({ samples }) => samples).sort((a, b) => a - b);
  if (!counts.length) return "";
  const [least, most] = [counts[0], counts[counts.length - 1]];
  if (least !== most) return `${least} to ${most} samples of each`;
  return `${least} sample${least === 1 ? "" : "s"} of each`;
}
