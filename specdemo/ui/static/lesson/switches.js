// @ts-check
// The mistakes that can be switched on in the figure, and why each is one.

import { appendAll, find, make } from "../view/dom.js";
import { say } from "../view/words.js";
import { MISTAKES, isExact } from "./identity.js";
import { MISTAKE_WORDS } from "./mistakes.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Mistake, Trial } from "./identity.js" */

/**
 * @param {HTMLElement} panel
 * @param {Chosen} chosen
 * @param {() => void} changed called when one is switched
 */
export function makeSwitches(panel, chosen, changed) {
  const [group, whys] = [find(panel, ".mistakes"), find(panel, ".whys")];
  let temperatureBefore = 1; // the mistake that is about greedy decoding
  const label = say("figure.mistakes.label");
  group.setAttribute("aria-label", label);
  group.append(make("span", label));
  const buttons = MISTAKES.map((mistake) => {
    const button = make("button", say(MISTAKE_WORDS[mistake][0]));
    button.type = "button";
    button.dataset.mistake = mistake;
    button.addEventListener("click", () => turn(mistake));
    return button;
  });
  appendAll(group, buttons);
  return { draw };

  /** @param {Mistake} mistake */
  function turn(mistake) {
    const { mistakes, shaping } = chosen;
    if (mistakes.has(mistake)) mistakes.delete(mistake);
    else mistakes.add(mistake);
    if (mistake === "soft" && mistakes.has("soft")) {
      temperatureBefore = shaping.temperature || 1;
      shaping.temperature = 0;
    } else if (mistake === "soft") {
      shaping.temperature = temperatureBefore;
    }
    changed();
  }

  /** @param {Trial} trial */
  function draw(trial) {
    const made = MISTAKES.filter((mistake) => chosen.mistakes.has(mistake));
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(made.includes(MISTAKES[at]))));
    const sentences = made.length ? made.map((mistake) => say(MISTAKE_WORDS[mistake][1])) : [say("figure.mistakes.none")];
    panel.toggleAttribute("data-mistaken", made.length > 0);
    if (made.length && isExact(trial)) sentences.push(say("figure.mistakes.harmless"));
    const shown = [...whys.children].map(({ textContent }) => textContent).join();
    if (shown === sentences.join()) return; // it is read aloud
    whys.replaceChildren();
    appendAll(whys, sentences.map((why) => make("p", why)));
  }
}
