// @ts-check
// Where drafts die: the judged tokens of a run's drafts, by their place in the draft and by their kind.

import { keptIn } from "./rules.js";
import { isUntold } from "./served.js";

/** @import { Drafted, Run } from "./run.js" */
/** @typedef {"start" | "name" | "inside" | "punctuation" | "digits" | "line" | "other"} Kind */

/**
 * A row of a table. Its tokens are those that were judged; accepted and rejected add up to their number.
 * @typedef {object} Row
 * @property {string} key
 * @property {string} label
 * @property {string} definition
 * @property {Drafted[]} tokens
 * @property {number} accepted
 * @property {number} rejected
 */

/**
 * Both tables have the same tokens, those of `all`.
 * @typedef {object} Deaths
 * @property {Row[]} places
 * @property {Row[]} kinds
 * @property {Row} all
 */

/** @type {Record<Kind, [label: string, definition: string]>} */
export const KINDS = {
  start: [
    "word start",
    "Starts a word: no letter or digit is directly before it. In scripts without spaces, every token.",
  ],
  name: ["name", "Starts a word with a capital letter where no sentence begins, as most names do."],
  inside: ["inside a word", "Continues a word: a letter or digit is directly before it."],
  punctuation: ["punctuation", "Punctuation and other signs, without a letter or digit."],
  digits: ["digits", "Digits, without a letter."],
  line: ["line end", "Has a line break in it."],
  other: ["other", "None of these: a space, a part of a character, the sign for the end of the text."],
};

const REACH = 40; // as many characters before a token say whether it begins a word or a sentence
const INSIDE = /[\p{L}\p{M}\p{N}]['’_‐-]?$/u;
const UNSPACED =
  /^[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}]/u;
// After the end of another one, which quotes and brackets may follow, or after an opening quote.
const SENTENCE_BEGINS =
  /(?:^|[.!?…‽。！？।؟\r\n])[\s\p{Ps}\p{Pe}\p{Pi}\p{Pf}"']*$|["'“„«‹‘¿¡]$/u;

/**
 * What is counted is what the acceptance rate counts: the accepted and the rejected. A draft that was
 * accepted after the end of the text is discarded; it was judged, but is in no rate, and so in no row. Where a
 * server does not tell how much it drafted, nothing is.
 * @param {Pick<Run, "prompt" | "rounds">} run
 * @returns {Deaths}
 */
export function deathsIn({ prompt, rounds }) {
  if (rounds.some(isUntold)) rounds = []; // what was rejected there is not known
  const longest = rounds.reduce((most, { draft }) => Math.max(most, draft.length), 0);
  const places = Array.from({ length: longest }, (_, place) => placeRow(place + 1));
  const kinds = new Map(
    Object.entries(KINDS).map(([kind, [label, definition]]) => [kind, emptyRow(kind, label, definition)]),
  );
  const all = emptyRow("all", "all", "All drafts that were judged.");
  let before = prompt.map(({ text }) => text).join("");
  for (const round of rounds) {
    const { draft, next } = round;
    const kept = keptIn(round);
    for (const token of draft) {
      before = before.slice(-REACH);
      const kind = /** @type {Row} */ (kinds.get(kindOf(token.text, before)));
      if (token.fate !== "discarded") for (const row of [places[token.place], kind, all]) count(row, token);
      if (token.place < kept) before += token.text;
    }
    before += next?.text ?? "";
  }
  const shown = [...kinds.values()].filter(({ key, tokens }) => key !== "other" || tokens.length);
  return { places, kinds: shown, all };
}

/** @param {number} place from 1 */
function placeRow(place) {
  const definition = place === 1
    ? "The first token of a draft, which is always judged."
    : `The token at place ${place} of a draft, judged if none before it was rejected.`;
  return emptyRow(`place-${place}`, `place ${place}`, definition);
}

/**
 * @param {string} key
 * @param {string} label
 * @param {string} definition
 * @returns {Row}
 */
function emptyRow(key, label, definition) {
  return { key, label, definition, tokens: [], accepted: 0, rejected: 0 };
}

/**
 * @param {Row} row
 * @param {Drafted} token one that was accepted or rejected
 */
function count(row, token) {
  row.tokens.push(token);
  if (token.fate === "accepted") row.accepted++;
  else row.rejected++;
}

/**
 * The kind of a token, by Unicode's properties, so for any language.
 * @param {string} text
 * @param {string} before the end of the text before it
 * @returns {Kind}
 */
export function kindOf(text, before) {
  if (/[\n\r\u2028\u2029]/.test(text)) return "line";
  if (!/[\p{L}\p{M}]/u.test(text)) {
    return /\p{N}/u.test(text) ? "digits" : /[\p{P}\p{S}]/u.test(text) ? "punctuation" : "other";
  }
  const at = text.search(/[\p{L}\p{M}\p{N}]/u);
  const [head, word] = [before + text.slice(0, at), text.slice(at)];
  if (INSIDE.test(head) && !UNSPACED.test(word)) return "inside";
  return /^[\p{Lu}\p{Lt}]/u.test(word) && !SENTENCE_BEGINS.test(head) ? "name" : "start";
}

/**
 * Where drafts die, in a sentence that follows from the table of places.
 * @param {Deaths} deaths of a run with drafts that were judged
 */
export function inWords({ places, all }) {
  const { rejected } = all;
  if (!rejected) return "No draft died: every token that was judged was accepted.";
  const most = places.reduce((most, row) => Math.max(most, row.rejected), 0);
  const worst = places.filter((row) => row.rejected === most).map(({ label }) => label);
  if (rejected === 1) return `The only rejection comes at ${worst[0]}.`;
  if (most === rejected) return `All ${rejected} rejections come at ${worst[0]}.`;
  const share = 2 * most === rejected ? "Half of the rejections" : `${most} of the ${rejected} rejections`;
  const verb = most === 1 ? "comes" : "come";
  if (worst.length === 1) return `${share} come at ${worst[0]}, more than at any other.`;
  return `${share} ${verb} at each of ${worst.slice(0, -1).join(", ")} and ${worst.at(-1)}.`;
}
