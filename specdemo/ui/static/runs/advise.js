// @ts-check
// The adviser: which setting pays for each kind of work, and what to type into a server. The server measures.

import { fetchFile } from "../traces/traces.js";
import { appendAll, escaped, find, make, saveFile } from "../view/dom.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";
import { fillTable } from "./tables.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { Advice, Measurement } from "../view/messages.d.ts" */
/** @import { Panel } from "../page/tabs.js" */

const words = (/** @type {string} */ key) => escaped(say(key));
const markup = () => `
  <fieldset class="works"><legend>${words("advice.for_what")}</legend></fieldset>
  <div class="measuring"></div>
  <div class="found" hidden>
    <dl class="advised" role="status"></dl>
    <p class="ended"></p>
    <ul class="checks"></ul>
    <details class="typed"><summary>${words("advice.typed")}</summary><div class="servers"></div></details>
    <details class="all"><summary>${words("advice.measured")}</summary>
      <div class="scrolls stacked" role="group" aria-label="${words("advice.measured")}">
        <table><thead><tr></tr></thead><tbody></tbody></table></div></details>
    <p class="of"></p>
    <div class="keeping"><button type="button" class="save" disabled>${words("advice.save")}</button></div>
  </div>
  <p class="notes">${words("advice.own")}</p>`;

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @param {string[]} works the kinds of work that there are prompts for
 * @param {(error: Error) => void} refuse tells why a report cannot be saved
 * @returns {Panel}
 */
export function makeAdvise(panel, server, works, refuse) {
  panel.innerHTML = markup();
  const part = (/** @type {string} */ selector) => find(panel, selector);
  appendAll(part(".works"), works.map(choice));
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
  function draw({ advised, ended, checks, typed, columns, rows }) {
    part(".advised").replaceChildren();
    appendAll(part(".advised"), advised.map(({ work, setting, reason, pays }) => {
      const title = make("dt", `${work}: ${setting}`);
      title.dataset.pays = String(pays);
      return make("div", title, make("dd", reason));
    }));
    part(".ended").textContent = ended;
    part(".checks").replaceChildren();
    appendAll(part(".checks"), checks.map((sentence) => make("li", sentence)));
    part(".typed").hidden = !typed.length;
    part(".servers").replaceChildren();
    appendAll(part(".servers"), typed.map(({ server: name, command, notes }) => make(
      "section", make("h3", name), ...(command ? [make("pre", command)] : []),
      ...notes.map((note) => make("p", note)))));
    part(".all").hidden = !rows.length;
    fillTable(part("table"), columns, rows);
  }
}

/** @param {string} work */
function choice(work) {
  const box = make("input");
  box.type = "checkbox";
  box.value = work;
  box.checked = true;
  return make("label", box, ` ${say(`advice.works.${work}`)}`);
}
