// @ts-check
// Traces go to the server, and large texts come from it, by a route of their own.

/** @import { Update } from "./messages.js" */

const TRIES = 30; // when the server is busy
const address = () => new URL("specdemo/trace", document.baseURI);

/**
 * Lets the visitor choose a file, and sends it.
 * @param {object} page
 * @param {number} page.largest how many bytes the server takes
 * @param {(name: string) => void} page.opened called with the name under which the server has it
 * @param {(sentence: string) => void} page.refused called with what is wrong with the file
 */
export function chooseTrace({ largest, opened, refused }) {
  const input = document.createElement("input");
  input.type = "file";
  input.accept = ".json";
  input.addEventListener("change", async () => {
    const file = input.files?.[0];
    if (!file) return;
    const megabytes = (/** @type {number} */ bytes) => bytes / 2 ** 20;
    if (file.size > largest) {
      const size = megabytes(file.size).toFixed(1);
      return refused(`The file has ${size} MB, and at most ${megabytes(largest)} MB can be opened.`);
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
 * @returns {Promise<string>} the name under which the server has it
 */
async function send(body) {
  for (let left = TRIES; ; left--) {
    const answer = await fetch(address(), { method: "POST", body });
    if (answer.status === 429 && left > 0) {
      const seconds = Number(answer.headers.get("Retry-After")) || 1;
      await new Promise((wake) => setTimeout(wake, (0.5 + Math.random()) * seconds * 1000));
    } else if (!answer.ok) {
      throw new Error(await answer.text());
    } else {
      const { name, wrong } = await answer.json();
      if (wrong) throw new Error(wrong);
      return name;
    }
  }
}

/**
 * @param {string} name
 * @returns {Promise<string>} the text that the server keeps under the name
 */
export async function fetchText(name) {
  const from = address();
  from.searchParams.set("name", name);
  const answer = await fetch(from);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.text();
}

/**
 * @param {string} name
 * @returns {Promise<Update>}
 */
export async function fetchUpdate(name) {
  return JSON.parse(await fetchText(name));
}

/** @param {unknown} error */
export function sentenceOf(error) {
  if (error instanceof TypeError) return "The server cannot be reached. Try again.";
  return error instanceof Error ? error.message : String(error);
}
