// @ts-check
// Tables of numbers, a row for each thing that was measured.

import { appendAll, find, make } from "../view/dom.js";

/**
 * @param {Element} table
 * @param {string[]} columns
 * @param {string[][]} rows the first of a row's texts names it
 * @param {string[]} abouts what each row's name means, where that is told
 */
export function fillTable(table, columns, rows, abouts = []) {
  const open = new Set([...table.querySelectorAll("details[open] summary")].map(({ textContent }) => textContent));
  find(table, "thead tr").replaceChildren();
  appendAll(find(table, "thead tr"), columns.map(heading));
  find(table, "tbody").replaceChildren();
  appendAll(find(table, "tbody"), rows.map((row, at) => draw(columns, row, abouts[at] ?? "")));
  for (const details of table.querySelectorAll("details")) details.open = open.has(find(details, "summary").textContent);
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
 * @param {string} about
 */
function draw(columns, row, about) {
  const line = make("tr");
  line.dataset.row = row[0];
  row.forEach((text, at) => {
    const [value, interval] = text.split(/(?= \()/);
    const cell = at === 0 ? make("th", about ? explained(text, about) : text) : make("td", value);
    if (cell.tagName === "TH") cell.scope = "row";
    else if (interval) cell.append(" ", make("small", interval.trim()));
    cell.dataset.column = columns[at];
    line.append(cell);
  });
  return line;
}

/**
 * A name that tells what it means when it is pressed.
 * @param {string} name
 * @param {string} about
 */
function explained(name, about) {
  const details = make("details", make("summary", name));
  details.append(make("p", about));
  details.title = about;
  return details;
}
