// @ts-check
// The race: two runs side by side on one clock, played at the engine's own times, stretched.

import { fill, h, within } from "../view/dom.js";
import { fixed, grouped } from "../view/format.js";
import { speedInWords } from "../view/player.js";
import { msPlayed, overAfter, usualSpeed } from "../view/replay.js";
import { inReadingOrder, linked, msOf } from "../view/run.js";
import { makeText } from "../view/text.js";
import { say } from "../view/words.js";
import { makeMeasuring } from "./measuring.js";

/** @import { Request, Server } from "./measuring.js" */
/** @import { Lane, Measurement, Race } from "../view/messages.d.ts" */
/** @import { Round } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */
/**
 * What is said of a lane when it has finished: on its track, below it, and how that was measured.
 * @typedef {{ came: string, speedup: string, by: string, tone: Race["tone"] }} Finish
 */
/** A lane's rounds, and the engine's ms and the tokens of all of them. @typedef {{ rounds: Round[], ms: number, tokens: number }} Course */

const SPEEDS = ["1", "0.5", "0.2", "0.1"]; // of the engine
const content = () => [
  h("div", { class: "measuring" }),
  h("div", { class: "playing" },
    h("p", { class: "clock" }, h("output", { "aria-label": say("race.time") }, "0"), " ms"),
    h("button", { class: "again", disabled: true }, say("race.again")),
    h("label", {}, `${say("race.at")} `, h("select", { disabled: true }, SPEEDS.map((speed) => (
      h("option", { value: speed }, speedInWords(speed, "engine")))))),
    h("p", { class: "of" })),
  h("div", { class: "lanes" },
    [0, 1].map((at) => h("article", { class: "lane", "data-lane": at }, laneContent()))),
  h("p", { class: "result", role: "status" }),
  h("p", { class: "prefill" }),
];
const laneContent = () => [
  h("h2"),
  h("div", { class: "track" }, h("span", { class: "ran" }), h("span", { class: "line" }), h("b")),
  h("p", { class: "count" }),
  h("p", { class: "lead" }, h("b"), " ", h("span")),
  h("div", { class: "stage hide-discarded", tabindex: 0, role: "list" }),
];

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 */
export function makeRace(panel, server) {
  fill(panel, content());
  const part = within(panel);
  const measuring = makeMeasuring(part(".measuring"), server, { [say("race.measure")]: { kind: "race" } }, say("race.what"));
  const titles = [say("race.alone"), say("race.setting")]; // until there is a race
  const lanes = titles.map((title, at) => makeLane(part(`[data-lane="${at}"]`), title));
  const again = /** @type {HTMLButtonElement} */ (part(".again"));
  const speedSelect = /** @type {HTMLSelectElement} */ (part("select"));
  const speeds = [...speedSelect.options].map(({ value }) => Number(value));
  /** @type {Race | null} */
  let race = null;
  let known = ""; // the race as it was sent
  let isNew = false; // it has not been played yet
  let isChosen = false; // whether the reader has chosen the speed
  let playing = false;
  let time = 0; // engine ms
  let setAt = 0; // screen ms, when `time` was set
  let frame = 0;
  again.addEventListener("click", playOrSkip);
  speedSelect.addEventListener("change", () => { isChosen = true; });
  return { show: beginIfSeen, take, step };

  function beginIfSeen() {
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
    panel.toggleAttribute("data-raced", true);
    part(".of").textContent = measurement.whose;
    prepare(race);
    beginIfSeen();
  }

  /** @param {Race} arrived */
  function prepare(arrived) {
    isNew = true;
    const [alone, drafted] = arrived.lanes;
    const [came, itCame] = placesInWords(arrived.lanes);
    const by = alone.tokens === drafted.tokens ? "" : say("race.perToken");
    lanes[0].enter(alone, { came, speedup: "", by: "", tone: "neutral" });
    lanes[1].enter(drafted, { came: itCame, speedup: arrived.speedup, by, tone: arrived.tone });
    if (!isChosen) speedSelect.value = String(usualSpeed(lengthOf(arrived.lanes), speeds));
    again.disabled = speedSelect.disabled = false;
    const [before, beforeOther] = arrived.lanes.map(({ prefill_ms }) => `${grouped(prefill_ms, 1)} ms`);
    const served = arrived.lanes.some(({ rounds }) => areServed(rounds));
    part(".prefill").textContent = say(served ? "race.prefillServed" : "race.prefill", { one: before, other: beforeOther });
    rewind();
  }

  function begin() {
    isNew = false;
    for (const lane of lanes) lane.reserve();
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
    [time, setAt] = [0, performance.now()];
    frame = requestAnimationFrame(goOn);
  }

  function goOn() {
    const now = performance.now();
    time += (now - setAt) * Number(speedSelect.value);
    setAt = now;
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

  /** Plays it, or skips to its end. Returns false where there is none, and backwards. @param {number} by */
  function step(by) {
    if (!race || by < 0) return false;
    playOrSkip();
    return true;
  }

  function playOrSkip() {
    if (playing) finish();
    else play();
  }

  /** @param {boolean} on */
  function setPlaying(on) {
    playing = on;
    panel.dataset.playing = String(on);
    again.textContent = say(on ? "race.skip" : "race.again");
  }

  /** @param {number} ms of the engine */
  function draw(ms) {
    const end = race ? lengthOf(race.lanes) : 0;
    part(".clock output").textContent = grouped(Math.min(ms, end));
    for (const lane of lanes) lane.draw(ms);
  }
}

/** @param {{ arrival_ms: number | null }[]} rounds */
function areServed(rounds) {
  return rounds.some(({ arrival_ms }) => arrival_ms !== null);
}

/**
 * @param {HTMLElement} element
 * @param {string} title
 */
function makeLane(element, title) {
  const part = within(element);
  const text = makeText(part(".stage"));
  /** @type {Course} */
  let course = { rounds: [], ms: 0, tokens: 0 };
  /** @type {Finish} */
  let finish = { came: "", speedup: "", by: "", tone: "neutral" };
  let drawn = 0; // rounds
  name(title);
  return { enter, clear, draw, reserve };

  // The room that its whole text takes, so that nothing moves while it is played.
  function reserve() {
    const stage = part(".stage");
    stage.style.minHeight = "";
    draw(course.ms);
    const height = stage.offsetHeight;
    clear();
    draw(0);
    stage.style.minHeight = `${height}px`;
  }

  /** @param {string} title */
  function name(title) {
    part("h2").textContent = title;
    part(".stage").setAttribute("aria-label", say("race.text", { title }));
  }

  /**
   * @param {Lane} lane
   * @param {Finish} said
   */
  function enter(lane, said) {
    finish = said;
    course = { ...lane, rounds: lane.rounds.map((one) => linked(one)) };
    element.dataset.tone = said.tone;
    name(lane.title);
  }

  function clear() {
    text.clear();
    drawn = 0;
  }

  /** @param {number} ms of the engine */
  function draw(ms) {
    const { rounds, tokens, finished } = placeAt(course, ms);
    for (const round of course.rounds.slice(drawn, rounds)) text.add(inReadingOrder(round));
    drawn = rounds;
    element.dataset.finished = String(finished);
    element.style.setProperty("--ran", String(course.tokens ? tokens / course.tokens : Number(finished)));
    const soFar = say("race.soFar", { done: grouped(tokens), all: grouped(course.tokens) });
    part(".count").textContent = finished ? timeInWords(course, areServed(course.rounds)) : soFar;
    part(".track b").textContent = finished ? finish.came : "";
    part(".lead b").textContent = finished ? finish.speedup : "";
    part(".lead span").textContent = finished && finish.speedup ? finish.by : "";
  }
}

/**
 * Where the lane is at an engine time: how many of its rounds are over, and the tokens that they brought.
 * @param {Course} course
 * @param {number} ms
 */
export function placeAt({ rounds, ms: all, tokens }, ms) {
  if (ms >= all) return { rounds: rounds.length, tokens, finished: true };
  const waited = rounds.length ? msOf(rounds[0]) - msPlayed(rounds[0]) : 0; // a server's prefill is in the lane's time
  const over = overAfter(rounds.slice(0, -1), ms - waited); // the last one is over when the lane is
  return { rounds: over.count, tokens: Math.min(over.tokens, tokens), finished: false };
}

/**
 * The engine time at which the last lane is finished.
 * @param {Pick<Lane, "ms">[]} lanes
 */
function lengthOf(lanes) {
  return lanes.reduce((most, { ms }) => Math.max(most, ms), 0);
}

/**
 * Which of the lanes was first, and when each was finished.
 * @param {Pick<Lane, "ms">[]} lanes
 */
function placesInWords(lanes) {
  const times = lanes.map(({ ms }) => Math.round(ms));
  const [first, last] = [...times].sort((a, b) => a - b);
  return times.map((ms) => {
    const place = first === last ? "tied" : ms === first ? "first" : "second";
    return say(`race.${place}`, { time: fixed(ms / 1000, 3) });
  });
}

/**
 * What a finished lane took.
 * @param {Pick<Lane, "ms" | "tokens">} lane
 * @param {boolean} isServed whether the time is a server's, which has the wait for the first token in it
 */
function timeInWords({ ms, tokens }, isServed) {
  const took = { ms: grouped(ms), tokens: say("view.tokens", { count: tokens, number: grouped(tokens) }) };
  if (!tokens || !ms) return say("race.took", took);
  const speed = { speed: grouped((1000 * tokens) / ms, 1), each: fixed(ms / tokens) };
  return say(isServed ? "race.tookEachServed" : "race.tookEach", { ...took, ...speed });
}
