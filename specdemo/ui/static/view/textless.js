// @ts-check
// What a token is called, and its fate. Of a token without a text nothing is seen but a sign that the style sheet draws:
// what each stands for.

import { inQuotes } from "./format.js";
import { say } from "./words.js";

/** @import { Drafted, Own, Token } from "./run.js" */
/** @typedef {"start" | "end" | "part" | "nothing" | Mark} Kind */
/** A mark of the chat template. @typedef {{ mark: string }} Mark */

/** @param {Kind} kind */
export function standsFor(kind) {
  return typeof kind === "object" ? kind.mark : say(`view.textless.${kind}`);
}

/**
 * Has the style sheet draw its sign.
 * @param {HTMLElement} element
 * @param {Kind} kind
 */
export function sign(element, kind) {
  element.dataset.sign = signOf(kind);
  element.className = signOf(kind).length > 1 ? "none in-words" : "none";
}

/** @param {Kind} kind */
export function signOf(kind) {
  if (typeof kind === "object") return kind.mark;
  return { part: "◌", nothing: "◇", start: say("view.signs.start"), end: say("view.signs.end") }[kind];
}

/**
 * What the token's own row among the alternatives has is its text by itself: a special token has none, and a part
 * of a character has U+FFFD.
 * @param {Drafted | Own} token
 * @returns {Exclude<Kind, "start">}
 */
export function kindInRound(token) {
  const mark = token.round.setting?.marks[String(token.id)];
  if (mark !== undefined) return { mark };
  const alone = token.top.find(([id]) => id === token.id)?.[1];
  if (alone !== undefined) return alone === "" ? "end" : alone.includes("\ufffd") ? "part" : "nothing";
  const { draft, ended_by } = token.round;
  return ended_by === "eos" && token === draft.at(-1) ? "end" : "nothing";
}

/**
 * Of a prompt only the texts are known: a part of a character comes before one beyond ASCII.
 * @template {Pick<Token, "text">} T
 * @param {T[]} prompt
 * @returns {[T, Kind][]} its tokens without a text
 */
export function kindsInPrompt(prompt) {
  /** @type {[T, Kind][]} */
  const kinds = [];
  let after = ""; // the next text
  for (let at = prompt.length - 1; at >= 0; at--) {
    const token = prompt[at];
    if (token.text !== "") after = token.text;
    else kinds.push([token, at === 0 ? "start" : after > "\x7f" ? "part" : "nothing"]);
  }
  return kinds;
}

/**
 * In a greedy run nothing is drawn, so none of its tokens is called sampled or resampled.
 * @param {Token} token
 * @param {string} fate as far as it is known
 */
export function fateNamed(token, fate) {
  const isGreedy = token.fate !== "prompt" && token.round.setting?.greedy;
  return say(isGreedy && (fate === "resampled" || fate === "sampled") ? `view.greedyFates.${fate}` : `view.fates.${fate}`);
}

/** A token as a sentence names it. @param {Token} token */
export function named(token) {
  if (token.text !== "") return inQuotes(token.text);
  const kind = token.fate === "prompt" ? "nothing" : kindInRound(token);
  return typeof kind === "object" ? kind.mark : say(`view.named.${kind}`);
}

/**
 * A token in a table.
 * @param {{ text: string, kind: Kind | null }} token
 */
export function quoted({ text, kind }) {
  return kind ? signOf(kind) : inQuotes(text);
}

/** @param {Kind} kind */
export function explained(kind) {
  if (typeof kind === "object") return say("view.explained.mark", kind);
  return say(`view.explained.${kind}`);
}
