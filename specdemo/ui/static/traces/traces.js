// @ts-check
// What the server keeps: runs that have ended, and traces that are opened.

import { h } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";

/** @import { Message } from "../view/messages.d.ts" */

const TRIES = 30; // when the server is busy

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
 * @param {(message: Message) => void} page.opened called with what shows it
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
 * @returns {Promise<Message>} what shows it
 */
async function send(body) {
  for (let left = TRIES; ; left--) {
    const answer = await ask(new URL("specdemo/traces", document.baseURI), { method: "POST", body });
    if (answer.status === 429 && left > 0) {
      const seconds = Number(answer.headers.get("Retry-After")) || 1;
      await new Promise((wake) => setTimeout(wake, (0.5 + Math.random()) * seconds * 1000));
    } else if (!answer.ok) {
      throw new Error(await answer.text());
    } else {
      const { wrong, ...message } = await answer.json();
      if (wrong) throw new Error(wrong);
      return message;
    }
  }
}

/**
 * @param {string} name
 * @returns {Promise<Message>} what shows all of the run
 */
export async function fetchWhole(name) {
  const answer = await ask(addressOf(name, "whole"));
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/**
 * @param {string} name
 * @param {"trace" | "html" | "report"} kind
 * @returns {Promise<{ name: string, text: string }>} the run as a file
 */
export async function fetchFile(name, kind) {
  const answer = await ask(addressOf(name, kind));
  if (!answer.ok) throw new Error(await answer.text());
  const [, named] = /filename="(.+)"/.exec(answer.headers.get("Content-Disposition") ?? "") ?? [];
  return { name: named ?? `specdemo.${kind}`, text: await answer.text() };
}

/** Whether the server answers; a proxy in front of it can say that it does not. */
export async function isThere() {
  const answer = fetch(new URL("health", document.baseURI), { signal: AbortSignal.timeout(10_000) });
  return answer.then(({ ok }) => ok, () => false);
}

/**
 * @param {URL} address
 * @param {RequestInit} [how]
 */
async function ask(address, how) {
  try {
    return await fetch(address, how);
  } catch {
    throw new Error(say("traces.lost"));
  }
}

/** @param {unknown} error */
export function sentenceOf(error) {
  return error instanceof Error ? error.message : String(error);
}
