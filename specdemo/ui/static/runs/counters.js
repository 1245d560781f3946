// @ts-check
// Acceptance by place in the draft, from the counters of the server that made the run.

import { appendAll, make } from "../view/dom.js";
import { grouped, percent } from "../view/format.js";
import { say } from "../view/words.js";

/** @import { Counted } from "../view/messages.d.ts" */

const COLUMNS = ["drafts", "accepted", "share"];

/**
 * Whose drafts were counted.
 * @param {Counted} counted
 */
export function countedInWords({ alone, drafts }) {
  const counted = say("positions.counters.counted", { count: drafts, number: grouped(drafts) });
  return `${counted} ${say(alone ? "positions.counters.alone" : "positions.counters.shared")}`;
}

/**
 * What each place of a draft brought: its cells' texts.
 * @param {Counted} counted
 */
export function placesOf({ drafts, by_place }) {
  return by_place.map((accepted, at) => [
    say("positions.place", { place: at + 1 }), grouped(drafts), grouped(accepted), percent(accepted, drafts),
  ]);
}

/**
 * @param {HTMLElement} table
 * @param {Counted} counted
 */
export function fillCounters(table, counted) {
  const head = make("tr", make("td"));
  for (const name of COLUMNS) {
    const cell = make("th", say(`positions.counters.columns.${name}`));
    cell.scope = "col";
    cell.title = say(`positions.counters.definitions.${name}`);
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
  table.replaceChildren(make("caption", say("positions.counters.caption")), make("thead", head), body);
}
