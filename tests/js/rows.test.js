import assert from "node:assert/strict";
import { test } from "node:test";
import { COLUMNS, samplesInWords } from "../../specdemo/ui/static/rows.js";

const ROW = {
  name: "drafter model", drafted_per_round: 3.807, accepted_per_round: 2.625, tokens_per_round: 3.368,
  draft_ms_per_round: 10.3859, verify_ms_per_round: 35.9578, tokens_per_second: 1070.76, speedup: 1.663,
  speedup_interval: [1.5, 1.9467], noisy: false, drafter_bytes: 4_721_152, texts_equal: "3 of 3", samples: 3,
};
const cells = (more) => (
  Object.fromEntries(Object.entries(COLUMNS).map(([name, text]) => [name, text({ ...ROW, ...more })]))
);

test("a row is written as in the comparison's own table", () => {
  assert.deepEqual(cells({}), {
    "drafter": "drafter model", "drafted/round": "3.81", "accepted/round": "2.62", "tokens/round": "3.37",
    "draft ms/round": "10.39", "verify ms/round": "35.96", "tokens/s": "1070.8",
    "speed-up (90 %)": "1.66 (1.50-1.95)", "memory": "4.7 MB", "same text": "3 of 3",
  });
});

test("what is unknown is a dash, and a noisy speed-up is not told", () => {
  const unknown = { speedup: null, speedup_interval: null, drafter_bytes: null, texts_equal: null };
  const { "speed-up (90 %)": speedup, memory, "same text": same } = cells(unknown);
  assert.deepEqual([speedup, memory, same], ["–", "–", "–"]);
  assert.equal(cells({ noisy: true })["speed-up (90 %)"], "too noisy to say (1.50-1.95)");
  assert.equal(cells({ speedup_interval: null })["speed-up (90 %)"], "1.66");
});

test("memory is in MB, or in GB", () => {
  const written = [56e6, 1e9, 1_234_567_890_000].map((drafter_bytes) => cells({ drafter_bytes }).memory);
  assert.deepEqual(written, ["56.0 MB", "1.00 GB", "1,234.57 GB"]);
});

test("the number of samples is said", () => {
  const said = (...counts) => samplesInWords(counts.map((samples) => ({ ...ROW, samples })));
  assert.deepEqual([said(), said(1, 1), said(3, 3), said(10, 9)],
    ["", "1 sample of each", "3 samples of each", "9 to 10 samples of each"]);
});
