// @ts-check
// The tab "Why it is exact": p and q as bars to be pulled, what comes out by the rule or by a mistake, one
// draft with its random number, and 10,000 of them. All in the browser, by identity.js.

import { fill, h, within, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { inLanguage, say } from "../view/words.js";
import { asAt, byDefault } from "./chosen.js";
import { setNumber } from "./columns.js";
import { isExact, trialOf } from "./identity.js";
import { makeMany } from "./many.js";
import { makeOne } from "./one.js";
import { makeParts } from "./parts.js";
import { placeAt } from "./place.js";
import { makePull } from "./pull.js";
import { shaped } from "./shaping.js";
import { makeSwitches } from "./switches.js";
import { makeTwo } from "./two.js";

/** @import { Run, Token } from "../view/run.js" */
/** @import { Mistake, Trial } from "./identity.js" */

const content = () => [
  h("div", { class: "lead" }, h("p", { class: "answer" }),
    h("div", { class: "doing" },
      h("button", { class: "take" }, say("figure.take")), h("button", { class: "reset" }, say("figure.reset")))),
  h("div", { class: "mistakes", role: "group" }),
  h("div", { class: "whys", role: "status" }),
  h("p", { class: "place" }),
  h("div", { class: "lesson cards" },
    ["pull", "parts", "one", "many", "two"].map((name) => h("section", { class: name }))),
];
const HALF = 0.5; // how far the bars' scale goes while none is longer

/**
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
export function makeFigure(panel, pinned) {
  fill(panel, content());
  const part = within(panel);
  const chosen = byDefault();
  /** What follows from it. @type {Trial} */
  let trial;
  let top = HALF; // of the bars' scale
  let lossy = ""; // the rule of the run on the stage, if it is lossy: the figure's is the speculative one
  const switches = makeSwitches(panel, chosen, change);
  const pull = makePull(part(".pull"), chosen, { changed: change, drafted: drawOne });
  const parts = makeParts(part(".parts"), chosen);
  const one = makeOne(panel, part(".one"), chosen, drawOne);
  const many = makeMany(panel, part(".many"), chosen);
  const two = makeTwo(part(".two"), chosen, drawLead);
  const take = /** @type {HTMLButtonElement} */ (part(".take"));
  take.addEventListener("click", () => takeFrom(pinned()));
  part(".reset").addEventListener("click", begin);
  begin();
  return { show, takeFrom, err };

  /** @param {Run} run on the stage */
  function show({ setting }) {
    lossy = setting?.lossy ? setting.rule.name : "";
    allowTaking();
    drawLead();
  }

  function begin() {
    Object.assign(chosen, byDefault());
    change();
    allowTaking();
  }

  function allowTaking() {
    take.disabled = placeAt(pinned()) === null;
    take.title = take.disabled ? say("figure.take_hint") : "";
  }

  /** @param {Token | null} token whose p and q are taken */
  function takeFrom(token) {
    const found = placeAt(token);
    if (!token || !found) return;
    Object.assign(chosen, asAt(token, found));
    change();
  }

  /** Begins anew with a mistake switched on. @param {Mistake} mistake */
  function err(mistake) {
    begin();
    chosen.mistakes.add(mistake);
    change();
  }

  /** Draws everything. @param {boolean} [isPulled] whether a bar is in somebody's hand: the scale stays */
  function change(isPulled = false) {
    const { raw, temperature, done, mistakes } = chosen;
    if (temperature > 0) mistakes.delete("soft");
    trial = trialOf(shaped(raw.p, temperature, done), shaped(raw.q, temperature, done), mistakes, raw);
    if (!isPulled) top = topOf([raw.p, raw.q, trial.p, trial.drawn, trial.told, trial.out]);
    setNumber(panel, "top", top);
    switches.draw(trial);
    pull.draw(trial, top);
    parts.draw(trial);
    drawOne();
    many.draw(trial);
    two.draw(trial);
    for (const plot of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".lesson .plot"))) {
      plot.dataset.top = inLanguage(String(top));
    }
    drawLead();
  }

  function drawLead() {
    const ofSecond = two.distance();
    const exact = isExact(trial) && isExact({ distance: ofSecond });
    const off = isExact(trial)
      ? say("figure.two.off_lead", { share: fixed(100 * ofSecond, 1) })
      : say("figure.off", { share: fixed(100 * trial.distance, 1) });
    panel.dataset.tone = exact ? (lossy ? "lossy" : "exact") : "differs";
    write(part(".answer"), !exact ? off : lossy ? say("figure.of_lossy", { rule: lossy }) : say("figure.exact"));
    write(part(".place"), chosen.place);
  }

  function drawOne() {
    pull.markDraft(trial);
    one.draw(trial);
  }
}

/** Where the bars' scale ends. @param {number[][]} bars */
function topOf(bars) {
  const longest = bars.flat().reduce((most, one) => Math.max(most, one), 0);
  return longest > HALF ? 1 : HALF;
}
