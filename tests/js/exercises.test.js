import "./words.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { exerciseOf } from "../../specdemo/ui/static/lesson/exercises.js";
import { distanceOf, trialOf } from "../../specdemo/ui/static/lesson/identity.js";
import { DEFAULTS } from "../../specdemo/ui/static/lesson/chosen.js";
import { SETTING, linked } from "./runs.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../assets/traces/first.json", import.meta.url), "utf-8"));
const checks = { rows: 5, plain_ms: 1.37, draft_ms: 0.32, verify_ms: 1.9, ratio: 1.39, interval: [1.2, 1.5] };
const RUN = { rounds: rounds.map((round, index) => linked(round, index)), setting: SETTING, outcome: { checks } };
const numbersIn = (text) => [...text.matchAll(/= (\d+\.\d+)|sums to (\d+\.\d+)/g)].map(([, one, other]) => Number(one ?? other));

/** What a student finds who has nothing but the question. */
const SOLVED = {
  "Will the guess be kept": ({ question }) => {
    const [q, p, u] = numbersIn(question);
    return u < p / q ? 0 : 1;
  },
  "drawn now": ({ question, choices }) => {
    const [p, q, mass] = numbersIn(question);
    return choices.indexOf(((p - q) / mass).toFixed(3));
  },
  "Which mistake": ({ rows }) => {
    const came = rows[3].slice(1).map(Number);
    const away = [[], ["from_p"], ["told"], ["likelier"]].map((on) => (
      distanceOf(came, trialOf(DEFAULTS.p, DEFAULTS.q, new Set(on)).out)));
    return away.indexOf(Math.min(...away));
  },
  "both write as fast": ({ question, choices }) => {
    const [plain, round] = [...question.matchAll(/([\d.]+) ms/g)].map(([, ms]) => Number(ms));
    const brings = (rate) => [0, 1, 2, 3, 4].reduce((sum, power) => sum + rate ** power, 0);
    return choices.findIndex((rate) => Math.abs(brings(parseFloat(rate) / 100) - round / plain) < 0.02);
  },
};

test("the right choice is what follows from the numbers in the question", () => {
  const seen = new Map();
  for (let number = 0; number < 48; number++) {
    const exercise = exerciseOf(RUN, number);
    const [kind, solve] = Object.entries(SOLVED).find(([words]) => exercise.question.includes(words));
    assert.equal(solve(exercise), exercise.right, exercise.question);
    assert.equal(new Set(exercise.choices).size, exercise.choices.length);
    seen.set(kind, (seen.get(kind) ?? new Set()).add(exercise.right));
  }
  assert.deepEqual([...seen.keys()].sort(), Object.keys(SOLVED).sort());
  assert.equal(seen.get("Will the guess be kept").size, 2);
  assert.equal(seen.get("Which mistake").size, 4);
});

test("a run whose drafts nobody judged by u has the exercises that need none", () => {
  const run = { rounds: [], setting: SETTING, outcome: null };
  assert.match(exerciseOf(run, 0).question, /Which mistake/);
  assert.match(exerciseOf(run, 7).question, /Which mistake/);
});
