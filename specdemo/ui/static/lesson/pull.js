// @ts-check
// The figure's p and q as bars to be pulled, with the temperature's slider below them. A token's name is a button that
// drafts it.

import { append, fill, h, within, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";
import { draftOf, draftsGreedily } from "./chosen.js";
import { bare, inColumn, keyOf, makeColumns, setNumber } from "./columns.js";
import { makeHandle } from "./handle.js";
import { rescaled } from "./shaping.js";

/** @import { Chosen, Which } from "./chosen.js" */
/** @import { Trial } from "./identity.js" */

const content = () => [
  h("h2", {}, say("figure.pull.title")),
  keyOf(["of-p", say("figure.pull.p")], ["of-q", say("figure.pull.q")],
    ["told", say("figure.pull.told_key"), "told-key"], ["raw", "", "raw-key"]),
  h("div", { class: "chart" }),
  h("label", { class: "temperature" }, h("span", {}, say("figure.pull.temperature")),
    h("input", { type: "range", min: 0, max: 2, step: 0.05 }), h("output")),
];

/**
 * @param {HTMLElement} section
 * @param {Chosen} chosen
 * @param {object} figure
 * @param {(isPulled?: boolean) => void} figure.changed called when p or q have changed; isPulled: a bar is in
 * somebody's hand
 * @param {() => void} figure.drafted called when another draft is chosen
 */
export function makePull(section, chosen, { changed, drafted }) {
  fill(section, content());
  const part = within(section);
  const columns = makeColumns(part(".chart"), chosen, say("figure.pull.table"), ["p", "q", "told"], [], made);
  /** @type {{ which: Which, at: number, bar: HTMLElement, raw: HTMLElement, handle: HTMLElement, tell: (text: string) => void }[]} */
  let bars = [];
  /** @type {HTMLButtonElement[]} */
  let choices = [];
  /** Where the drafter tells another q, the marks at what it tells. @type {HTMLElement[]} */
  let lies = [];
  let top = 1; // of the bars' scale
  const range = /** @type {HTMLInputElement} */ (part(".temperature input"));
  range.addEventListener("input", () => {
    chosen.temperature = Number(range.value);
    chosen.asTaken = false;
    changed();
  });
  return { draw, markDraft };

  /** @param {HTMLElement[]} made new ones; gives their heads */
  function made(made) {
    lies = [];
    choices = chosen.names.map(choice);
    bars = made.flatMap((column, at) => [bar(column, at, "p"), bar(column, at, "q")]);
    return choices;
  }

  /**
   * @param {string} name
   * @param {number} at
   */
  function choice(name, at) {
    return h("button", {
      title: say("figure.pull.choose", { token: name }),
      onclick() {
        chosen.draft = at;
        drafted();
      },
    }, bare(name));
  }

  /**
   * @param {HTMLElement} column
   * @param {number} at
   * @param {Which} which
   */
  function bar(column, at, which) {
    const token = { token: chosen.names[at] };
    const name = which === "p" ? say("figure.pull.bar_p", token) : say("figure.pull.bar_q", token);
    const [bar, raw, handle] = [h("i", { class: `of-${which}` }), h("i", { class: "raw" }), h("b", { "aria-label": name })];
    const lie = which === "q" ? lies[at] = h("i", { class: "told" }) : null;
    append(column, [h("div", { class: `side ${which}` }, bar, raw, handle, lie)]);
    let before = chosen.raw[which]; // the bars as they were when this one was taken
    const { tell } = makeHandle(handle, {
      upright: true,
      length: () => column.getBoundingClientRect().height / top,
      read: () => chosen.raw[which][at],
      write: (value) => {
        chosen.raw = { ...chosen.raw, [which]: rescaled(before, at, value) };
        chosen.asTaken = false;
        changed(true);
      },
      grasped: () => { before = chosen.raw[which]; },
      released: () => changed(),
    });
    return { which, at, bar, raw, handle, tell };
  }

  /**
   * @param {Trial} trial
   * @param {number} scale where the bars' scale ends
   */
  function draw(trial, scale) {
    top = scale;
    drawBars(trial);
    range.value = String(chosen.temperature);
    part(".temperature output").textContent = fixed(chosen.temperature);
  }

  /** @param {Trial} trial */
  function drawBars({ p, drawn, told }) {
    columns.set();
    const after = { p, q: drawn };
    for (const { which, at, bar, raw: outline, handle, tell } of bars) {
      const [value, result] = [chosen.raw[which][at], after[which][at]];
      const differs = Math.abs(value - result) > 0.0005;
      setNumber(bar, "value", result);
      setNumber(outline, "value", value);
      outline.hidden = !differs;
      setNumber(handle, "value", value);
      tell(differs ? say("figure.pull.shaped", { value: fixed(value, 3), shaped: fixed(result, 3) }) : fixed(value, 3));
    }
    const lied = chosen.mistakes.has("told");
    lies.forEach((mark, at) => {
      mark.hidden = !lied;
      setNumber(mark, "value", told[at]);
    });
    part(".told-key").hidden = !lied;
    part(".raw-key").hidden = bars.every(({ raw: outline }) => outline.hidden);
    write(part(".raw-key span"), say(chosen.done === null ? "figure.pull.raw" : "figure.pull.raw_of_run"));
    columns.write(0, "p", inColumn(after.p));
    columns.write(1, "q", inColumn(after.q));
    columns.write(2, say("figure.pull.told"), inColumn(told), lied);
  }

  /** @param {Trial} trial */
  function markDraft(trial) {
    const draft = draftOf(chosen, trial);
    choices.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === draft));
      button.disabled = draftsGreedily(chosen, trial);
    });
  }
}
