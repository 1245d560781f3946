import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { readFrom, verdictInWords, written } from "../../specdemo/ui/static/runs/trials.js";

const said = (more) => verdictInWords({ trial: "none", found: "fits", greedy: false, lossy: "", ...more });

test("what an address has of the switches is what they were, and wrong values leave them off", () => {
  for (const switched of [{ trial: "none", guesses: 1 }, { trial: "likelier", guesses: 1 }, { trial: "told", guesses: 2 }]) {
    assert.deepEqual(readFrom(new URLSearchParams(written(switched)).toString()), switched);
  }
  assert.deepEqual(written({ trial: "none", guesses: 1 }), {});
  for (const wrong of ["trials_mistake=pair", "trials_guesses=3"]) assert.deepEqual(readFrom(wrong), { trial: "none", guesses: 1 });
  assert.deepEqual(readFrom("trials_mistake=from_p&trials_guesses=2"), { trial: "none", guesses: 2 });
});

test("what fits is never called right, and a difference is found", () => {
  for (const trial of ["none", "told", "pair"]) {
    assert.match(said({ trial }), /^So far /);
    assert.match(said({ trial, found: "differs" }), /^Found: /);
    assert.match(said({ trial, found: "alike" }), /can find nothing/);
  }
  assert.match(said({ greedy: true, trial: "from_p", found: "alike" }), /u cannot matter/);
});
