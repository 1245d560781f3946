import "./words.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { STEPS, parted, stepOf, substitute, wordsOf } from "../../specdemo/ui/static/lesson/guide.js";
import { RULES, SETTING, allAccepted, drafted, linked, own, plain, rejection } from "./runs.js";
import { catalogue } from "./words.js";

const NUMBERS = {
  target_step: "1.37 ms", acceptance_rate: "76%", mean_tokens_per_round: "3.14", speedup: "1.93 ×",
};
const runOf = (rounds, more = {}, numbers = NUMBERS) => {
  const setting = { ...SETTING, machine: "AMD EPYC", served: null, ...more };
  return { rounds: rounds.map((round, index) => linked(round, index, setting)), setting, numbers, recorded: true };
};
const step = (name) => STEPS.find((one) => one.name === name);

test("there are nine steps, and each has words in each language", () => {
  assert.equal(STEPS.length, 9);
  for (const tag of ["en", "de"]) {
    const words = catalogue(tag).tour;
    for (const { name, formula } of STEPS) {
      assert.ok(words[name].title && words[name].text, name);
      assert.equal("formula" in words[name], Boolean(formula), name);
      for (const [key, text] of Object.entries(words[name])) {
        assert.equal(parted(text).length % 2, 1, `${name}.${key} has a * without its other`);
      }
    }
  }
});

for (const tag of ["en", "de"]) {
  test(`it begins with token, target and forward, and no word comes before its step: ${tag}`, () => {
    const told = STEPS.map(({ name }) => parted(catalogue(tag).tour[name].text));
    assert.equal(told[0].length, 7, "a token, the target and a forward");
    const text = told.map((parts) => parts.join("*")).join(" ");
    for (const word of told.flatMap((parts) => parts.filter((_, place) => place % 2))) {
      assert.ok(text.search(new RegExp(`(?<!\\p{L})${word}(?!\\p{L})`, "u")) === text.indexOf(`*${word}*`) + 1, word);
    }
  });
}

test("an address names a step, and the nearest where there is none of its number", () => {
  const found = [null, "3", "0", "99", "x", "-1", "1.5", ""].map(stepOf);
  assert.deepEqual(found, [null, 3, 1, 9, null, null, null, null]);
});

test("the coin is shown by a token that u decided, accepted if there is one", () => {
  const sure = drafted(1, { p: 0.9, q: 0.5 });
  const kept = drafted(2, { p: 0.4, q: 0.5, u: 0.3 });
  const refused = drafted(3, { p: 0.1, q: 0.5, u: 0.9, fate: "rejected" });
  const coin = (...draft) => step("coin").pins([linked({ draft, next: own(9) }, 0)])?.id;
  assert.equal(coin(sure, refused, kept), 2);
  assert.equal(coin(sure, refused), 3);
  assert.equal(coin(sure), 1);
  assert.equal(coin(drafted(4, { u: null, fate: "discarded" })), undefined);
});

test("the replacement and the bonus are the run's first ones", () => {
  const { rounds } = runOf([plain(), allAccepted(), rejection(), rejection()]);
  assert.equal(step("replacement").pins(rounds), rounds[2].next);
  assert.equal(step("bonus").pins(rounds), rounds[1].next);
});

test("a run that cannot show every step has a recorded one in its place", () => {
  const whole = () => [rejection(), allAccepted()];
  assert.equal(substitute(runOf(whole())), null);
  assert.equal(substitute(runOf(whole(), { greedy: true })), null);
  assert.equal(substitute(runOf([plain()])), "warm");
  assert.equal(substitute(runOf([allAccepted()])), "warm");
  assert.equal(substitute(runOf([allAccepted()], { greedy: true })), "greedy");
  assert.equal(substitute(runOf(whole(), { rule: RULES.lenient })), "warm");
  assert.equal(substitute(runOf(whole(), { served: { method: null, gamma: null } })), "warm");
});

for (const name of ["greedy", "warm"]) {
  test(`the recorded run ${name} can show every step`, () => {
    const file = new URL(`../../assets/traces/${name}.json`, import.meta.url);
    const { rounds } = JSON.parse(readFileSync(file, "utf8"));
    assert.equal(substitute(runOf(rounds, { greedy: name === "greedy" })), null);
  });
}

test("greedy has its own sentences, by which u cannot matter", () => {
  const greedy = runOf([rejection(), allAccepted()], { greedy: true });
  const sampled = runOf([rejection(), allAccepted()]);
  assert.match(wordsOf(step("coin"), greedy), /u cannot matter/);
  assert.doesNotMatch(wordsOf(step("coin"), sampled), /cannot matter/);
  assert.match(wordsOf(step("coin"), sampled), /q · p\/q = p/);
  assert.match(wordsOf(step("replacement"), sampled), /Drawn from p itself, tokens with p below q would come too often/);
});

test("the step before the checks has the figure of the machine, named as the recorded run's where it is that", () => {
  const recorded = runOf([rejection()]);
  assert.match(wordsOf(step("slow"), recorded), /When this run was recorded, on AMD EPYC, .* took 1\.37 ms\.$/);
  assert.match(wordsOf(step("slow"), { ...recorded, recorded: false }), /Here, on AMD EPYC, .* takes 1\.37 ms\.$/);
  const here = { ms: "2.00 ms", machine: "a laptop" };
  assert.match(wordsOf(step("slow"), recorded, here), /Here, on a laptop, .* takes 2\.00 ms\.$/);
  assert.doesNotMatch(wordsOf(step("slow"), runOf([rejection()], {}, {})), /EPYC/);
});
