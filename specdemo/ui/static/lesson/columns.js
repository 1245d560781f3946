// @ts-check
// A chart with a column for each token, and its numbers in a table below it, in the same columns.

import { appendAll, make } from "../view/dom.js";
import { fixed } from "../view/format.js";

const CROWDED = 7; // tokens, whose columns are narrow on a phone

/**
 * @typedef {object} Columns
 * @property {HTMLElement[]} columns one a token; the caller fills them
 * @property {HTMLElement[]} names the tokens' heads in the table
 * @property {(row: number, head: string, cells: string[], isShown?: boolean) => void} write
 */

/**
 * @param {HTMLElement} chart
 * @param {number} tokens
 * @param {string} label the table's name
 * @param {string[]} rows a class for each row of numbers
 * @returns {Columns}
 */
export function makeColumns(chart, tokens, label, rows) {
  const many = (/** @type {() => HTMLElement} */ one) => Array.from({ length: tokens }, one);
  const columns = many(() => classed(make("div"), "column"));
  const names = many(() => {
    const head = make("th");
    head.scope = "col";
    return head;
  });
  const lines = rows.map((name) => {
    const head = make("th");
    head.scope = "row";
    const cells = many(() => make("td"));
    return { head, cells, line: classed(filled("tr", [head, ...cells]), name) };
  });
  const heads = make("thead", filled("tr", [make("td"), ...names]));
  const table = make("table", heads, filled("tbody", lines.map(({ line }) => line)));
  table.setAttribute("aria-label", label);
  table.classList.toggle("crowded", tokens >= CROWDED);
  chart.replaceChildren(classed(filled("div", columns), "plot"), table);
  return { columns, names, write };

  /**
   * @param {number} row
   * @param {string} head
   * @param {string[]} texts
   */
  function write(row, head, texts, isShown = true) {
    const { head: name, cells, line } = lines[row];
    line.hidden = !isShown;
    name.textContent = head;
    cells.forEach((cell, at) => { cell.textContent = texts[at]; });
  }
}

/**
 * Puts the tokens' heads into the table.
 * @param {Columns} columns
 * @param {HTMLElement[]} heads
 * @param {number} others how many of them, at the end, stand for more than one token
 */
export function setHeads({ names }, heads, others) {
  heads.forEach((head, at) => {
    names[at].replaceChildren(head);
    names[at].classList.toggle("others", at >= heads.length - others);
  });
}

/** @param {string[]} names of the tokens */
export function headsOf(names) {
  return names.map((name) => make("span", bare(name)));
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
 * @param {keyof HTMLElementTagNameMap} tag
 * @param {HTMLElement[]} children
 */
function filled(tag, children) {
  const made = make(tag);
  appendAll(made, children);
  return made;
}

/**
 * @template {HTMLElement} T
 * @param {T} element
 * @param {string} name
 * @returns {T}
 */
export function classed(element, name) {
  element.className = name;
  return element;
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
