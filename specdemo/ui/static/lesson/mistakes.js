// @ts-check
// The mistakes' names and why each is one: the words' keys, for the figure and for the trials.

/** @import { Mistake } from "./identity.js" */

/** @type {Record<Mistake, [name: string, why: string]>} */
export const MISTAKE_WORDS = {
  from_p: ["figure.mistakes.from_p.name", "figure.mistakes.from_p.why"],
  told: ["figure.mistakes.told.name", "figure.mistakes.told.why"],
  soft: ["figure.mistakes.soft.name", "figure.mistakes.soft.why"],
  likelier: ["figure.mistakes.likelier.name", "figure.mistakes.likelier.why"],
};
