// In greedy decoding p and q are 1 or 0, and u cannot matter: nothing that is said of a greedy run has it.

import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { recomputed } from "../../specdemo/ui/static/view/recompute.js";
import { uMatters } from "../../specdemo/ui/static/view/rules.js";
import { after, endOf, inWords, isBefore } from "../../specdemo/ui/static/view/steps.js";
import { fateNamed } from "../../specdemo/ui/static/view/textless.js";
import { valuesOf, verdictOn } from "../../specdemo/ui/static/view/verdict.js";
import { RULES, SETTING, drafted, linked, own } from "./runs.js";

const GREEDY = { ...SETTING, greedy: true, temperature: 0, top_p: 1 };
const [KEPT, FALLEN] = [{ p: 1, q: 1 }, { p: 0, q: 1, raw_p: 0.0314159, fate: "rejected" }];

/** Accepted, rejected, resampled; accepted, bonus; sampled. */
function rounds(setting = GREEDY) {
  const first = [drafted(1, { text: " a", ...KEPT }), drafted(2, { text: " b", ...FALLEN })];
  const next = own(4, { text: " d", source: "resampled", p: 1, q: 0, residual_mass: 1 });
  const made = [
    { draft: first, next },
    { draft: [drafted(5, { text: " e", ...KEPT })], next: own(6, { text: " f", p: 1 }) },
    { draft: [], next: own(7, { text: " g", source: "sampled", p: 1 }) },
  ];
  return made.map((round, index) => linked({ ...round, draft_ms: 1, verify_ms: 1 }, index, setting));
}

const tokensIn = (all) => all.flatMap(({ draft, next }) => [...draft, next]);

test("each fate has a sentence of its own, without u", () => {
  const [accepted, rejected, resampled, , bonus, sampled] = tokensIn(rounds()).map((token) => verdictOn(token, GREEDY));
  assert.equal(accepted, "Accepted: it is the target's likeliest token, the only one that greedy decoding keeps.");
  const why = "the target's likeliest token is another one (p is 0; at temperature 1 it gave the draft 0.031)";
  assert.equal(rejected, `Rejected: ${why}. " d", the target's likeliest, stands in its place.`);
  assert.equal(resampled, `In place of a draft: " b" was rejected, because ${why}. This token, the target's likeliest, stands in its place.`);
  assert.match(bonus, /^Bonus: the round's only draft was accepted, .* one more token, the target's likeliest\.$/);
  assert.match(sampled, /^The target's own: nothing was drafted .* gives one token, the likeliest\.$/);
});

test("no fate is called by a draw that was not made", () => {
  const names = (all) => tokensIn(all).map((token) => fateNamed(token, token.fate));
  assert.deepEqual(names(rounds()), ["accepted", "rejected", "replacement", "accepted", "bonus", "target's own"]);
  assert.deepEqual(names(rounds(SETTING)), ["accepted", "rejected", "resampled", "accepted", "bonus", "sampled"]);
});

test("the player says each step without u", () => {
  const all = rounds();
  const said = [];
  for (let at = { round: 0, step: 0 }; isBefore(at, endOf(all));) {
    at = after(all, at, "token");
    said.push(inWords(all, at, "token"));
  }
  assert.ok(said.includes('" a" is accepted: it is the target\'s likeliest token.'));
  assert.ok(said.includes('" b" is rejected: the target\'s likeliest token is another one.'));
  assert.ok(said.includes('" d", the target\'s likeliest token, comes in place of " b".'));
  assert.ok(said.every((words) => !/\bu\b/.test(words)), said.join("\n"));
});

test("u is not among the values", () => {
  for (const token of tokensIn(rounds())) {
    assert.equal(uMatters(token), false);
    assert.ok(!valuesOf(token).some(([symbol]) => symbol === "u"));
  }
  assert.ok(tokensIn(rounds(SETTING)).every(uMatters), "in sampling it does, also where p is 1 or 0");
});

test("by block verification what comes after the rejection is told by it, since its own p may be 1", () => {
  const setting = { ...GREEDY, rule: RULES.block };
  const last = { ...drafted(3, { fate: "discarded", ...KEPT }), accept_prob: 0 };
  const [round] = rounds(setting);
  const { draft: [, , after] } = linked({ ...round, draft: [...round.draft, last] }, 0, setting);
  assert.equal(verdictOn(after, setting), 'Discarded: draft 2, " b", was rejected, and everything drafted after it was dropped.');
});

test("a recorded verdict that greedy decoding does not give is said so, and by u where p is neither 1 nor 0", () => {
  const of = (more) => {
    const [first] = rounds();
    Object.assign(first.draft[0], more);
    return recomputed({ rounds: [first], numbers: {}, outcome: null, complete: false }).differences.map(({ what }) => what);
  };
  assert.deepEqual(of({}), []);
  const [what] = of({ fate: "rejected" });
  assert.equal(what, "it is the target's likeliest token, the only one that greedy decoding keeps, but it was rejected");
  assert.match(of({ p: 0.5, accept_prob: 0.5, u: 0.75 })[0], /^u = 0.7500 is not below .*, but it was accepted$/);
});
