// @ts-check
// The panel beside the text: where drafts die. A row's button outlines the row's tokens in the text.

import { countedInWords, fillCounters } from "../runs/counters.js";
import { deathsIn, inWords } from "./deaths.js";
import { find, make } from "./dom.js";
import { grouped, percent } from "./format.js";
import { isUntold } from "./served.js";
import { say } from "./words.js";

/** @import { Deaths, Row } from "./deaths.js" */
/** @import { Run } from "./run.js" */
/** @import { Text } from "./text.js" */

const POSITIONS = `
  <p class="answer"></p>
  <p class="scope"></p>
  <p class="outlined-now" role="status"></p>
  <table class="places"></table>
  <table class="kinds"></table>
  <p class="no-kinds"></p>
  <p class="whose-counters"></p>
  <table class="counters"></table>`;
const COLUMNS = ["judged", "accepted", "rejected", "share"];

/**
 * @param {HTMLElement} page
 * @param {HTMLElement} panel
 * @param {Text} text
 */
export function makePositions(page, panel, text) {
  panel.innerHTML = POSITIONS;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const places = makeTable(part(".places"), say("positions.byPlace"));
  const kinds = makeTable(part(".kinds"), say("positions.byKind"));
  let state = ""; // how much of which run is shown
  let number = 0; // of that run
  /** @type {Row[]} */
  let rows = []; // those with a button
  /** @type {string | null} */
  let pressed = null; // the key of the row whose tokens are outlined
  panel.addEventListener("click", onClick);
  page.addEventListener("keydown", (event) => event.key === "Escape" && press(null));
  return { show };

  /** @param {Run} run */
  function show(run) {
    const now = `${run.number} ${run.rounds.length} ${run.complete} ${JSON.stringify(run.counted)}`;
    if (now === state) return;
    state = now;
    const served = Boolean(run.setting?.served);
    const deaths = deathsIn(run);
    rows = [...deaths.places, ...(served ? [] : deaths.kinds)];
    part(".answer").textContent = deaths.all.tokens.length ? inWords(deaths) : whyNone(run);
    part(".scope").textContent = run.complete ? "" : say("positions.soFar");
    panel.classList.toggle("nothing", !deaths.all.tokens.length);
    places.fill(deaths.places, deaths.all);
    kinds.fill(deaths.kinds, deaths.all);
    part(".kinds").hidden = served;
    part(".no-kinds").textContent = served ? say("positions.noKinds") : "";
    part(".whose-counters").textContent = run.counted ? countedInWords(run.counted) : "";
    part(".counters").hidden = !run.counted;
    if (run.counted) fillCounters(part(".counters"), run.counted);
    press(run.number === number ? pressed : null); // a run that goes on has more of them now
    number = run.number;
  }

  /** @param {Run} run without a draft that was judged */
  function whyNone(run) {
    if (run.rounds.length === 0 && !run.complete) return say("view.notBegun");
    if (run.rounds.some(isUntold)) return say("positions.untold");
    if (!run.complete && run.setting?.draft_with !== "none") return say("view.nothingSoFar");
    return say("positions.nothing");
  }

  /** @param {MouseEvent} event */
  function onClick(event) {
    const row = event.target instanceof Element ? event.target.closest("[data-row]") : null;
    const key = row instanceof HTMLElement ? row.dataset.row ?? "" : "";
    const { tokens } = rows.find((row) => row.key === key) ?? { tokens: [] };
    if (!tokens.length) return;
    press(key === pressed ? null : key);
    if (pressed) text.reveal(tokens.find(text.isShown));
  }

  /** @param {string | null} key */
  function press(key) {
    pressed = key;
    const row = rows.find((row) => row.key === key);
    text.outline(row?.tokens ?? []);
    for (const button of panel.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.closest("tr")?.dataset.row === key));
    }
    const words = row ? outlinedInWords(row) : say("positions.hint");
    if (part(".outlined-now").textContent !== words) part(".outlined-now").textContent = words; // it is read out
  }

  /** @param {Row} row */
  function outlinedInWords({ tokens, accepted, rejected }) {
    const hidden = tokens.some((token) => !text.isShown(token));
    const outlined = say("positions.outlined", { accepted, rejected });
    return hidden ? `${outlined} ${say("positions.someHidden")}` : outlined;
  }
}

/**
 * A table whose rows stay the same elements while their numbers grow, so that they can be pressed meanwhile.
 * @param {HTMLElement} table
 * @param {string} title
 */
function makeTable(table, title) {
  const [head, body, foot] = [make("tr", make("td")), make("tbody"), make("tfoot")];
  for (const name of COLUMNS) {
    const cell = make("th", say(`positions.columns.${name}`));
    cell.scope = "col";
    cell.title = say(`positions.definitions.${name}`);
    head.append(cell);
  }
  table.append(make("caption", title), make("thead", head), body, foot);
  /** @type {Map<string, HTMLTableRowElement>} */
  const known = new Map();
  return { fill };

  /**
   * @param {Row[]} rows
   * @param {Row} all
   */
  function fill(rows, all) {
    const most = rows.reduce((most, { tokens }) => Math.max(most, tokens.length), 1);
    for (const key of known.keys()) if (!rows.some((row) => row.key === key)) remove(key);
    rows.forEach((row, at) => {
      const line = known.get(row.key) ?? tableRow(row);
      known.set(row.key, line);
      if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
      find(line, "button").toggleAttribute("disabled", row.tokens.length === 0);
      fillCells(line, row, most);
    });
    const total = make("tr", rowHeader(all.label, all.definition));
    fillCells(total, all, Infinity);
    foot.replaceChildren(total);
  }

  /** @param {string} key */
  function remove(key) {
    known.get(key)?.remove();
    known.delete(key);
  }
}

/** @param {Row} row */
function tableRow({ key, label, definition }) {
  const button = make("button", label);
  button.type = "button";
  const made = make("tr", rowHeader(button, definition));
  made.dataset.row = key;
  return made;
}

/**
 * @param {Node | string} content
 * @param {string} definition
 */
function rowHeader(content, definition) {
  const cell = make("th", content);
  cell.scope = "row";
  cell.title = definition;
  return cell;
}

/**
 * The numbers, each with a bar: the counts by the same scale, the share from 0 to 1.
 * @param {HTMLElement} line
 * @param {Row} row
 * @param {number} most as long as a bar can be; Infinity for none
 */
function fillCells(line, { tokens, accepted, rejected }, most) {
  const judged = tokens.length;
  const share = judged ? rejected / judged : 0;
  /** @type {[name: string, written: string, bar: number][]} */
  const cells = [
    ["judged", grouped(judged), judged / most],
    ["accepted", grouped(accepted), accepted / most],
    ["rejected", grouped(rejected), rejected / most],
    ["share", judged ? percent(rejected, judged) : "–", most < Infinity ? share : 0],
  ];
  for (const [name, written, bar] of cells) {
    /** @type {HTMLElement} */
    const cell = line.querySelector(`[data-column="${name}"]`) ?? line.appendChild(make("td"));
    cell.dataset.column = name;
    cell.textContent = written;
    cell.style.setProperty("--value", String(bar));
  }
}
