// @ts-check
// The comparison: drafters on the same prompts, as a table that grows while they are measured.

import { appendAll, find, make, saveFile } from "./dom.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { Comparison, Measurement } from "./messages.js" */
/** @import { Panel } from "./tabs.js" */

const COMPARE = `
  <div class="measuring"></div>
  <p class="result" role="status"></p>
  <div class="keeping"><button type="button" data-saves="csv" disabled>Save CSV</button>
    <button type="button" data-saves="json" disabled>Save JSON</button>
    <button type="button" class="clear" disabled>Clear</button></div>
  <p class="of" id="comparison-of"></p>
  <div class="scrolls" tabindex="0" role="group" aria-label="Drafters, the fastest first">
    <table aria-labelledby="comparison-of"><thead><tr></tr></thead><tbody></tbody></table></div>`;
const TYPES = { csv: "text/csv", json: "application/json" };
/** @type {Record<string, Request>} */
const REQUESTS = {
  "Compare drafters on this prompt": { kind: "compare", prompts: "this" },
  "Compare drafters on a set of prompts": { kind: "compare", prompts: "set" },
};
const WHAT = "Each drafter in turn, and the target alone, by the engine’s clock, without prefill.";
const EMPTY = "Nothing has been compared yet.";

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel}
 */
export function makeCompare(panel, server) {
  panel.innerHTML = COMPARE;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const measuring = makeMeasuring(part(".measuring"), server, REQUESTS, WHAT);
  const buttons = /** @type {HTMLButtonElement[]} */ ([...panel.querySelectorAll(".keeping button")]);
  /** @type {Comparison | null} */
  let comparison = null;
  let whose = ""; // of the comparison
  part(".keeping").addEventListener("click", onClick);
  fill(false);
  return { take };

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    panel.dataset.state = measurement.state;
    if (measurement.comparison) {
      comparison = measurement.comparison;
      whose = measurement.whose;
    }
    fill(isGoingOn(measurement.state));
  }

  /** @param {boolean} busy */
  function fill(busy) {
    const { columns = [], rows = [] } = comparison ?? {};
    part(".of").textContent = whose || EMPTY;
    part(".result").textContent = comparison?.winner ?? "";
    part("thead tr").replaceChildren();
    appendAll(part("thead tr"), columns.map(heading));
    part("tbody").replaceChildren();
    appendAll(part("tbody"), rows.map((row) => draw(columns, row)));
    for (const button of buttons) button.disabled = busy || !rows.length;
  }

  /** @param {PointerEvent | MouseEvent} event */
  function onClick({ target }) {
    if (!(target instanceof HTMLElement) || !comparison) return;
    const kind = target.dataset.saves;
    if (kind === "csv" || kind === "json") {
      saveFile(`specdemo-comparison.${kind}`, comparison[kind], TYPES[kind]);
    } else if (target.classList.contains("clear")) {
      comparison = null;
      whose = "";
      fill(false);
    }
  }
}

/** @param {string} column */
function heading(column) {
  const [name, perRound] = column.replace(" %", "\u00a0%").split(/(?<=\/)(?=round)/);
  const cell = make("th", name);
  if (perRound) cell.append(make("wbr"), perRound); // a line may end there
  cell.scope = "col";
  return cell;
}

/**
 * @param {string[]} columns
 * @param {string[]} row the first of its texts is the drafter's name
 */
function draw(columns, row) {
  const line = make("tr");
  line.dataset.row = row[0];
  row.forEach((text, at) => {
    const [value, interval] = text.split(/(?= \()/);
    const cell = at === 0 ? make("th", text) : make("td", value);
    if (cell.tagName === "TH") cell.scope = "row";
    else if (interval) cell.append(" ", make("small", interval.trim()));
    cell.dataset.column = columns[at];
    line.append(cell);
  });
  return line;
}
