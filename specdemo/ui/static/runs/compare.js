// @ts-check
// The comparison: drafters on the same prompts, as a table that grows while they are measured. Earlier tables
// stay below it until they are cleared.

import { escaped, find, make, saveFile } from "../view/dom.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";
import { fillTable } from "./tables.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { ComparisonTable, Measurement } from "../view/messages.d.ts" */
/** @import { Run } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */

const words = (/** @type {string} */ key) => escaped(say(key));
const markup = () => `
  <div class="measuring"></div>
  <p class="empty">${words("compare.nothing")}</p>
  <button type="button" class="clear" hidden>${words("compare.clear")}</button>
  <div class="comparisons"></div>`;
const tableMarkup = () => `
  <p class="result" role="status"></p>
  <p class="of"></p>
  <p class="notes">${words("compare.notes")}</p>
  <div class="scrolls stacked" role="group" aria-label="${words("compare.table")}">
    <table><thead><tr></tr></thead><tbody></tbody></table></div>
  <div class="keeping"><button type="button" class="all" aria-expanded="false"></button>
    <button type="button" data-saves="csv" disabled>${words("compare.csv")}</button>
    <button type="button" data-saves="json" disabled>${words("compare.json")}</button></div>`;
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
  panel.innerHTML = markup();
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const measuring = makeMeasuring(part(".measuring"), server, requests(), say("compare.what"));
  /** By the id of the measurement. @type {Map<string, ReturnType<typeof makeTable>>} */
  const tables = new Map();
  part(".clear").addEventListener("click", clear);
  return { show, take };

  /** @param {Run} run */
  function show({ outcome, recorded }) {
    measuring.foretell(recorded, outcome?.seconds.compare, outcome?.seconds.set);
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    panel.dataset.state = measurement.state;
    const { id, comparison, whose, state } = measurement;
    if (comparison) tableOf(id).fill(comparison, whose, isGoingOn(state));
    showWhatThereIs(isGoingOn(state));
  }

  /** @param {string} id */
  function tableOf(id) {
    const table = tables.get(id) ?? makeTable();
    if (!tables.has(id)) part(".comparisons").prepend(table.element);
    tables.set(id, table);
    return table;
  }

  /** @param {boolean} busy */
  function showWhatThereIs(busy) {
    part(".empty").hidden = tables.size > 0;
    part(".clear").hidden = tables.size === 0;
    part(".clear").toggleAttribute("disabled", busy);
  }

  function clear() {
    tables.clear();
    server.forget("compare");
    part(".comparisons").replaceChildren();
    showWhatThereIs(false);
  }
}

function makeTable() {
  const element = make("section");
  element.innerHTML = tableMarkup();
  const part = (/** @type {string} */ selector) => find(element, selector);
  const buttons = /** @type {HTMLButtonElement[]} */ ([...element.querySelectorAll("[data-saves]")]);
  /** @type {ComparisonTable | null} */
  let comparison = null;
  part(".keeping").addEventListener("click", save);
  part(".all").addEventListener("click", () => {
    const isAll = part(".all").ariaExpanded !== "true";
    part(".all").ariaExpanded = String(isAll);
    showRows();
  });
  return { element, fill };

  function showRows() {
    const { firsts = [] } = comparison ?? {};
    const isAll = part(".all").ariaExpanded === "true";
    [...part("tbody").children].forEach((row, at) => row.toggleAttribute("hidden", !isAll && !firsts[at]));
    part(".all").textContent = isAll ? say("compare.fewer") : say("compare.all", { count: firsts.length });
    part(".all").hidden = firsts.every(Boolean);
  }

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
    fillTable(part("table"), news.columns, news.rows, news.abouts);
    showRows();
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
