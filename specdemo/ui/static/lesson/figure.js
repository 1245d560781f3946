// @ts-check
// The tab "Why it is exact": p and q as bars to be pulled, what comes out by the rule or by a mistake, one
// draft with its random number, and 10,000 of them. All in the browser, by identity.js.

import { find, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { inLanguage, say } from "../view/words.js";
import { asAt, byDefault, middleOf } from "./chosen.js";
import { setNumber } from "./columns.js";
import { isExact, trialOf } from "./identity.js";
import { makeMany } from "./many.js";
import { makeOne } from "./one.js";
import { makeParts } from "./parts.js";
import { placeAt } from "./place.js";
import { makePull } from "./pull.js";
import { shaped } from "./shaping.js";
import { makeSwitches } from "./switches.js";

/** @import { Token } from "../view/run.js" */
/** @import { Trial } from "./identity.js" */

const FIGURE = `
  <div class="lead"><p class="answer"></p>
    <div class="doing"><button type="button" class="take" data-say="figure.take"></button>
      <button type="button" class="reset" data-say="figure.reset"></button></div></div>
  <div class="mistakes" role="group"></div>
  <div class="whys" role="status"></div>
  <p class="place"></p>
  <div class="lesson cards">
    <section class="pull"></section>
    <section class="parts"></section>
    <section class="one"></section>
    <section class="many"></section>
  </div>`;
const HALF = 0.5; // how far the bars' scale goes while none is longer

/**
 * The panel is filled when it is first looked at.
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
export function makeFigure(panel, pinned) {
  /** @type {ReturnType<typeof fill> | null} */
  let filled = null;
  return { show: () => (filled ??= fill(panel, pinned)).show() };
}

/**
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
function fill(panel, pinned) {
  panel.innerHTML = FIGURE;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const chosen = byDefault();
  /** What follows from it. @type {Trial} */
  let trial;
  let top = HALF; // of the bars' scale
  const switches = makeSwitches(panel, chosen, change);
  const pull = makePull(part(".pull"), chosen, { changed: change, drafted: drawOne });
  const parts = makeParts(part(".parts"), chosen);
  const one = makeOne(panel, part(".one"), chosen, drawOne);
  const many = makeMany(panel, part(".many"), chosen);
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll("[data-say]"))) {
    element.textContent = say(element.dataset.say ?? "");
  }
  const take = /** @type {HTMLButtonElement} */ (part(".take"));
  take.addEventListener("click", takePinned);
  part(".reset").addEventListener("click", begin);
  begin();
  return { show: allowTaking };

  function begin() {
    Object.assign(chosen, byDefault());
    build();
    allowTaking();
  }

  function allowTaking() {
    take.disabled = placeAt(pinned()) === null;
    take.title = take.disabled ? say("figure.take_hint") : "";
  }

  function takePinned() {
    const token = pinned();
    const found = placeAt(token);
    if (!token || !found) return;
    Object.assign(chosen, asAt(token, found));
    build();
    if (found.replacement === null) return;
    chosen.other = middleOf(trial.replacement, found.replacement);
    drawOne();
  }

  /** Draws everything anew, when there are other tokens. */
  function build() {
    for (const section of [pull, parts, one, many]) section.build();
    change();
  }

  /** Draws everything. @param {boolean} [isPulled] whether a bar is in somebody's hand: the scale stays */
  function change(isPulled = false) {
    const { raw, shaping, mistakes } = chosen;
    if (shaping.temperature > 0) mistakes.delete("soft");
    trial = trialOf(shaped(raw.p, shaping), shaped(raw.q, shaping), mistakes, raw);
    if (!isPulled) top = topOf([raw.p, raw.q, trial.p, trial.drawn, trial.told, trial.out]);
    setNumber(panel, "top", top);
    for (const plot of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".plot"))) {
      plot.dataset.top = inLanguage(String(top));
    }
    drawLead();
    switches.draw(trial);
    pull.draw(trial, top);
    parts.draw(trial);
    drawOne();
    many.draw(trial);
  }

  function drawLead() {
    const exact = isExact(trial);
    panel.dataset.tone = exact ? "exact" : "differs";
    write(part(".answer"), exact ? say("figure.exact") : say("figure.off", { share: fixed(100 * trial.distance, 1) }));
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
