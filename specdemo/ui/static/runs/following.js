// @ts-check
// Follows a run or a measurement: the server tells what is new until it has ended. After a cut, by a proxy or
// while a laptop slept, the browser asks for the rest by itself.

import { addressOf } from "../traces/traces.js";

/** @import { PageMessage } from "../view/messages.d.ts" */
/** @typedef {ReturnType<typeof follow>} Following */

const PATIENCE = 20_000; // ms without a connection until the reader is told

/**
 * @param {string} name
 * @param {object} reader
 * @param {(message: PageMessage) => void} reader.told
 * @param {(gone: boolean) => void} reader.lost called when the server cannot be reached for long, or (gone) has it
 * no more
 */
export function follow(name, { told, lost }) {
  const source = new EventSource(addressOf(name));
  let timer = 0;
  source.addEventListener("message", ({ data }) => {
    /** @type {PageMessage} */
    const message = JSON.parse(data);
    if (message.ended) close();
    told(message);
  });
  source.addEventListener("open", () => {
    clearTimeout(timer);
    timer = 0;
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) { // also when the page is left, which then still says so
      clearTimeout(timer);
      lost(true);
    } else if (!timer) {
      timer = setTimeout(() => lost(false), PATIENCE);
    }
  });
  addEventListener("pagehide", leave);
  return { name, close, stop };

  // It goes on in the server for a while.
  function close() {
    clearTimeout(timer);
    removeEventListener("pagehide", leave);
    source.close();
  }

  // The run's end still arrives. If the server cannot be reached, `lost` is called.
  function stop() {
    fetch(addressOf(name, "stop"), { method: "POST" }).catch(() => {});
  }

  function leave() {
    navigator.sendBeacon(addressOf(name, "stop"));
  }
}
