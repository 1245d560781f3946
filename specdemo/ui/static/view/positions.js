// @ts-check
// The panel beside the text: where drafts die. A row's button outlines the row's tokens in the text.

import { deathsIn, inWords } from "./deaths.js";
import { around, fill, h, update, within, write } from "./dom.js";
import { grouped, percent } from "./format.js";
import { isUntold } from "./served.js";
import { columnHead, rowOf } from "./tables.js";
import { say } from "./words.js";

/** @import { Deaths, Row } from "./deaths.js" */
/** @import { Run } from "./run.js" */
/** @import { Text } from "./text.js" */

const content = () => [
  h("p", { class: "answer" }),
  h("p", { class: "scope" }),
  h("p", { class: "outlined-now", role: "status" }),
  h("table", { class: "places" }),
  h("table", { class: "kinds" }),
  h("p", { class: "no-kinds" }),
];
const COLUMNS = ["judged", "accepted", "rejected", "share"];

/**
 * @param {HTMLElement} page
 * @param {HTMLElement} panel
 * @param {Text} text
 */
export function makePositions(page, panel, text) {
  fill(panel, content());
  const part = within(panel);
  let state = ""; // how much of which run is shown
  let number = 0; // of that run
  /** @type {Deaths | null} */
  let deaths = null;
  /** @type {string | null} */
  let pressed = null; // the key of the row whose tokens are outlined
  panel.addEventListener("click", onClick);
  page.addEventListener("keydown", (event) => event.key === "Escape" && press(null));
  return { show };

  /** @param {Run} run */
  function show(run) {
    const now = `${run.number} ${run.rounds.length} ${run.complete}`;
    if (now === state) return;
    state = now;
    const served = Boolean(run.setting?.served);
    deaths = deathsIn(run);
    part(".answer").textContent = deaths.all.tokens.length ? inWords(deaths) : whyNone(run);
    part(".scope").textContent = run.complete ? "" : say("positions.soFar");
    panel.classList.toggle("nothing", !deaths.all.tokens.length);
    part(".kinds").hidden = served;
    part(".no-kinds").textContent = served ? say("positions.noKinds") : "";
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
    const { tokens } = rowOfKey(key) ?? { tokens: [] };
    if (!tokens.length) return;
    press(key === pressed ? null : key);
    if (pressed) text.reveal(tokens.find(text.isShown));
  }

  /** @param {string | null} key */
  function press(key) {
    pressed = key;
    const row = rowOfKey(key);
    text.outline(row?.tokens ?? []);
    if (deaths) {
      update(part(".places"), tableOf(say("positions.byPlace"), deaths.places, deaths.all, key));
      update(part(".kinds"), tableOf(say("positions.byKind"), deaths.kinds, deaths.all, key));
    }
    write(part(".outlined-now"), row ? outlinedInWords(row) : say("positions.hint"));
  }

  /** One with a button. @param {string | null} key */
  function rowOfKey(key) {
    return deaths && [...deaths.places, ...deaths.kinds].find((row) => row.key === key);
  }

  /** @param {Row} row */
  function outlinedInWords({ tokens, accepted, rejected }) {
    const hidden = tokens.some((token) => !text.isShown(token));
    const outlined = say("positions.outlined", { accepted, rejected });
    return hidden ? `${outlined} ${say("positions.someHidden")}` : outlined;
  }
}

/**
 * The parts of a table.
 * @param {string} title
 * @param {Row[]} rows
 * @param {Row} all
 * @param {string | null} pressed the key of the row whose button is
 */
function tableOf(title, rows, all, pressed) {
  const most = rows.reduce((most, { tokens }) => Math.max(most, tokens.length), 1);
  const lines = rows.map((row) => {
    const { key, label, definition, tokens } = row;
    const button = h("button", { disabled: tokens.length === 0, "aria-pressed": String(key === pressed) }, label);
    const line = rowOf(button, cellsOf(row, most), { title: definition });
    line.dataset.row = key;
    return line;
  });
  return [
    h("caption", {}, title),
    h("thead", {}, h("tr", {}, h("td"), COLUMNS.map((name) => (
      columnHead(say(`positions.columns.${name}`), { title: say(`positions.definitions.${name}`) }))))),
    h("tbody", {}, lines),
    h("tfoot", {}, rowOf(all.label, cellsOf(all, Infinity), { title: all.definition })),
  ];
}

/**
 * The numbers, each with a bar: the counts by the same scale, the share from 0 to 1.
 * @param {Row} row
 * @param {number} most as long as a bar can be; Infinity for none
 */
function cellsOf({ tokens, accepted, rejected }, most) {
  const judged = tokens.length;
  const share = judged && most < Infinity ? rejected / judged : 0;
  /** @type {[name: string, written: string, bar: number][]} */
  const cells = [
    ["judged", grouped(judged), judged / most],
    ["accepted", grouped(accepted), accepted / most],
    ["rejected", grouped(rejected), rejected / most],
    ["share", judged ? percent(rejected, judged) : "–", share],
  ];
  return cells.map(([name, written, bar]) => h("td", { "data-column": name, "--value": bar }, written));
}
