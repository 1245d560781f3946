// @ts-check
// The screen: text, timeline, inspector, reader and player of one run, tied together, and the head over them
// (numbers, verdict, whose run it is). The page and a notebook cell have the same.

import { makeCheck } from "./check.js";
import { around, find, h, makeMenu, neighbour, write } from "./dom.js";
import { makeInspector } from "./inspector.js";
import { makePlayer } from "./player.js";
import { makeReader } from "./reader.js";
import { numbersAfter, soFarInWords } from "./replay.js";
import { makeText } from "./text.js";
import { makeTimeline } from "./timeline.js";

/** @import { Reader } from "./reader.js" */
/** @import { Run } from "./run.js" */
/** @typedef {ReturnType<typeof makeScreen>} Screen */
/** @typedef {Pick<Run, "whose" | "numbers" | "verdict" | "tone">} Head what stands over the panels */

/**
 * @param {HTMLElement} page the frame that page/frame.py writes
 * @param {Run} run
 * @param {(visible: number | null) => void} showOutcome is told how many rounds are visible; null: all
 */
export function makeScreen(page, run, showOutcome) {
  const part = (/** @type {string} */ id) => find(page, `[data-testid="${id}"]`);
  const stage = part("stage");
  const [figures, copies] = ["[data-number]", "[data-copy]"].map((some) => [...page.querySelectorAll(some)]);
  const text = makeText(stage);
  const timeline = makeTimeline(part("timeline"), {
    jump: (index) => reader.jump(index),
    point: (index) => reader.pointAtRound(index),
  });
  const inspector = makeInspector(
    part("inspector"), () => run.setting, text.fateNow, (token) => reader.chooseInTree(token),
  );
  find(part("inspector"), ".tree").dataset.testid = "tree";
  /** @type {Reader} */
  const reader = makeReader(page, stage, text, inspector, timeline);
  const check = makeCheck(part("inspector"));
  const player = makePlayer(page, run, { text, timeline, reader }, (visible) => {
    check.show(run);
    showOutcome(visible);
  });
  part("metrics").addEventListener("keydown", moveAlongNumbers);
  makeMenu(find(page, ".all-numbers")); // it lies over the text
  part("legend").addEventListener("click", hideOrShow);
  find(page, ".to-end").addEventListener("click", text.follow);
  return { stage, text, reader, player, headOf, showHead, pinAt };

  /**
   * @param {number | null} visible how many rounds are, where it is not the whole run that is shown
   * @returns {Head}
   */
  function headOf(visible) {
    const { whose, numbers, verdict, tone } = run;
    if (visible === null) return { whose, numbers, verdict, tone };
    const soFar = { ...numbersAfter(run.rounds, visible), seed: numbers.seed };
    return { whose, numbers: soFar, verdict: soFarInWords(run.rounds, visible), tone: "neutral" };
  }

  /** @param {Head} shown */
  function showHead(shown) {
    showWordsOfRun();
    showNumbers(shown.numbers);
    write(part("whose"), shown.whose);
    const line = part("verdict");
    line.dataset.tone = shown.tone;
    const [first, rest] = inTwo(shown.verdict);
    if (line.textContent !== shown.verdict) line.replaceChildren(first, rest);
  }

  // Some words and numbers are for runs of a server only, some for those of the engine, and some for greedy runs.
  function showWordsOfRun() {
    const { served, greedy } = { served: Boolean(run.setting?.served), greedy: Boolean(run.setting?.greedy) };
    if (page.hasAttribute("data-served") === served && page.hasAttribute("data-greedy") === greedy) return;
    page.toggleAttribute("data-served", served);
    page.toggleAttribute("data-greedy", greedy);
    for (const element of /** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll("[data-served-words], [data-greedy-words]"))) {
      const { servedWords, greedyWords, words = element.textContent ?? "" } = element.dataset;
      element.dataset.words = words;
      element.textContent = (served && servedWords) || (greedy && greedyWords) || words;
    }
  }

  /**
   * The first sentence, which is large, and the others.
   * @param {string} words
   */
  function inTwo(words) {
    const [, first, rest] = /^(.+?[.!?] )(.+)$/s.exec(words) ?? [, words, ""];
    return [h("b", {}, first ?? ""), h("span", {}, rest ?? "")];
  }

  /**
   * Pins a token that the address asks for; false while it is not on the stage.
   * @param {number} index of its round
   * @param {number} place in the draft; after it is the round's own token
   */
  function pinAt(index, place) {
    const round = run.rounds[index];
    const token = round && (round.draft[place] ?? (place === round.draft.length ? round.next : null));
    if (!token || !text.isOnStage(token) || !text.isShown(token)) return false;
    reader.choose(token);
    return true;
  }

  /** @param {Record<string, string>} numbers */
  function showNumbers(numbers) {
    for (const number of figures) {
      const written = numbers[/** @type {HTMLElement} */ (number).dataset.number ?? ""] ?? "–";
      write(number, written);
      number.classList.toggle("in-words", /[a-z]{3}/.test(written));
      number.parentElement?.toggleAttribute("data-unknown", written === "–");
    }
    for (const copy of copies) {
      const { copy: name = "" } = /** @type {HTMLElement} */ (copy).dataset;
      write(copy, numbers[name] ?? "–");
      copy.parentElement?.toggleAttribute("data-unknown", copy.textContent === "–");
    }
  }

  /** @param {MouseEvent} event */
  function hideOrShow({ target }) {
    const button = around(target, "button[data-hides]");
    if (!button) return;
    const hide = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!hide));
    stage.classList.toggle(`hide-${button.dataset.hides}`, hide);
    reader.releaseHidden();
    text.reflow();
  }

  /** @param {KeyboardEvent} event */
  function moveAlongNumbers(event) {
    const numbers = /** @type {HTMLElement[]} */ ([...(around(event.target, ".numbers")?.children ?? [])]);
    neighbour(event, numbers.filter((number) => number.checkVisibility()), ["ArrowLeft", "ArrowRight"])?.focus();
  }
}
