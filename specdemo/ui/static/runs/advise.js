// @ts-check
// The adviser: which setting pays for each kind of work, and what to type into a server. The server measures.

import { fetchFile } from "../traces/traces.js";
import { fill, h, saveFile, within } from "../view/dom.js";
import { fillTable, measuredTable } from "../view/tables.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { Advice, Measurement } from "../view/messages.d.ts" */
/** @import { Panel } from "../page/tabs.js" */

const content = (/** @type {string[]} */ works) => [
  h("fieldset", { class: "works" }, h("legend", {}, say("advice.for_what")), works.map(choice)),
  h("div", { class: "measuring" }),
  h("div", { class: "found", hidden: true },
    h("dl", { class: "advised", role: "status" }),
    h("p", { class: "ended" }),
    h("ul", { class: "requests" }),
    h("details", { class: "typed" }, h("summary", {}, say("advice.typed")), h("div", { class: "servers" })),
    h("details", { class: "all" }, h("summary", {}, say("advice.measured")), measuredTable(say("advice.measured"))),
    h("p", { class: "of" }),
    h("div", { class: "keeping" }, h("button", { class: "save", disabled: true }, say("advice.save")))),
  h("p", { class: "notes" }, say("advice.own")),
];

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @param {string[]} works the kinds of work that there are prompts for
 * @param {(error: Error) => void} refuse tells why a report cannot be saved
 * @returns {Panel}
 */
export function makeAdvise(panel, server, works, refuse) {
  fill(panel, content(works));
  const part = within(panel);
  const boxes = /** @type {HTMLInputElement[]} */ ([...panel.querySelectorAll(".works input")]);
  const asks = { ...server, measure: ask };
  const measuring = makeMeasuring(part(".measuring"), asks, { [say("advice.button")]: { kind: "advise" } }, say("advice.what"));
  let id = "";
  part(".save").addEventListener("click", () =>
    fetchFile(id, "report").then(({ name, text }) => saveFile(name, text, "text/html"), refuse));
  return { show() {}, take };

  /** @param {Request} request */
  function ask(request) {
    const works = boxes.filter(({ checked }) => checked).map(({ value }) => value);
    server.measure({ ...request, works: works.join(",") });
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    const { advice, whose, state } = measurement;
    panel.dataset.state = state;
    part(".found").hidden = !advice;
    if (!advice) return;
    id = measurement.id;
    part(".save").toggleAttribute("disabled", isGoingOn(state));
    part(".of").textContent = whose;
    draw(advice);
  }

  /** @param {Advice} advice */
  function draw({ advised, ended, requests, typed, columns, rows }) {
    fill(part(".advised"), advised.map(({ work, setting, reason, pays }) => (
      h("div", {}, h("dt", { "data-pays": String(pays) }, `${work}: ${setting}`), h("dd", {}, reason)))));
    part(".ended").textContent = ended;
    fill(part(".requests"), requests.map((sentence) => h("li", {}, sentence)));
    part(".typed").hidden = !typed.length;
    fill(part(".servers"), typed.map(({ server: name, command, notes }) => (
      h("section", {}, h("h3", {}, name), command && h("pre", {}, command), notes.map((note) => h("p", {}, note))))));
    part(".all").hidden = !rows.length;
    fillTable(part("table"), columns, rows);
  }
}

/** @param {string} work */
function choice(work) {
  const box = h("input", { type: "checkbox", value: work, checked: true });
  return h("label", {}, box, ` ${say(`advice.works.${work}`)}`);
}
