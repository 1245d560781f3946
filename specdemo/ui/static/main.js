// @ts-check
// Draws a run: takes the server's messages, and shows what of the run is visible now.

import { makeAddress } from "./address.js";
import { makeCompare } from "./compare.js";
import { watchControls } from "./controls.js";
import { find, make, saveFile } from "./dom.js";
import { makeExactness } from "./exactness.js";
import { makeGamma } from "./gamma.js";
import { makeInspector } from "./inspector.js";
import { makePositions } from "./positions.js";
import { makeRace } from "./race.js";
import { makeReader } from "./reader.js";
import { makeLecture } from "./lecture.js";
import { makePlayer } from "./player.js";
import { numbersAfter, soFarInWords } from "./replay.js";
import { Run } from "./run.js";
import { makeText } from "./text.js";
import { makeTabs } from "./tabs.js";
import { makeTimeline } from "./timeline.js";
import { chooseTrace, fetchText, fetchUpdate, sentenceOf } from "./traces.js";

/** @import { Message, Notice, Update } from "./messages.js" */
/** @import { Request } from "./measuring.js" */
/** @import { Reader } from "./reader.js" */

const SLOW = 0.1; // the speed of the first recorded run, slow enough to be watched
const PATIENCE = 2000; // ms until a snapshot is requested again

/**
 * Runs once, when the component appears.
 * @param {object} gradio what Gradio gives to a component's script
 * @param {HTMLElement} gradio.element
 * @param {{ value?: string }} gradio.props
 * @param {(prop: string, callback: () => void) => void} gradio.watch
 * @param {(event: string, data?: object) => void} gradio.trigger
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
  const inspector = makeInspector(part("inspector"), () => run.setting);
  /** @type {Reader} */
  const reader = makeReader(page, stage, text, inspector, timeline);
  const server = {
    measure: (/** @type {Request} */ request) => trigger("apply", request),
    stop: () => trigger("stop"),
    choose: (/** @type {number} */ gamma) => trigger("select", { gamma }),
  };
  const tabs = makeTabs(page, {
    positions: makePositions(page, part("positions"), text),
    exactness: makeExactness(part("exactness"), reader.pinned),
    gamma: makeGamma(part("gamma"), server),
    race: makeRace(part("race"), server),
    compare: makeCompare(part("compare"), server),
  });
  const address = makeAddress();
  page.addEventListener("pin", (event) => address.pin(/** @type {CustomEvent} */ (event).detail));
  const controls = watchControls({
    copy: async () => showNotice({ kind: "wait", text: await address.copy(), share: null }),
    asked: () => { forgetError(); controls.allowStop(true); },
    open: () => chooseTrace({
      largest: Number(page.dataset.largest),
      opened: (name) => trigger("upload", { name }),
      refused,
    }),
  });
  const run = new Run();
  const player = makePlayer(page, run, { text, timeline, reader }, showOutcome);
  makeLecture(page, player, text);
  let requestedAt = -Infinity; // when a snapshot was requested
  let hasPlayed = false;
  let measuring = false;

  part("metrics").addEventListener("keydown", moveAlongNumbers);
  part("legend").addEventListener("click", hideOrShow);
  watch("value", receive);
  receive();

  // Messages.

  async function receive() {
    /** @type {Message} */
    const message = JSON.parse(props.value || '{"run": -1}');
    if (message.run < run.number) return; // late, of an older run
    try {
      if (message.file) return saveFile(message.file.name, await fetchText(message.file.stored));
      if (message.stored) {
        requestedAt = performance.now(); // what is missing meanwhile is in it
        message.update = await fetchUpdate(message.stored);
      }
    } catch (error) {
      return refused(sentenceOf(error));
    }
    draw(message);
  }

  /** @param {Message} message with its update, where it has one */
  function draw(message) {
    if (message.run < run.number) return; // a newer one came while its update was fetched
    if (message.measurement) {
      measuring = tabs.take(message.measurement);
      controls.allowStop(measuring || isLive());
      if (!message.update) return;
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
    player.proceed();
    tabs.show(run);
  }

  /** @param {boolean} opened */
  function begin(opened) {
    const plays = opened && !address.wants() && run.recorded && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const live = !run.complete;
    if (live) revealStage();
    if (plays) player.play(hasPlayed ? "1" : String(SLOW));
    else player.begin(live);
    hasPlayed = true;
  }

  /** @param {number} number of a run that waits for its turn */
  function wait(number) {
    run.begin(number, {});
    hasPlayed = true;
    page.dataset.state = "waiting";
    showOutcome(null); // nothing yet: what the run before brought is not this one's
    revealStage();
    player.begin();
    tabs.show(run);
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

  /** @param {string} sentence */
  function refused(sentence) {
    showNotice({ kind: "error", text: sentence, share: null });
  }

  // What was wrong with the request before says nothing about the next one.
  function forgetError() {
    if (part("notice").dataset.kind === "error") showNotice({ kind: "note", text: "", share: null });
  }

  // The screen.

  /** @param {number | null} visible how many rounds are, where it is not the whole run that is shown */
  function showOutcome(visible) {
    const soFar = () => ({ ...numbersAfter(run.rounds, visible ?? 0), seed: run.numbers.seed });
    showNumbers(visible === null ? run.numbers : soFar());
    part("whose").textContent = run.whose;
    showWhoMadeIt();
    const line = part("verdict");
    line.dataset.tone = visible === null ? run.tone : "neutral";
    const words = visible === null ? run.verdict : soFarInWords(run.rounds, visible);
    const [first, rest] = inTwo(words);
    if (line.textContent !== words) line.replaceChildren(first, rest);
    address.takeWanted(pinAt);
  }

  // Some words and numbers are for runs of a server only, and some for those of the engine.
  function showWhoMadeIt() {
    const served = Boolean(run.setting?.served);
    if (page.hasAttribute("data-served") === served) return;
    page.toggleAttribute("data-served", served);
    swap("servedWords", (element) => element.textContent ?? "", (element, words) => { element.textContent = words; });
    swap("servedTitle", (element) => element.title, (element, words) => { element.title = words; });
  }

  /**
   * Exchanges what elements say for what they hold for the other kind of run.
   * @param {"servedWords" | "servedTitle"} name
   * @param {(element: HTMLElement) => string} read
   * @param {(element: HTMLElement, words: string) => void} write
   */
  function swap(name, read, write) {
    const attribute = name === "servedWords" ? "data-served-words" : "data-served-title";
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll(`[${attribute}]`))) {
      const words = element.dataset[name] ?? "";
      element.dataset[name] = read(element);
      write(element, words);
    }
  }

  /**
   * The first sentence, which is large, and the others.
   * @param {string} words
   */
  function inTwo(words) {
    const [, first, rest] = /^(.+?[.!?] )(.+)$/s.exec(words) ?? [, words, ""];
    return [make("b", first ?? ""), make("span", rest ?? "")];
  }

  /**
   * Pins a token that the address asks for; false while it is not on the stage.
   * @param {number} index of its round
   * @param {number} place in the draft; after it is the round's own token
   */
  function pinAt(index, place) {
    const round = run.rounds[index];
    const token = round && (round.draft[place] ?? (place === round.draft.length ? round.next : null));
    if (!token || !text.isOnStage(token) || !text.isShown(token)) return false;
    reader.choose(token);
    return true;
  }

  /** @param {Record<string, string>} numbers */
  function showNumbers(numbers) {
    for (const number of page.querySelectorAll("[data-number]")) {
      const written = numbers[/** @type {HTMLElement} */ (number).dataset.number ?? ""] ?? "–";
      if (number.textContent !== written) number.textContent = written;
      number.classList.toggle("in-words", /[a-z]{3}/.test(written));
    }
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
