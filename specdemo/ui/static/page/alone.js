// @ts-check
// One run without a server: the file that "Save as" offers, and what a notebook cell shows. page/alone.py writes it.

import { offerSaving } from "../keep/saving.js";
import { makeFigure } from "../lesson/figure.js";
import { makeExercises } from "../runs/exercises.js";
import { find, tellWrong } from "../view/dom.js";
import { Run } from "../view/run.js";
import { makeScreen } from "../view/screen.js";
import { speak } from "../view/words.js";
import { makeHandout } from "./handout.js";
import { makeLecture } from "./lecture.js";
import { makeTabs } from "./tabs.js";

/** @import { PageMessage } from "../view/messages.d.ts" */
/** @import { Catalogue } from "../view/words.js" */

const TITLE = 60; // characters of a prompt in the window's title

/** @param {string} broken what is said where the run cannot be shown */
export function start(broken) {
  followTheme();
  const page = find(document.body, ".run");
  show(page).catch((error) => {
    console.error(error);
    tellWrong(page, broken);
  });
}

/** @param {HTMLElement} page */
async function show(page) {
  speak(document.documentElement.lang, /** @type {Catalogue} */ (await kept("words")));
  const { update } = /** @type {PageMessage} */ (await kept("run"));
  if (!update) throw new Error("the file has no run");
  page.removeAttribute("data-first");
  const run = new Run();
  const screen = makeScreen(page, run, (visible) => screen.showHead(screen.headOf(visible)));
  const { player, reader, text } = screen;
  const figure = makeFigure(find(page, '[data-testid="figure"]'), reader.pinned);
  const exercises = makeExercises(find(page, '[data-testid="exercises"]'), {
    figure, select: (tab) => tabs.select(tab), pin: reader.choose,
  });
  const tabs = makeTabs(page, () => {}, { figure, exercises });
  page.dataset.recorded = ""; // there are no other runs
  makeLecture(page, { player, text, stage: null, tabs, steps: { exercises: exercises.step } });
  makeHandout(page, run, reader, figure);
  offerSaving(page, run);
  run.take(1, update);
  player.begin();
  player.proceed();
  tabs.show(run);
  const asked = [...run.prompt.map((token) => token.text).join("")];
  if (asked.length) document.title = `SpecDemo: ${asked.slice(0, TITLE).join("")}${asked.length > TITLE ? "…" : ""}`;
}

/** What the file has in compressed JSON. @param {"words" | "run"} name */
async function kept(name) {
  const bytes = Uint8Array.from(atob(find(document.body, `#kept-${name}`).textContent ?? ""), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", follow);
  follow();
}
