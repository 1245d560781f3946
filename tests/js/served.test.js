// What the page says of a server's run: what is told, and that the rest is not.

import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { deathsIn } from "../../specdemo/ui/static/view/positions.js";
import { numbersAfter } from "../../specdemo/ui/static/view/replay.js";
import { isServed, isUnknown, nameOf } from "../../specdemo/ui/static/view/served.js";
import { inWords, placeAfter } from "../../specdemo/ui/static/view/steps.js";
import { alternativesTo, drawnFrom, roundInWords, valuesOf, verdictOn } from "../../specdemo/ui/static/view/verdict.js";
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
    draft_ms: null, verify_ms: null, gamma: accepted + refused || null, ended_by: null, arrival_ms: 30, drafts_told: true,
    ...more,
  };
}

const rounds = () => [
  wire(0, 0, "sampled", { arrival_ms: 240 }), wire(2, 1, "resampled"), wire(3, 0, "bonus"), wire(0, 3, "resampled"),
].map((one, index) => linked(one, index, SERVED));
const untold = (accepted = 1) => linked(wire(accepted, 0, "sampled", { drafts_told: false, gamma: null }), 1, SERVED);

test("each fate has a verdict that follows from the counts, and none has a number that the server does not tell", () => {
  const [prefill, rejected, full, none] = rounds();
  const ended = linked(wire(2, 0, null), 4, SERVED);
  for (const [token, said] of [
    [prefill.next, /prefill/], [rejected.draft[0], /^Accepted: .* 3 tokens, .* 2 /], [rejected.draft[2], /^Rejected: .* 3 .* 2/],
    [rejected.next, /^In place of a draft: .* 3 .* 2/], [full.next, /^Bonus: .* 3 /], [none.draft[1], /^Discarded: .* 3 /],
    [untold().next, /not known/], [untold().draft[0], /^Accepted: .* 2 tokens/], [ended.draft[0], /^Accepted: .*ended/],
    [linked({ ...wire(2, 0, "sampled"), ended_by: "length" }, 4, SERVED).next, /last token/],
  ]) assert.match(verdictOn(token, SERVED), said);
  for (const round of [...rounds(), untold()]) {
    for (const one of [...round.draft, round.next]) {
      for (const words of [verdictOn(one, SERVED), roundInWords(round)]) assert.doesNotMatch(words, /u =|q =|min\(|–|null|NaN/);
    }
  }
});

test("a token that is not told has a name of its own, and only a server's does", () => {
  const [, { draft: [known, , unknown] }] = rounds();
  const [ours] = linked(rejection(), 0, { ...SETTING, served: null }).draft;
  assert.deepEqual([known, unknown, ours, PROMPT[0]].map((token) => [isServed(token), isUnknown(token)]), [
    [true, false], [true, true], [false, false], [false, false],
  ]);
  assert.doesNotMatch(nameOf(unknown), /"/);
  assert.equal(inWords(rounds(), placeAfter(rounds(), 7), "token"), `${nameOf(unknown)} is rejected.`);
});

test("values that are not told are null, and none is made up", () => {
  const [, rejected, full] = rounds();
  const named = (one) => valuesOf(one).map(([symbol, , value]) => [symbol, value]);
  const drafted = [["raw p", 0.625], ["p", null], ["q", null], ["u", null]];
  for (const one of [rejected.draft[0], rejected.next, untold().next]) assert.deepEqual(named(one), drafted);
  assert.deepEqual(named(rejected.draft[2]).map(([, value]) => value), [null, null, null, null]);
  assert.deepEqual(named(full.next), drafted.filter(([symbol]) => symbol !== "q"));
  assert.deepEqual(valuesOf(rejected.draft[0], "draft"), []);
});

test("the likeliest tokens have the target's raw probability, though they have no ids", () => {
  const [, rejected] = rounds();
  const rows = alternativesTo(rejected.draft[0]);
  assert.deepEqual(rows.map(({ id, raw_p, p }) => [id, raw_p, p]), [[1, 0.625, null], [null, 0.25, null], [null, 0.125, null]]);
  assert.deepEqual(rows[0].drawn, { from: "raw_p", how: "drafted" });
  assert.deepEqual(drawnFrom(rejected.next), { from: "raw_p", how: "drawn" });
  assert.deepEqual(alternativesTo(rejected.next).map(({ id }) => id), [9, null, null], "not the one that it replaced");
  assert.deepEqual(alternativesTo(rejected.draft[2]), []);
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
