// @ts-check
// 10,000 drafts of the figure, really drawn and judged, and how far what came out is from p.

import { fill, find, h, within, write } from "../view/dom.js";
import { fixed, grouped, pValue } from "../view/format.js";
import { say } from "../view/words.js";
import { inColumn, keyOf, makeColumns } from "./columns.js";
import { compared, draw as drawInto, freedomOf, noCounts, randomNumbers } from "./draws.js";
import { sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Comparison, Counts } from "./draws.js" */
/** @import { Trial } from "./identity.js" */

const content = () => [
  h("h2", {}, say("figure.many.title")),
  keyOf(["kept added", say("figure.many.came")], ["formula", say("figure.many.formula")], ["of-p", say("figure.parts.due")]),
  h("div", { class: "chart" }),
  h("div", { class: "drawing" },
    h("button", { class: "draw-many" }, say("figure.many.draw")),
    h("dl", {},
      h("div", {}, h("dt", {}, say("figure.many.distance")), h("dd", { class: "distance" })),
      h("div", {}, h("dt", { class: "statistic-name" }), h("dd", { class: "statistic" })),
      h("div", {}, h("dt", {}, say("figure.many.chance")), h("dd", { class: "chance" })))),
  h("p", { class: "found", role: "status" }),
];
const DRAWS = 10_000; // as the words have it, too
const A_FRAME = 250; // drafts, so that the columns are seen to fill
const AT_ONCE = 2500; // of them a frame, where no motion is wanted
const SURE = 1e-6; // the p-value below which a rule is called wrong
const LIKELY = 0.001; // and the one from which nothing is said against it

/**
 * @param {HTMLElement} panel which tells the style sheet what was found
 * @param {HTMLElement} section
 * @param {Chosen} chosen
 */
export function makeMany(panel, section, chosen) {
  fill(section, content());
  const part = within(section);
  const bars = ["kept", "added", "formula", "of-p"];
  const columns = makeColumns(part(".chart"), chosen, say("figure.many.table"), ["share", "p"], bars);
  /** What is drawn from. @type {Trial} */
  let trial;
  let seed = 0; // of the last 10,000
  /** @type {Counts | null} */
  let counts = null;
  let drawing = 0; // the number of the drawing that goes on
  part(".draw-many").addEventListener("click", drawMany);
  return { draw };

  /** @param {Trial} other another one, from which nothing has been drawn */
  function draw(other) {
    trial = other;
    drawing++;
    counts = null;
    seed = 0;
    drawCounts();
    tellFound(null);
  }

  /** Draws 10,000, a part of them in each frame, so that nothing waits. */
  function drawMany() {
    const own = ++drawing;
    const random = randomNumbers(++seed);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const fresh = counts = noCounts(chosen.names.length);
    let drawn = 0;
    part(".found").textContent = "";
    step();

    function step() {
      if (own !== drawing) return; // something was changed, or it was begun again
      const now = Math.min(still ? AT_ONCE : A_FRAME, DRAWS - drawn);
      drawInto(trial, random, now, fresh);
      drawn += now;
      drawCounts();
      if (drawn < DRAWS) requestAnimationFrame(step);
      else tellFound(fresh);
    }
  }

  function drawCounts() {
    const { out, p } = trial;
    const shares = (/** @type {number[]} */ some) => some.map((count) => count / DRAWS);
    const { accepted, replaced } = counts ?? noCounts(out.length);
    const drawn = columns.set({ kept: shares(accepted), added: shares(replaced), formula: out, due: p });
    drawn.forEach((column, at) => { find(column, ".formula").hidden = out[at] < 0.0005; });
    const written = shares(accepted.map((count, at) => count + replaced[at]));
    columns.write(0, say("figure.many.share"), counts ? inColumn(written) : out.map(() => "–"));
    columns.write(1, say("figure.many.target"), inColumn(p));
  }

  /** @param {Counts | null} drawn all of them, or nothing yet */
  function tellFound(drawn) {
    const found = drawn && sumOf([...drawn.accepted, ...drawn.replaced]) ? compared(drawn, trial.p) : null;
    write(part(".distance"), found ? fixed(found.distance, 3) : "–");
    const count = freedomOf(trial.p, DRAWS);
    const tested = count > 0 ? found : null;
    write(part(".statistic-name"), statisticName(count));
    write(part(".statistic"), tested ? (tested.impossible ? "∞" : fixed(tested.statistic, 1)) : "–");
    write(part(".chance"), tested ? pValue(tested.chance) : "–");
    panel.dataset.found = found ? verdictOf(found, trial.p) : "nothing";
    const words = { seed, token: chosen.names[trial.p.findIndex((share) => share > 0)], count: grouped(found?.impossible ?? 0) };
    const sentence = say(`figure.many.${panel.dataset.found}`, words);
    write(part(".found"), found?.impossible ? `${sentence} ${say("figure.many.impossible", words)}` : sentence);
  }
}

/**
 * @param {Comparison} found
 * @param {number[]} p
 */
function verdictOf({ chance, freedom }, p) {
  if (chance < SURE) return "differs";
  if (freedom === 0) return p.includes(1) ? "alike" : "rare";
  return chance < LIKELY ? "unclear" : "fits";
}

/** @param {number} count degrees of freedom, without which there is no test */
export function statisticName(count) {
  return count ? say("figure.many.statistic", { count }) : "χ²";
}
