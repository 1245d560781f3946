// Writes what is kept of a run, for tests/pure/test_exports.py: reads rounds as JSON, and writes the CSV and the SVG.
import { readFileSync } from "node:fs";
import { roundsAsCsv } from "../../specdemo/ui/static/keep/csv.js";
import { pictureOf } from "../../specdemo/ui/static/keep/picture.js";
import { linked, tokensOf } from "../../specdemo/ui/static/view/run.js";

const { rounds, said } = JSON.parse(readFileSync(0, "utf8"));
const run = rounds.map((round) => linked(round));
const { svg } = pictureOf({
  tokens: run.flatMap(tokensOf).map(({ text, fate }) => ({ text, fate, sign: "" })),
  legend: [{ text: said, fate: "accepted", sign: "" }],
  verdict: [said, said],
  whose: said,
  colour: () => "#123456",
  measure: (text, size) => size * text.length / 2,
});
process.stdout.write(JSON.stringify({ csv: roundsAsCsv(run), svg }));
