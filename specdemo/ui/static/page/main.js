// @ts-check
// Draws a run: follows it in the server, and shows what of it is visible now.

import { makeAddress } from "./address.js";
import { makeCompare } from "../runs/compare.js";
import { watchControls } from "./controls.js";
import { addStart, addWayOut, isFramed } from "./framed.js";
import { offerLanguages } from "./language.js";
import { find, saveFile } from "../view/dom.js";
import { makeExactness } from "../view/exactness.js";
import { makeFigure } from "../lesson/figure.js";
import { makeGamma } from "../runs/gamma.js";
import { makeGuess } from "../runs/guess.js";
import { makeTrials } from "../runs/trials.js";
import { makePositions } from "../view/positions.js";
import { makeRace } from "../runs/race.js";
import { makeLecture } from "./lecture.js";
import { Run } from "../view/run.js";
import { offerSaving } from "../keep/saving.js";
import { makeScreen } from "../view/screen.js";
import { makeTabs } from "./tabs.js";
import { makeTour } from "./tour.js";
import { makeTurns } from "../view/turns.js";
import { follow } from "../runs/following.js";
import { chooseTrace, fetchTrace, fetchWhole, isThere, sentenceOf } from "../traces/traces.js";
import { say } from "../view/words.js";

/** @import { Following } from "../runs/following.js" */
/** @import { Head, Measurement, Message, Notice, Update } from "../view/messages.js" */
/** @import { Request } from "../runs/measuring.js" */

const SLOW = 0.1; // the speed of the first recorded run, slow enough to be watched
const RECORDED = "first"; // the name of the run that every page shows at first
const ANSWERS = 3000; // ms in which a server that is there has answered

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
  const run = new Run();
  const screen = makeScreen(page, run, showOutcome);
  const { stage, text, reader, player, pinAt } = screen;
  const server = {
    measure: (/** @type {Request} */ request) => {
      trigger("apply", { ...request, run: shown });
      setTimeout(() => isThere().then((there) => there || refused(say("traces.lost"))), ANSWERS);
    },
    stop,
    choose: (/** @type {number} */ gamma) => trigger("select", { gamma }),
  };
  /** @type {Head} */
  let head = { whose: "", numbers: {}, verdict: "", tone: "neutral" }; // of the run on the stage
  /** @type {Head | null} */
  let raceHead = null;
  let showsRace = false; // its head stands over the panel, and not the stage's
  const tabs = makeTabs(page, (tab) => showHead((tab === "race" && raceHead) || head), {
    positions: makePositions(page, part("positions"), text),
    exactness: makeExactness(part("exactness"), reader.pinned),
    figure: makeFigure(part("figure"), reader.pinned),
    gamma: makeGamma(part("gamma"), server),
    race: makeRace(part("race"), server, (ofRace) => {
      raceHead = ofRace;
      if (page.dataset.tab === "race") showHead(ofRace);
    }),
    compare: makeCompare(part("compare"), server),
    trials: makeTrials(part("trials"), server),
    guess: makeGuess(part("guess"), server),
  });
  const address = makeAddress();
  page.addEventListener("pin", (event) => address.pin(/** @type {CustomEvent} */ (event).detail));
  const controls = watchControls({
    copy: async () => showNotice({ kind: "wait", text: await address.copy(), share: null }),
    asked,
    stop,
    save: () => fetchTrace(shown).then(({ name, text }) => saveFile(name, text), refuse),
    reply: () => trigger("edit", { run: shown }),
    open: () => chooseTrace({ largest: Number(page.dataset.largest), opened, refused }),
    record: (name) => fetchWhole(name).then((message) => opened({ ...message, name }), refuse),
  });
  const turns = makeTurns(part("turns"), reopen);
  const reply = find(page, "#reply");
  makeLecture(page, player, text, () => tabs.select("text"));
  let hasPlayed = false;
  let shown = RECORDED; // the name of the run on the stage
  let number = 0; // of what the stage shows or waits for; it grows
  let latest = 0; // when the latest run was begun, by the server's clock
  let isAsked = false; // for a run, and the server has not answered yet
  let stopsIt = false; // as soon as it has
  let isLinked = new URLSearchParams(location.search).get("run") === "1"; // whether the next run is the address's own
  let follows = true; // whether its end stays in view; what a link shows is read from the top
  /** The run that goes on. @type {Following | null} */
  let going = null;
  /** What the stage showed before it was cleared for a run that has not begun. @type {Partial<Run> | null} */
  let former = null;
  /** The measurement that goes on. @type {Following | null} */
  let measuring = null;
  /** @type {Measurement | null} */
  let measured = null;
  /** A trace that has been opened, until the controls hold its settings. @type {Message | null} */
  let toShow = null;

  /** What the stage showed before it was lent to the tour. @type {{ run: Partial<Run>, shown: string } | null} */
  let own = null;
  const tour = makeTour(page, {
    run,
    pinned: reader.pinned,
    pin: reader.choose,
    unpin: () => page.dispatchEvent(new Event("unpin")),
    showAll,
    lend,
    giveBack,
    select: tabs.select,
    unfold,
  });

  offerLanguages(find(page, ".language"));
  offerSaving(page, run, text);
  for (const begun of [".replay", ".timeline", ".unfold"]) find(page, begun).addEventListener("click", unfold);
  if (isFramed()) {
    unfold();
    addWayOut(find(page, ".foot"));
  }
  watch("value", answered);
  const query = new URLSearchParams(location.search);
  if (isFramed()) query.delete("guess"); // the game is on the whole page
  if (query.get("guess") === "1") {
    unfold();
    tabs.select("guess"); // the server begins the game
  }
  const begins = query.get("run") === "1" || query.get("guess") === "1";
  const recorded = (page.dataset.recorded ?? "").split(" ");
  const linked = recorded.find((name) => name === query.get("trace") && !begins) ?? RECORDED;
  if (linked !== RECORDED) unfold();
  // Only then what the address asks for, since what is wrong with it stays on the page.
  showWhole(linked, number).then(() => {
    if (!isFramed() || query.get("run") !== "1") return trigger("submit", { query: query.toString() });
    // The page around a frame must not start runs in its visitors' names.
    addStart(page, () => trigger("submit", { query: query.toString() }));
  });

  // What the server answers to an event.

  function answered() {
    /** @type {Message} */
    const message = JSON.parse(props.value || "{}");
    if (message.measurement) takeMeasurement(message.measurement);
    else if (message.measure) followMeasurement(message.measure);
    else if (message.follow) followRun(message.follow, message.at ?? 0);
    else if (message.name) showOpened(message.name);
    else {
      if (message.notice?.kind === "error") isLinked = false; // the address's run does not come
      draw(message);
    }
  }

  // Shows what is hidden from a newcomer until the visitor has begun something.
  function unfold() {
    const isFocused = document.activeElement?.matches(".unfold");
    page.removeAttribute("data-first");
    if (isFocused) find(page, "[role=tab][tabindex='0']").focus();
  }

  function asked() {
    tour.end(false);
    unfold();
    forgetError();
    isAsked = true;
    isLinked = false;
    stopsIt = false;
    showStop();
    setTimeout(tellWhetherItIsThere, ANSWERS);
  }

  // Gradio waits forever for a server that has gone.
  async function tellWhetherItIsThere() {
    if (!isAsked || await isThere()) return;
    isAsked = false;
    refused(say("traces.lost"));
    showStop();
  }

  function stop() {
    stopsIt = isAsked;
    going?.stop();
    measuring?.stop();
  }

  /**
   * @param {string} name
   * @param {number} at when it was begun
   */
  function followRun(name, at) {
    if (at < latest) return; // a later one has begun, and ended this one
    latest = at;
    isAsked = false;
    going?.close();
    unfold();
    const own = wait();
    const following = going = follow(name, {
      told: (message) => told(name, own, message),
      lost: (isGone) => lost(own, isGone),
    });
    if (stopsIt) following.stop();
    showStop();
  }

  /** @param {string} name */
  function followMeasurement(name) {
    measuring?.close();
    measuring = follow(name, {
      told({ measurement, ended }) {
        if (part("notice").textContent === say("traces.lost")) forgetError();
        if (ended) measuring = null;
        if (measurement) takeMeasurement(measurement);
      },
      lost(isGone) {
        if (!isGone || !measured) return refused(say("traces.lost"));
        measuring = null;
        takeMeasurement({ ...measured, state: "failed", text: say("view.gone"), share: null });
      },
    });
    showStop();
  }

  /** @param {Measurement} measurement */
  function takeMeasurement(measurement) {
    measured = measurement;
    tabs.take(measurement);
    showStop();
  }

  // What it tells of a run.

  /**
   * @param {string} name
   * @param {number} own its number
   * @param {Message} message
   */
  async function told(name, own, message) {
    if (own !== number) return;
    if (part("notice").textContent === say("traces.lost")) {
      forgetError();
      player.follow();
    }
    if (message.ended) going = null;
    if (message.stored) await showWhole(name, own);
    else if (message.update) shown = name;
    if (message.ended && own === number && restore()) {
      draw(message);
      if (!run.complete) await showWhole(shown, ++number, true);
      return;
    }
    draw(message);
    if (!message.ended || own !== number) return;
    run.end();
    player.proceed();
    showStop();
  }

  /** Shows the run before again if nothing has come of this one. Returns whether it does. */
  function restore() {
    if (page.dataset.state !== "waiting" || !former) return false;
    Object.assign(run, former);
    player.begin(false);
    player.proceed();
    tabs.show(run);
    return true;
  }

  /**
   * @param {number} own
   * @param {boolean} isGone
   */
  function lost(own, isGone) {
    if (own !== number) return;
    refused(say(isGone ? "view.gone" : "traces.lost"));
    if (isGone) going = null;
    // What there is can be played. If more of it comes, it goes on.
    if (!restore()) {
      run.end();
      player.proceed();
      tabs.show(run);
    }
    showStop();
  }

  /**
   * Shows all of a run that the server keeps.
   * @param {string} name
   * @param {number} own its number
   * @param {boolean} again whether the stage has shown it before
   */
  async function showWhole(name, own, again = false) {
    try {
      const message = await fetchWhole(name);
      if (own !== number) return;
      shown = name;
      draw(again ? { update: message.update } : message);
    } catch (error) {
      refuse(error);
    }
  }

  /** @param {Message} message a trace that the visitor has opened */
  function opened(message) {
    tour.end(false);
    unfold();
    toShow = message;
    trigger("upload", { run: message.name }); // fills the controls
  }

  /** @param {string} name */
  function showOpened(name) {
    if (toShow?.name !== name) return;
    going?.stop();
    going?.close();
    going = null;
    number++;
    shown = name;
    draw(toShow);
    toShow = null;
  }

  /**
   * Shows an earlier turn of the conversation again.
   * @param {string} name
   */
  function reopen(name) {
    tour.end(false);
    going?.stop();
    going?.close();
    going = null;
    showWhole(name, ++number);
  }

  // What the tour does with the stage. Address and controls stay as they are.

  function showAll() {
    if (["ended", "recorded"].includes(page.dataset.state ?? "")) return;
    player.begin(false);
    player.proceed();
  }

  /**
   * @param {string} name of a recorded run
   * @returns {Promise<boolean>} whether it is on the stage
   */
  async function lend(name) {
    const asked = number;
    try {
      const { update } = await fetchWhole(name);
      if (asked !== number || !update) return false;
      own = { run: { ...run }, shown };
      run.take(++number, update);
      shown = name;
      put();
      return true;
    } catch (error) {
      refuse(error);
      return false;
    }
  }

  function giveBack() {
    if (!own) return;
    Object.assign(run, own.run, { number: ++number });
    shown = own.shown;
    own = null;
    put();
  }

  function put() {
    player.begin(false);
    player.proceed();
    tabs.show(run);
  }

  /** @param {Message} message */
  function draw({ update, notice }) {
    if (update) take(update, notice?.kind === "recorded");
    if (notice) showNotice(notice);
    if (notice?.kind === "error") isAsked = false;
    showStop();
  }

  function showStop() {
    const { state } = page.dataset;
    const isLive = state === "waiting" || (state === "running" && !run.complete);
    controls.allowStop(isAsked || isLive || measuring !== null);
    tour.allow(!isAsked && !isLive && run.rounds.length > 0, !isLinked);
    reply.hidden = isAsked || isLive || !run.setting?.chat;
  }

  /**
   * @param {Update} update
   * @param {boolean} isOpened whether it is a recorded run that was just opened
   */
  function take(update, isOpened) {
    const { result, corrected } = run.take(number, update);
    if (result === "known") return;
    if (result === "missed") return void showWhole(shown, number);
    if (result === "begun") {
      address.begin(update.link ?? "");
      begin(isOpened);
      turns.show(shown, run.turns);
    }
    for (const token of corrected) text.rewrite(token);
    player.proceed();
    tabs.show(run);
  }

  /** @param {boolean} isOpened */
  function begin(isOpened) {
    showsRace = false;
    const plays = isOpened && !address.wants() && run.recorded
      && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const live = !run.complete;
    if (live) revealStage();
    if (plays) player.play(hasPlayed ? "1" : String(SLOW));
    else player.begin(live && follows);
    hasPlayed = true;
  }

  // Clears the stage for a run that has been asked for; returns its number.
  function wait() {
    tour.end(false);
    showsRace = false;
    if (page.dataset.state !== "waiting") former = { ...run };
    run.begin(++number, {});
    hasPlayed = true;
    page.dataset.state = "waiting";
    showOutcome(null); // nothing yet: what the run before brought is not this one's
    revealStage();
    follows = !isLinked;
    isLinked = false;
    player.begin(follows);
    tabs.show(run);
    return number;
  }

  // On a narrow screen it is below the button that was pressed.
  function revealStage() {
    if (innerWidth <= 800) stage.scrollIntoView({ block: "nearest" });
  }

  /** @param {Notice} notice */
  function showNotice({ kind, text, share }) {
    const line = part("notice");
    line.dataset.kind = kind;
    line.textContent = text;
    const progress = /** @type {HTMLProgressElement} */ (find(page, "progress"));
    progress.hidden = share === null;
    progress.value = share ?? 0;
    controls.markWrong(kind === "error" ? text : "");
  }

  /** @param {string} sentence */
  function refused(sentence) {
    showNotice({ kind: "error", text: sentence, share: null });
  }

  /** @param {unknown} error */
  function refuse(error) {
    refused(sentenceOf(error));
  }

  // What was wrong with the request before says nothing about the next one.
  function forgetError() {
    if (part("notice").dataset.kind === "error") showNotice({ kind: "note", text: "", share: null });
  }

  // The screen.

  /** @param {number | null} visible how many rounds are, where it is not the whole run that is shown */
  function showOutcome(visible) {
    head = screen.headOf(visible);
    if (!showsRace) showHead(head);
    address.takeWanted(pinAt);
  }

  // The race's panel puts its own run there, so that what stands over it is about the same run.
  /** @param {Head} shown */
  function showHead(shown) {
    showsRace = shown !== head;
    screen.showHead(shown);
  }
}
