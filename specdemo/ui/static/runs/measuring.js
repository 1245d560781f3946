// @ts-check
// What every measuring instrument has: buttons that ask the server to measure, one that stops it, and what
// goes on meanwhile.

import { fill, h } from "../view/dom.js";
import { durationInWords } from "../view/format.js";
import { say } from "../view/words.js";

/** @import { Measurement } from "../view/messages.d.ts" */
/** @import { Guess } from "./guess.js" */
/** @typedef {{ kind: Measurement["kind"], prompts?: "this" | "set", trial?: string, guesses?: number, stop?: number, works?: string } & Partial<Guess>} Request */
/**
 * @typedef {object} Server
 * @property {(request: Request) => void} measure
 * @property {() => void} stop
 */
/** @typedef {ReturnType<typeof makeMeasuring>} Measuring */

/**
 * @param {HTMLElement} place
 * @param {Server} server
 * @param {Record<string, Request>} requests by the words of the button that makes them
 * @param {string} what it measures, until it does
 */
export function makeMeasuring(place, server, requests, what) {
  const buttons = Object.entries(requests).map(([words, request]) => (
    h("button", { onclick: () => server.measure(request) }, words)));
  const end = h("button", { class: "end", disabled: true, onclick: () => server.stop() }, say("measuring.stop"));
  const line = h("p", { role: "status" }, what);
  const progress = h("progress", { max: 1, value: 0, "aria-label": say("measuring.measured"), hidden: true });
  let measured = false;
  fill(place, buttons, end, h("div", { class: "going-on" }, line, progress));
  return { take, describe, buttons };

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
