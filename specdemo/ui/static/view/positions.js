// @ts-check
// The panel beside the text: where drafts die. A row's button outlines the row's tokens in the text.

import { deathsIn, inWords } from "./deaths.js";
import { around, fill, find, h, within, write } from "./dom.js";
import { grouped, percent } from "./format.js";
import { isUntold } from "./served.js";
import { columnHead, rowOf } from "./tables.js";
import { say } from "./words.js";

/** @import { Deaths, Row } from "./deaths.js" */
/** @import { Counted } from "./messages.d.ts" */
/** @import { Run } from "./run.js" */
/** @import { Text } from "./text.js" */

const content = () => [
  h("p", { class: "answer" }),
  h("p", { class: "scope" }),
  h("p", { class: "outlined-now", role: "status" }),
  h("table", { class: "places" }),
  h("table", { class: "kinds" }),
  h("p", { class: "no-kinds" }),
  h("p", { class: "whose-counters" }),
  h("table", { class: "counters" }),
];
const COLUMNS = ["judged", "accepted", "rejected", "share"];
const OF_COUNTERS = ["drafts", "accepted", "share"];

/**
 * @param {HTMLElement} page
 * @param {HTMLElement} panel
 * @param {Text} text
 */
export function makePositions(page, panel, text) {
  fill(panel, content());
  const part = within(panel);
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
    places.show(deaths.places, deaths.all);
    kinds.show(deaths.kinds, deaths.all);
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
  function onClick({ target }) {
    const key = around(target, "[data-row]")?.dataset.row ?? "";
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
    write(part(".outlined-now"), row ? outlinedInWords(row) : say("positions.hint"));
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
  const [body, foot] = [h("tbody"), h("tfoot")];
  /** @type {[string, string][]} */
  const columns = COLUMNS.map((name) => [say(`positions.columns.${name}`), say(`positions.definitions.${name}`)]);
  fill(table, h("caption", {}, title), headOf(columns), body, foot);
  /** @type {Map<string, HTMLTableRowElement>} */
  const known = new Map();
  return { show };

  /**
   * @param {Row[]} rows
   * @param {Row} all
   */
  function show(rows, all) {
    const most = rows.reduce((most, { tokens }) => Math.max(most, tokens.length), 1);
    for (const key of known.keys()) if (!rows.some((row) => row.key === key)) remove(key);
    rows.forEach((row, at) => {
      const line = known.get(row.key) ?? tableRow(row);
      known.set(row.key, line);
      if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
      find(line, "button").toggleAttribute("disabled", row.tokens.length === 0);
      fillCells(line, row, most);
    });
    const total = rowOf(all.label, [], { title: all.definition });
    fillCells(total, all, Infinity);
    fill(foot, total);
  }

  /** @param {string} key */
  function remove(key) {
    known.get(key)?.remove();
    known.delete(key);
  }
}

/** @param {Row} row */
function tableRow({ key, label, definition }) {
  const line = rowOf(h("button", {}, label), [], { title: definition });
  line.dataset.row = key;
  return line;
}

/**
 * The head of a table: a column for each of these, which is told when it is pointed at.
 * @param {[name: string, definition: string][]} columns
 */
function headOf(columns) {
  return h("thead", {}, h("tr", {}, h("td"), columns.map(([name, title]) => columnHead(name, { title }))));
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
    const cell = line.querySelector(`[data-column="${name}"]`) ?? line.appendChild(h("td"));
    cell.dataset.column = name;
    cell.textContent = written;
    cell.style.setProperty("--value", String(bar));
  }
}

/**
 * Whose drafts were counted.
 * @param {Counted} counted
 */
function countedInWords({ alone, drafts }) {
  const counted = say("positions.counters.counted", { count: drafts, number: grouped(drafts) });
  return `${counted} ${say(alone ? "positions.counters.alone" : "positions.counters.shared")}`;
}

/**
 * What each place of a draft brought: its cells' texts.
 * @param {Counted} counted
 */
function placesOf({ drafts, by_place }) {
  return by_place.map((accepted, at) => [
    say("positions.place", { place: at + 1 }), grouped(drafts), grouped(accepted), percent(accepted, drafts),
  ]);
}

/**
 * Acceptance by place in the draft, from the counters of the server that made the run.
 * @param {HTMLElement} table
 * @param {Counted} counted
 */
function fillCounters(table, counted) {
  /** @type {[string, string][]} */
  const columns = OF_COUNTERS.map((name) => (
    [say(`positions.counters.columns.${name}`), say(`positions.counters.definitions.${name}`)]));
  const rows = placesOf(counted).map(([place, ...cells]) => rowOf(place, cells));
  fill(table, h("caption", {}, say("positions.counters.caption")), headOf(columns), h("tbody", {}, rows));
}
