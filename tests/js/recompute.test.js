import "./words.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { addends, differenceInWords, isExact, recomputed } from "../../specdemo/ui/static/view/recompute.js";
import { allAccepted, drafted, linked, own, plain, rejection, tree } from "./runs.js";

/** A run that has ended, with the numbers and the text that its rounds bring, unless others are given. */
function ended(rounds, more = {}) {
  const inText = rounds.flatMap(({ draft, next }) => [...draft, next])
    .filter((token) => token && token.fate !== "rejected" && token.fate !== "discarded");
  const outcome = { estimates: [], best_gamma: null, text: inText.map(({ text }) => text).join("") };
  const numbers = { tokens: inText.length.toLocaleString("en-US") };
  return { rounds: rounds.map((round, index) => linked(round, index)), numbers, outcome, complete: true, ...more };
}

function verdicts(run) {
  const { verdicts, follow, accepted, rejected, afterEnd } = recomputed(run);
  return { verdicts, follow, accepted, rejected, afterEnd };
}

function brokenRound(round, ...more) {
  const { brokenRounds } = recomputed(ended([round, ...more]));
  return brokenRounds.map(([{ index }, what]) => `${index}: ${what}`);
}

test("every verdict of the recorded run follows, to the last bit", () => {
  const file = new URL("../../assets/traces/first.json", import.meta.url);
  const trace = JSON.parse(readFileSync(file, "utf-8"));
  const { rounds } = trace;
  const run = ended(rounds, { outcome: { estimates: [], best_gamma: null, text: trace.text } });
  const { accepted, rejected } = trace.stats;
  const judged = accepted + rejected;
  assert.deepEqual(verdicts(run), { verdicts: judged, follow: judged, accepted, rejected, afterEnd: 0 });
  assert.ok(isExact(recomputed(run)));
  const probabilities = rounds.flatMap(({ draft }) => draft).filter(({ u }) => u !== null);
  assert.ok(probabilities.every(({ p, q, accept_prob }) => accept_prob === Math.min(1, p / q)));
});

test("a verdict that does not follow is named with its place and its numbers", () => {
  const wrong = [
    [drafted(1, { p: 0.2, q: 0.8, u: 0.5 }), /u = 0\.5000 is not below .* = 0\.2500, but it was accepted$/],
    [{ ...drafted(1), accept_prob: 0.9 }, /is 1, but 0\.9000 was recorded$/],
    [drafted(1, { q: 0 }), /q is 0/],
    [drafted(1, { fate: "rejected" }), /u = 0\.2500 is below .*, but it was rejected$/],
  ];
  for (const [token, said] of wrong) {
    const { follow, differences, brokenRounds } = recomputed(ended([{ ...allAccepted(), draft: [token] }]));
    assert.deepEqual([follow, brokenRounds.length], [0, token.fate === "rejected" ? 1 : 0], "the order is that of the fates");
    assert.match(differenceInWords(differences[0]), said);
    assert.match(differenceInWords(differences[0]), /^round 1, draft 1 of 1: /);
  }
});

test("a device's rounding of p/q in the last bit is no difference", () => {
  const token = drafted(1, { p: 0.1, q: 0.3, u: 0.2 });
  token.accept_prob += 1e-16;
  assert.ok(isExact(recomputed(ended([{ ...allAccepted(), draft: [token] }]))));
});

test("a token that was accepted after the end of the text has a verdict, and is in no rate", () => {
  const draft = [drafted(1), drafted(2, { fate: "discarded" })];
  const run = ended([{ draft, next: null, draft_ms: 1, verify_ms: 1 }]);
  assert.deepEqual(verdicts(run), { verdicts: 2, follow: 2, accepted: 1, rejected: 0, afterEnd: 1 });
  assert.ok(isExact(recomputed(run)));
});

test("in a tree each family on the path is judged up to the first that is accepted", () => {
  const run = ended([tree()]);
  assert.deepEqual(verdicts(run), { verdicts: 4, follow: 4, accepted: 1, rejected: 3, afterEnd: 0 });
  assert.ok(isExact(recomputed(run)));
  assert.deepEqual(run.rounds[0].draft.map(({ depth }) => depth), [0, 0, 0, 1, 1, 1]);
  const wrong = (at, more) => brokenRound({ ...tree(), draft: tree().draft.with(at, more) });
  assert.equal(wrong(2, drafted(3, { fate: "discarded", parent: null })).length, 1, "a sibling after the accepted one was judged");
  assert.equal(wrong(3, drafted(4, { fate: "discarded", parent: 0 })).length, 1, "a child of a refused one was judged");
  assert.equal(wrong(5, drafted(6, { fate: "discarded", u: null, parent: 1 })).length, 1, "one was not judged");
  assert.equal(brokenRound({ ...tree(), next: own(7) }).length, 1, "a bonus after refused ones");
});

test("a round has at most one rejection, nothing judged after it, and then the target's own token", () => {
  const rejected = () => drafted(1, { fate: "rejected", p: 0.2, q: 0.8, u: 0.5 });
  const broken = (more, ...rounds) => brokenRound({ ...rejection(), ...more }, ...rounds);
  const wrong = [
    [broken({ draft: [rejected(), rejected()] }), /2 drafts were rejected/],
    [broken({ draft: [rejected(), drafted(2, { fate: "discarded" })] }), /after the rejection/],
    [broken({ draft: [drafted(1, { u: null, fate: "discarded" }), rejected()] }), /not judged/],
    [broken({ next: own(4) }), /bonus, and should be resampled/],
    [broken({ next: null }, plain()), /missing/],
    [brokenRound({ ...allAccepted(), draft: [drafted(1, { fate: "discarded" })] }), /not in the text/],
  ];
  for (const [[found, ...more], said] of wrong) {
    assert.match(found, said);
    assert.deepEqual(more, []);
  }
  assert.deepEqual(broken({ next: null }), [], "the text may end in a draft");
});

test("the text is the accepted tokens and the target's own", () => {
  const broken = (more) => recomputed(ended([rejection(), plain()], more)).brokenText;
  const outcome = { estimates: [], best_gamma: null, text: " a d something else" };
  assert.equal(broken({}), null);
  assert.notEqual(broken({ outcome }), null);
  assert.match(broken({ numbers: { tokens: "1,003" } }), / 3 tokens, .* 1,003$/);
  assert.equal(broken({ numbers: { tokens: "9" }, complete: false }), null, "a run that goes on is ahead");
});

test("the parts of a number add up to it as they are written, too", () => {
  for (let p = 0; p <= 1; p += 0.0137) {
    const [kept, added, whole] = addends(p, p * 0.37).map(Number);
    assert.equal((kept + added).toFixed(3), whole.toFixed(3));
  }
});
