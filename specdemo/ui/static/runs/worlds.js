// @ts-check
// The tab "Two worlds": a slider for the drafter, from noise to the target itself. What it moves is on the left,
// what it does not move on the right. At first it shows recorded stops; the server runs the visitor's prompt.

import { mark } from "../page/address.js";
import { fill, h, within, write } from "../view/dom.js";
import { fixed, grouped, pValue, percent } from "../view/format.js";
import { linked, tokensOf } from "../view/run.js";
import { columnHead } from "../view/tables.js";
import { makeText } from "../view/text.js";
import { say } from "../view/words.js";
import { makeMeasuring } from "./measuring.js";
import { drawCells, verdictInWords } from "./trials.js";

/** @import { Counts, Measurement, Worlds, WorldsRound, WorldsStop } from "../view/messages.d.ts" */
/** @import { Round } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */
/** @import { Request, Server } from "./measuring.js" */
/** @typedef {{ machine: string, prompt: string, pair: string, temperature: number, gamma: number, seed: number, worlds: Worlds }} RecordedWorlds */
/** @typedef {{ rounds: number, judged: number, rejected: number, tokens: number, perRound: number }} Figures */

export const OWN = 4; // the stop of the pair's own drafter, as in specdemo/trials/alterations.py
export const LAST = 2 * OWN;
const NAME = "worlds"; // in the address
const HEARD = "heard"; // and not seen: the numbers of the bars

const content = () => [
  h("p", { class: "about" }, say("worlds.about")),
  h("div", { class: "both" },
    h("div", { class: "gesture" },
      h("p", { class: "stop", "aria-hidden": "true" }, h("b"), " ", h("code")),
      h("input", { type: "range", min: 0, max: LAST, step: 1, value: 0, "aria-label": say("worlds.slider") }),
      h("p", { class: "ends", "aria-hidden": "true" },
        ["noise", "drafter", "target"].map((end) => h("span", {}, say(`worlds.${end}`))))),
    h("div", { class: "world" },
      h("section", { class: "moves" },
        h("h2", {}, say("worlds.moves")),
        h("dl", {},
          h("div", { class: "red" }, h("dt", {}, say("worlds.rejected")), h("dd")),
          h("div", { class: "tokens" }, h("dt", {}, say("worlds.tokens")), h("dd"))),
        h("div", { class: "judged", "aria-hidden": "true" }, h("i")),
        h("div", { class: "stage hide-discarded", role: "list", tabindex: 0, "aria-label": say("worlds.text") }),
        h("p", { class: "note costs" }, say("worlds.costs")),
        h("p", { class: "note" }, say("worlds.changes"))),
      h("section", { class: "stays" },
        h("h2", {}, say("worlds.stays")),
        h("p", { class: "of-tiny" }),
        h("table", {},
          h("thead", {}, h("tr", {}, columnHead(say("trials.tokens")),
            h("td", { class: "key" }, h("i", { class: "came" }), `${say("worlds.came")} `,
              h("i", { class: "due" }), say("worlds.due")),
            columnHead(say("worlds.came"), { class: HEARD }), columnHead(say("worlds.due"), { class: HEARD }))),
          h("tbody")),
        h("p", { class: "fit" }, h("span"), " ", h("span", { class: "numbers" })),
        h("p", { class: "of-greedy" }, say("worlds.greedy")),
        h("p", { class: "note same" }),
        h("p", { class: "greedy", tabindex: 0 })))),
  h("div", { class: "measuring" }),
];

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel & { step: (by: number) => boolean, leave: () => void, isLinked: boolean }}
 */
export function makeWorlds(panel, server) {
  fill(panel, content());
  const part = within(panel);
  const slider = /** @type {HTMLInputElement} */ (part("input"));
  const text = makeText(part(".stage"));
  /** @type {Request} */
  const request = { kind: "worlds", stop: 0 };
  const measuring = makeMeasuring(part(".measuring"), server, { [say("worlds.run")]: request }, "");
  /** What is shown. @type {Worlds | null} */
  let worlds = null;
  let drawn = ""; // the text on the small stage, as it was sent
  let isMarked = false;
  let isFetched = false;
  let isAsked = false; // for stops of the visitor's own, which take the place of the recorded ones
  const asked = stopOf(new URLSearchParams(location.search).get(NAME));
  slider.value = String(asked ?? 0);
  slider.addEventListener("input", () => {
    draw();
    address();
  });
  draw();
  return { show, take, step, leave, isLinked: asked !== null };

  // The tab is selected.
  function show() {
    if (!isFetched) {
      isFetched = true;
      fetchRecorded().then((recorded) => {
        if (isAsked) return;
        worlds = recorded.worlds;
        const { worlds: _, ...of } = recorded;
        measuring.describe(say("worlds.recorded", { ...of, temperature: fixed(of.temperature, 1) }));
        draw();
      }, () => {
        isFetched = false;
        if (!isAsked) measuring.describe(say("traces.lost"));
      });
    }
    address();
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    const text = [measurement.whose, measurement.text].filter(Boolean).join(" · ");
    measuring.take({ ...measurement, text });
    isAsked = true;
    if (!measurement.worlds) return; // the stops before stay until there is one
    worlds = measurement.worlds;
    draw();
  }

  /** Goes as many stops to the right. Returns false where there are none. @param {number} by */
  function step(by) {
    const before = slider.value;
    slider.value = String(Number(before) + by);
    draw();
    address();
    return slider.value !== before;
  }

  // Another tab is selected.
  function leave() {
    if (isMarked) mark(NAME, null);
    isMarked = false;
  }

  function address() {
    mark(NAME, slider.value);
    isMarked = true;
  }

  function draw() {
    const stop = Number(slider.value);
    request.stop = stop;
    slider.setAttribute("aria-valuetext", stopInWords(stop));
    write(part(".stop b"), stopInWords(stop));
    write(part(".stop code"), mixtureInWords(stop));
    const { texts = null, counts = null } = worlds?.stops[stop] ?? {};
    drawTexts(texts);
    drawCounts(counts);
  }

  /** @param {WorldsStop["texts"]} texts */
  function drawTexts(texts) {
    const figures = texts && figuresOf(texts.sampled);
    const judged = figures?.judged ? figures : null;
    write(part(".red dd"), judged ? percent(judged.rejected, judged.judged) : "–");
    write(part(".tokens dd"), figures ? fixed(figures.perRound) : "–");
    part(".judged").style.setProperty("--red", String(judged ? judged.rejected / judged.judged : 0));
    part(".judged").toggleAttribute("data-unknown", !judged);
    const sampled = JSON.stringify(texts?.sampled);
    if (sampled !== drawn) { // what is read there stays where it is while the tiny pair runs
      drawn = sampled;
      text.clear();
      if (texts) for (const round of roundsOf(texts.sampled)) text.add(tokensOf(round));
    }
    write(part(".greedy"), texts ? textOf(texts.greedy) : worlds ? say("worlds.missing") : "");
    write(part(".same"), texts && worlds ? greedyInWords(worlds, texts) : "");
  }

  /** @param {Counts | null} counts */
  function drawCounts(counts) {
    panel.toggleAttribute("data-uncounted", !counts);
    const cells = counts?.cells ?? [];
    const runs = grouped(counts?.runs ?? 0);
    const of = counts && worlds && counts.runs < worlds.most
      ? say("trials.ofMost", { runs, most: grouped(worlds.most) }) : runs;
    write(part(".of-tiny"), say("worlds.tiny", { runs: of }));
    const top = 1.2 * cells.reduce((most, { due }) => Math.max(most, due), 0); // p stays, and so does the scale
    if (counts) drawCells(part("tbody"), cells, top, String, HEARD);
    write(part(".fit span"), counts ? verdictInWords({ ...counts, trial: "none", greedy: false, lossy: "" })
      : worlds ? say("worlds.missing") : "");
    write(part(".fit .numbers"), counts ? numbersInWords(counts) : "");
  }
}

/** @returns {Promise<RecordedWorlds>} */
async function fetchRecorded() {
  const answer = await fetch(new URL("./worlds.json", import.meta.url));
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

/**
 * The stop that an address names; null where it names none.
 * @param {string | null} text
 */
function stopOf(text) {
  return text !== null && /^\d$/.test(text) && Number(text) <= LAST ? Number(text) : null;
}

/**
 * Of what the drafter is mixed, and by which shares; the same as `shares_at` in specdemo/trials/alterations.py.
 * @param {number} stop
 */
function mixtureOf(stop) {
  const way = stop / OWN;
  const [noise, drafter, target] = way <= 1 ? [1 - way, way, 0] : [0, 2 - way, way - 1];
  const kind = noise === 1 ? "noise" : drafter === 1 ? "drafter" : target === 1 ? "target" : noise ? "left" : "right";
  return { kind, noise, drafter, target };
}

/** @param {number} stop */
function stopInWords(stop) {
  const { kind, noise, drafter, target } = mixtureOf(stop);
  return say(`worlds.${kind}`, {
    noise: percent(noise, 1), drafter: percent(drafter, 1), target: percent(target, 1),
  });
}

/** @param {number} stop */
function mixtureInWords(stop) {
  const { kind, noise, drafter, target } = mixtureOf(stop);
  return say(`worlds.q.${kind}`, { noise: fixed(noise), drafter: fixed(drafter), target: fixed(target) });
}

/**
 * @param {WorldsRound[]} rounds
 * @returns {Figures}
 */
export function figuresOf(rounds) {
  const count = (/** @type {string} */ fate) => (
    rounds.reduce((sum, { draft }) => sum + draft.filter((token) => token.fate === fate).length, 0));
  const [accepted, rejected] = [count("accepted"), count("rejected")];
  const tokens = accepted + rounds.filter(({ next }) => next).length;
  return { rounds: rounds.length, judged: accepted + rejected, rejected, tokens, perRound: tokens / rounds.length };
}

/** The text that the rounds add up to. @param {WorldsRound[]} rounds */
export function textOf(rounds) {
  return rounds.flatMap(({ draft, next }) => [
    ...draft.filter(({ fate }) => fate === "accepted"), ...(next ? [next] : []),
  ]).map(({ text }) => text).join("");
}

/**
 * Whether the greedy text is the same at every stop so far, and how many of its drafts were not.
 * @param {Worlds} worlds
 * @param {NonNullable<WorldsStop["texts"]>} texts of the stop that is shown
 */
function greedyInWords({ stops }, { greedy }) {
  const own = textOf(greedy);
  const known = stops.flatMap(({ texts }) => (texts ? [textOf(texts.greedy)] : []));
  if (known.some((other) => other !== own)) return say("worlds.greedyOther");
  const { rejected, judged } = figuresOf(greedy);
  const values = { count: own.length, differed: rejected, judged };
  return say(known.length === stops.length ? "worlds.greedySame" : "worlds.greedySoFar", values);
}

/** @param {Counts} counts */
function numbersInWords({ distance, by_chance, freedom, p_value }) {
  const p = freedom ? pValue(p_value) : "–";
  return say("worlds.numbers", { distance: fixed(distance, 3), chance: fixed(by_chance, 3), p });
}

/**
 * The rounds as the page's own; what is only seen of a run on the stage is left out.
 * @param {WorldsRound[]} told
 * @returns {Round[]}
 */
function roundsOf(told) {
  return told.map(({ draft, next }, index) => linked(/** @type {Parameters<typeof linked>[0]} */ (
    /** @type {unknown} */ ({
      index, draft: draft.map((token) => ({ ...token, top: [] })), next: next && { ...next, top: [] },
    }))));
}
