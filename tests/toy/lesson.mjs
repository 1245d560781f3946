// Reads cases as JSON and writes what the page's lesson computes for each: test_lesson_rules.py compares.
import { readFileSync } from "node:fs";
import { pick, trialOf } from "../../specdemo/ui/static/lesson/identity.js";
import { shaped } from "../../specdemo/ui/static/lesson/shaping.js";

const answers = JSON.parse(readFileSync(0, "utf8")).map(({ raw_p, raw_q, shaping, draft, u, other }) => {
  const trial = trialOf(shaped(raw_p, shaping), shaped(raw_q, shaping));
  const accepted = u < trial.accept[draft];
  return { ...trial, isAccepted: accepted, next: accepted ? null : pick(trial.replacement, other) };
});
process.stdout.write(JSON.stringify(answers));
