// @ts-check
// What the page is made of, and what of it is to know of what.

import { makeAdvise } from "../runs/advise.js";
import { makeCompare } from "../runs/compare.js";
import { makeExercises } from "../runs/exercises.js";
import { makeFigure } from "../lesson/figure.js";
import { makeGamma } from "../runs/gamma.js";
import { makeGuess } from "../runs/guess.js";
import { makeRace } from "../runs/race.js";
import { makeTrials } from "../runs/trials.js";
import { makeWorlds } from "../runs/worlds.js";
import { offerSaving } from "../keep/saving.js";
import { chooseTrace, fetchFile, fetchWhole } from "../traces/traces.js";
import { find, saveFile } from "../view/dom.js";
import { makeExactness } from "../view/exactness.js";
import { makePositions } from "../view/positions.js";
import { Run } from "../view/run.js";
import { makeScreen } from "../view/screen.js";
import { makeAddress } from "./address.js";
import { controlsHold, watchControls } from "./controls.js";
import { addStart, addWayOut, isFramed } from "./framed.js";
import { offerLanguages, takeHeld } from "./language.js";
import { makeHandout } from "./handout.js";
import { makeLecture } from "./lecture.js";
import { makeNotice } from "./notice.js";
import { makeRequests } from "./requests.js";
import { RECORDED, makeStage } from "./stage.js";
import { makeTabs } from "./tabs.js";
import { makeTour } from "./tour.js";

/** @import { Request } from "../runs/measuring.js" */
/** @import { Stage } from "./stage.js" */
/** @import { Tabs } from "./tabs.js" */

/**
 * Runs once, when the component appears.
 * @param {object} gradio what Gradio gives to a component's script
 * @param {HTMLElement} gradio.element
 * @param {(event: string) => void} gradio.trigger
 */
export function start({ element, trigger }) {
  const page = find(element, ".run");
  const part = (/** @type {string} */ id) => find(page, `[data-testid="${id}"]`);
  const unfoldPage = () => unfold(page);
  const run = new Run(); // on the stage
  const screen = makeScreen(page, run, (visible) => {
    screen.showHead(screen.headOf(visible));
    stage.drawn();
    address.takeWanted(screen.pinAt);
  });
  const { text, reader, player } = screen;
  const server = {
    measure: (/** @type {Request} */ request) => requests.begin(request),
    stop: () => requests.stop(),
    choose: (/** @type {number} */ gamma) => controlsHold(trigger, ({ draft_with: way }) => (
      gamma ? { draft_with: way === "none" ? "model" : way, gamma, gamma_auto: false } : { draft_with: "none" })),
  };
  const worlds = makeWorlds(part("worlds"), server);
  const address = makeAddress(RECORDED, () => page.dataset.tab ?? "text");
  const selected = (/** @type {string} */ tab) => {
    if (tab !== "worlds") worlds.leave();
    address.write();
  };
  const race = makeRace(part("race"), server);
  const query = new URLSearchParams(location.search);
  const figure = makeFigure(part("figure"), reader.pinned);
  const exercises = makeExercises(part("exercises"), {
    figure,
    select: (tab) => tabs.select(tab),
    pin(token) {
      stage.showAll();
      reader.choose(token);
    },
  }, query.get("tab") === "exercises" ? query.get("hall") ?? "" : "");
  const tabs = makeTabs(page, selected, {
    worlds,
    positions: makePositions(page, part("positions"), text),
    exactness: makeExactness(part("exactness")),
    figure,
    gamma: makeGamma(part("gamma"), server),
    race,
    compare: makeCompare(part("compare"), server),
    advise: makeAdvise(part("advise"), server, (page.dataset.works ?? "").split(" "), (error) => notice.refuse(error)),
    trials: makeTrials(part("trials"), server),
    guess: makeGuess(part("guess"), server),
    exercises,
  });
  page.addEventListener("pin", (event) => address.pin(/** @type {CustomEvent} */ (event).detail));
  const notice = makeNotice(page, (sentence) => controls.markWrong(sentence));
  const controls = watchControls({
    copy: async () => notice.show({ kind: "wait", text: await address.copy(), share: null }),
    run: () => requests.askForRun("run"),
    stop: server.stop,
    save: () => fetchFile(stage.name(), "trace").then(({ name, text }) => saveFile(name, text), notice.refuse),
    reply: () => requests.askForRun("reply"),
    open() {
      const largest = Number(page.dataset.largest);
      chooseTrace({ largest, opened: requests.opened, refused: notice.refuse });
    },
    record(name) {
      tabs.select("text"); // an example is about what is seen there
      fetchWhole(name).then((message) => requests.opened({ ...message, name }), notice.refuse);
    },
  });
  makeHandout(page, run, reader, figure);
  const stage = makeStage(page, run, screen, {
    address, notice, tabs, changed: (isWrong) => requests.changed(isWrong),
  });
  const lecture = makeLecture(page, {
    player, text, stage, tabs, steps: { worlds: worlds.step, race: race.step, exercises: exercises.step },
  });
  const tour = makeTour(page, {
    run,
    pinned: reader.pinned,
    pin: reader.choose,
    unpin: () => page.dispatchEvent(new Event("unpin")),
    showAll: stage.showAll,
    lend: stage.lend,
    giveBack: stage.giveBack,
    select: tabs.select,
    unfold: unfoldPage,
  });
  const requests = makeRequests(page, run, trigger, {
    stage, notice, tabs, tour, allowStop: controls.allowStop, unfold: unfoldPage,
  });
  offerLanguages(find(page, ".language"), () => controlsHold(trigger));
  offerSaving(page, run, () => fetchFile(stage.name(), "html"));
  for (const begins of [".replay", ".timeline", ".unfold"]) find(page, begins).addEventListener("click", unfoldPage);
  if (isFramed()) addWayOut(find(page, ".foot"));
  if (worlds.isLinked && !isFramed()) {
    unfoldPage();
    tabs.select("worlds");
  }
  const held = takeHeld();
  showLinked(page, stage, tabs, async (asked) => {
    await requests.begin({ kind: "link", query: asked });
    if (held) controlsHold(trigger, () => held);
    if (!query.has("lecture") || isFramed()) return;
    unfoldPage();
    lecture.enter(query.get("lecture"));
  });
  address.ready();
}

/** Shows what is hidden from a newcomer until the visitor has begun something. @param {HTMLElement} page */
function unfold(page) {
  const isFocused = document.activeElement?.matches(".unfold");
  page.removeAttribute("data-first");
  if (isFocused) find(page, "[role=tab][tabindex='0']").focus();
}

/**
 * Shows a recorded run, and then what the address asks for.
 * @param {HTMLElement} page
 * @param {Stage} stage
 * @param {Tabs} tabs
 * @param {(query: string) => void} asks
 */
function showLinked(page, stage, tabs, asks) {
  const query = new URLSearchParams(location.search);
  if (isFramed()) {
    unfold(page);
    query.delete("guess"); // the game is on the whole page
  }
  const [runs, plays] = [query.get("run") === "1", query.get("guess") === "1"];
  if (plays) {
    unfold(page);
    tabs.select("guess"); // the server begins the game
  }
  const tab = query.get("tab") ?? "text";
  if (tab !== "text" && !isFramed() && page.querySelector(`[role="tab"][data-tab="${CSS.escape(tab)}"]`)) {
    unfold(page);
    tabs.select(tab);
  }
  const recorded = (page.dataset.recorded ?? "").split(" ");
  const linked = recorded.find((name) => name === query.get("trace") && !runs && !plays) ?? RECORDED;
  if (linked !== RECORDED) unfold(page);
  const ask = () => asks(query.toString());
  // Only then, since what is wrong with it stays on the page.
  stage.show(linked).then(() => {
    if (isFramed() && runs) addStart(page, ask); // the page around a frame must not start runs in its visitors' names
    else ask();
  });
}
