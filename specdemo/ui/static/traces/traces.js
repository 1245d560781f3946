// @ts-check
// What the server keeps: runs and measurements, which are followed until they have ended, and traces that are opened.

import { h } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";

/** @import { PageMessage } from "../view/messages.d.ts" */

export const TRIES = 30; // when the server is busy

/**
 * Where the server has a run.
 * @param {string} name
 * @param {"" | "report" | "whole" | "trace" | "html" | "stop"} part
 */
export function addressOf(name, part = "") {
  return new URL(["specdemo/runs", name, ...(part ? [part] : [])].join("/"), document.baseURI);
}

/**
 * Lets the visitor choose a file, and sends it.
 * @param {object} page
 * @param {number} page.largest how many bytes the server takes
 * @param {(message: PageMessage) => void} page.opened called with what shows it
 * @param {(sentence: string) => void} page.refused called with what is wrong with the file
 */
export function chooseTrace({ largest, opened, refused }) {
  const input = h("input", { type: "file", accept: ".json" });
  input.addEventListener("change", async () => {
    const file = input.files?.[0];
    if (!file) return;
    const megabytes = (/** @type {number} */ bytes) => bytes / 2 ** 20;
    if (file.size > largest) {
      const size = fixed(megabytes(file.size), 1);
      return refused(say("traces.tooLarge", { size, most: megabytes(largest) }));
    }
    try {
      opened(await send(await file.arrayBuffer()));
    } catch (error) {
      refused(sentenceOf(error));
    }
  });
  input.click();
}

/**
 * @param {ArrayBuffer} body
 * @returns {Promise<PageMessage>} what shows it
 */
async function send(body) {
  const answer = await ask("specdemo/traces", { method: "POST", body }, TRIES);
  const { wrong, ...message } = await answer.json();
  if (wrong) throw new Error(wrong);
  return message;
}

/**
 * @param {string} name
 * @returns {Promise<PageMessage>} what shows all of the run
 */
export async function fetchWhole(name) {
  return (await ask(addressOf(name, "whole"))).json();
}

/**
 * @param {string} name
 * @param {"trace" | "html" | "report"} kind
 * @returns {Promise<{ name: string, text: string }>} the run as a file
 */
export async function fetchFile(name, kind) {
  const answer = await ask(addressOf(name, kind));
  const [, named] = /filename="(.+)"/.exec(answer.headers.get("Content-Disposition") ?? "") ?? [];
  return { name: named ?? `specdemo.${kind}`, text: await answer.text() };
}

/**
 * @param {URL | string} path
 * @param {RequestInit} [how]
 * @param {number} tries how often it is asked again while the server is busy
 * @returns {Promise<Response>} the answer, if it is no refusal
 */
export async function ask(path, how, tries = 0) {
  const answer = await fetch(new URL(path, document.baseURI), how).catch(() => {
    throw new Error(say("traces.lost"));
  });
  if (answer.ok) return answer;
  if (answer.status !== 429 || !tries) throw new Error(await refusalIn(answer));
  const seconds = Number(answer.headers.get("Retry-After")) || 1;
  await new Promise((wake) => setTimeout(wake, (0.5 + Math.random()) * seconds * 1000));
  return ask(path, how, tries - 1);
}

/** The server's sentence. What a proxy answers in its place has none. @param {Response} answer */
async function refusalIn(answer) {
  const [kind] = (answer.headers.get("Content-Type") ?? "").split(";");
  if (kind === "text/plain") return answer.text();
  return (kind === "application/json" && (await answer.json()).detail) || say("traces.lost");
}

/** @param {unknown} error */
export function sentenceOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @typedef {ReturnType<typeof follow>} Following */

const PATIENCE = 20_000; // ms without a connection until the reader is told

/**
 * Follows a run or a measurement: the server tells what is new until it has ended. After a cut, by a proxy or while a
 * laptop slept, the browser asks for the rest by itself.
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
  return { close, stop };

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
