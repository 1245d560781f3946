// @ts-check
// The mistakes that can be switched on, in the figure and in the trials, and why each is one.

import { append, fill, find, h } from "../view/dom.js";
import { say } from "../view/words.js";
import { MISTAKES, isExact } from "./identity.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Mistake, Trial } from "./identity.js" */

/** A button for each mistake. @param {(mistake: Mistake) => void} turn */
export function switchesOf(turn) {
  return MISTAKES.map((mistake) => (
    h("button", { "data-mistake": mistake, onclick: () => turn(mistake) }, say(`figure.mistakes.${mistake}.name`))));
}

/**
 * @param {HTMLElement} panel
 * @param {Chosen} chosen
 * @param {() => void} changed called when one is switched
 */
export function makeSwitches(panel, chosen, changed) {
  const [group, whys] = [find(panel, ".mistakes"), find(panel, ".whys")];
  let temperatureBefore = 1; // the mistake that is about greedy decoding
  const label = say("figure.mistakes.label");
  const buttons = switchesOf(turn);
  group.setAttribute("aria-label", label);
  append(group, [h("span", {}, label), buttons]);
  return { draw };

  /** @param {Mistake} mistake */
  function turn(mistake) {
    const { mistakes } = chosen;
    if (mistakes.has(mistake)) mistakes.delete(mistake);
    else mistakes.add(mistake);
    if (mistake === "soft" && mistakes.has("soft")) {
      temperatureBefore = chosen.temperature || 1;
      chosen.temperature = 0;
    } else if (mistake === "soft") {
      chosen.temperature = temperatureBefore;
    }
    changed();
  }

  /** @param {Trial} trial */
  function draw(trial) {
    const made = MISTAKES.filter((mistake) => chosen.mistakes.has(mistake));
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(made.includes(MISTAKES[at]))));
    const sentences = made.length ? made.map((mistake) => say(`figure.mistakes.${mistake}.why`)) : [say("figure.mistakes.none")];
    panel.toggleAttribute("data-mistaken", made.length > 0);
    if (made.length && isExact(trial)) sentences.push(say("figure.mistakes.harmless"));
    const shown = [...whys.children].map(({ textContent }) => textContent).join();
    if (shown === sentences.join()) return; // it is read aloud
    fill(whys, sentences.map((why) => h("p", {}, why)));
  }
}
