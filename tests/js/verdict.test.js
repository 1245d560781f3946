import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { leftAfter, massAt } from "../../specdemo/ui/static/view/rules.js";
import {
  alternativesTo, drawnFrom, judgement, valuesOf, verdictOn,
} from "../../specdemo/ui/static/view/verdict.js";
import { PROMPT, allAccepted, drafted, linked, own, plain, rejection, tree } from "./runs.js";

const [accepted, rejected, discarded] = linked(rejection(), 3).draft;
const resampled = rejected.round.next;
const bonus = linked(allAccepted(2), 4).next;
const sampled = linked(plain(), 5).next;

test("each fate has its verdict, with the numbers that it follows from", () => {
  const [only] = [linked(allAccepted(1), 0).next];
  const [, after] = linked({ ...allAccepted(), draft: [drafted(1), drafted(2, { fate: "discarded" })], next: null }, 0).draft;
  for (const [token, said] of [
    [PROMPT[0], /prompt/], [accepted, /^Accepted: u = 0\.2500 is below .* = 1/], [rejected, /^Rejected: u = 0\.5000 is not below .* = 0\.2500/],
    [discarded, /^Discarded without being judged: .*" b"/], [resampled, /^Resampled: " b" .* residual, .* 0\.2500\.$/],
    [bonus, /^Bonus: .* 2 .* 0\.2500\.$/], [only, /^Bonus: .* only /], [sampled, /^Sampled: .* 0\.2500\.$/], [after, /^Discarded: u = .* accepted, but/],
  ]) assert.match(verdictOn(token), said);
});

/** A draft of one token with these numbers. */
function judged(more) {
  const [token] = linked({ ...rejection(), draft: [drafted(1)] }, 0).draft;
  return Object.assign(token, more);
}

test("the judgement is what the numbers say, to the last digit", () => {
  for (const [u, accept_prob] of [[0.1, 0.2], [0.2, 0.1], [0.3, 0.3], [0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3]]) {
    const numbers = /^u = (\S+) is (not )?below .* = (\S+)$/;
    const [, drawn, not, threshold] = judgement(judged({ u, accept_prob })).match(numbers);
    assert.equal(not === undefined, u < accept_prob);
    assert.equal(Number(drawn) < Number(threshold), u < accept_prob);
  }
  assert.match(judgement(judged({ u: 0.5, p: 0, accept_prob: 0 })), /not below .* = 0 \(p is 0: removed by the sampler; before: 0\.30\)$/);
  assert.match(judgement(judged({ u: 0.5, p: 0, raw_p: 0, accept_prob: 0 })), /\(p is 0, so .* never accepted\)$/);
});

test("the values are those of the token, and what it lacks is left out", () => {
  const values = (token) => Object.fromEntries(valuesOf(token).map(([symbol, , value]) => [symbol, value]));
  assert.deepEqual(values(PROMPT[0]), {});
  assert.deepEqual(values(rejected), { p: 0.2, q: 0.8, "min(1, p/q)": 0.25, "Σ (p − q)₊": 0.8, u: 0.5 });
  assert.deepEqual(values(discarded), { p: 0.5, q: 0.5 });
  assert.deepEqual(values(resampled), { p: 0.5, q: 0.1, "Σ (p − q)₊": 0.8, "r = (p − q)₊ / Σ": 0.5, "number for the draw": 0.25 });
  assert.deepEqual(values(sampled), { p: 0.5, "number for the draw": 0.25 });
});

test("the alternatives begin with what was drawn, each from its distribution", () => {
  const how = (drawn) => drawn && `${drawn.how} from ${drawn.from}`;
  const rows = (token) => alternativesTo(token).map(({ id, drawn }) => [id, how(drawn)]);
  const top = [[9, " x", 0.3, 0.1, 0.3, 0.1], [2, " b", 0.2, 0.8, 0.2, 0.8]];
  const round = { ...rejection(), next: own(4, { source: "resampled", q: 0.1, top }) };
  const { draft: [first, second], next } = linked(round, 0);
  second.top = top;
  assert.deepEqual(rows(PROMPT[0]), []);
  assert.deepEqual(rows(first), [[1, "drafted from q"]]);
  assert.deepEqual(rows(second), [[2, "drafted from q"], [4, "drawn from residual"], [9, null]]);
  assert.deepEqual(rows(next), rows(second));
  assert.deepEqual(rows(bonus), [[20, "drawn from p"]]);
  assert.equal(drawnFrom(sampled).from, "p");
});

test("the residual's column has the probabilities that the token was drawn with", () => {
  const top = [[8, " x", 0.75, 0.5, 0.3, 0.1], [9, " y", 0.125, 0.25, 0.3, 0.1], [7, " z", 0.5, null, 1, null]];
  const next = own(8, { source: "resampled", p: 0.75, q: 0.5, residual_mass: 0.3125, top });
  const { draft: [kept, fallen], next: drawn } = linked({ ...rejection(), next }, 0);
  assert.deepEqual(alternativesTo(drawn).map(({ id, residual }) => [id, residual]), [[8, 0.8], [2, 0], [9, 0], [7, null]]);
  assert.equal(valuesOf(drawn).find(([symbol]) => symbol.startsWith("r = "))[2], 0.8, "as in the list above it");
  fallen.top = kept.top = top;
  assert.deepEqual(alternativesTo(fallen).find(({ id }) => id === 8).residual, 0.8);
  const other = linked({ ...plain(), next: own(8, { p: 0.75, q: 0.5, top }) }, 0).next;
  for (const token of [kept, other]) {
    assert.ok(alternativesTo(token).every(({ residual }) => residual === null), "nothing was drawn from it there");
  }
});

test("what comes later in the round is not given away", () => {
  assert.doesNotMatch(verdictOn(accepted, null, "place"), /\d/);
  assert.deepEqual([valuesOf(accepted, "place"), alternativesTo(accepted, "place")], [[], []]);
  assert.doesNotMatch(verdictOn(rejected, null, "draft"), /\bp\b|u =| d/);
  assert.deepEqual(valuesOf(rejected, "draft").map(([symbol]) => symbol), ["q"]);
  assert.deepEqual(alternativesTo(rejected, "draft"), []);
  assert.doesNotMatch(verdictOn(rejected, null, "verdict"), /" d"/);
  assert.deepEqual(alternativesTo(rejected, "verdict").map(({ id }) => id), [2]);
});

test("in a tree each guess is judged by what those before it at its place have left of p", () => {
  const { draft, next } = linked(tree(), 3);
  for (const [token, said] of [
    [draft[0], /^Rejected: .*" 2"/], [draft[2], /^Discarded .*" 2".* accepted/], [draft[3], /^Discarded .*" 1"/],
    [draft[5], /" 7" was drawn/], [next, /^Resampled: " 6" .* min\(1, p′\/q′\)/],
  ]) assert.match(verdictOn(token), said);
  const symbols = ["p′", "q′", "Σ (p′ − q′)₊", "r = (p′ − q′)₊ / Σ", "number for the draw"];
  assert.deepEqual(valuesOf(next).map(([symbol]) => symbol), symbols, "of what replaces the second guess, too");
  const masses = draft.map((token) => massAt(token));
  assert.deepEqual(masses.map((mass) => mass === null ? null : Number(mass.toFixed(9))), [null, null, null, null, null, 0.8]);
  const told = linked({ ...tree(), draft: tree().draft.map((token) => ({ ...token, residual_mass: 0.5 })) }, 0).draft;
  assert.deepEqual([massAt(told[5]), leftAfter(told[4]), leftAfter(told[5])], [0.5, 0.5, 0.25], "less with each refusal");
});
