import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { onlyHere } from "../../specdemo/ui/static/runs/hall.js";
import { drafted as words, idsOf, scoreOf, textOf, verdictInWords } from "../../specdemo/ui/static/runs/guessing.js";
import { PROMPT, SETTING, allAccepted, drafted, linked, plain, rejection } from "./runs.js";

/** The rejection, as of a guess: q is one-hot. */
function guessed(setting = SETTING) {
  const { draft, ...rest } = rejection();
  const round = { ...rest, draft: draft.map((token) => drafted(token.id, { ...token, q: 1 })), emitted: [1, 4] };
  return Object.assign(linked(round, 0), { setting });
}

test("the verdict is one sentence, with p and u of what was rejected", () => {
  const sampled = { ...SETTING, greedy: false };
  const sentence = '1 of 3 accepted; "b" was rejected: p = 0.2000, u = 0.5000; the target wrote "d".';
  assert.equal(verdictInWords(guessed(sampled)), sentence);
  const greedy = '1 of 3 accepted; "b" was rejected, because the target\'s likeliest token is "d".';
  assert.equal(verdictInWords(guessed({ ...SETTING, greedy: true })), greedy);
  assert.match(verdictInWords(linked(allAccepted(2), 0)), /^2 of 2 accepted; the target added ".+"\.$/);
  assert.match(verdictInWords(linked({ ...allAccepted(2), next: null }, 0)), /^2 of 2 accepted\.$/);
  assert.match(verdictInWords(linked(plain(), 0)), /^Nothing could be drafted here; /);
});

test("a rule that does not compare u with p gets no such numbers", () => {
  const round = guessed({ ...SETTING, greedy: false });
  round.draft[1].accept_prob = 0.9;
  assert.equal(verdictInWords(round), '1 of 3 accepted; "b" was rejected; the target wrote "d".');
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

test("the text is the prompt and what was written, without what was refused", () => {
  assert.equal(textOf({ prompt: PROMPT, rounds: [guessed()] }), `${PROMPT.map(({ text }) => text).join("")} a d`);
});

test("a link for the hall says where no other machine can open it", () => {
  for (const host of ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"]) assert.ok(onlyHere(host).includes(`${host} is`));
  for (const host of ["127.0.0.1.example.org", "192.168.1.5", "lab", "[fe80::1]"]) assert.equal(onlyHere(host), "");
});
