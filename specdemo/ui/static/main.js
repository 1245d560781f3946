// @ts-check
// Draws a run: takes the server's messages, and shows what of the run is visible now.

import { copyAddress, makeAddress } from "./address.js";
import { watchControls } from "./controls.js";
import { find } from "./dom.js";
import { makeInspector } from "./inspector.js";
import { makeReader } from "./reader.js";
import { Replay, numbersAfter, soFarInWords } from "./replay.js";
import { Run } from "./run.js";
import { makeText } from "./text.js";
import { makeTabs } from "./tabs.js";
import { makeTimeline } from "./timeline.js";

/** @import { Message, Notice, TraceFile, Update } from "./messages.js" */
/** @import { Reader } from "./reader.js" */
/** @import { Round } from "./run.js" */

const LARGEST_STEP = 200; // tokens drawn at once; more would keep the page from answering
const TICK = 50; // ms between two steps of a replay
const SLOW = 0.1; // the speed of the first recorded run, slow enough to be watched
const PATIENCE = 2000; // ms until a snapshot is requested again

/**
 * Runs once, when the component appears.
 * @param {object} gradio what Gradio gives to a component's script
 * @param {HTMLElement} gradio.element
 * @param {{ value?: string }} gradio.props
 * @param {(prop: string, callback: () => void) => void} gradio.watch
 * @param {(event: string) => void} gradio.trigger
 */
export function start({ element, props, watch, trigger }) {
  const page = find(element, ".run");
  const part = (/** @type {string} */ id) => find(page, `[data-testid="${id}"]`);
  const stage = part("stage");
  const text = makeText(stage);
  const timeline = makeTimeline(part("timeline"), {
    jump: (index) => reader.jump(index),
    point: (index) => reader.pointAtRound(index),
  });
  /** @type {Reader} */
  const reader = makeReader(page, stage, text, makeInspector(part("inspector")), timeline);
  const tabs = makeTabs(page, {});
  const address = makeAddress();
  page.addEventListener("pin", (event) => address.pin(/** @type {CustomEvent} */ (event).detail));
  const controls = watchControls({
    copy: async () => showNotice({ kind: "wait", text: await copyAddress(), share: null }),
    asked: () => { forgetError(); controls.allowStop(true); },
    refused: (sentence) => showNotice({ kind: "error", text: sentence, share: null }),
  });
  const replayButton = /** @type {HTMLButtonElement} */ (find(part("replay"), "button"));
  const speedSelect = /** @type {HTMLSelectElement} */ (find(part("replay"), "select"));

  const run = new Run();
  const replay = new Replay();
  /** @type {Round | null} */
  let open = null; // the round whose draft is on the stage and waits for its verdict
  let requestedAt = -Infinity; // when a snapshot was requested
  let hasPlayed = false;
  let measuring = false;
  let timer = 0;

  part("metrics").addEventListener("keydown", moveAlongNumbers);
  replayButton.addEventListener("click", replayOrSkip);
  speedSelect.addEventListener("change", changeSpeed);
  part("legend").addEventListener("click", hideOrShow);
  watch("value", receive);
  receive();

  // Messages.

  function receive() {
    /** @type {Message} */
    const message = JSON.parse(props.value || '{"run": -1}');
    if (message.run < run.number) return; // late, of an older run
    if (message.file) return save(message.file);
    if (message.measurement) {
      measuring = ["waiting", "running"].includes(message.measurement.state);
      controls.allowStop(measuring || isLive());
      return tabs.take(message.measurement);
    }
    const kind = message.notice?.kind;
    if (message.update) take(message.run, message.update, kind === "recorded");
    else if (message.run > run.number && kind === "wait") wait(message.run);
    else if (page.dataset.state === "waiting" && kind !== "wait") page.dataset.state = "empty";
    run.number = Math.max(run.number, message.run);
    if (message.notice) showNotice(message.notice);
    // The first message, with the recorded run, can have been replaced before this script was there.
    if (page.dataset.state === "empty") requestSnapshot();
    controls.allowStop(measuring || isLive());
  }

  // Whether the server waits for a run or is at it; a replay can be skipped, but there is nothing to stop.
  function isLive() {
    const { state } = page.dataset;
    return state === "waiting" || (state === "running" && !run.complete);
  }

  /**
   * @param {number} number
   * @param {Update} update
   * @param {boolean} opened whether it is a recorded run that was just opened
   */
  function take(number, update, opened) {
    const { result, corrected } = run.take(number, update);
    if (result === "known") return;
    if (result === "missed") return requestSnapshot();
    requestedAt = -Infinity;
    if (result === "begun") {
      address.begin(update.link ?? "");
      begin(opened);
    }
    for (const token of corrected) text.rewrite(token);
    proceed();
  }

  /** @param {boolean} opened */
  function begin(opened) {
    const plays = opened && !address.wants() && run.recorded && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (plays) speedSelect.value = hasPlayed ? "1" : String(SLOW);
    hasPlayed = true;
    page.dataset.state = "running";
    const live = !run.complete;
    if (live) revealStage();
    rewind(plays ? Number(speedSelect.value) : Infinity, plays || live);
  }

  /** @param {number} number of a run that waits for its turn */
  function wait(number) {
    run.begin(number, {});
    hasPlayed = true;
    page.dataset.state = "waiting";
    showNumbers({});
    revealStage();
    rewind(Infinity);
  }

  // On a narrow screen it is below the button that was pressed.
  function revealStage() {
    if (innerWidth <= 800) stage.scrollIntoView({ block: "nearest" });
  }

  function requestSnapshot() {
    if (performance.now() - requestedAt < PATIENCE) return;
    requestedAt = performance.now();
    trigger("submit");
  }

  /** @param {Notice} notice */
  function showNotice({ kind, text, share }) {
    const line = part("notice");
    line.dataset.kind = kind;
    line.textContent = text;
    const progress = /** @type {HTMLProgressElement} */ (find(page, "progress"));
    progress.hidden = share === null;
    progress.value = share ?? 0;
  }

  // What was wrong with the request before says nothing about the next one.
  function forgetError() {
    if (part("notice").dataset.kind === "error") showNotice({ kind: "note", text: "", share: null });
  }

  /** @param {TraceFile} file */
  function save({ name, text }) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // The screen. A run that goes on is drawn as it comes. A replay goes by the engine's own times, stretched:
  // in slow motion a round's draft appears first, and its verdict after the time that judging took.

  /** @param {number} speed */
  function rewind(speed, follow = true) {
    clearTimeout(timer);
    reader.clear();
    text.clear(follow);
    timeline.clear();
    open = null;
    replay.restart(speed, performance.now());
    text.add(run.prompt);
  }

  function proceed() {
    clearTimeout(timer);
    const { judged, drafted } = replay.next(run.rounds, performance.now(), LARGEST_STEP);
    for (const round of judged) {
      if (round === open) close(round);
      else text.add(round.draft);
      if (round.next) text.add([round.next]);
    }
    timeline.add(judged);
    if (drafted && !open) showDraft(drafted);
    const busy = replay.judged < run.rounds.length;
    if (busy) timer = window.setTimeout(proceed, replay.speed < Infinity ? TICK : 0);
    settle(busy || !run.complete);
  }

  /** @param {Round} round whose draft appears as it is before it is judged */
  function showDraft(round) {
    open = round;
    text.add(round.draft);
    for (const token of round.draft) text.elementOf(token).classList.add("open");
  }

  /** @param {Round} round */
  function close(round) {
    for (const token of round.draft) text.elementOf(token).classList.remove("open");
    open = null;
  }

  /** @param {boolean} busy */
  function settle(busy) {
    page.dataset.state = busy ? "running" : run.recorded ? "recorded" : "ended";
    stage.setAttribute("aria-busy", String(busy));
    const playing = replay.speed < Infinity && busy;
    const soFar = () => ({ ...numbersAfter(run.rounds, replay.judged), seed: run.numbers.seed });
    showNumbers(playing ? soFar() : run.numbers);
    showVerdict(playing);
    tabs.show(run);
    address.takeWanted(pinAt);
    if (!busy) replay.speed = Infinity;
    replayButton.textContent = replay.speed < Infinity ? "Skip" : "Replay";
    replayButton.disabled = !run.complete || run.rounds.length === 0;
  }

  /**
   * Pins a token that the address asks for; false while it is not on the stage.
   * @param {number} index of its round
   * @param {number} place in the draft; behind it is the round's own token
   */
  function pinAt(index, place) {
    const round = index < replay.judged ? run.rounds[index] : undefined;
    const token = round && (round.draft[place] ?? (place === round.draft.length ? round.next : null));
    if (!token || !text.isShown(token)) return false;
    reader.choose(token);
    return true;
  }

  /** @param {boolean} playing whether only a part of the run is shown */
  function showVerdict(playing) {
    part("whose").textContent = run.whose;
    const line = part("verdict");
    line.dataset.tone = playing ? "neutral" : run.tone;
    line.textContent = playing ? soFarInWords(run.rounds, replay.judged) : run.verdict;
  }

  /** @param {Record<string, string>} numbers */
  function showNumbers(numbers) {
    for (const number of page.querySelectorAll("[data-number]")) {
      const written = numbers[/** @type {HTMLElement} */ (number).dataset.number ?? ""] ?? "–";
      if (number.textContent !== written) number.textContent = written;
    }
  }

  function replayOrSkip() {
    if (replay.speed < Infinity) replay.speed = Infinity;
    else rewind(Number(speedSelect.value));
    proceed();
  }

  function changeSpeed() {
    if (replay.speed < Infinity) replay.setSpeed(Number(speedSelect.value), performance.now());
  }

  /** @param {MouseEvent} event */
  function hideOrShow(event) {
    const button = event.target instanceof Element ? event.target.closest("button[data-hides]") : null;
    if (!(button instanceof HTMLElement)) return;
    const hide = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!hide));
    stage.classList.toggle(`hide-${button.dataset.hides}`, hide);
    reader.releaseHidden();
    text.reflow();
  }

  /** @param {KeyboardEvent} event */
  function moveAlongNumbers({ key, target }) {
    if (!(target instanceof HTMLElement)) return;
    const to = { ArrowRight: target.nextElementSibling, ArrowLeft: target.previousElementSibling };
    const next = key === "ArrowRight" || key === "ArrowLeft" ? to[key] : null;
    if (next instanceof HTMLElement) next.focus();
  }
}
