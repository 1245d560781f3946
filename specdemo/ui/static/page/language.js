// @ts-check
// The visitor's language: the address's (?lang=de), else the one chosen before, else the browser's first that
// there is, else English.

import { speak } from "../view/words.js";

export const KEPT = "specdemo.language"; // where a choice is kept in the browser

/**
 * Loads the words.
 * @param {URL} folder from which the scripts come
 * @param {string[]} languages that there are; the first where no other is asked for
 */
export async function prepare(folder, languages) {
  const tag = chosen(languages);
  const answer = await fetch(new URL(`words/${tag}.json`, folder));
  speak(tag, await answer.json());
  document.documentElement.lang = tag;
}

/** @param {string[]} languages */
function chosen(languages) {
  const asked = [new URLSearchParams(location.search).get("lang"), kept(), ...navigator.languages];
  const tags = asked.map((tag) => (tag ?? "").toLowerCase().split("-")[0]);
  return tags.find((tag) => languages.includes(tag)) ?? languages[0];
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null; // a frame without storage
  }
}
