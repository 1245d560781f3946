// @ts-check
// What every measuring instrument has: buttons that ask the server to measure, one that stops it, and what
// goes on meanwhile.

import { escaped, find, make } from "../view/dom.js";
import { durationInWords } from "../view/format.js";
import { say } from "../view/words.js";

/** @import { Measurement } from "../view/messages.d.ts" */
/** @import { Guess } from "./guessing.js" */
/** @typedef {{ kind: Measurement["kind"], prompts?: "this" | "set", trial?: string, guesses?: number, stop?: number, works?: string } & Partial<Guess>} Request */
/**
 * @typedef {object} Server
 * @property {(request: Request) => void} measure
 * @property {() => void} stop
 * @property {(kind: Measurement["kind"]) => void} forget what is not to be shown again
 */
/** @typedef {ReturnType<typeof makeMeasuring>} Measuring */

const markup = () => `
  <button type="button" class="end" disabled>${escaped(say("measuring.stop"))}</button>
  <p class="takes"></p>
  <div class="going-on"><p role="status"></p>
    <progress max="1" value="0" aria-label="${escaped(say("measuring.measured"))}" hidden></progress></div>`;

/**
 * @param {HTMLElement} place
 * @param {Server} server
 * @param {Record<string, Request>} requests by the words of the button that makes them
 * @param {string} what it measures, until it does
 */
export function makeMeasuring(place, server, requests, what) {
  place.innerHTML = markup();
  const end = /** @type {HTMLButtonElement} */ (find(place, ".end"));
  const progress = /** @type {HTMLProgressElement} */ (find(place, "progress"));
  const line = find(place, ".going-on p");
  const buttons = Object.entries(requests).map(([words, request]) => {
    const button = make("button", words);
    button.type = "button";
    button.addEventListener("click", () => server.measure(request));
    end.before(button);
    return button;
  });
  end.addEventListener("click", () => server.stop());
  let measured = false;
  line.textContent = what;
  return { take, describe, foretell, buttons };

  /**
   * What each button takes, by the pace of a run of this machine.
   * @param {boolean} recorded whether the run may be another machine's, or of another day
   * @param {(number | undefined)[]} seconds undefined where it is not known
   */
  function foretell(recorded, ...seconds) {
    const [time, other] = seconds.map((one) => one !== undefined && !recorded ? durationInWords(one) : "");
    find(place, ".takes").textContent = time && say(other ? "measuring.bothTake" : "measuring.takes", { time, other });
  }

  /** @param {string} words what it measures, until it does */
  function describe(words) {
    if (!measured) line.textContent = words;
  }

  /** @param {Measurement} measurement */
  function take({ state, text, share, left }) {
    const busy = isGoingOn(state);
    measured = true;
    for (const button of buttons) button.disabled = busy;
    end.disabled = !busy;
    find(place, ".takes").hidden = busy;
    progress.hidden = !busy || share === null;
    progress.value = share ?? 0;
    line.dataset.state = state;
    const rest = !busy || left === null ? "" : say("measuring.left", { time: durationInWords(left) });
    line.textContent = [text, rest].filter(Boolean).join(" · ");
  }
}

/** @param {Measurement["state"]} state */
export function isGoingOn(state) {
  return state === "waiting" || state === "running";
}
