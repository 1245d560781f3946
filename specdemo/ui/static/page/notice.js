// @ts-check
// The line that says what goes on, how far it is, and what is wrong.

import { find } from "../view/dom.js";
import { say } from "../view/words.js";
import { sentenceOf } from "../traces/traces.js";

/** @import { Notice as Told } from "../view/messages.d.ts" */
/** @typedef {ReturnType<typeof makeNotice>} Notice */

/**
 * @param {HTMLElement} page
 * @param {(sentence: string) => void} markWrong is told what is wrong; "" if nothing is
 */
export function makeNotice(page, markWrong) {
  const line = find(page, '[data-testid="notice"]');
  const progress = /** @type {HTMLProgressElement} */ (find(page, "progress"));
  return { show, refuse, forgetLost, forgetError };

  /** @param {Told} told */
  function show({ kind, text, share }) {
    line.dataset.kind = kind;
    line.textContent = text;
    progress.hidden = share === null;
    progress.value = share ?? 0;
    markWrong(kind === "error" ? text : "");
  }

  /** @param {unknown} error or the sentence that says what is wrong */
  function refuse(error) {
    show({ kind: "error", text: sentenceOf(error), share: null });
  }

  /** It can be reached again. Returns whether the line said that it cannot. */
  function forgetLost() {
    const isLost = line.textContent === say("traces.lost");
    if (isLost) forgetError();
    return isLost;
  }

  // What was wrong with the request before says nothing about the next one.
  function forgetError() {
    if (line.dataset.kind === "error") show({ kind: "note", text: "", share: null });
  }
}
