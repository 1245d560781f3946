// @ts-check
// What comes out by formula: of each token the part that comes as an accepted draft, and the part that comes as a
// replacement.

import { appendAll, find, make, write } from "../view/dom.js";
import { addends } from "../view/recompute.js";
import { inLanguage, say } from "../view/words.js";
import { classed, headsOf, makeColumns, setHeads, setNumber } from "./columns.js";
import { isExact } from "./identity.js";
import { sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Columns } from "./columns.js" */
/** @import { Trial } from "./identity.js" */

const MARKUP = `
  <h2></h2>
  <p class="key"><span><i class="kept"></i><span data-say="figure.parts.kept"></span></span>
    <span><i class="added"></i><span data-say="figure.parts.added"></span></span>
    <span><i class="due"></i><span data-say="figure.parts.due"></span></span></p>
  <div class="chart"></div>
  <div class="area" role="img"></div>
  <p class="sums"><b class="rate"></b><span class="mass"></span></p>
  <p class="bound note" data-say="figure.parts.bound"></p>
  <p class="poor note" data-say="figure.parts.poor"></p>`;

/**
 * @param {HTMLElement} section
 * @param {Chosen} chosen
 */
export function makeParts(section, chosen) {
  section.innerHTML = MARKUP;
  const part = (/** @type {string} */ selector) => find(section, selector);
  /** @type {Columns} */
  let columns;
  return { build, draw };

  /** Makes the columns, when there are other tokens. */
  function build() {
    const { names, others } = chosen;
    columns = makeColumns(part(".chart"), names.length, say("figure.parts.table"), ["of-kept", "of-added", "sum", "excess"]);
    setHeads(columns, headsOf(names), others.length);
    for (const column of columns.columns) appendAll(column, ["kept", "added", "due"].map((kind) => classed(make("i"), kind)));
    part(".area").replaceChildren();
    appendAll(part(".area"), ["kept", "added"].flatMap((kind) => names.map((name) => {
      const piece = classed(make("i"), kind);
      piece.title = name;
      return piece;
    })));
  }

  /** @param {Trial} trial */
  function draw(trial) {
    const { accepted, replaced, out, p, rate } = trial;
    const exact = isExact(trial);
    write(part("h2"), exact ? say("figure.parts.title") : say("figure.parts.title_off"));
    columns.columns.forEach((column, at) => {
      setNumber(column, "kept", accepted[at]);
      setNumber(column, "added", replaced[at]);
      setNumber(column, "due", p[at]);
    });
    const written = out.map((one, at) => addends(one, accepted[at]));
    const row = (/** @type {number} */ which) => written.map((texts) => texts[which]);
    const excess = out.map((one, at) => signed(one - p[at]));
    columns.write(0, exact ? say("figure.parts.accepted") : say("figure.parts.accepted_off"), row(0));
    columns.write(1, exact ? say("figure.parts.replaced") : say("figure.parts.replaced_off"), row(1));
    columns.write(2, exact ? say("figure.parts.out") : say("figure.parts.out_off"), row(2));
    columns.write(3, say("figure.parts.excess_off"), excess, !exact);
    [...part(".area").children].forEach((piece, at) => {
      if (piece instanceof HTMLElement) setNumber(piece, "share", [...accepted, ...replaced][at]);
    });
    const [kept, missing] = addends(1, rate);
    part(".area").setAttribute("aria-label", say("figure.parts.area", { rate: kept, mass: missing }));
    const lied = chosen.mistakes.has("told") && !exact;
    const [honest] = addends(1, sumOf(p.map((one, at) => Math.min(one, trial.drawn[at])))); // with the true q
    const how = exact ? "rate" : lied ? "rate_told" : "rate_off";
    write(part(".rate"), say(`figure.parts.${how}`, { rate: kept, honest }));
    write(part(".mass"), exact ? say("figure.parts.mass", { mass: missing }) : say("figure.parts.mass_off", { mass: missing }));
    part(".bound").hidden = !(chosen.asTaken && chosen.others.includes("all") && chosen.mistakes.size === 0);
    part(".poor").hidden = !exact;
  }
}

/** Without the 0 before the point, which would take the sign's room. @param {number} value */
function signed(value) {
  const written = Math.abs(value).toFixed(3);
  return Number(written) === 0 ? "0" : `${value > 0 ? "+" : "−"}${inLanguage(written.replace(/^0/, ""))}`;
}
