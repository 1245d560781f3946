import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { say, speak } from "../../specdemo/ui/static/view/words.js";
import { catalogue } from "./words.js";

const SOME = { run: { plain: "No {{thing}} here.", tokens_one: "{{count}} token", tokens_other: "{{count}} tokens" } };

afterEach(() => speak("en", catalogue("en")));

test("words have their values in them, and the form of their number", () => {
  speak("en", SOME);
  assert.equal(say("run.plain", { thing: "draft" }), "No draft here.");
  assert.equal(say("run.tokens", { count: 1 }), "1 token");
  assert.equal(say("run.tokens", { count: 0 }), "0 tokens");
});

test("a key or a value that is missing is an error", () => {
  speak("en", SOME);
  assert.throws(() => say("run.nothing"), /no words for run.nothing/);
  assert.throws(() => say("run"), /no words for run/);
  assert.throws(() => say("run.plain"), /no thing for run.plain/);
});
