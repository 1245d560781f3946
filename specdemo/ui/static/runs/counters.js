// @ts-check
// Acceptance by place in the draft, from the counters of the server that made the run.

import { appendAll, make } from "../view/dom.js";
import { grouped, percent } from "../view/format.js";

/** @import { Counted } from "../view/messages.js" */

const COLUMNS = {
  drafts: "Drafts that the server has judged.",
  accepted: "Those of which the token at this place was accepted, and all before it.",
  "accepted share": "The accepted ones as a share of the drafts.",
};

/**
 * Whose drafts were counted.
 * @param {Counted} counted
 */
export function countedInWords({ alone, drafts }) {
  const whose = alone
    ? "All of them are this run's, as far as the counters tell."
    : "Other visitors' requests count there, too, and some came meanwhile: these are not this run's alone.";
  return `While the run went on, the server counted ${grouped(drafts)} draft${drafts === 1 ? "" : "s"}. ${whose}`;
}

/**
 * What each place of a draft brought: its cells' texts.
 * @param {Counted} counted
 */
export function placesOf({ drafts, by_place }) {
  return by_place.map((accepted, at) => [
    `place ${at + 1}`, grouped(drafts), grouped(accepted), percent(accepted, drafts),
  ]);
}

/**
 * @param {HTMLElement} table
 * @param {Counted} counted
 */
export function fillCounters(table, counted) {
  const head = make("tr", make("td"));
  for (const [name, definition] of Object.entries(COLUMNS)) {
    const cell = make("th", name);
    cell.scope = "col";
    cell.title = definition;
    head.append(cell);
  }
  const body = make("tbody");
  for (const [place, ...cells] of placesOf(counted)) {
    const name = make("th", place);
    name.scope = "row";
    const line = make("tr", name);
    appendAll(line, cells.map((text) => make("td", text)));
    body.append(line);
  }
  table.replaceChildren(make("caption", "By place, from the server's counters"), make("thead", head), body);
}
