// What the page says of a server's run: what is told, and that the rest is not.

import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { rowsOf, valueOf, whatIsMissing } from "../../specdemo/ui/static/view/chart.js";
import { countedInWords, placesOf } from "../../specdemo/ui/static/runs/counters.js";
import { deathsIn } from "../../specdemo/ui/static/view/deaths.js";
import { courseOf } from "../../specdemo/ui/static/runs/racing.js";
import { identityAt } from "../../specdemo/ui/static/view/recompute.js";
import { Replay, numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { isServed, isUnknown, nameOf } from "../../specdemo/ui/static/view/served.js";
import { say } from "../../specdemo/ui/static/view/words.js";
import { inWords, placeAfter } from "../../specdemo/ui/static/view/steps.js";
import {
  alternativesTo, drawnFrom, placeOf, roundInWords, valuesOf, verdictOn,
} from "../../specdemo/ui/static/view/verdict.js";
import { PROMPT, SETTING, allAccepted, linked, own, rejection } from "./runs.js";

const SERVED = { ...SETTING, served: { method: "eagle3", gamma: 3 } };
const UNTOLD = { p: null, q: null, raw_q: null, u: null };

function token(id, fate) {
  const top = [[id, ` ${id}`, null, null, 0.625, null], [null, " x", null, null, 0.25, null], [null, " y", null, null, 0.125, null]];
  return { id, text: ` ${id}`, fate, ...UNTOLD, raw_p: 0.625, top };
}

/** A server's round with so many accepted drafts and so many that are not known. */
function wire(accepted, refused, source, more = {}) {
  const unknown = (_, at) => (
    { id: null, text: "", fate: at ? "discarded" : "rejected", ...UNTOLD, raw_p: null, accept_prob: null, distance: null, top: [] }
  );
  const draft = Array.from({ length: accepted }, (_, at) => ({ ...token(at + 1, "accepted"), accept_prob: null, distance: null }));
  return {
    draft: [...draft, ...Array.from({ length: refused }, unknown)],
    next: source && { ...token(9, source), residual_mass: null },
    draft_ms: null, verify_ms: null, kept: null, gamma: accepted + refused || null, ended_by: null, arrival_ms: 30, drafts_told: true,
    ...more,
  };
}

const rounds = () => [
  wire(0, 0, "sampled", { arrival_ms: 240 }), wire(2, 1, "resampled"), wire(3, 0, "bonus"), wire(0, 3, "resampled"),
].map((one, index) => linked(one, index, SERVED));
const untold = (accepted = 1) => linked(wire(accepted, 0, "sampled", { drafts_told: false, gamma: null }), 1, SERVED);

test("each fate has its verdict in a sentence that follows from the counts", () => {
  const [prefill, rejected, full, none] = rounds();
  assert.equal(verdictOn(prefill.next), "The target's own token: from the prefill, before anything was drafted.");
  const brought = "Accepted: the server's round brought 3 tokens, so the first 2 are drafts that the target accepted.";
  assert.equal(verdictOn(rejected.draft[0], SERVED), brought);
  assert.match(verdictOn(rejected.draft[2]), /^Rejected: the server drafted 3 tokens and the target accepted 2, .*not told\.$/);
  assert.match(verdictOn(rejected.next), /^In place of a draft: the server drafted 3 tokens and the target accepted 2, so this /);
  assert.match(verdictOn(full.next), /^Bonus: the target accepted all 3 tokens that the server drafted, /);
  assert.match(verdictOn(none.draft[1]), /^Discarded: the server drafted 3 tokens, and this one is after the rejected /);
  assert.match(verdictOn(untold().next), /replaced a rejected draft .* \(bonus\) is not known, since the server does not tell how many /);
  assert.match(verdictOn(untold().draft[0]), /brought 2 tokens, so the first one is a draft that the target accepted\.$/);
  const plain = linked(wire(0, 0, "sampled"), 4, SERVED);
  assert.equal(verdictOn(plain.next), "The target's own token: nothing was drafted in this round.");
  const ended = linked(wire(2, 0, null), 4, SERVED);
  assert.match(verdictOn(ended.draft[0]), /^Accepted: the text ended inside the drafts /);
});

test("no sentence has a number that the server does not tell", () => {
  for (const round of [...rounds(), untold()]) {
    for (const one of [...round.draft, round.next]) {
      for (const words of [verdictOn(one, SERVED), roundInWords(round)]) assert.doesNotMatch(words, /u =|q =|min\(|–|null|NaN/);
    }
  }
});

test("a token that is not told has a name of its own, and only a server's does", () => {
  const [, { draft: [known, , unknown] }] = rounds();
  assert.deepEqual([known, unknown].map(isUnknown), [false, true]);
  assert.equal(nameOf(unknown), "A token that is not told");
  assert.equal(nameOf(known), '" 1"');
  const [ours] = linked(rejection(), 0, { ...SETTING, served: null }).draft;
  assert.deepEqual([isServed(ours), isServed(PROMPT[0]), isUnknown(PROMPT[0])], [false, false, false]);
  assert.equal(placeOf(unknown), "round 2, draft 3 of 3");
  assert.equal(placeOf(untold(2).draft[1]), "round 2, draft 2");
});

test("values that are not told are null, and none is made up", () => {
  const [prefill, rejected, full] = rounds();
  const named = (one) => valuesOf(one).map(([symbol, , value]) => [symbol, value]);
  const drafted = [["raw p", 0.625], ["p", null], ["q", null], ["u", null]];
  assert.deepEqual(named(rejected.draft[0]), drafted);
  assert.deepEqual(named(rejected.next), drafted);
  assert.deepEqual(named(rejected.draft[2]).map(([, value]) => value), [null, null, null, null]);
  const withoutDraft = drafted.filter(([symbol]) => symbol !== "q");
  assert.deepEqual(named(full.next), withoutDraft);
  assert.deepEqual(named(prefill.next), withoutDraft);
  assert.deepEqual(named(untold().next), drafted, "it may have replaced a draft");
  assert.deepEqual(valuesOf(rejected.draft[0], "draft"), []);
  assert.match(say("inspector.notTold"), /not told by the server/);
});

test("the likeliest tokens have the target's raw probability, though they have no ids", () => {
  const [, rejected] = rounds();
  const rows = alternativesTo(rejected.draft[0]);
  assert.deepEqual(rows.map(({ id, raw_p, p }) => [id, raw_p, p]), [[1, 0.625, null], [null, 0.25, null], [null, 0.125, null]]);
  assert.deepEqual(rows[0].drawn, { from: "raw_p", how: "drafted" });
  assert.deepEqual(drawnFrom(rejected.next), { from: "raw_p", how: "drawn" });
  assert.deepEqual(alternativesTo(rejected.next).map(({ id }) => id), [9, null, null], "not the one that it replaced");
  assert.deepEqual(alternativesTo(rejected.draft[2]), []);
  assert.deepEqual(identityAt(rejected.draft[0]), []);
});

test("the player says what has happened", () => {
  const all = rounds();
  assert.equal(inWords(all, { round: 1, step: 0 }, "round"), '" 9" comes from the prefill, before anything is drafted.');
  assert.match(inWords(all, { round: 2, step: 0 }, "round"), /^2 of 3 drafted tokens accepted; " 9" comes in place/);
  assert.equal(inWords(all, placeAfter(all, 4), "token"), "A token that is not told is drafted. Now 3 tokens wait for their verdict.");
  assert.equal(inWords(all, placeAfter(all, 5), "token"), '" 1" is accepted.');
  assert.equal(inWords(all, placeAfter(all, 7), "token"), "A token that is not told is rejected.");
  assert.equal(inWords(all, placeAfter(all, 8), "token"), '" 9" comes in place of the rejected token.');
  const one = [{ ...all[0] }, untold()];
  assert.match(inWords(one, { round: 2, step: 0 }, "round"), /^1 drafted token accepted, of how many is not told; " 9" is the target's own token\.$/);
});

test("a replay goes by arrival, without the wait for the first token, and shows no draft before it came", () => {
  const replay = new Replay();
  replay.restart(0.5, 0);
  const all = rounds();
  assert.equal(replay.next(all, 0, 100).judged.length, 1);
  assert.deepEqual(replay.next(all, 59, 100), { judged: [], drafting: null });
  assert.equal(replay.next(all, 60, 100).judged.length, 1);
  assert.equal(courseOf({ rounds: [wire(1, 0, "bonus"), wire(0, 0, "sampled")], ms: 60, tokens: 3, title: "" }).ends[0], 30);
});

test("of a round that the end of the text has cut it is said what is open", () => {
  const [first] = rounds();
  const cut = linked({ ...wire(2, 0, "sampled"), ended_by: "length" }, 4, SERVED);
  assert.match(verdictOn(cut.next, SERVED), /^The text's last token: it is the target's own or a draft that the target accepted\./);
  assert.doesNotMatch(verdictOn(first.next, SERVED), /the text ends/);
});

test("an acceptance rate is counted only where all drafts are told", () => {
  assert.equal(numbersAfter(rounds(), 3).acceptance_rate, "83%");
  assert.equal(numbersAfter([rounds()[0], untold()], 2).acceptance_rate, "not told");
  assert.equal(numbersAfter([linked(allAccepted(2), 0)], 1).acceptance_rate, "100%");
});

test("where drafts die is counted by place, and not at all where it is not told", () => {
  const { places, all } = deathsIn({ prompt: PROMPT, rounds: rounds() });
  assert.deepEqual(places.map(({ accepted, rejected }) => [accepted, rejected]), [[2, 1], [2, 0], [1, 1]]);
  assert.equal(all.tokens.length, 7);
  assert.deepEqual(deathsIn({ prompt: PROMPT, rounds: [untold()] }).places, []);
});

test("the server's counters say whose drafts they counted", () => {
  const counted = { alone: true, drafts: 4, by_place: [3, 1] };
  assert.deepEqual(placesOf(counted), [["place 1", "4", "3", "75%"], ["place 2", "4", "1", "25%"]]);
  assert.match(countedInWords(counted), /counted 4 drafts\. All of them are this run's/);
  assert.match(countedInWords({ ...counted, alone: false, drafts: 1 }), /counted 1 draft\. Other visitors' requests count there, too/);
});

test("the gamma tab has tokens a round without a formula, and says why there is no more", () => {
  const estimate = { gamma: 1, formula_tokens: null, formula_speedup: null, seen_tokens: 1.5, seen_speedup: null };
  const outcome = { estimates: [estimate], best_gamma: null, no_speedup: "", text: "" };
  const row = rowsOf(outcome, [], 1)[1];
  assert.deepEqual([valueOf(row, "tokens", "seen"), valueOf(row, "tokens", "formula"), row.isOwn], [1.5, null, true]);
  const run = { complete: true, finish: "length", rounds: rounds(), outcome, setting: SERVED, counted: null };
  assert.match(whatIsMissing(run), /^Tokens a round only: Leviathan’s formula needs p and q, .* not timed here\.$/);
  const counters = { ...run, rounds: [untold()] };
  assert.match(whatIsMissing(counters), /By the server's own counters .* Other visitors' requests count there, too\.$/);
  const nothing = { ...counters, outcome: { ...outcome, estimates: [] } };
  assert.match(whatIsMissing(nothing), /^The server does not tell how many tokens it drafted, so there is nothing /);
});
