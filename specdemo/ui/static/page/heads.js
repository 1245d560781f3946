// @ts-check
// What stands over the panels, numbers, verdict and whose run it is: of the run on the stage, or, over the race's
// panel, of the race's own run, so that it is about the same run as what is below it.

/** @import { Head } from "../view/messages.d.ts" */
/** @import { Screen } from "../view/screen.js" */
/** @typedef {ReturnType<typeof makeHeads>} Heads */

/**
 * @param {HTMLElement} page
 * @param {Screen} screen
 */
export function makeHeads(page, screen) {
  /** @type {Head} */
  let ofStage = { whose: "", numbers: {}, verdict: "", tone: "neutral" };
  /** @type {Head | null} */
  let ofRace = null;
  let showsRace = false;
  return { selected, raced, shown, leaveRace, ofRaceShown };

  /** @param {string} tab */
  function selected(tab) {
    show((tab === "race" && ofRace) || ofStage);
  }

  /** @param {Head} head of the race's run */
  function raced(head) {
    ofRace = head;
    if (page.dataset.tab === "race") show(head);
  }

  /** @param {number | null} visible how many rounds are, where it is not the whole run that is shown */
  function shown(visible) {
    ofStage = screen.headOf(visible);
    if (!showsRace) show(ofStage);
  }

  // Another run comes onto the stage, and its head is to be seen.
  function leaveRace() {
    showsRace = false;
  }

  /** @returns {Head | null} the race's, while it is what is shown */
  function ofRaceShown() {
    return showsRace ? ofRace : null;
  }

  /** @param {Head} head */
  function show(head) {
    const isOfRace = showsRace || head !== ofStage;
    showsRace = head !== ofStage;
    screen.showHead(head);
    if (isOfRace) page.dispatchEvent(new Event("head"));
  }
}
