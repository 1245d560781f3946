// @ts-check
// The tab "Trials": many short runs of the engine, counted by their first two tokens, with a chi-square test.
// The server runs and tests them.

import { MISTAKES } from "../lesson/identity.js";
import { statisticName } from "../lesson/many.js";
import { switchesOf } from "../lesson/switches.js";
import { append, fill, h, update, within, write } from "../view/dom.js";
import { fixed, grouped, inQuotes, pValue, percent } from "../view/format.js";
import { columnHead, rowOf } from "../view/tables.js";
import { say } from "../view/words.js";
import { isGoingOn, makeMeasuring } from "./measuring.js";

/** @import { Measurement, Trials, TrialsCell } from "../view/messages.d.ts" */
/** @import { Mistake } from "../lesson/identity.js" */
/** @import { Panel } from "../page/tabs.js" */
/** @import { Request, Server } from "./measuring.js" */

const IN_TREES = ["told", "soft"]; // the mistakes that can be made with several guesses at a place
const content = () => [
  h("p", { class: "about" }, say("trials.about")),
  h("p", { class: "guesses" }, h("button", { class: "two", "aria-pressed": "false" }, say("trials.two"))),
  h("div", { class: "mistakes", role: "group", "aria-label": say("trials.wrong") }, h("span", {}, say("trials.wrong"))),
  h("p", { class: "why", role: "status" }),
  h("div", { class: "measuring" }),
  h("div", { class: "counted", hidden: true },
    h("p", { class: "result", role: "status", "data-testid": "trials-verdict" }),
    h("p", { class: "of" }),
    h("dl"),
    h("p", { class: "key" }, ["came", "due"].map((name) => (
      h("span", {}, h("i", { class: name }), h("span", { class: `${name}-key` }))))),
    h("table", {},
      h("thead", {}, h("tr", {}, columnHead(say("trials.tokens")), h("td"),
        columnHead("", { class: "came-key" }), columnHead("", { class: "due-key" }))),
      h("tbody")),
    h("p", { class: "careful" }, say("trials.careful"))),
];

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel}
 */
export function makeTrials(panel, server) {
  fill(panel, content());
  const part = within(panel);
  /** @type {Request} */
  const tiny = { kind: "trials", trial: "none", guesses: 1 }; // with the mistake that is switched on
  const measuring = makeMeasuring(part(".measuring"), server, {
    [say("trials.tiny")]: tiny,
    [say("trials.pair")]: { kind: "trials", trial: "pair" },
  }, say("trials.what"));
  const switches = switchesOf(turn);
  append(part(".mistakes"), switches);
  const two = /** @type {HTMLButtonElement} */ (part(".two"));
  two.addEventListener("click", () => {
    tiny.guesses = 3 - (tiny.guesses ?? 1);
    turned();
  });
  turned();
  return { take };

  /** @param {Mistake} mistake that is switched on, or off if it was on */
  function turn(mistake) {
    tiny.trial = mistake === tiny.trial ? "none" : mistake;
    turned();
  }

  /** Whether a switch is on: those are the tiny pair's. */
  function isSwitched() {
    return tiny.trial !== "none" || tiny.guesses !== 1;
  }

  function turned() {
    const isOne = tiny.guesses === 1;
    if (!isOne && !IN_TREES.includes(tiny.trial ?? "")) tiny.trial = "none";
    const on = MISTAKES.find((mistake) => mistake === tiny.trial);
    two.setAttribute("aria-pressed", String(!isOne));
    for (const button of switches) button.setAttribute("aria-pressed", String(button.dataset.mistake === on));
    allowSwitching(true);
    const why = on ? say(`figure.mistakes.${on}.why`) : say(isOne ? "trials.none" : "trials.none_of_two");
    part(".why").textContent = isSwitched() ? `${why} ${say("trials.pair_off")}` : why;
    part(".why").toggleAttribute("data-mistaken", on !== undefined);
    const { trial, guesses } = panel.dataset; // of the runs that are counted
    if (trial === "pair") part(".counted").hidden = isSwitched();
    if (!trial || trial === "pair" || (trial === tiny.trial && guesses === String(tiny.guesses))) return;
    delete panel.dataset.trial;
    delete panel.dataset.found;
    write(part(".result"), say("trials.before"));
  }

  /** @param {boolean} isAllowed */
  function allowSwitching(isAllowed) {
    two.disabled = !isAllowed;
    for (const button of switches) {
      const isForOne = tiny.guesses !== 1 && !IN_TREES.includes(button.dataset.mistake ?? "");
      button.disabled = !isAllowed || isForOne;
      button.title = isForOne ? say("trials.not_with_two") : "";
    }
    measuring.buttons[1].disabled = !isAllowed || isSwitched();
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    const { state, whose, trials } = measurement;
    measuring.take(measurement);
    panel.dataset.state = state;
    allowSwitching(!isGoingOn(state));
    if (!trials) { // what the runs before have shown stays until there is more
      if (isGoingOn(state)) delete panel.dataset.trial;
      return;
    }
    part(".counted").hidden = trials.trial === "pair" && isSwitched();
    panel.dataset.trial = trials.trial;
    panel.dataset.guesses = String(trials.guesses);
    panel.dataset.found = trials.found;
    write(part(".of"), whose);
    write(part(".result"), verdictInWords(trials));
    tellNumbers(trials);
    const ofPair = trials.trial === "pair";
    for (const key of panel.querySelectorAll(".came-key")) key.textContent = say(ofPair ? "trials.drafting" : "figure.many.share");
    for (const key of panel.querySelectorAll(".due-key")) key.textContent = say(ofPair ? "trials.alone" : "figure.many.target");
    const top = trials.cells.reduce((most, { came, due }) => Math.max(most, came, due), 0.01);
    drawCells(part("tbody"), trials.cells, top, ofPair ? inQuotes : String);
  }

  /** @param {Trials} trials */
  function tellNumbers({ trial, runs, most, p_value, statistic, freedom, distance, by_chance, judged, accepted }) {
    const count = { runs: grouped(runs), most: grouped(most) };
    /** @type {[key: string, name: string, value: string][]} */
    const numbers = [
      ["runs", say("trials.runs"), trial === "pair" ? say("trials.ofEach", count) : say("trials.ofMost", count)],
      ["chance", say("figure.many.chance"), freedom ? pValue(p_value) : "–"],
      ["statistic", statisticName(freedom), freedom ? (statistic === null ? "∞" : fixed(statistic, 1)) : "–"],
      ["distance", say("figure.many.distance"), say("trials.distance", { distance: fixed(distance, 3), chance: fixed(by_chance, 3) })],
      ["accepted", say("trials.accepted"), judged ? percent(accepted, judged) : "–"],
    ];
    update(part("dl"), numbers.map(([key, name, value]) => h("div", {}, h("dt", {}, name), h("dd", { "data-count": key }, value))));
  }
}

/**
 * A row for each cell: its words, the bars of how often it came and of p, which move, and both numbers.
 * @param {HTMLElement} body
 * @param {TrialsCell[]} cells
 * @param {number} top what a whole bar is
 * @param {(text: string) => string} named how a text is written
 * @param {string | null} [className] of the numbers
 */
export function drawCells(body, cells, top, named, className = null) {
  update(body, cells.map(({ text, came, due, others }) => {
    const lengths = { "--came": Math.min(1, came / top).toFixed(4), "--due": (due / top).toFixed(4) };
    const bars = h("td", { class: "bars", ...lengths }, h("i", { class: "came" }), h("i", { class: "due" }));
    const numbers = [came, due].map((share) => h("td", { class: className }, fixed(share, 3)));
    return rowOf(others ? say("trials.others", { count: others }) : named(text), [bars, ...numbers]);
  }));
}

/**
 * What the counts show, in a sentence.
 * @param {Pick<Trials, "trial" | "found" | "greedy" | "lossy">} trials
 */
export function verdictInWords({ trial, found, greedy, lossy }) {
  const ofPair = trial === "pair";
  if (found === "few") return say("trials.few");
  if (found === "unclear") return say("trials.unclear");
  if (found === "alike") {
    if (!greedy) return say(ofPair ? "trials.alike.pair" : "trials.alike.tiny");
    return say(ofPair ? "trials.greedy.pair" : trial === "none" ? "trials.greedy.tiny" : "trials.greedy.harmless");
  }
  if (found === "fits") {
    if (lossy) return say("trials.lossy.fits", { rule: lossy });
    return say(ofPair ? "trials.fits.pair" : trial === "none" ? "trials.fits.tiny" : "trials.fits.mistaken");
  }
  if (lossy) return say("trials.lossy.differs", { rule: lossy });
  return say(ofPair ? "trials.differs.pair" : trial === "soft" ? "trials.differs.soft" : "trials.differs.tiny");
}
