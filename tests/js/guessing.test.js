import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { drafted as words, idsOf, scoreOf, verdictInWords } from "../../specdemo/ui/static/runs/guess.js";
import { SETTING, allAccepted, drafted, linked, rejection } from "./runs.js";

/** The rejection, as of a guess: q is one-hot. */
function guessed(setting = SETTING) {
  const { draft, ...rest } = rejection();
  const round = { ...rest, draft: draft.map((token) => drafted(token.id, { ...token, q: 1 })), emitted: [1, 4] };
  return Object.assign(linked(round, 0), { setting });
}

test("the verdict counts, and names p and u of what was rejected only where they decided", () => {
  const sampled = { ...SETTING, greedy: false };
  assert.match(verdictInWords(guessed(sampled)), /^1 of 3 .*"b" .*p = 0\.2000, u = 0\.5000; .*"d"\.$/);
  assert.doesNotMatch(verdictInWords(guessed({ ...SETTING, greedy: true })), /u =/);
  const round = guessed(sampled);
  round.draft[1].accept_prob = 0.9; // of another rule
  assert.doesNotMatch(verdictInWords(round), /u =/);
  assert.match(verdictInWords(linked(allAccepted(2), 0)), /^2 of 2 accepted; .*"\.$/);
});

test("a word begins with a space, unless the text ends with one or it continues a word", () => {
  const cases = [
    ["fox", "a little", false, " fox"], ["fox", "a little ", false, "fox"], ["fox", "line\n", false, "fox"],
    [" fox", "a little", false, " fox"], ["es", "the fox", true, "es"], [", and", "the fox", false, ", and"],
    ['"No"', "she said,", false, ' "No"'], ["狐狸", "一只小", false, "狐狸"], ["3", "one, two,", false, " 3"],
    ["fox", "", false, "fox"],
  ];
  for (const [typed, text, goesOn, expected] of cases) assert.equal(words(typed, text, goesOn), expected);
});

test("the score counts what was judged, and every token that a round brought", () => {
  const rounds = [guessed(), Object.assign(linked(allAccepted(2), 1), { emitted: [1, 2, 3] })];
  assert.deepEqual(scoreOf(rounds), { accepted: 3, judged: 4, tokens: 5, rounds: 2 });
  assert.deepEqual(scoreOf([]), { accepted: 0, judged: 0, tokens: 0, rounds: 0 });
  assert.equal(idsOf(rounds), "1,4,1,2,3");
});
