// @ts-check
// The timeline's scale of milliseconds. It is chosen with the first rounds and later only ever doubles, so that
// bars that are there already rarely change.

import { roundedUp } from "./format.js";

const FIRST = 2 * 8; // costs, two for each round

/**
 * How many milliseconds a full bar is: nearly all costs stay below, and longer ones end there.
 * @param {number[]} costs of drafting and verifying, in turns
 * @param {number} before the scale so far; 0 if there is none
 */
export function scaleFor(costs, before) {
  if (!costs.length) return before;
  // The first rounds can be disturbed, and then they took too long: the least of them is a fair beginning.
  const verifying = costs.filter((_, at) => at % 2 === 1 && costs[at] > 0);
  const least = verifying.reduce((least, ms) => Math.min(least, ms), Infinity);
  const sorted = Float64Array.from(costs).sort();
  const usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
  let scale = (costs.length > FIRST && before) || roundedUp(Number.isFinite(least) ? 1.5 * least : Math.max(usual, 0.001));
  while (scale < usual) scale *= 2;
  return scale;
}
