// @ts-check
// A chart with a column for each token, and its numbers in a table below it, in the same columns.

import { fill, h } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { columnHead, rowOf } from "../view/tables.js";

/** @import { Chosen } from "./chosen.js" */

const CROWDED = 7; // tokens, whose columns are narrow on a phone

/**
 * The chart is made anew when there are other tokens.
 * @param {HTMLElement} chart
 * @param {Chosen} chosen
 * @param {string} label the table's name
 * @param {string[]} rows a class for each row of numbers
 * @param {string[]} bars a class for each bar of a column
 * @param {(columns: HTMLElement[]) => HTMLElement[]} [made] is told of new columns, and gives their heads; else their names
 */
export function makeColumns(chart, chosen, label, rows, bars, made) {
  /** @type {HTMLElement[]} */
  let columns = [];
  /** @type {HTMLTableRowElement[]} */
  let lines = [];
  /** Of the tokens that it is made for. @type {string[]} */
  let names = [];
  return { set, write };

  function make() {
    names = chosen.names;
    columns = names.map(() => h("div", { class: "column" }, bars.map((name) => h("i", { class: name }))));
    lines = rows.map((name) => {
      const line = rowOf("", names.map(() => ""));
      line.className = name;
      return line;
    });
    const isOther = (/** @type {number} */ at) => at >= names.length - chosen.others.length;
    const named = made?.(columns) ?? names.map((name) => h("span", {}, bare(name)));
    const heads = named.map((head, at) => columnHead(head, { class: isOther(at) && "others" }));
    fill(chart, h("div", { class: "plot" }, columns), h("table", {
      "aria-label": label, class: names.length >= CROWDED && "crowded",
    }, h("thead", {}, h("tr", {}, h("td"), heads)), h("tbody", {}, lines)));
  }

  /**
   * Sets the columns' numbers that the style sheet reads, for the tokens that there are now; gives the columns.
   * @param {Record<string, number[]>} numbers one a token
   */
  function set(numbers = {}) {
    if (names !== chosen.names) make();
    for (const [name, values] of Object.entries(numbers)) {
      columns.forEach((column, at) => setNumber(column, name, values[at]));
    }
    return columns;
  }

  /**
   * @param {number} row
   * @param {string} head
   * @param {string[]} texts
   */
  function write(row, head, texts, isShown = true) {
    lines[row].hidden = !isShown;
    [head, ...texts].forEach((text, at) => { lines[row].cells[at].textContent = text; });
  }
}

/** A name without its quotes, for where there is little room. @param {string} name */
export function bare(name) {
  return name.replace(/^"(.*)"$/s, "$1");
}

/** @param {number[]} values */
export function inColumn(values) {
  return values.map((value) => fixed(value, 3));
}

/**
 * What the bars are: their classes, with spaces between them, and the words.
 * @param {[bars: string, words: string, name?: string][]} entries
 */
export function keyOf(...entries) {
  return h("p", { class: "key" }, entries.map(([bars, words, name = null]) => (
    h("span", { class: name }, bars.split(" ").map((bar) => h("i", { class: bar })), h("span", {}, words)))));
}

/**
 * Sets a number that the style sheet reads.
 * @param {HTMLElement} element
 * @param {string} name
 * @param {number} value
 */
export function setNumber(element, name, value) {
  element.style.setProperty(`--${name}`, value.toFixed(5));
}
