// @ts-check
// The comparison: drafters on the same prompts, as a table that grows while they are measured.

import { fill, h, saveFile, within } from "../view/dom.js";
import { fillTable, measuredTable } from "../view/tables.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { ComparisonTable, Measurement } from "../view/messages.d.ts" */
/** @import { Panel } from "../page/tabs.js" */

const content = () => [
  h("div", { class: "measuring" }),
  h("section", { hidden: true }, tableContent()),
];
const tableContent = () => [
  h("p", { class: "result", role: "status" }),
  h("p", { class: "of" }),
  h("p", { class: "notes" }, say("compare.notes")),
  measuredTable(say("compare.table")),
  h("div", { class: "keeping" },
    h("button", { "data-saves": "csv", disabled: true }, say("compare.csv")),
    h("button", { "data-saves": "json", disabled: true }, say("compare.json"))),
];
const TYPES = { csv: "text/csv", json: "application/json" };
/** By the words of their buttons. @returns {Record<string, Request>} */
const requests = () => ({
  [say("compare.thisPrompt")]: { kind: "compare", prompts: "this" },
  [say("compare.set")]: { kind: "compare", prompts: "set" },
});

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel}
 */
export function makeCompare(panel, server) {
  fill(panel, content());
  const part = within(panel);
  const measuring = makeMeasuring(part(".measuring"), server, requests(), say("compare.what"));
  const table = makeTable(part("section"));
  return { take };

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    panel.dataset.state = measurement.state;
    const { comparison, whose, state } = measurement;
    part("section").hidden &&= !comparison;
    if (comparison) table.fill(comparison, whose, isGoingOn(state));
  }
}

/** @param {HTMLElement} element */
function makeTable(element) {
  const part = within(element);
  const buttons = /** @type {HTMLButtonElement[]} */ ([...element.querySelectorAll("[data-saves]")]);
  /** @type {ComparisonTable | null} */
  let comparison = null;
  part(".keeping").addEventListener("click", save);
  return { fill };

  /**
   * @param {ComparisonTable} news
   * @param {string} whose
   * @param {boolean} busy
   */
  function fill(news, whose, busy) {
    comparison = news;
    part(".of").textContent = whose;
    part("table").setAttribute("aria-label", whose);
    part(".result").textContent = news.winner;
    fillTable(part("table"), news.columns, news.rows);
    for (const button of buttons) button.disabled = busy;
  }

  /** @param {PointerEvent | MouseEvent} event */
  function save({ target }) {
    const kind = target instanceof HTMLElement ? target.dataset.saves : "";
    if (comparison && (kind === "csv" || kind === "json")) {
      saveFile(`specdemo-comparison.${kind}`, comparison[kind], TYPES[kind]);
    }
  }
}
