// @ts-check
// The player: how far the run on the stage is shown. A run that goes on is drawn as it comes. One that is
// complete can be played by the engine's own times, stretched, and walked by round and by token, both ways.

import { find, write } from "./dom.js";
import { msPlayed, msTo, playedTo, usualSpeed } from "./replay.js";
import {
  after, before, between, endOf, inWords, isBefore, onTheWay, placeAfter, stepTo, stepsIn, stepsTo,
} from "./steps.js";
import { say } from "./words.js";

/** @import { Reader } from "./reader.js" */
/** @import { Run, Token } from "./run.js" */
/** @import { Place, Stride } from "./steps.js" */
/** @import { Text } from "./text.js" */
/** @import { Timeline } from "./timeline.js" */
/** @typedef {ReturnType<typeof makePlayer>} Player */
/** @typedef {ReturnType<Player["whereabouts"]>} Whereabouts */
/** @typedef {"play" | "end" | "round-back" | "token-back" | "token-on" | "round-on"} Move */

const [FEWEST, MOST] = [40, 200]; // tokens drawn at once
const FRAME = 60; // ms that a frame with them may take, until it is painted; where it takes longer, fewer are drawn
const LONGEST_REST = 200; // ms
const TICK = 50; // ms between two looks at the clock
const STEPWISE = "steps"; // the speed at which each step takes the same time
const STEP = 1000; // ms, that time

/**
 * @param {HTMLElement} page
 * @param {Run} run
 * @param {{ text: Text, timeline: Timeline, reader: Reader }} screen
 * @param {(visible: number | null) => void} showOutcome is told how many rounds are visible; null: all
 */
export function makePlayer(page, run, { text, timeline, reader }, showOutcome) {
  const bar = find(page, ".replay");
  const moves = /** @type {HTMLButtonElement[]} */ ([...bar.querySelectorAll("[data-move]")]);
  const playButton = find(bar, '[data-move="play"]');
  const scrubber = /** @type {HTMLInputElement} */ (find(bar, ".scrubber"));
  const speed = /** @type {HTMLSelectElement} */ (find(bar, "select"));
  const said = find(page, ".said");
  const speeds = [...speed.options].map(({ value }) => Number(value)).filter(Number.isFinite);
  /** @type {"following" | "playing" | "paused"} */
  let mode = "following"; // following: all that is known is shown
  /** @type {Place} */
  let place = { round: 0, step: 0 }; // what is on the stage
  let goal = place; // where that leads; far away it is reached in parts
  /** @type {Stride} */
  let stride = "token"; // of the last move
  let untold = false; // whether what has happened is still to be told
  /** What is pinned as soon as it is on the stage. @type {Token | null} */
  let toPin = null;
  let isChosen = false; // whether the reader has chosen the speed
  let preferred = ""; // the speed until then; empty: the usual one
  // When the run began to play on, the engine's ms to where it was then, and its speed; 0: step by step.
  let clock = { at: 0, ms: 0, pace: 0 };
  let steppedAt = -Infinity; // when the last step was played
  let portion = MOST; // tokens drawn at once
  let isBehind = false; // whether there is more to draw
  let resting = false; // what was drawn is being painted, and then the page has time to answer
  let frame = 0;
  let timer = 0;
  for (const button of moves) button.addEventListener("click", () => move(/** @type {Move} */ (button.dataset.move)));
  bar.addEventListener("keydown", onKey);
  scrubber.addEventListener("input", () => goTo(placeAfter(run.rounds, Number(scrubber.value)), "token", false));
  speed.addEventListener("change", changeSpeed);
  return { begin, play, proceed, move, prefer, toStart, follow, whereabouts, returnTo };

  /** Another run, of which all that is known is shown. */
  function begin() {
    mode = "following";
    rewind(false);
  }

  /**
   * Plays the run from its start.
   * @param {boolean} follow whether the end of the text is to stay in view
   */
  function play(follow = true) {
    rewind(follow);
    mode = "playing";
    startClock();
  }

  /** @param {boolean} follow */
  function rewind(follow) {
    wake();
    portion = MOST;
    for (const option of speed.options) option.text = speedInWords(option.value, run.setting?.served ? "server" : "engine");
    page.dataset.manner = run.setting?.manner ?? "";
    reader.clear();
    text.clear(follow);
    timeline.clear();
    place = goal = { round: 0, step: 0 };
    text.add(run.prompt);
    tellNothing();
    showControls();
  }

  // Goes on towards what is to be shown; where something was drawn just now, after a rest.
  function proceed() {
    isBehind = true;
    if (!resting) advance();
  }

  // The same at once, as far as one portion goes.
  function advance() {
    wake();
    const start = performance.now();
    if (run.complete) timeline.scaleBy(run.rounds);
    if (mode === "following") goal = endOf(run.rounds);
    if (mode === "playing") goal = goalAt(start);
    draw(onTheWay(run.rounds, place, goal, portion));
    isBehind = isBefore(place, goal);
    if (!isBehind && untold) tell();
    if (mode === "playing" && atEnd()) mode = "following";
    settle(isBehind || mode === "playing" || !run.complete);
    rest(start, performance.now() - start);
  }

  /**
   * Lets the frame be painted, and then leaves the page as much time again to answer, whatever comes meanwhile. So
   * what is drawn is bounded by what the browser can paint, and not by how much the engine makes.
   * @param {number} start of drawing
   * @param {number} drawing ms that it took
   */
  function rest(start, drawing) {
    resting = true;
    frame = requestAnimationFrame((begun) => {
      timer = window.setTimeout(() => { // after the frame
        const now = performance.now();
        const took = drawing + now - begun;
        if (took > FRAME) portion = Math.max(FEWEST, Math.floor(portion / 2));
        else if (isBehind) portion = Math.min(MOST, 2 * portion);
        const least = mode === "playing" ? start + TICK - now : 0;
        timer = window.setTimeout(goOn, Math.max(least, Math.min(took, LONGEST_REST)));
      });
    });
  }

  function wake() {
    resting = false;
    cancelAnimationFrame(frame);
    clearTimeout(timer);
  }

  function goOn() {
    resting = false;
    if (isBehind || mode === "playing") advance();
  }

  /**
   * How far it has been played.
   * @param {number} now
   */
  function goalAt(now) {
    if (speed.value === STEPWISE) {
      if (now - steppedAt < STEP) return place;
      steppedAt = now;
      untold = true;
      return after(run.rounds, place, "token");
    }
    const pace = Number(speed.value);
    const played = playedTo(run.rounds, clock.ms + (now - clock.at) * pace, pace);
    return isBefore(played, place) ? place : played;
  }

  /** @param {Place} to */
  function draw(to) {
    const { gone, added, drafted } = between(run.rounds, place, to);
    if (gone.length) text.removeFrom(gone[0]);
    text.add(added);
    for (const { token, shown } of drafted) text.setShown(token, shown);
    if (to.round < place.round) timeline.cut(to.round);
    else timeline.add(run.rounds.slice(place.round, to.round));
    timeline.leaveRoom(run.complete ? run.rounds.length : null);
    place = to;
    reader.refresh();
  }

  function tell() {
    untold = false;
    const step = stepTo(run.rounds, place);
    if (toPin) reader.choose(toPin);
    else reader.present(step?.token ?? null, step?.kind === "depth" ? step.depths : Infinity);
    toPin = null;
    if (mode !== "following") said.textContent = inWords(run.rounds, place, stride);
  }

  function tellNothing() {
    untold = false;
    toPin = null;
    reader.withdraw();
    said.textContent = "";
  }

  /** @param {boolean} busy */
  function settle(busy) {
    const rest = run.recorded ? "recorded" : "ended";
    page.dataset.state = busy ? "running" : atEnd() ? rest : "paused";
    find(page, ".stage").setAttribute("aria-busy", String(busy));
    showOutcome(mode === "following" || atEnd() ? null : place.round);
    showControls();
  }

  function atEnd() {
    return place.round >= run.rounds.length;
  }

  function showControls() {
    const off = !run.complete || run.rounds.length === 0;
    for (const button of moves) button.disabled = off;
    scrubber.disabled = off;
    if (!off && mode !== "playing" && !isChosen) speed.value = preferred || usual();
    const whole = mode === "following" || (mode === "paused" && atEnd());
    write(playButton, say(mode === "playing" ? "player.pause" : whole ? "player.replay" : "player.play"));
    const inRound = run.rounds[place.round] ? stepsIn(run.rounds[place.round]) : 0;
    const so = { done: place.round, all: run.rounds.length };
    const rounds = say("player.rounds", so);
    scrubber.max = String(stepsTo(run.rounds, endOf(run.rounds)));
    scrubber.value = String(stepsTo(run.rounds, place));
    scrubber.setAttribute(
      "aria-valuetext", place.step ? say("player.roundsAndStep", { ...so, step: place.step, steps: inRound }) : rounds,
    );
    write(find(bar, ".place"), rounds);
  }

  // The speed at which the run can be watched.
  function usual() {
    return String(usualSpeed(run.rounds.reduce((ms, round) => ms + msPlayed(round), 0), speeds));
  }

  /**
   * @param {Place} to
   * @param {Stride} by
   * @param {boolean} spoken whether a screen reader is to say what has happened
   * @param {Token | null} pin what is to be pinned there
   */
  function goTo(to, by, spoken = true, pin = null) {
    mode = "paused";
    goal = to;
    stride = by;
    toPin = pin;
    untold = true;
    said.setAttribute("aria-live", spoken ? "polite" : "off");
    text.follow();
    advance();
  }

  function playOrPause() {
    if (mode === "playing") return goTo(place, "token");
    if (mode === "following" || atEnd()) play();
    else resume();
    advance();
  }

  function resume() {
    mode = "playing";
    startClock();
    tellNothing();
  }

  // From here on.
  function startClock() {
    clock = { at: performance.now(), ms: msTo(run.rounds, place), pace: Number(speed.value) || 0 };
    steppedAt = -Infinity;
    stride = "token";
    said.setAttribute("aria-live", "off");
  }

  function changeSpeed() {
    isChosen = true;
    if (mode !== "playing") return;
    const before = clock, ms = clock.ms + (performance.now() - clock.at) * clock.pace;
    startClock();
    if (before.pace && clock.pace) clock.ms = ms; // what has been waited counts
  }

  /**
   * Does what a button does. Returns false where the run has nothing more that way.
   * @param {Move} name
   */
  function move(name) {
    if (!run.complete) return true;
    if (run.rounds.length === 0) return false;
    const [by, way] = /** @type {[Stride, "back" | "on"]} */ (name.split("-"));
    const to = way ? (way === "on" ? after : before)(run.rounds, goal, by) : place;
    if (name === "play") playOrPause();
    else if (name === "end") skip();
    else if (to.round === goal.round && to.step === goal.step) return false;
    else goTo(to, by);
    return true;
  }

  /** The speed until the reader chooses one; empty: that at which the run can be watched. @param {string} value */
  function prefer(value) {
    preferred = value;
    showControls();
  }

  // All that is known is shown again.
  function follow() {
    mode = "following";
    tellNothing();
  }

  // Before the first token; a run that is paused stays where it is.
  function toStart() {
    if (!run.complete || run.rounds.length === 0 || (mode === "paused" && !atEnd())) return;
    goTo({ round: 0, step: 0 }, "round", false);
  }

  /** Where the run is and what is pinned, for `returnTo`. */
  function whereabouts() {
    return { rounds: run.rounds, follows: mode === "following", place, pinned: reader.pinned() };
  }

  /** Shows the run again as it was; what played is paused. @param {Whereabouts} so */
  function returnTo({ rounds, follows, place: before, pinned }) {
    if (rounds !== run.rounds) return;
    if (!follows) return goTo(before, "token", false, pinned);
    follow();
    toPin = pinned;
    untold = pinned !== null;
    text.follow();
    advance();
  }

  function skip() {
    mode = "following";
    tellNothing();
    text.follow();
    advance();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key, target, shiftKey } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || target === speed) return;
    const by = shiftKey ? "token" : "round";
    if (key === "ArrowRight") move(`${by}-on`);
    else if (key === "ArrowLeft") move(`${by}-back`);
    else if (key === " " && target === scrubber) move("play"); // on a button the browser presses that
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * @param {string} speed as an option has it: a share of whoever made the run, or a step a second
 * @param {"engine" | "server"} clock whose times it is played by
 */
export function speedInWords(speed, clock) {
  if (speed === STEPWISE) return say("player.speed.steps");
  if (speed === "1") return say(`player.speed.${clock}`);
  return say(`player.speed.${clock}Share`, { part: Math.round(1 / Number(speed)) });
}
