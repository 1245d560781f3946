// @ts-check
// What comes out by formula: of each token the part that comes as an accepted draft, and the part that comes as a
// replacement.

import { fill, h, update, within, write } from "../view/dom.js";
import { addends } from "../view/recompute.js";
import { inLanguage, say } from "../view/words.js";
import { keyOf, makeColumns } from "./columns.js";
import { isExact } from "./identity.js";
import { sumOf } from "./shaping.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Trial } from "./identity.js" */

const content = () => [
  h("h2"),
  keyOf(["kept", say("figure.parts.kept")], ["added", say("figure.parts.added")], ["due", say("figure.parts.due")]),
  h("div", { class: "chart" }),
  h("div", { class: "area", role: "img" }),
  h("p", { class: "sums" }, h("b", { class: "rate" }), h("span", { class: "mass" })),
  h("p", { class: "bound note" }, say("figure.parts.bound")),
  h("p", { class: "poor note" }, say("figure.parts.poor")),
];

/**
 * @param {HTMLElement} section
 * @param {Chosen} chosen
 */
export function makeParts(section, chosen) {
  fill(section, content());
  const part = within(section);
  const rows = ["of-kept", "of-added", "sum", "excess"];
  const columns = makeColumns(part(".chart"), chosen, say("figure.parts.table"), rows, ["kept", "added", "due"]);
  return { draw };

  /** @param {Trial} trial */
  function draw(trial) {
    const { accepted, replaced, out, p, rate } = trial;
    const exact = isExact(trial);
    write(part("h2"), exact ? say("figure.parts.title") : say("figure.parts.title_off"));
    columns.set({ kept: accepted, added: replaced, due: p });
    const written = out.map((one, at) => addends(one, accepted[at]));
    const row = (/** @type {number} */ which) => written.map((texts) => texts[which]);
    const excess = out.map((one, at) => signed(one - p[at]));
    columns.write(0, exact ? say("figure.parts.accepted") : say("figure.parts.accepted_off"), row(0));
    columns.write(1, exact ? say("figure.parts.replaced") : say("figure.parts.replaced_off"), row(1));
    columns.write(2, exact ? say("figure.parts.out") : say("figure.parts.out_off"), row(2));
    columns.write(3, say("figure.parts.excess_off"), excess, !exact);
    const pieces = Object.entries({ kept: accepted, added: replaced });
    update(part(".area"), pieces.map(([kind, shares]) => shares.map((share, at) => (
      h("i", { class: kind, title: chosen.names[at], "--share": share.toFixed(5) })))));
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
