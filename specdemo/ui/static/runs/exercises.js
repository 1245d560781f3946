// @ts-check
// The tab "Exercises": questions about the run on the stage, whose answers the page checks. A lecturer can ask them in a
// hall, whose pages then show one after another, and sees what it answers.

import { exerciseOf } from "../lesson/exercises.js";
import { fill, h, keep, recall, within, write } from "../view/dom.js";
import { grouped } from "../view/format.js";
import { columnHead, rowOf } from "../view/tables.js";
import { say } from "../view/words.js";
import { askFor, openHall, wayTo } from "./hall.js";

/** @import { makeFigure } from "../lesson/figure.js" */
/** @import { Exercise, Question } from "../lesson/exercises.js" */
/** @import { Run, Token } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */
/** What a hall tells of its exercise. answers: of each choice. @typedef {{ exercise?: Question, asked: number, answers: number[], wrong?: string }} Told */

const PERIOD = 2500; // ms
const IN_LECTURE = 4; // exercises that the arrow keys come to: one of each kind
const KEPT = "specdemo.page"; // what this page calls itself in a hall, also after a reload
const content = () => [
  h("div", { class: "way" }),
  h("p", { class: "question" }),
  h("table", { class: "given" }, h("thead"), h("tbody")),
  h("div", { class: "choices", role: "group" }),
  h("p", { class: "result", role: "status", "data-testid": "exercise-verdict" }),
  h("p", { class: "then" },
    h("button", { class: "show-why", hidden: true }, say("exercises.show")),
    h("button", { class: "another" }, say("exercises.another")),
    h("button", { class: "to-hall" }, say("exercises.to_hall"))),
];

/**
 * @param {HTMLElement} panel
 * @param {object} pictures what shows why an answer is right
 * @param {(tab: string) => void} pictures.select
 * @param {ReturnType<typeof makeFigure>} pictures.figure
 * @param {(token: Token) => void} pictures.pin
 * @param {string} [code] of the hall in which this page answers; empty where it is in none
 * @returns {Panel & { step: (by: number) => boolean }}
 */
export function makeExercises(panel, { select, figure, pin }, code = "") {
  fill(panel, content());
  const part = within(panel);
  /** @type {Run | null} */
  let run = null;
  /** Those of the run that the exercise is about. @type {Run["rounds"] | null} */
  let about = null;
  let number = 0; // of the exercise
  /** @type {Question & { shows?: Exercise["shows"] }} */
  let exercise;
  /** The hall that this page has opened, or in which it answers. */
  let hall = { code, key: "" };
  let asked = 0; // the number of the exercise in the hall
  let chosen = -1; // the number of the choice
  part(".another").addEventListener("click", () => go(1));
  part(".show-why").addEventListener("click", showWhy);
  part(".to-hall").addEventListener("click", openIt);
  panel.toggleAttribute("data-in-hall", code !== "");
  if (code) look();
  return { show, step };

  /** @param {Run} now on the stage */
  function show(now) {
    run = now;
    if (code || now.rounds === about || !now.complete) return;
    about = now.rounds;
    number = 0;
    ask(exerciseOf(now, 0));
  }

  /** In a lecture: to another exercise. Returns false before the first and after the last. @param {number} by */
  function step(by) {
    const isThere = !code && number + by >= 0 && number + by < IN_LECTURE;
    if (isThere) go(by);
    return isThere;
  }

  /** @param {number} by */
  function go(by) {
    number += by;
    if (run) ask(exerciseOf(run, number));
  }

  /** @param {Question} next */
  function ask(next) {
    exercise = next;
    chosen = -1;
    const { question, rows: [head = [], ...rows], choices } = exercise;
    write(part(".question"), question);
    fill(part("thead"), head.length ? h("tr", {}, head.map((words) => columnHead(words))) : null);
    fill(part("tbody"), rows.map(([name, ...numbers]) => rowOf(name, numbers)));
    fill(part(".choices"), choices.map((words, at) => h("button", { onclick: () => answer(at) }, h("span", {}, words), h("b"))));
    write(part(".result"), "");
    delete panel.dataset.found;
    delete panel.dataset.answers;
    part(".show-why").hidden = true;
    if (hall.key) tell({ key: hall.key, exercise: { ...exercise, shows: undefined } });
  }

  /** @param {number} at the number of the choice */
  function answer(at) {
    const { right, why, shows } = exercise;
    if (code && chosen < 0) tell({ session: myName(), asked, choice: at }); // the first counts
    chosen = at;
    panel.dataset.found = at === right ? "right" : "wrong";
    [...part(".choices").children].forEach((button, place) => {
      button.setAttribute("aria-pressed", String(place === at));
      button.toggleAttribute("data-right", place === right);
    });
    write(part(".result"), `${say(at === right ? "exercises.right" : "exercises.wrong")} ${why}`);
    part(".show-why").hidden = !shows || !document.getElementById(`tab-${shows.tab}`); // a saved run has not all
  }

  function showWhy() {
    const { tab = "", token, mistake } = exercise.shows ?? {};
    select(tab);
    if (mistake) figure.err(mistake);
    else if (token && tab === "figure") figure.takeFrom(token);
    else if (token) pin(token);
  }

  // In a hall.

  async function openIt() {
    const { code: opened = "", key = "", link = "", picture = "", wrong = "" } = await openHall("exercises", "tab=exercises");
    write(part(".result"), wrong);
    if (!opened) return;
    hall = { code: opened, key };
    part(".to-hall").hidden = true;
    fill(part(".way"), wayTo(link, picture));
    ask(exercise);
    look();
  }

  /** @param {object} what */
  async function tell(what) {
    const answer = await askFor(hall.code, { method: "POST", body: JSON.stringify(what) }) ?? { wrong: say("traces.lost") };
    if (answer.wrong) write(part(".result"), answer.wrong);
  }

  async function look() {
    if (!document.hidden) takeCounts(await askFor(hall.code));
    if (hall.code) setTimeout(look, PERIOD);
  }

  /** @param {Told | null} told */
  function takeCounts(told) {
    if (told?.wrong && hall.key) {
      hall = { code: "", key: "" }; // another one can be opened
      part(".to-hall").hidden = false;
      fill(part(".way"));
    }
    if (!told?.exercise) return write(part(".question"), told?.wrong ?? (exercise ? exercise.question : say("exercises.soon")));
    if (code && told.asked !== asked) ask(told.exercise);
    asked = told.asked;
    const all = told.answers.reduce((sum, one) => sum + one, 0);
    [...part(".choices").children].forEach((button, at) => {
      const count = told.answers[at] ?? 0;
      write(button.children[1], chosen < 0 ? "" : grouped(count));
      button.setAttribute("style", `--share: ${chosen < 0 || !all ? 0 : count / all}`);
    });
    panel.dataset.answers = say("exercises.answers", { count: all, number: grouped(all) });
  }
}

function myName() {
  const name = recall("sessionStorage", KEPT) ?? [...crypto.getRandomValues(new Uint32Array(4))].join("-");
  keep("sessionStorage", KEPT, name);
  return name;
}
