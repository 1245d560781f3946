// @ts-check
// Which run is on the stage: one that the server tells of, one that it keeps, or one that is lent to the tour.

import { fetchWhole } from "../traces/traces.js";
import { find } from "../view/dom.js";
import { say } from "../view/words.js";

/** @import { PageMessage, Update } from "../view/messages.d.ts" */
/** @import { Run } from "../view/run.js" */
/** @import { Screen } from "../view/screen.js" */
/** @import { Address } from "./address.js" */
/** @import { Notice } from "./notice.js" */
/** @import { Tabs } from "./tabs.js" */
/** @typedef {ReturnType<typeof makeStage>} Stage */

export const RECORDED = "first"; // the name of the run that every page shows at first

/**
 * @param {HTMLElement} page
 * @param {Run} run on the stage
 * @param {Screen} screen
 * @param {object} around
 * @param {Address} around.address
 * @param {Notice} around.notice
 * @param {Tabs} around.tabs
 * @param {(isWrong?: boolean) => void} around.changed called when the page shows something else; isWrong: an error
 */
export function makeStage(page, run, { stage, text, player, headOf, showHead }, { address, notice, tabs, changed }) {
  let shown = RECORDED; // the name of the run on the stage
  let number = 0; // of what the stage shows or waits for; it grows
  let hasPlayed = false;
  let isNew = false; // what the panels have not shown yet
  /** What the stage showed before it was cleared for a run that has not begun. @type {Partial<Run> | null} */
  let former = null;
  /** What the stage showed before it was lent to the tour. @type {{ run: Partial<Run>, shown: string } | null} */
  let kept = null;
  return { name: () => shown, isFor, clear, told, lost, draw, drawn, show, open, showAll, lend, giveBack };

  /** Whether it still shows or waits for this. @param {number} one what `clear` has returned */
  function isFor(one) {
    return one === number;
  }

  // A run that has been asked for.

  /** Clears the stage for it; returns its number. */
  function clear() {
    if (page.dataset.state !== "waiting") former = { ...run };
    run.begin(++number, {});
    hasPlayed = true;
    page.dataset.state = "waiting";
    showHead(headOf(null)); // nothing yet: what the run before brought is not this one's
    reveal();
    player.begin();
    tabs.show(run);
    return number;
  }

  /**
   * What the server tells of it, while the stage is for it.
   * @param {string} name
   * @param {number} own its number
   * @param {PageMessage} message
   */
  async function told(name, own, message) {
    if (notice.forgetLost()) player.follow();
    if (message.stored) await fetchAndDraw(name, own);
    else if (message.update) shown = name;
    if (message.ended && own === number && restore()) {
      draw(message);
      if (!run.complete) await fetchAndDraw(shown, ++number, true);
      return;
    }
    draw(message);
    if (!message.ended || own !== number) return;
    run.end();
    player.proceed();
    changed();
  }

  /** The server tells no more of it. @param {boolean} isGone whether it has it no more; else it cannot be reached */
  function lost(isGone) {
    if (isGone) notice.refuse(say("view.gone"));
    else notice.refuse(say("traces.lost"));
    // What there is can be played. If more of it comes, it goes on.
    if (!restore()) {
      run.end();
      put();
    }
    changed();
  }

  /** Shows the run before again if nothing has come of this one. Returns whether it does. */
  function restore() {
    if (page.dataset.state !== "waiting" || !former) return false;
    Object.assign(run, former);
    player.begin();
    put();
    return true;
  }

  // A run that there is already.

  /**
   * Shows a run that the server keeps.
   * @param {string} name
   */
  function show(name) {
    return fetchAndDraw(name, ++number);
  }

  /**
   * Shows what has been fetched already.
   * @param {string} name
   * @param {PageMessage} message with all of the run
   */
  function open(name, message) {
    number++;
    shown = name;
    draw(message);
  }

  /**
   * @param {string} name
   * @param {number} own its number
   * @param {boolean} again whether the stage has shown it before
   */
  async function fetchAndDraw(name, own, again = false) {
    try {
      const message = await fetchWhole(name);
      if (own !== number) return;
      shown = name;
      draw(again ? { update: message.update } : message);
    } catch (error) {
      notice.refuse(error);
    }
  }

  // What comes of it.

  /** @param {PageMessage} message */
  function draw({ update, notice: line }) {
    if (update) take(update, line?.kind === "recorded");
    if (line) notice.show(line);
    changed(line?.kind === "error");
  }

  /**
   * @param {Update} update
   * @param {boolean} isOpened whether it is a recorded run that was just opened
   */
  function take(update, isOpened) {
    const { result, corrected } = run.take(number, update);
    if (result === "known") return;
    if (result === "missed") return void fetchAndDraw(shown, number);
    if (result === "begun") {
      address.begin(update.link ?? "");
      begin(isOpened);
    }
    for (const token of corrected) text.rewrite(token);
    put();
  }

  /** @param {boolean} isOpened */
  function begin(isOpened) {
    introduce();
    const isAtOnce = hasPlayed && isExample();
    const plays = isOpened && !isAtOnce && !address.wants() && run.recorded
      && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!run.complete) reveal();
    if (plays) player.play(false);
    else player.begin();
    hasPlayed = true;
  }

  // What the page is about, by the rule of the run; over an example, what to look at.
  function introduce() {
    const about = run.setting?.lossy ? "page.introduction_of_lossy" : "page.introduction";
    find(page, ".intro .words").textContent = say(isExample() ? `recorded.${shown}.about` : about);
    find(page, ".run-here").hidden = !isExample();
  }

  function isExample() {
    return (page.dataset.recorded ?? "").split(" ").includes(shown);
  }

  function put() {
    isNew = true;
    player.proceed();
  }

  // The player has drawn something: no more often than that, the panels show what is new.
  function drawn() {
    if (isNew) tabs.show(run);
    isNew = false;
  }

  // On a narrow screen it is below the button that was pressed.
  function reveal() {
    if (innerWidth <= 800) stage.scrollIntoView({ block: "nearest" });
  }

  // What the tour does with the stage. Address and controls stay as they are.

  function showAll() {
    if (["ended", "recorded"].includes(page.dataset.state ?? "")) return;
    player.begin();
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
      kept = { run: { ...run }, shown };
      run.take(++number, update);
      shown = name;
      player.begin();
      put();
      return true;
    } catch (error) {
      notice.refuse(error);
      return false;
    }
  }

  function giveBack() {
    if (!kept) return;
    Object.assign(run, kept.run, { number: ++number });
    shown = kept.shown;
    kept = null;
    player.begin();
    put();
  }
}
