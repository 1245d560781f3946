// @ts-check
// A chart with a column for each token, and its numbers in a table below it, in the same columns.

import { fill, h } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { columnHead, rowOf } from "../view/tables.js";

/** @typedef {ReturnType<typeof makeColumns>} Columns */

const CROWDED = 7; // tokens, whose columns are narrow on a phone

/**
 * @param {HTMLElement} chart
 * @param {HTMLElement[]} heads one a token
 * @param {number} others how many of them, at the end, stand for more than one token
 * @param {string} label the table's name
 * @param {string[]} rows a class for each row of numbers
 * @param {string[]} [bars] a class for each bar of a column
 */
export function makeColumns(chart, heads, others, label, rows, bars = []) {
  const columns = heads.map(() => h("div", { class: "column" }, bars.map((name) => h("i", { class: name }))));
  const lines = rows.map((name) => {
    const line = rowOf("", heads.map(() => ""));
    line.className = name;
    return line;
  });
  const heading = heads.map((head, at) => columnHead(head, { class: at >= heads.length - others && "others" }));
  fill(chart, h("div", { class: "plot" }, columns), h("table", {
    "aria-label": label, class: heads.length >= CROWDED && "crowded",
  }, h("thead", {}, h("tr", {}, h("td"), heading)), h("tbody", {}, lines)));
  return { columns, write, set };

  /**
   * @param {number} row
   * @param {string} head
   * @param {string[]} texts
   */
  function write(row, head, texts, isShown = true) {
    lines[row].hidden = !isShown;
    [head, ...texts].forEach((text, at) => { lines[row].cells[at].textContent = text; });
  }

  /** Sets the columns' numbers that the style sheet reads. @param {Record<string, number[]>} numbers one a token */
  function set(numbers) {
    for (const [name, values] of Object.entries(numbers)) {
      columns.forEach((column, at) => setNumber(column, name, values[at]));
    }
  }
}

/** @param {string[]} names of the tokens */
export function headsOf(names) {
  return names.map((name) => h("span", {}, bare(name)));
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
