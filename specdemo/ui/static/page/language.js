// @ts-check
// The visitor's language: the address's (?lang=de), else the one chosen before, else the browser's first that
// there is, else English. The server does not know what was chosen before, so it is put into the address. The page is
// then loaded again, makes the run of its address again, and has what stood in the controls.

import { keep, recall } from "../view/dom.js";
import { say, speak } from "../view/words.js";

export const KEPT = "specdemo.language"; // where a choice is kept in the browser
const NAME = "lang"; // in the address
const HELD = "specdemo.held"; // what the controls held, while the page is loaded again

/**
 * Loads the words.
 * @param {URL} folder from which the scripts come
 * @param {string[]} languages that there are; the first where no other is asked for
 */
export async function prepare(folder, languages) {
  const address = new URL(location.href);
  const asked = known(languages, [address.searchParams.get(NAME)]);
  const usual = known(languages, navigator.languages) ?? languages[0];
  const tag = asked ?? known(languages, [recall("localStorage", KEPT)]) ?? usual;
  if (!asked && tag !== usual) {
    go(tag); // the server has written its words in the usual one
    return new Promise(() => {});
  }
  const answer = await fetch(new URL(`words/${tag}.json`, folder));
  speak(tag, await answer.json());
  document.documentElement.lang = tag;
}

/**
 * Lets the visitor choose the language.
 * @param {HTMLElement} control a select with the languages
 * @param {() => Promise<object>} hold gives what the controls hold
 */
export function offerLanguages(control, hold) {
  const select = /** @type {HTMLSelectElement} */ (control);
  select.value = document.documentElement.lang;
  select.setAttribute("aria-label", say("view.language"));
  select.addEventListener("change", async () => {
    keep("localStorage", KEPT, select.value);
    keep("sessionStorage", HELD, await hold());
    go(select.value);
  });
}

/** What `hold` gave where the page was loaded again for another language, else null. */
export function takeHeld() {
  const held = recall("sessionStorage", HELD);
  keep("sessionStorage", HELD, null);
  return held;
}

/**
 * Loads the page again in this language. The address holds all else that is to be shown.
 * @param {string} tag
 */
function go(tag) {
  const address = new URL(location.href);
  address.searchParams.set(NAME, tag);
  location.replace(address);
}

/**
 * The first of these tags that stands for one of the languages.
 * @param {string[]} languages
 * @param {readonly (string | null)[]} tags such as "de-AT"
 */
function known(languages, tags) {
  return tags.map((tag) => (tag ?? "").toLowerCase().split("-")[0]).find((tag) => languages.includes(tag));
}
