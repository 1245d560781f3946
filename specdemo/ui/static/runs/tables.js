// @ts-check
// Tables of numbers, a row for each thing that was measured.

import { appendAll, find, make } from "../view/dom.js";

/**
 * @param {Element} table
 * @param {string[]} columns
 * @param {string[][]} rows the first of a row's texts names it
 */
export function fillTable(table, columns, rows) {
  find(table, "thead tr").replaceChildren();
  appendAll(find(table, "thead tr"), columns.map(heading));
  find(table, "tbody").replaceChildren();
  appendAll(find(table, "tbody"), rows.map((row) => draw(columns, row)));
}

/** @param {string} column */
function heading(column) {
  const [name, perRound] = column.split(/(?<=\/)(?=\p{L}{3})/u);
  const cell = make("th", name);
  if (perRound) cell.append(make("wbr"), perRound); // a line may end there
  cell.scope = "col";
  return cell;
}

/**
 * @param {string[]} columns
 * @param {string[]} row
 */
function draw(columns, row) {
  const line = make("tr");
  line.dataset.row = row[0];
  row.forEach((text, at) => {
    const [value, interval] = text.split(/(?= \()/);
    const cell = at === 0 ? make("th", text) : make("td", value);
    if (cell.tagName === "TH") cell.scope = "row";
    else if (interval) cell.append(" ", make("small", interval.trim()));
    cell.dataset.column = columns[at];
    line.append(cell);
  });
  return line;
}
