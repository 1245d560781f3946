// Reads runs as JSON and writes what the figure makes of each judged draft: test_lesson_rules.py compares.
import { readFileSync } from "node:fs";
import "../js/words.js";
import { asAt, weightsOf } from "../../specdemo/ui/static/lesson/chosen.js";
import { pick, trialOf } from "../../specdemo/ui/static/lesson/identity.js";
import { placeAt } from "../../specdemo/ui/static/lesson/place.js";
import { shaped } from "../../specdemo/ui/static/lesson/shaping.js";
import { isDrafted, linked, tokensOf } from "../../specdemo/ui/static/view/run.js";
import { replacedBy } from "../../specdemo/ui/static/view/verdict.js";

const answers = JSON.parse(readFileSync(0, "utf8")).map(({ rounds, setting }) => {
  const tokens = rounds.map((round) => linked(round, setting)).flatMap(tokensOf).filter(isDrafted);
  return tokens.filter(({ fate }) => fate !== "discarded").map((token) => {
    const place = placeAt(token);
    const { others, p, q, shaping, done, replacement } = place;
    const trial = trialOf(shaped(p, shaping, done), shaped(q, shaping, done));
    const { rate, accept, replacement: residual } = trial;
    const own = [trial.p[place.draft] - token.p, trial.drawn[place.draft] - token.q].map(Math.abs);
    const { order, other, middle } = asAt(token, place);
    const isDrawn = replacement === null || order[pick(weightsOf(asAt(token, place), residual), other)].at === replacement;
    const isReplaced = replacedBy(token.round.next) === token;
    const next = isReplaced ? placeAt(token.round.next) : null;
    const mass = token.residual_mass ?? token.round.next?.residual_mass;
    return { fate: token.fate, isReplaced, off: Math.max(...own), isDrawn, isRuns: middle === null && other === token.round.next?.u, others, rate, accept, mass, tokens: p.length, ofNext: next?.p, p };
  });
});
process.stdout.write(JSON.stringify(answers));
