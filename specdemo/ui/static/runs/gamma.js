// @ts-check
// Draft lengths: what each would bring, estimated from the run on the stage, and what was measured. A click
// uses one.

import {
  LINES, MEASURES, bandOf, bestInWords, cellOf, intervalsOf, marksOf, nameOf, pathThrough, pointsFor, rowInWords, rowsOf,
  scaleOf, unclearInWords, valueOf, whatIsMissing,
} from "../view/chart.js";
import { around, fill, h, neighbour, svg, within } from "../view/dom.js";
import { columnHead, rowOf, small } from "../view/tables.js";
import { inLanguage, say } from "../view/words.js";
import { makeMeasuring } from "./measuring.js";

/** @import { Line, Row, Scale } from "../view/chart.js" */
/** @import { Request, Server } from "./measuring.js" */
/** @import { GammaPoint, Measurement } from "../view/messages.d.ts" */
/** @import { Run } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */

const content = () => [
  h("div", { class: "measuring" }),
  h("p", { class: "missing", role: "status" }),
  h("div", { class: "gammas" },
    h("div", { class: "taking" },
      h("div", { class: "bests" }), h("p", { class: "unclear" }), h("p", { class: "chosen", role: "status" })),
    h("ul", { class: "key" },
      h("li", { "data-line": "seen" }, say("gamma.estimate")),
      h("li", { "data-line": "measured" }, say("gamma.measured")),
      h("li", {}, say("gamma.best"))),
    h("figure", {}, h("figcaption", {}, say("gamma.speedupFigure")), h("div", { class: "chart" })),
    h("p", { class: "of" }),
    h("div", { class: "scrolls" }, h("table", { "aria-label": say("gamma.table") },
      h("thead", {},
        h("tr", {}, columnHead("γ", { rowspan: 2 }), group(say("gamma.speedup")), group(say("gamma.tokens"))),
        h("tr", {}, columns(), columns())),
      h("tbody")))),
];
const group = (/** @type {string} */ words) => h("th", { colspan: 2, scope: "colgroup" }, words);
const columns = () => ["gamma.estimateColumn", "gamma.measuredColumn"].map((key) => columnHead(say(key)));
const STAR = " ★";

/**
 * @param {HTMLElement} panel
 * @param {Server & { choose: (gamma: number) => void }} server
 * @returns {Panel}
 */
export function makeGamma(panel, server) {
  fill(panel, content());
  const part = within(panel);
  /** @type {Record<string, Request>} */
  const requests = { [say("gamma.measure")]: { kind: "gamma", prompts: "set" } };
  const measuring = makeMeasuring(part(".measuring"), server, requests, say("gamma.what"));
  const chart = part(".chart");
  const body = part("tbody");
  /** @type {Run | null} */
  let run = null;
  /** @type {GammaPoint[]} */
  let points = [];
  let measuredOf = ""; // whose points they are
  let conditions = ""; // under which they were measured
  /** @type {Row[]} */
  let rows = [];
  let drawn = ""; // what is drawn now
  let tabStop = 0; // the gamma that Tab comes to
  panel.addEventListener("click", onClick);
  body.addEventListener("keydown", onKey);
  new ResizeObserver(drawInto).observe(chart);
  return { show, take };

  /** @param {Run} shown */
  function show(shown) {
    run = shown;
    draw();
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    panel.dataset.state = measurement.state;
    if (measurement.gammas) {
      points = measurement.gammas;
      measuredOf = measurement.whose;
      conditions = measurement.conditions ?? "";
    }
    draw();
  }

  // A run is shown again and again while it goes on; only what is new is drawn.
  function draw() {
    if (!run) return;
    const usual = run.setting && run.setting.draft_with !== "none" ? run.setting.gamma : 0;
    const served = run.setting?.served;
    const set = served ? served.gamma : usual;
    const own = typeof set === "number" ? set : null; // none of them where it was chosen round by round
    const news = JSON.stringify([run.whose, run.complete, run.outcome, run.setting?.conditions, own, points, conditions]);
    if (news === drawn) return;
    drawn = news;
    measuring.describe(run.rounds.some(({ isTree }) => isTree) ? "" : say(served ? "gamma.whatServed" : "gamma.what"));
    const ofThis = pointsFor(points, conditions, run.setting);
    rows = rowsOf(run.outcome, ofThis, run.setting && own);
    part(".missing").textContent = whatIsMissing(run);
    part(".chosen").textContent = "";
    const estimated = run.outcome?.estimates.length ? say("gamma.estimatedFrom", { whose: run.whose }) : "";
    const measured = ofThis.length ? say("gamma.measuredOf", { whose: measuredOf, runs: runsInWords(points) })
      : points.length ? say("gamma.missing.elsewhere", { whose: measuredOf }) : "";
    part(".of").textContent = [estimated, measured].filter(Boolean).join("\n");
    part(".gammas").hidden = !rows.length;
    if (!rows.length) return; // what was drawn before keeps its place, unseen
    drawBests();
    drawTable();
    drawInto();
  }

  function drawBests() {
    part(".unclear").textContent = unclearInWords(rows);
    const best = bestInWords(rows);
    fill(part(".bests"), best && h("button", { "data-gamma": best.gamma }, best.words));
  }

  function drawTable() {
    const focused = body.contains(document.activeElement);
    fill(body, rows.map(drawRow));
    setTabStop(tabStop);
    if (focused) buttonOf(tabStop)?.focus();
  }

  function drawInto() {
    const isKnown = rows.some((row) => LINES.some((line) => valueOf(row, "speedup", line) !== null));
    part("figure").hidden = !isKnown;
    fill(chart, isKnown && chart.clientWidth ? drawChart(rows, chart.clientWidth, chart.clientHeight) : null);
  }

  /** @param {MouseEvent} event */
  function onClick({ target }) {
    const gamma = gammaOf(target);
    if (gamma === null) return;
    if (run?.setting?.served) {
      part(".chosen").textContent = say("gamma.fixed");
      return;
    }
    server.choose(gamma);
    setTabStop(gamma);
    part(".chosen").textContent = say(gamma === 0 ? "gamma.chosenNone" : "gamma.chosen", { gamma });
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const next = neighbour(event, [...body.querySelectorAll("button")], ["ArrowUp", "ArrowDown"]);
    if (!next) return;
    setTabStop(Number(next.dataset.gamma));
    next.focus();
  }

  /** @param {number} gamma */
  function setTabStop(gamma) {
    buttonOf(tabStop)?.setAttribute("tabindex", "-1");
    buttonOf((tabStop = gamma))?.setAttribute("tabindex", "0");
  }

  /** @param {number} gamma */
  function buttonOf(gamma) {
    return /** @type {HTMLElement | null} */ (body.querySelector(`button[data-gamma="${gamma}"]`));
  }
}

/**
 * The draft length that an element stands for.
 * @param {EventTarget | null} target
 */
function gammaOf(target) {
  const element = around(target, "[data-gamma], [data-row]");
  return element && Number(element.dataset.gamma ?? element.dataset.row);
}

/** @param {GammaPoint[]} points */
function runsInWords(points) {
  const runs = points.map((point) => point.runs).sort((a, b) => a - b);
  const [least, most] = [runs[0], runs[runs.length - 1]];
  return least === most ? say("gamma.runs", { count: most }) : say("gamma.runsBetween", { least, most });
}

/** @param {Row} row */
function drawRow(row) {
  const { gamma, isOwn } = row;
  const use = say("gamma.use", { length: nameOf(gamma) });
  const button = h("button", { tabindex: -1, "data-gamma": gamma, title: use, "aria-label": use },
    gamma === 0 ? say("gamma.alone") : String(gamma));
  const drawn = MEASURES.flatMap((measure) => LINES.map((line) => {
    const { text, interval } = cellOf(row, measure, line);
    const isThisRun = isOwn && row.point && line === "seen" && text !== "–";
    const star = measure === "speedup" && line === row.best ? h("b", {}, STAR) : null;
    const ends = small(interval && `(${interval})`);
    return h("td", { "data-column": `${measure}-${line}` }, text,
      small(isThisRun ? say("gamma.ownMeasured") : ""), line === "seen" ? [ends, star] : [star, ends]);
  }));
  const line = rowOf([button, isOwn ? h("small", {}, say("gamma.thisRun")) : null], drawn);
  line.dataset.row = String(gamma);
  line.toggleAttribute("data-own", isOwn);
  return line;
}

/**
 * @param {Row[]} rows
 * @param {number} width
 * @param {number} height
 */
function drawChart(rows, width, height) {
  const scale = scaleOf(rows, width, height);
  const marks = (/** @type {Line} */ line, some = rows) => marksOf(some, line, scale);
  return svg("svg", { width, height, "aria-hidden": "true" }, // the table has the same
    axes(rows, scale),
    rows.filter(({ isOwn }) => isOwn).map((row) => ownLine(row, scale)),
    svg("path", { class: "band", d: bandOf(rows, scale) }),
    svg("path", { class: "seen", d: pathThrough(marks("seen")) }),
    intervalsOf(rows, "measured", scale).map(({ x, low, high }) => (
      svg("path", { class: "interval", d: `M${x - 4} ${high}h8m-4 0V${low}m-4 0h8` }))),
    marks("measured").map(({ x, y }) => svg("path", { class: "measured", d: `M${x} ${y - 5}l5 5l-5 5l-5 -5z` })),
    rows.map((row) => row.best && marks(row.best, [row]).map(({ x, y }) => (
      svg("path", { class: `best ${row.best}`, d: starAt(x, y) })))),
    rows.map((row) => column(row, scale)));
}

/**
 * @param {Row[]} rows
 * @param {Scale} scale
 */
function axes(rows, scale) {
  const { left, right, floor, ceiling } = scale;
  const numbered = rows.map(({ gamma }) => gamma).filter((gamma) => scale.column >= 22 || gamma % 2 === 0);
  return [
    scale.ticks.map((tick) => [
      svg("path", { class: tick === 1 ? "one" : "grid", d: `M${left} ${scale.y(tick)}H${right}` }),
      svg("text", { x: left - 6, y: scale.y(tick) + 4, "text-anchor": "end" }, inLanguage(String(tick))),
    ]),
    numbered.map((gamma) => svg("text", { x: scale.x(gamma), y: floor + 16, "text-anchor": "middle" }, String(gamma))),
    svg("text", { x: (left + right) / 2, y: floor + 33, "text-anchor": "middle" }, say("gamma.axis")),
    svg("path", { class: "axis", d: `M${left} ${ceiling}V${floor}H${right}` }),
  ];
}

/**
 * @param {Row} row
 * @param {Scale} scale
 */
function ownLine({ gamma }, scale) {
  const x = scale.x(gamma);
  const at = { x, y: scale.ceiling - 9, "text-anchor": gamma < 3 ? "start" : gamma > 13 ? "end" : "middle" };
  return [
    svg("path", { class: "own", d: `M${x} ${scale.ceiling - 4}V${scale.floor}` }),
    svg("text", at, say("gamma.own", { length: nameOf(gamma) })),
  ];
}

/**
 * A star with its middle there.
 * @param {number} x
 * @param {number} y
 */
function starAt(x, y) {
  const corners = Array.from({ length: 10 }, (_, at) => {
    const [angle, radius] = [(at * Math.PI) / 5, at % 2 ? 4.2 : 10];
    return { x: x + radius * Math.sin(angle), y: y - radius * Math.cos(angle) };
  });
  return `${pathThrough(corners)}Z`;
}

/**
 * @param {Row} row
 * @param {Scale} scale
 */
function column(row, { x, column: width, ceiling, floor }) {
  const box = { x: x(row.gamma) - width / 2, y: ceiling, width, height: floor - ceiling + 20 };
  return svg("rect", { class: "column", "data-gamma": row.gamma, ...box }, svg("title", {}, rowInWords(row)));
}
