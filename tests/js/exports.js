// Writes what is kept of a run, for tests/pure/test_exports.py: reads rounds as JSON, and writes the CSV.
import { readFileSync } from "node:fs";
import { roundsAsCsv } from "../../specdemo/ui/static/keep/saving.js";
import { linked } from "../../specdemo/ui/static/view/run.js";

const { rounds } = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(roundsAsCsv(rounds.map((round) => linked(round))));
