// @ts-check
// A second guess at the same place, which is judged by what the first has left of p and of q: what p is then made of.

import { fill, find, h, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { addends } from "../view/recompute.js";
import { say } from "../view/words.js";
import { inColumn, keyOf, makeColumns } from "./columns.js";
import { isExact, twoOf } from "./identity.js";
import { sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Trial } from "./identity.js" */

const content = () => [
  h("h2"),
  keyOf(["kept", say("figure.two.first")], ["second", say("figure.two.second")], ["added", say("figure.two.both")],
    ["due", say("figure.parts.due")]),
  h("div", { class: "chart" }),
  h("p", { class: "sums" }, h("b", { class: "rates" }), h("span", { class: "missed" })),
  h("p", { class: "wrong" }, h("button", { "aria-pressed": "false" }, say("figure.two.again"))),
  h("p", { class: "note" }),
];
/**
 * @param {HTMLElement} parts the section
 * @param {Chosen} chosen
 * @param {() => void} changed called when the second guess is judged another way
 */
export function makeTwo(parts, chosen, changed) {
  fill(parts, content());
  let isAgain = false; // whether the second guess is judged by p, as if there had been no first one
  const [rows, bars] = [["of-kept", "of-second", "of-added", "sum"], ["kept", "second", "added", "due"]];
  const columns = makeColumns(find(parts, ".chart"), chosen, say("figure.two.table"), rows, bars);
  /** Without a second guess. @type {Trial} */
  let trial;
  const wrong = find(parts, "button");
  wrong.addEventListener("click", () => {
    isAgain = !isAgain;
    show();
    changed();
  });
  return { draw, distance };

  /** From p, by the mistake that is put in here; 0 without it. */
  function distance() {
    return isAgain && !parts.hidden ? twoOf(trial, chosen.raw.q, true).distance : 0;
  }

  /**
   * With a mistake in the rule there is no second guess, and none where one column stands for several tokens: the first
   * guess takes only one of them from q. Nor is there one where the drafter knows of one token only.
   * @param {Trial} other
   */
  function draw(other) {
    trial = other;
    const guesses = chosen.raw.q.filter((one) => one > 0).length;
    parts.hidden = chosen.mistakes.size > 0 || chosen.others.length > 0 || guesses < 2;
    show();
  }

  function show() {
    const two = twoOf(trial, chosen.raw.q, isAgain);
    const exact = isExact(two);
    wrong.setAttribute("aria-pressed", String(isAgain));
    write(find(parts, "h2"), exact ? say("figure.two.parts") : say("figure.two.parts_off"));
    columns.set({ kept: trial.accepted, second: two.second, added: two.replaced, due: trial.p });
    const written = two.out.map((one, at) => addends(one, trial.accepted[at], two.second[at]));
    const heads = [say("figure.two.row_first"), say("figure.two.row_second"), say("figure.two.row_both")];
    heads.forEach((head, row) => columns.write(row, head, written.map((texts) => texts[row])));
    columns.write(3, exact ? say("figure.parts.out") : say("figure.parts.out_off"), inColumn(two.out));
    const rates = { one: fixed(trial.rate, 3), two: fixed(trial.rate + sumOf(two.second), 3) };
    write(find(parts, ".rates"), say("figure.two.rate", rates));
    write(find(parts, ".missed"), exact ? "" : say("figure.two.off", { share: fixed(100 * two.distance, 1) }));
    const why = isAgain ? say("figure.mistakes.harmless") : trial.drawn.includes(1) ? `${say("figure.two.next")} ${say("figure.two.why_next")}` : say("figure.two.why");
    write(find(parts, ".note"), exact ? why : say("figure.two.why_off"));
  }
}
