// @ts-check
// Beside a greedy run in 16 bits: where its prompt's text parts from plain text, and why. The server compares.

import { escaped, find, make, saveFile } from "../view/dom.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";
import { fillTable } from "./tables.js";

/** @import { Measurement } from "../view/messages.js" */
/** @import { Run } from "../view/run.js" */
/** @import { Server } from "./measuring.js" */

const markup = () => `
  <div class="measuring"></div>
  <div class="found" hidden>
    <p class="sentence" role="status" data-testid="fork-verdict"></p>
    <p class="where"></p>
    <div class="scrolls" role="group" aria-label="${escaped(say("exactness.fork.table"))}">
      <table><thead><tr></tr></thead><tbody></tbody></table></div>
    <p class="notes"></p>
    <p class="of"></p>
    <button type="button" class="save">${escaped(say("compare.json"))}</button>
  </div>`;

/**
 * @param {HTMLElement} place
 * @param {Server} server
 */
export function makeFork(place, server) {
  const element = make("section");
  element.className = "fork";
  element.innerHTML = markup();
  element.hidden = true;
  place.append(element);
  const part = (/** @type {string} */ selector) => find(element, selector);
  const requests = { [say("exactness.fork.button")]: { kind: /** @type {const} */ ("exactness") } };
  const measuring = makeMeasuring(part(".measuring"), server, requests, say("exactness.fork.what"));
  let json = "";
  part(".save").addEventListener("click", () => saveFile("specdemo-fork.json", json, "application/json"));
  return { show, take };

  /** @param {Run} run */
  function show({ complete, setting, rounds }) {
    const drafted = rounds.some(({ draft }) => draft.length);
    const is16 = Boolean(setting?.greedy && setting.in_16_bits && !setting.served);
    if (complete && drafted && is16) element.hidden = false;
    else if (part(".found").hidden) element.hidden = true; // what was found stays
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    const { fork, whose, state } = measurement;
    element.hidden = false;
    element.dataset.state = state;
    part(".found").hidden = !fork || isGoingOn(state);
    if (!fork) return;
    json = fork.json;
    element.dataset.verdict = fork.verdict;
    part(".sentence").textContent = fork.sentence;
    part(".where").textContent = fork.place;
    part(".notes").textContent = fork.notes;
    part(".of").textContent = whose;
    part(".scrolls").hidden = !fork.rows.length;
    fillTable(part("table"), fork.columns, fork.rows);
  }
}
