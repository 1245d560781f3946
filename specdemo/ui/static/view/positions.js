// @ts-check
// Where drafts die: the judged tokens of a run's drafts by their place in the draft, beside the text. A row's button
// outlines the row's tokens in the text.

import { around, fill, h, update, within, write } from "./dom.js";
import { grouped, percent } from "./format.js";
import { depthsOf } from "./run.js";
import { isUntold } from "./served.js";
import { columnHead, rowOf } from "./tables.js";
import { say } from "./words.js";

/** @import { Drafted, Run } from "./run.js" */
/** @import { Text } from "./text.js" */
/**
 * A row of the table. Its tokens are those that were judged; accepted and rejected add up to their number.
 * @typedef {object} Row
 * @property {string} key
 * @property {string} label
 * @property {string} definition
 * @property {Drafted[]} tokens
 * @property {number} accepted
 * @property {number} rejected
 */
/** The rows, and what they add up to. @typedef {{ places: Row[], all: Row }} Deaths */

const content = () => [
  h("p", { class: "answer" }),
  h("p", { class: "scope" }),
  h("p", { class: "outlined-now", role: "status" }),
  h("table", { class: "places" }),
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
    deaths = deathsIn(run);
    part(".answer").textContent = deaths.all.tokens.length ? inWords(deaths) : whyNone(run);
    part(".scope").textContent = run.complete ? "" : say("positions.soFar");
    panel.classList.toggle("nothing", !deaths.all.tokens.length);
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
    if (deaths) update(part(".places"), tableOf(deaths, key));
    write(part(".outlined-now"), row ? outlinedInWords(row) : say("positions.hint"));
  }

  /** One with a button. @param {string | null} key */
  function rowOfKey(key) {
    return deaths?.places.find((row) => row.key === key);
  }

  /** @param {Row} row */
  function outlinedInWords({ tokens, accepted, rejected }) {
    const hidden = tokens.some((token) => !text.isShown(token));
    const outlined = say("positions.outlined", { accepted, rejected });
    return hidden ? `${outlined} ${say("positions.someHidden")}` : outlined;
  }
}

/**
 * The parts of the table.
 * @param {Deaths} deaths
 * @param {string | null} pressed the key of the row whose button is
 */
function tableOf({ places: rows, all }, pressed) {
  const most = rows.reduce((most, { tokens }) => Math.max(most, tokens.length), 1);
  const lines = rows.map((row) => {
    const { key, label, definition, tokens } = row;
    const button = h("button", { disabled: tokens.length === 0, "aria-pressed": String(key === pressed) }, label);
    const line = rowOf(button, cellsOf(row, most), { title: definition });
    line.dataset.row = key;
    return line;
  });
  return [
    h("caption", {}, say("positions.byPlace")),
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

/**
 * What is counted is what the acceptance rate counts: the accepted and the rejected. A draft that was
 * accepted after the end of the text is discarded; it was judged, but is in no rate, and so in no row. Where a
 * server does not tell how much it drafted, nothing is.
 * @param {Pick<Run, "rounds">} run
 * @returns {Deaths}
 */
export function deathsIn({ rounds }) {
  if (rounds.some(isUntold)) rounds = []; // what was rejected there is not known
  const judged = rounds.flatMap(({ draft }) => draft.filter(({ fate }) => fate !== "discarded"));
  const longest = rounds.reduce((most, round) => Math.max(most, depthsOf(round)), 0);
  const places = Array.from({ length: longest }, (_, at) => {
    const place = at + 1;
    const definition = at ? say("positions.placeDefinition", { place }) : say("positions.firstDefinition");
    const here = judged.filter(({ depth }) => depth === at);
    return deathsOf(`place-${place}`, say("positions.place", { place }), definition, here);
  });
  const all = deathsOf("all", say("positions.all"), say("positions.allDefinition"), judged);
  return { places, all };
}

/**
 * @param {string} key
 * @param {string} label
 * @param {string} definition
 * @param {Drafted[]} tokens
 * @returns {Row}
 */
function deathsOf(key, label, definition, tokens) {
  const accepted = tokens.filter(({ fate }) => fate === "accepted").length;
  return { key, label, definition, tokens, accepted, rejected: tokens.length - accepted };
}

/**
 * Where drafts die, in a sentence that follows from the table of places: where most were rejected.
 * @param {Deaths} deaths of a run with drafts that were judged
 */
export function inWords({ places, all }) {
  if (!all.rejected) return say("positions.noneDied");
  if (places.length === 1) {
    const share = percent(all.rejected, all.tokens.length);
    return say("positions.onePlace", { rejected: all.rejected, judged: all.tokens.length, share });
  }
  const rejected = places.reduce((most, row) => Math.max(most, row.rejected), 0);
  const most = places.filter((row) => row.rejected === rejected).map(({ label }) => label);
  const counts = { places: most.join(", "), rejected, all: all.rejected };
  return say(most.length > 1 ? "positions.mostAlike" : "positions.most", counts);
}
