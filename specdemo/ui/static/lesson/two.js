// @ts-check
// A second guess at the same place: what p is then made of, and two guesses with their random numbers, of which the
// second is judged by what the first has left of p and of q.

import { fill, find, h, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { addends } from "../view/recompute.js";
import { say } from "../view/words.js";
import { inColumn, keyOf, makeColumns, setNumber } from "./columns.js";
import { randomNumbers } from "./draws.js";
import { isExact, pick, secondOf, twoOf } from "./identity.js";
import { sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Trial } from "./identity.js" */

const ofParts = () => [
  h("h2"),
  keyOf(["kept", say("figure.two.first")], ["second", say("figure.two.second")], ["added", say("figure.two.both")],
    ["due", say("figure.parts.due")]),
  h("div", { class: "chart" }),
  h("p", { class: "sums" }, h("b", { class: "rates" }), h("span", { class: "missed" })),
  h("p", { class: "wrong" }, h("button", { "aria-pressed": "false" }, say("figure.two.again"))),
  h("p", { class: "note" }),
];
const ofStory = () => [
  h("h2", {}, say("figure.two.title")),
  keyOf(["of-p", "", "whose-p"], ["of-q", "", "whose-q"]),
  h("div", { class: "chart" }),
  h("div", { role: "status" }, h("ol", { class: "story" })),
  h("button", { class: "draw-two" }, say("figure.two.draw")),
];
const SEED = 20_000; // of the guesses that are drawn here
const TRIES = 50; // to begin with a first guess that is rejected

/**
 * @param {HTMLElement} parts the section with what p is made of
 * @param {HTMLElement} story the section with two guesses
 * @param {Chosen} chosen
 * @param {() => void} changed called when the second guess is judged another way
 */
export function makeTwo(parts, story, chosen, changed) {
  fill(parts, ofParts());
  fill(story, ofStory());
  const random = randomNumbers(SEED);
  const dice = () => ({ first: random(), u: random(), second: random(), uOfSecond: random(), last: random() });
  let drawn = dice();
  let isAgain = false; // whether the second guess is judged by p, as if there had been no first one
  const rows = ["of-kept", "of-second", "of-added", "sum"];
  const columns = {
    parts: makeColumns(find(parts, ".chart"), chosen, say("figure.two.table"), rows, ["kept", "second", "added", "due"]),
    left: makeColumns(find(story, ".chart"), chosen, say("figure.two.table_left"), ["left-p", "left-q"], ["of-p", "of-q"]),
  };
  /** Without a second guess. @type {Trial} */
  let trial;
  const wrong = find(parts, "button");
  wrong.addEventListener("click", () => {
    isAgain = !isAgain;
    show();
    changed();
  });
  find(story, ".draw-two").addEventListener("click", () => {
    drawn = dice();
    show();
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
    const isFirst = !trial;
    trial = other;
    const guesses = chosen.raw.q.filter((one) => one > 0).length;
    parts.hidden = story.hidden = chosen.mistakes.size > 0 || chosen.others.length > 0 || guesses < 2;
    for (let tries = 0; isFirst && tries < TRIES && firstOf().isAccepted; tries++) drawn = dice();
    show();
  }

  function firstOf() {
    const at = pick(trial.drawn, drawn.first);
    return { at, isAccepted: drawn.u < trial.accept[at] };
  }

  function show() {
    showParts();
    showStory();
  }

  function showParts() {
    const two = twoOf(trial, chosen.raw.q, isAgain);
    const exact = isExact(two);
    wrong.setAttribute("aria-pressed", String(isAgain));
    write(find(parts, "h2"), exact ? say("figure.two.parts") : say("figure.two.parts_off"));
    columns.parts.set({ kept: trial.accepted, second: two.second, added: two.replaced, due: trial.p });
    const written = two.out.map((one, at) => addends(one, trial.accepted[at], two.second[at]));
    const heads = [say("figure.two.row_first"), say("figure.two.row_second"), say("figure.two.row_both")];
    heads.forEach((head, row) => columns.parts.write(row, head, written.map((texts) => texts[row])));
    columns.parts.write(3, exact ? say("figure.parts.out") : say("figure.parts.out_off"), inColumn(two.out));
    const rates = { one: fixed(trial.rate, 3), two: fixed(trial.rate + sumOf(two.second), 3) };
    write(find(parts, ".rates"), say("figure.two.rate", rates));
    write(find(parts, ".missed"), exact ? "" : say("figure.two.off", { share: fixed(100 * two.distance, 1) }));
    const why = isAgain ? say("figure.mistakes.harmless") : isNext() ? `${say("figure.two.next")} ${say("figure.two.why_next")}` : say("figure.two.why");
    write(find(parts, ".note"), exact ? why : say("figure.two.why_off"));
  }

  /** Whether the first guess leaves nothing of q. */
  function isNext() {
    return trial.drawn.includes(1);
  }

  function showStory() {
    const { names } = chosen;
    const { at, isAccepted } = firstOf();
    const next = secondOf(trial, at, chosen.raw.q, isAgain);
    columns.left.set({ p: next.p, q: next.drawn });
    const plot = find(story, ".plot");
    plot.dataset.top = "1";
    setNumber(plot, "top", 1);
    write(find(story, ".whose-p span"), isAgain ? say("figure.two.whole_p") : say("figure.two.left_p"));
    columns.left.write(0, isAgain ? say("figure.two.whole_p") : say("figure.two.row_p"), inColumn(next.p));
    write(find(story, ".whose-q span"), say(isNext() ? "figure.two.next_q" : "figure.two.left_q"));
    columns.left.write(1, say(isNext() ? "figure.two.row_next" : "figure.two.row_q"), inColumn(next.drawn));
    const second = pick(next.drawn, drawn.second);
    const isSecond = drawn.uOfSecond < next.accept[second];
    const told = (/** @type {number} */ token, /** @type {number} */ u, /** @type {number} */ threshold) =>
      ({ token: names[token], u: fixed(u, 3), threshold: fixed(threshold, 3) });
    const first = told(at, drawn.u, trial.accept[at]);
    const isGreedy = isNext() && trial.p.includes(1); // u cannot matter
    const how = isGreedy ? "greedy_" : "";
    const by = isGreedy ? "greedy_second" : isAgain ? "again" : "second";
    const sentences = [say(`figure.two.${how}${isAccepted ? "accepted" : "rejected"}`, first)];
    if (isAccepted) sentences.push(say("figure.two.unseen", { token: names[second] }));
    else {
      if (isNext()) sentences.push(say("figure.two.next"));
      sentences.push(say(`figure.two.${by}_${isSecond ? "accepted" : "rejected"}`, told(second, drawn.uOfSecond, next.accept[second])));
      if (!isSecond) sentences.push(say(`figure.two.${how}replaced`, { token: names[pick(next.replacement, drawn.last)] }));
    }
    fill(find(story, ".story"), sentences.map((words) => h("li", {}, words)));
  }
}
