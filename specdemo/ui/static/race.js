// @ts-check
// The race: two runs side by side on one clock, played at the engine's own times, stretched.

import { find } from "./dom.js";
import { grouped } from "./format.js";
import { makeMeasuring } from "./measuring.js";
import { courseOf, leadOf, lengthOf, placeAt, timeInWords, usualSpeed } from "./racing.js";
import { makeText } from "./text.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { Lane, Measurement, Race } from "./messages.js" */
/** @import { Course, Place } from "./racing.js" */
/** @import { Panel } from "./tabs.js" */

const LANE = `
  <h3></h3>
  <div class="track"><span class="ran"></span><span class="line"></span></div>
  <p class="count"></p>
  <p class="lead"><b></b> <span></span></p>
  <div class="stage hide-discarded" tabindex="0" role="group"></div>`;
const RACE = `
  <div class="measuring"></div>
  <div class="playing">
    <p class="clock"><output aria-label="Engine time">0</output> ms</p>
    <button type="button" class="again" disabled>Play again</button>
    <label>at <select disabled><option value="1">engine speed</option>
      <option value="0.5">1/2 of engine speed</option><option value="0.2">1/5 of engine speed</option>
      <option value="0.1">1/10 of engine speed</option></select></label>
    <p class="of"></p>
  </div>
  <div class="lanes"><article class="lane" data-lane="0"></article>
    <article class="lane" data-lane="1"></article></div>
  <p class="result" role="status"></p>
  <p class="prefill"></p>`;
const WHAT = "The target alone and your setting run one after the other, with the same prompt and seed; then both are "
  + "played on one clock.";
/** @type {Record<string, Request>} */
const REQUESTS = { "Race: the target alone against this setting": { kind: "race" } };
const TITLES = ["The target alone", "This setting"]; // until there is a race

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel}
 */
export function makeRace(panel, server) {
  panel.innerHTML = RACE;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const measuring = makeMeasuring(part(".measuring"), server, REQUESTS, WHAT);
  const lanes = [0, 1].map((at) => makeLane(part(`[data-lane="${at}"]`), TITLES[at]));
  const again = /** @type {HTMLButtonElement} */ (part(".again"));
  const speedSelect = /** @type {HTMLSelectElement} */ (part("select"));
  const speeds = [...speedSelect.options].map(({ value }) => Number(value));
  /** @type {Race | null} */
  let race = null;
  let known = ""; // the race as it was sent
  let isNew = false; // it has not been played yet
  let playing = false;
  let time = 0; // engine ms
  let setAt = 0; // screen ms, when `time` was set
  let frame = 0;
  again.addEventListener("click", playOrSkip);
  return { show, take };

  function show() {
    if (isNew && panel.offsetParent) begin();
  }

  /** @param {Measurement} measurement */
  function take(measurement) {
    measuring.take(measurement);
    panel.dataset.state = measurement.state;
    const sent = JSON.stringify(measurement.race ?? null);
    if (measurement.state !== "ended" || measurement.race?.lanes.length !== 2 || sent === known) return;
    race = measurement.race;
    known = sent;
    part(".of").textContent = measurement.whose;
    prepare(race);
    show();
  }

  /** @param {Race} arrived */
  function prepare(arrived) {
    isNew = true;
    arrived.lanes.forEach((lane, at) => lanes[at].enter(lane, leadOf(arrived.lanes, at)));
    speedSelect.value = String(usualSpeed(lengthOf(arrived.lanes), speeds));
    again.disabled = speedSelect.disabled = false;
    const [one, other] = arrived.lanes.map(({ prefill_ms }) => `${grouped(prefill_ms, 1)} ms`);
    part(".prefill").textContent = arrived.lanes.some(({ rounds }) => rounds.some(({ arrival_ms }) => arrival_ms !== null))
      ? `The clock runs from the request on. The first token arrived after ${one} and ${other}.`
      : `The clock counts drafting and verifying. Reading the prompt before that took ${one} and ${other}.`;
    rewind();
  }

  function begin() {
    isNew = false;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) finish();
    else play();
  }

  function rewind() {
    cancelAnimationFrame(frame);
    setPlaying(false);
    for (const lane of lanes) lane.clear();
    part(".result").textContent = "";
    draw(0);
  }

  function play() {
    rewind();
    setPlaying(true);
    setTime(0);
    frame = requestAnimationFrame(goOn);
  }

  function goOn() {
    setTime(time + (performance.now() - setAt) * Number(speedSelect.value));
    draw(time);
    if (race && time >= lengthOf(race.lanes)) finish();
    else frame = requestAnimationFrame(goOn);
  }

  function finish() {
    cancelAnimationFrame(frame);
    setPlaying(false);
    if (!race) return;
    draw(lengthOf(race.lanes));
    part(".result").textContent = race.verdict;
  }

  function playOrSkip() {
    if (playing) finish();
    else play();
  }

  /** @param {number} ms of the engine */
  function setTime(ms) {
    time = ms;
    setAt = performance.now();
  }

  /** @param {boolean} on */
  function setPlaying(on) {
    playing = on;
    panel.dataset.playing = String(on);
    again.textContent = on ? "Skip" : "Play again";
  }

  /** @param {number} ms of the engine */
  function draw(ms) {
    const end = race ? lengthOf(race.lanes) : 0;
    part(".clock output").textContent = grouped(Math.min(ms, end));
    for (const lane of lanes) lane.draw(ms);
  }
}

/**
 * @param {HTMLElement} element
 * @param {string} title
 */
function makeLane(element, title) {
  element.innerHTML = LANE;
  const part = (/** @type {string} */ selector) => find(element, selector);
  const text = makeText(part(".stage"));
  /** @type {Course} */
  let course = { rounds: [], ends: [], counts: [], ms: 0, tokens: 0 };
  /** @type {{ factor: string, why: string } | null} */
  let lead = null;
  let drawn = 0; // rounds
  name(title);
  return { enter, clear, draw };

  /** @param {string} words */
  function name(words) {
    part("h3").textContent = words;
    part(".stage").setAttribute("aria-label", `Text: ${words}`);
  }

  /**
   * @param {Lane} lane
   * @param {{ factor: string, why: string } | null} itsLead
   */
  function enter(lane, itsLead) {
    course = courseOf(lane);
    lead = itsLead;
    name(lane.title);
  }

  function clear() {
    text.clear();
    drawn = 0;
  }

  /** @param {number} ms of the engine */
  function draw(ms) {
    const place = placeAt(course, ms);
    for (const { draft, next } of course.rounds.slice(drawn, place.rounds)) {
      text.add(next ? [...draft, next] : draft);
    }
    drawn = place.rounds;
    showPlace(place);
  }

  /** @param {Place} place */
  function showPlace({ tokens, finished }) {
    element.dataset.finished = String(finished);
    element.style.setProperty("--ran", String(course.tokens ? tokens / course.tokens : Number(finished)));
    const soFar = `${grouped(tokens)} of ${grouped(course.tokens)} tokens`;
    part(".count").textContent = finished ? timeInWords(course) : soFar;
    part(".lead b").textContent = finished && lead ? lead.factor : "";
    part(".lead span").textContent = finished && lead ? lead.why : "";
  }
}
