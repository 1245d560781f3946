// @ts-check
// The turns of a conversation before the one on the stage, a line each. A turn whose run the server keeps can be
// opened again, with its rounds; the list stays as it is then, with a way back to the latest turn.

import { fill, h } from "./dom.js";
import { say } from "./words.js";

/** @import { Turn } from "./messages.d.ts" */
/** @typedef {ReturnType<typeof makeTurns>} Turns */

/**
 * @param {HTMLElement} list
 * @param {(run: string) => void} open shows the run of a turn again
 */
export function makeTurns(list, open) {
  let latest = ""; // the name of the run that the list is about
  /** @type {Turn[]} */
  let turns = [];
  return { show };

  /**
   * @param {string} name of the run on the stage
   * @param {Turn[]} before the turns before it
   */
  function show(name, before) {
    const isOurs = name === latest || turns.some(({ run }) => run === name);
    if (!isOurs || name === latest) [latest, turns] = [name, before];
    const lines = turns.map(({ asked, answered, run }) => line(`${asked} → ${answered}`, run, name));
    if (name !== latest) lines.push(line(say("view.latestTurn"), latest, name));
    fill(list, lines);
    list.hidden = turns.length === 0;
  }

  /**
   * @param {string} words
   * @param {string | null} run
   * @param {string} onStage
   */
  function line(words, run, onStage) {
    if (run === null) return h("li", {}, h("span", {}, words));
    return h("li", {}, h("button", { "aria-current": run === onStage && "true", onclick: () => open(run) }, words));
  }
}
