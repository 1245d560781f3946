import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";

import { isExact, recomputed } from "../../specdemo/ui/static/view/recompute.js";
import { keptIn, residualAt, shareAt, weightAfter } from "../../specdemo/ui/static/view/rules.js";
import { alternativesTo, drawnFrom, valuesOf, verdictOn } from "../../specdemo/ui/static/view/verdict.js";
import { RULES, SETTING, drafted, linked, own } from "./runs.js";

const by = (rule, more = {}) => ({ ...SETTING, rule: RULES[rule], ...more });

/** Four drafts judged as a block: w is 1, 1/2, 3/4 and 3/8, and the second is the last whose u is below its h. */
function block() {
  const draft = [
    { ...drafted(1, { text: " a", p: 0.5, q: 0.5, u: 0.9 }), accept_prob: 0.3 },
    { ...drafted(2, { text: " b", p: 0.3, q: 0.6, u: 0.1 }), accept_prob: 0.4 },
    { ...drafted(3, { text: " c", fate: "rejected", p: 0.375, q: 0.25, u: 0.95 }), accept_prob: 0.9 },
    { ...drafted(4, { text: " d", fate: "discarded", p: 0.5, q: 1, u: 0.6 }), accept_prob: 0.375 },
  ];
  const next = own(5, { text: " e", source: "resampled", p: 0.6, q: 0.1, residual_mass: 0.5 });
  return linked({ draft, next, draft_ms: 1, verify_ms: 1 }, 0, by("block"));
}

function runOf(round) {
  return { rounds: [round], numbers: {}, outcome: null, complete: false };
}

test("a block is kept up to the last u below its h", () => {
  assert.equal(keptIn(block()), 2);
  assert.deepEqual([0, 1, 2, 3].map((count) => weightAfter(block(), count)), [1, 1, 0.5, 0.75]);
});

test("a block's verdicts follow from the record, and a wrong one is found", () => {
  const found = recomputed(runOf(block()));
  assert.deepEqual([found.verdicts, found.follow, found.accepted, found.rejected], [4, 4, 2, 1]);
  assert.equal(found.afterRejection, 1);
  assert.ok(isExact(found));
  const other = block();
  other.draft[1].u = 0.5; // not below h: nothing of the draft is kept
  assert.ok(!isExact(recomputed(runOf(other))));
  const last = block();
  last.draft[3].accept_prob = 0.4; // h of the last place is w
  assert.match(recomputed(runOf(last)).differences[0].what, /^h is 0.375.*, but 0.4.* was recorded$/);
});

test("after a block the residual has the weight of what was kept", () => {
  const { next, draft } = block();
  assert.equal(residualAt(next, 0.6, 0.1), 0.5 * 0.6 - 0.1);
  assert.equal(residualAt(draft[1], 0.6, 0.1), 0.5);
  const share = valuesOf(next).find(([symbol]) => symbol === "r = (w·p − q)₊ / Σ");
  assert.ok(Math.abs(share[2] - 0.4) < 1e-12);
  assert.equal(shareAt(next, 0.6, 0.1), share[2]);
  assert.equal(shareAt(draft[1], 0.6, 0.1), null, "nothing was drawn from the residual there");
});

/** One draft that was rejected, by a lossy rule. */
function rejectedBy(rule, accept_prob, more = {}, p = 0.2) {
  const token = drafted(1, { text: " a", fate: "rejected", p, q: 0.8, u: 0.7, distance: 0.25 });
  const next = own(5, { text: " e", source: "resampled", p: 0.6, q: 0.1, residual_mass: 1 });
  const round = { draft: [{ ...token, accept_prob }], next, draft_ms: 1, verify_ms: 1 };
  return linked(round, 0, by(rule, more));
}

test("typical acceptance compares p with a threshold, and then draws from p", () => {
  const { draft, next } = rejectedBy("typical", 0, {}, 0.05);
  assert.match(verdictOn(draft[0]), /^Rejected: p = 0.05.* min\(ε, δ·e\^−H\)/);
  assert.deepEqual([drawnFrom(next).from, residualAt(next, 0.6, 0.1)], ["p", null]);
  assert.ok(alternativesTo(next).every(({ residual }) => residual === null));
  next.id = 1;
  assert.equal(alternativesTo(next)[0].drawn.from, "p", "the rejected token can be drawn again");
  assert.ok(isExact(recomputed(runOf(draft[0].round))));
  const likely = rejectedBy("typical", 0);
  likely.draft[0].p = 0.2;
  assert.match(recomputed(runOf(likely)).differences[0].what, /^p = 0.2.* was recorded with the verdict 0$/);
});

test("lenience divides the threshold, and weighs q in the residual", () => {
  const round = rejectedBy("lenient", 0.5, { of_rule: { lenience: 0.5 } });
  assert.equal(residualAt(round.next, 0.6, 0.1), 0.6 - 0.05);
  assert.ok(isExact(recomputed(runOf(round))));
  assert.ok(!isExact(recomputed(runOf(rejectedBy("lenient", 0.4, { of_rule: { lenience: 0.5 } })))));
  const distance = valuesOf(round.draft[0]).find(([symbol]) => symbol === "distance");
  assert.equal(distance[2], 0.25);
});
