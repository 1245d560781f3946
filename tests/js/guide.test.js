import "./words.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { STEPS, substitute, wordsOf } from "../../specdemo/ui/static/lesson/guide.js";
import { RULES, SETTING, allAccepted, drafted, linked, own, plain, rejection } from "./runs.js";

const runOf = (rounds, more = {}) => {
  const setting = { ...SETTING, machine: "AMD EPYC", served: null, ...more };
  return { rounds: rounds.map((round, index) => linked(round, index, setting)), setting, numbers: {}, recorded: true };
};
const step = (name) => STEPS.find((one) => one.name === name);

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

test("the recorded runs can show every step", () => {
  for (const name of ["greedy", "warm"]) {
    const file = new URL(`../../assets/traces/${name}.json`, import.meta.url);
    const { rounds } = JSON.parse(readFileSync(file, "utf8"));
    assert.equal(substitute(runOf(rounds, { greedy: name === "greedy" })), null, name);
  }
});

test("only a sampled run is told of u", () => {
  const told = [true, false].map((greedy) => wordsOf(step("coin"), runOf([rejection(), allAccepted()], { greedy })));
  assert.deepEqual(told.map((words) => /u cannot matter/.test(words)), [true, false]);
});
