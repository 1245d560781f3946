// Reads cases and runs as JSON, and writes what the page's lesson makes of each case and of each judged draft of a run:
// test_lesson_rules.py compares.
import { readFileSync } from "node:fs";
import "../js/words.js";
import { asAt } from "../../specdemo/ui/static/lesson/chosen.js";
import { pick, trialOf } from "../../specdemo/ui/static/lesson/identity.js";
import { placeAt } from "../../specdemo/ui/static/lesson/place.js";
import { shaped } from "../../specdemo/ui/static/lesson/shaping.js";
import { isDrafted, linked, tokensOf } from "../../specdemo/ui/static/view/run.js";
import { replacedBy } from "../../specdemo/ui/static/view/verdict.js";

const { cases = [], runs = [] } = JSON.parse(readFileSync(0, "utf8"));

const answers = cases.map(({ raw_p, raw_q, temperature, draft, u, other }) => {
  const trial = trialOf(shaped(raw_p, temperature), shaped(raw_q, temperature));
  const accepted = u < trial.accept[draft];
  return { ...trial, isAccepted: accepted, next: accepted ? null : pick(trial.replacement, other) };
});

const places = runs.map(({ rounds, setting }) => {
  const tokens = rounds.map((round) => linked(round, setting)).flatMap(tokensOf).filter(isDrafted);
  return tokens.filter(({ fate }) => fate !== "discarded").map((token) => {
    const place = placeAt(token);
    const { others, p, q, temperature, done, replacement } = place;
    const trial = trialOf(shaped(p, temperature, done), shaped(q, temperature, done));
    const own = [trial.p[place.draft] - token.p, trial.drawn[place.draft] - token.q].map(Math.abs);
    const isReplaced = replacedBy(token.round.next) === token;
    return {
      fate: token.fate,
      off: Math.max(...own),
      rate: trial.rate,
      mass: token.residual_mass ?? token.round.next?.residual_mass,
      others,
      p,
      isReplaced,
      ofNext: isReplaced ? placeAt(token.round.next)?.p : null,
      isDrawn: replacement === null || pick(trial.replacement, asAt(token, place).other) === replacement,
    };
  });
});

process.stdout.write(JSON.stringify({ answers, places }));
