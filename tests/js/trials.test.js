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

test("what fits is never called right", () => {
  for (const trial of ["none", "told", "pair"]) assert.match(said({ trial }), /^So far /);
  assert.match(said({ trial: "told" }), /mistake does not show: more runs/);
  assert.match(said({ lossy: "typical" }), /typical is lossy: it does not promise/);
});

test("a difference is found, and of what", () => {
  const found = "differs";
  assert.match(said({ found }), /^Found: this is not the target's/);
  assert.match(said({ found, trial: "pair" }), /^Found: drafting changes/);
  assert.match(said({ found, trial: "soft", greedy: true }), /^Found: greedy text/);
  assert.match(said({ found, lossy: "lenient" }), /^Found: the lossy rule lenient/);
});

test("greedy has sentences of its own, where all runs are alike", () => {
  const greedy = { greedy: true, found: "alike" };
  for (const trial of ["none", "from_p", "pair"]) assert.match(said({ ...greedy, trial }), /^Greedy: .* u cannot matter/);
  assert.match(said({ ...greedy, trial: "from_p" }), /changes nothing/);
  assert.doesNotMatch(said({ ...greedy, trial: "soft", found: "differs" }), /cannot matter/);
  assert.match(said({ greedy: true, trial: "pair" }), /^So far /, "two texts are not alike");
});

test("where only one text comes, the test is said to find nothing, and what to change", () => {
  for (const trial of ["none", "told", "pair"]) assert.match(said({ trial, found: "alike" }), /the test can find nothing.*[Rr]aise the temperature/);
  assert.match(said({ trial: "pair", found: "alike" }), /^So far all runs have the same first tokens.*another prompt/);
  assert.match(said({ trial: "told", found: "alike" }), /^Nothing is left to chance here.*only one text is possible/);
});
