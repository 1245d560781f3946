// @ts-check
// Where lookup copied a round's draft from. It is not recorded; the text tells it: the last place where the same
// tokens stood before, as many of them as the setting allows and as are found (drafters/text.py).

import { tokensOf } from "./run.js";

/** @import { Run, Token } from "./run.js" */

/**
 * The tokens that the round's draft is a copy of; none if that cannot be told from the text, or if what stands
 * there is not the draft. A copy may run into itself.
 * @param {Pick<Run, "prompt" | "rounds" | "setting">} run
 * @param {number} index of the round
 * @returns {Token[]}
 */
export function copiedFrom({ prompt, rounds, setting }, index) {
  const draft = rounds[index]?.draft ?? [];
  if (setting?.draft_with !== "lookup" || !draft.length) return [];
  const text = [...prompt, ...rounds.slice(0, index).flatMap(inText)];
  const start = lastPlace(text.map(({ id }) => id), setting.ngram);
  const source = start === null ? [] : [...text, ...draft].slice(start, start + draft.length);
  return source.length > 0 && draft.every(({ id }, at) => id !== null && source[at].id === id) ? source : [];
}

/**
 * @param {Run["rounds"][number]} round
 * @returns {Token[]}
 */
function inText(round) {
  const tokens = /** @type {Token[]} */ (tokensOf(round));
  return tokens.filter(({ fate }) => fate !== "rejected" && fate !== "discarded");
}

/**
 * The last place before the end that follows the same tokens as the end does, for the longest such run of tokens.
 * @param {(number | null)[]} ids
 * @param {number} longest
 */
function lastPlace(ids, longest) {
  for (let length = Math.min(longest, ids.length); length > 0; length--) {
    for (let at = ids.length - 1; at >= length; at--) {
      const isSame = ids.slice(at - length, at).every((id, before) => id === ids[ids.length - length + before]);
      if (isSame) return at;
    }
  }
  return null;
}
