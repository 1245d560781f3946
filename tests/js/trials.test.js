import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { verdictInWords } from "../../specdemo/ui/static/runs/trials.js";

const said = (more) => verdictInWords({ trial: "none", found: "fits", greedy: false, lossy: "", ...more });

test("what fits is never called right, and a difference is found", () => {
  for (const trial of ["none", "told", "pair"]) {
    assert.match(said({ trial }), /^So far /);
    assert.match(said({ trial, found: "differs" }), /^Found: /);
    assert.match(said({ trial, found: "alike" }), /can find nothing/);
  }
  assert.match(said({ greedy: true, trial: "from_p", found: "alike" }), /u cannot matter/);
});
