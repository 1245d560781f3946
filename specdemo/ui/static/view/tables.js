// @ts-check
// Tables: their heads and rows, numbers with their intervals, and whole tables of what was measured.

import { fill, find, h } from "./dom.js";

/** @import { Attributes, Child } from "./dom.js" */

/**
 * The head of a column.
 * @param {Child} words
 * @param {Attributes} [attributes]
 */
export function columnHead(words, attributes) {
  return h("th", { scope: "col", ...attributes }, words);
}

/**
 * A row: its head, and then its cells.
 * @param {Child} head
 * @param {Child[]} cells elements, or what stands in them
 * @param {Attributes} [attributes] of the head
 */
export function rowOf(head, cells, attributes) {
  const drawn = cells.map((cell) => cell instanceof HTMLTableCellElement ? cell : h("td", {}, cell));
  return h("tr", {}, h("th", { scope: "row", ...attributes }, head), drawn);
}

/**
 * What stands in small beside a number, such as its interval; nothing where that is empty.
 * @param {string} words
 * @returns {Child}
 */
export function small(words) {
  return words ? [" ", h("small", {}, words)] : null;
}

/** A table of what was measured, which `fillTable` fills. @param {string} label */
export function measuredTable(label) {
  return h("div", { class: "scrolls stacked", role: "group", "aria-label": label },
    h("table", {}, h("thead"), h("tbody")));
}

/**
 * @param {Element} table
 * @param {string[]} columns
 * @param {string[][]} rows the first of a row's texts names it
 */
export function fillTable(table, columns, rows) {
  fill(find(table, "thead"), h("tr", {}, columns.map(heading)));
  fill(find(table, "tbody"), rows.map((row) => measuredRow(columns, row)));
}

/** @param {string} column */
function heading(column) {
  const [name, perRound] = column.split(/(?<=\/)(?=\p{L}{3})/u);
  return columnHead(perRound ? [name, h("wbr"), perRound] : name); // a line may end there
}

/**
 * @param {string[]} columns
 * @param {string[]} row
 */
function measuredRow(columns, [name, ...values]) {
  const cells = values.map((text, at) => {
    const [value, interval = ""] = text.split(/(?= \()/);
    return h("td", { "data-column": columns[at + 1] }, value, small(interval.trim()));
  });
  const line = rowOf(name, cells, { "data-column": columns[0] });
  line.dataset.row = name;
  return line;
}
