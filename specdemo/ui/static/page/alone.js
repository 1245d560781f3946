// @ts-check
// One recorded run without a server: what a notebook cell shows. page/notebook.py writes the document.

import { offerSaving } from "../keep/saving.js";
import { find } from "../view/dom.js";
import { Run } from "../view/run.js";
import { makeScreen } from "../view/screen.js";
import { speak } from "../view/words.js";

/** @import { Update } from "../view/messages.js" */
/** @import { Catalogue } from "../view/words.js" */

/**
 * @param {object} told
 * @param {string} told.language
 * @param {Catalogue} told.words of that language
 * @param {Update} told.update the whole run
 */
export function start({ language, words, update }) {
  speak(language, words);
  followTheme();
  const page = find(document.body, ".run");
  page.removeAttribute("data-first");
  const run = new Run();
  const { player, text, headOf, showHead } = makeScreen(page, run, (visible) => showHead(headOf(visible)));
  offerSaving(page, run, text);
  run.take(1, update);
  player.begin();
  player.proceed();
}

function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", follow);
  follow();
}
