// @ts-check
// A game in which the visitor drafts: what is sent with a guess, the verdict in words, and the score. Pure.

import { apart, inQuotes } from "../view/format.js";
import { acceptedIn, rejectedIn, tokensOf } from "../view/run.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";

/** @import { Round, Run, Token } from "../view/run.js" */
/**
 * What the server is told of a game with each guess, since it keeps none.
 * @typedef {object} Guess
 * @property {string} ids of the text after the prompt, with commas between them
 * @property {number} round how many rounds there were
 * @property {string} guess
 * @property {string} game the name that the server gave it
 * @property {number} seed
 * @property {string} hall the code of the hall that counts it; empty where none does
 */
/** @typedef {{ accepted: number, judged: number, tokens: number, rounds: number }} Score */

const SPACELESS = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;

/** @param {Token} token */
const isInText = ({ fate }) => fate !== "rejected" && fate !== "discarded";

/** @param {Pick<Run, "prompt" | "rounds">} run */
export function textOf({ prompt, rounds }) {
  return [...prompt, ...outputOf(rounds)].map(({ text }) => text).join("");
}

/** @param {Round[]} rounds */
function outputOf(rounds) {
  return /** @type {Token[]} */ (rounds.flatMap((round) => tokensOf(round))).filter(isInText);
}

/**
 * A token as the verdict names it: without the spaces around its word.
 * @param {Token} token
 */
function wordOf(token) {
  return token.text.trim() ? inQuotes(token.text.trim()) : named(token);
}

/** @param {Round[]} rounds */
export function idsOf(rounds) {
  return rounds.flatMap(({ emitted }) => emitted).join(",");
}

/**
 * What is drafted for these words: a word begins with a space, unless the text ends with one.
 * @param {string} typed
 * @param {string} text so far
 * @param {boolean} goesOn whether they are to continue the text's last word
 */
export function drafted(typed, text, goesOn) {
  const beginsWord = /^[\p{L}\p{N}"“„«‘(]/u.test(typed) && !SPACELESS.test(typed);
  return beginsWord && !goesOn && /\S$/.test(text) ? ` ${typed}` : typed;
}

/**
 * The verdict on a round's draft, in a sentence.
 * @param {Round} round
 */
export function verdictInWords(round) {
  const { draft, next, setting } = round;
  const rejected = rejectedIn(round);
  const values = { accepted: acceptedIn(round), of: draft.length, next: next ? wordOf(next) : "" };
  if (!draft.length) return say("guess.verdict.none", values);
  if (!rejected) return say(next ? "guess.verdict.all" : "guess.verdict.end", values);
  const word = wordOf(rejected);
  if (setting?.greedy) return say("guess.verdict.greedy", { ...values, word });
  if (rejected.u === null || rejected.accept_prob !== rejected.p) return say("guess.verdict.other", { ...values, word });
  const [u, p] = apart(rejected.u, rejected.p ?? 0);
  return say("guess.verdict.rejected", { ...values, word, p, u });
}

/**
 * @param {Round[]} rounds
 * @returns {Score}
 */
export function scoreOf(rounds) {
  const accepted = rounds.reduce((sum, round) => sum + acceptedIn(round), 0);
  const rejected = rounds.filter(rejectedIn).length;
  const tokens = rounds.reduce((sum, { emitted }) => sum + emitted.length, 0);
  return { accepted, judged: accepted + rejected, tokens, rounds: rounds.length };
}
