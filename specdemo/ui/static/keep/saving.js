// @ts-check
// "Save as": the run as one HTML file, its rounds as a table, and what the browser prints.

import { find, h, makeMenu, saveFile, tellWrong } from "../view/dom.js";
import { tokensOf } from "../view/run.js";
import { say } from "../view/words.js";

/** @import { Round, Run } from "../view/run.js" */

const COLUMNS = [
  "round", "place", "fate", "id", "text", "p", "q", "u", "accept_prob", "raw_p", "raw_q", "draft_ms", "verify_ms",
];

/**
 * Puts the menu behind the button that saves the trace.
 * @param {HTMLElement} page
 * @param {Run} run
 * @param {() => Promise<{ name: string, text: string }>} [fetchHtml] gives the HTML file; without it, none is offered
 */
export function offerSaving(page, run, fetchHtml) {
  const ways = {
    html: () => fetchHtml?.().then(({ name, text }) => saveFile(name, text, "text/html"), (error) => tellWrong(page, error.message)),
    csv() {
      const name = /^\d+$/.test(run.numbers.seed ?? "") ? `seed-${run.numbers.seed}` : "greedy";
      saveFile(`specdemo-${name}.csv`, roundsAsCsv(run.rounds), "text/csv");
    },
    print: () => print(),
  };
  const buttons = Object.entries(ways).filter(([name]) => name !== "html" || fetchHtml).map(([name, save]) => (
    h("button", { "data-saves": name, onclick: () => {
      close();
      save();
    } }, say(`keep.${name}`))));
  const menu = h("details", { class: "save-as" }, h("summary", {}, say("keep.save_as")), h("div", {}, buttons));
  find(page, "#save").after(menu);
  const { close } = makeMenu(menu);
}

/**
 * The rounds as CSV (RFC 4180), a row for each token. Rounds and places count from 1, as on the page. Numbers are
 * unrounded; what is not known is empty. A text is a string of JSON: it then begins with a quotation mark, so no
 * spreadsheet takes it for a formula, and spaces and line ends are told apart.
 * @param {Round[]} rounds
 */
export function roundsAsCsv(rounds) {
  const rows = rounds.flatMap((round) => tokensOf(round).map((token, place) => {
    const { fate, id, text, p, q, u, raw_p, raw_q } = token;
    const accept_prob = "accept_prob" in token ? token.accept_prob : null;
    const { index, draft_ms, verify_ms } = round;
    return [index + 1, place + 1, fate, id, JSON.stringify(text), p, q, u, accept_prob, raw_p, raw_q, draft_ms, verify_ms];
  }));
  return [COLUMNS, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** @param {string | number | null | undefined} value */
function cell(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
