// @ts-check
// Where drafts die: the judged tokens of a run's drafts, by their place in the draft and by their kind.

import { percent } from "./format.js";
import { keptIn } from "./rules.js";
import { depthsOf } from "./run.js";
import { isUntold } from "./served.js";
import { say } from "./words.js";

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

/** @type {Kind[]} */
const KINDS = ["start", "name", "inside", "punctuation", "digits", "line", "other"];

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
  /** @type {{ token: Drafted, kind: Kind }[]} */
  const judged = [];
  let before = prompt.map(({ text }) => text).join("");
  for (const round of rounds) {
    const kept = keptIn(round);
    for (const token of round.draft) {
      before = before.slice(-REACH);
      if (token.fate !== "discarded") judged.push({ token, kind: kindOf(token.text, before) });
      if (round.isTree ? token.fate === "accepted" : token.place < kept) before += token.text;
    }
    before += round.next?.text ?? "";
  }
  const longest = rounds.reduce((most, round) => Math.max(most, depthsOf(round)), 0);
  const places = Array.from({ length: longest }, (_, at) => {
    const place = at + 1;
    const definition = at ? say("positions.placeDefinition", { place }) : say("positions.firstDefinition");
    const here = judged.filter(({ token }) => token.depth === at);
    return rowOf(`place-${place}`, say("positions.place", { place }), definition, here);
  });
  const kinds = KINDS.map((kind) => {
    const [label, definition] = [say(`positions.kinds.${kind}.label`), say(`positions.kinds.${kind}.definition`)];
    return rowOf(kind, label, definition, judged.filter((one) => one.kind === kind));
  });
  const all = rowOf("all", say("positions.all"), say("positions.allDefinition"), judged);
  return { places, kinds: kinds.filter(({ key, tokens }) => key !== "other" || tokens.length), all };
}

/**
 * @param {string} key
 * @param {string} label
 * @param {string} definition
 * @param {{ token: Drafted }[]} judged
 * @returns {Row}
 */
function rowOf(key, label, definition, judged) {
  const tokens = judged.map(({ token }) => token);
  const accepted = tokens.filter(({ fate }) => fate === "accepted").length;
  return { key, label, definition, tokens, accepted, rejected: tokens.length - accepted };
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
 * Where drafts die, in a sentence that follows from the table of places: where most were rejected.
 * @param {Deaths} deaths of a run with drafts that were judged
 */
export function inWords({ places, all }) {
  if (!all.rejected) return say("positions.noneDied");
  if (places.length === 1) {
    const share = percent(all.rejected, all.tokens.length);
    return say("positions.onePlace", { rejected: all.rejected, judged: all.tokens.length, share });
  }
  const rejected = places.reduce((most, row) => Math.max(most, row.rejected), 0);
  const most = places.filter((row) => row.rejected === rejected).map(({ label }) => label);
  const counts = { places: most.join(", "), rejected, all: all.rejected };
  return say(most.length > 1 ? "positions.mostAlike" : "positions.most", counts);
}
