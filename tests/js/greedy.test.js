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

const GREEDY = { ...SETTING, greedy: true, temperature: 0 };
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

test("no verdict, no step and no value has u, and none tells of a draw", () => {
  const all = rounds();
  const said = tokensIn(all).map((token) => verdictOn(token, GREEDY));
  for (let at = { round: 0, step: 0 }; isBefore(at, endOf(all));) {
    at = after(all, at, "token");
    said.push(inWords(all, at, "token"));
  }
  assert.ok(said.every((words) => !/\bu\b|drawn|sampled/.test(words)), said.join("\n"));
  assert.match(said[1], /another one .*0\.031/, "what it would have had at temperature 1");
  assert.ok(tokensIn(all).every((token) => !uMatters(token) && !valuesOf(token).some(([symbol]) => symbol === "u")));
  assert.ok(tokensIn(rounds(SETTING)).every(uMatters), "in sampling it does, also where p is 1 or 0");
});

test("no fate is called by a draw that was not made", () => {
  const names = (all) => tokensIn(all).map((token) => fateNamed(token, token.fate));
  assert.deepEqual(names(rounds()), ["accepted", "rejected", "replacement", "accepted", "bonus", "target's own"]);
  assert.deepEqual(names(rounds(SETTING)), ["accepted", "rejected", "resampled", "accepted", "bonus", "sampled"]);
});

test("by block verification what comes after the rejection is told by it, since its own p may be 1", () => {
  const setting = { ...GREEDY, rule: RULES.block };
  const last = { ...drafted(3, { fate: "discarded", ...KEPT }), accept_prob: 0 };
  const [round] = rounds(setting);
  const { draft: [, , after] } = linked({ ...round, draft: [...round.draft.map(({ parent, ...told }) => told), last] }, 0, setting);
  assert.match(verdictOn(after, setting), /^Discarded: draft 2, " b", was rejected/);
});

test("a recorded verdict that greedy decoding does not give is found, and by u where p is neither 1 nor 0", () => {
  const of = (more) => {
    const [first] = rounds();
    Object.assign(first.draft[0], more);
    return recomputed({ rounds: [first], numbers: {}, outcome: null, complete: false }).differences.map(({ what }) => what);
  };
  assert.deepEqual(of({}), []);
  assert.match(of({ fate: "rejected" })[0], /likeliest .* rejected$/);
  assert.match(of({ p: 0.5, accept_prob: 0.5, u: 0.75 })[0], /^u = 0.7500 is not below .* accepted$/);
});
