import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { leftAfter, massAt } from "../../specdemo/ui/static/view/rules.js";
import {
  alternativesTo, drawnFrom, fedAgainInWords, isJudged, judgement, lengthInWords, outlinesInWords, placeOf, roundInWords, valuesOf, verdictOn, walkTo,
} from "../../specdemo/ui/static/view/verdict.js";
import { PROMPT, SETTING, allAccepted, drafted, linked, own, plain, rejection, tree } from "./runs.js";

const [accepted, rejected, discarded] = linked(rejection(), 3).draft;
const resampled = rejected.round.next;
const bonus = linked(allAccepted(2), 4).next;
const sampled = linked(plain(), 5).next;

test("each fate has its verdict in a sentence", () => {
  assert.equal(verdictOn(PROMPT[0]), "Given: part of the prompt.");
  assert.match(verdictOn(accepted), /^Accepted: u = 0.2500 is below min\(1, p\/q\) = 1 \(p is .*\)\.$/);
  const replaced = 'Rejected: u = 0.5000 is not below min(1, p/q) = 0.2500. " d" was drawn in its place.';
  assert.equal(verdictOn(rejected), replaced);
  assert.match(verdictOn(discarded), /^Discarded without being judged: draft 2, " b", was rejected, /);
  assert.match(verdictOn(resampled), /^Resampled: " b" was rejected, because u = 0.50.*\. This token /);
  assert.match(verdictOn(resampled), /drawn in its place from the residual, .* by the number for the draw, 0.2500\.$/);
  assert.match(verdictOn(bonus), /^Bonus: all 2 drafts of the round were accepted, .* by the number for the draw, 0.2500\.$/);
  assert.match(verdictOn(linked(allAccepted(1), 0).next), /^Bonus: the round's only draft was accepted, /);
  assert.match(verdictOn(sampled), /^Sampled: nothing was drafted in this round, .* by the number for the draw, 0.2500\.$/);
});

test("a token after the end of the text says so", () => {
  const draft = [drafted(1), drafted(2, { fate: "discarded" })];
  const [, after] = linked({ draft, next: null, draft_ms: 1, verify_ms: 1 }, 0).draft;
  assert.match(verdictOn(after), /^Discarded: u = .* is below .*, so it was accepted, but the text .*\.$/);
  const [, last] = linked({ ...rejection(), next: null }, 0).draft;
  assert.match(verdictOn(last), /Nothing came in its place\.$/);
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
  assert.match(judgement(judged({ u: 0.5, p: 0, accept_prob: 0 })), /not below .* = 0 \(p is 0, so .* never accepted\)$/);
});

test("a grammar says what it allowed, and what it forbids", () => {
  const verdict = (more) => verdictOn(linked({ ...rejection(), draft: [drafted(1, more)] }, 0).draft[0], SETTING);
  const only = "Accepted: u = 0.2500 is below min(1, p/q) = 1 (p is at least q, so it is always accepted). ";
  assert.equal(verdict({ allowed: 1 }), `${only}The grammar left no choice here.`);
  assert.equal(verdict({ allowed: 4096 }), `${only}The grammar allowed 4096 tokens here.`);
  const [thought] = linked({ ...rejection(), draft: [drafted(1)] }, 0).draft;
  assert.match(verdictOn(thought, { ...SETTING, bound: true }), /The grammar does not apply here: it begins after the thinking\.$/);
  assert.equal(
    verdict({ fate: "rejected", p: 0, allowed: 3, forbidden: true }),
    "Rejected: the grammar forbids it here, so p is 0 (before the mask and the sampler, the target gave it 0.30)."
      + ' " d" was drawn in its place.',
  );
});

test("where p is 0, the verdict says what made it so and what the target gave the token before", () => {
  const zero = { fate: "rejected", p: 0, q: 0.5, raw_p: 0.0314159, u: 0.5 };
  const why = (more, setting) => {
    const round = linked({ ...rejection(), draft: [drafted(1, { ...zero, ...more })] }, 0);
    const [token] = round.draft;
    assert.ok(verdictOn(round.next, setting).includes(judgement(token, setting)), "so does what replaced it");
    return verdictOn(token, setting).match(/\(p is 0(.*)\)\. " d" was drawn/)[1];
  };
  const before = "before the sampler, at temperature 1 and unfiltered, the target gave it 0.031";
  assert.equal(why({}, SETTING), `: top-p 0.9 removed it; ${before}`);
  const all = { ...SETTING, top_k: 40, min_p: 0.05 };
  assert.equal(why({}, all), `: top-k 40 or top-p 0.9 or min-p 0.05 removed it; ${before}`);
  const unfiltered = { ...SETTING, temperature: 0.01, top_p: 1 };
  assert.equal(why({}, unfiltered), `: too little for temperature 0.01; ${before}`);
  assert.equal(why({ raw_p: 0 }, SETTING), ", so it is never accepted");
  assert.equal(why({}, null), ", so it is never accepted");
});

test("where a guess's p is 0 after refused ones, it says what made it so, as far as that is known", () => {
  const why = (top, setting) => {
    const { draft } = linked({ ...tree(), draft: tree().draft.map((token) => ({ ...token, top })) }, 0, setting);
    return judgement(Object.assign(draft[5], { p: 0, accept_prob: 0 }), setting).match(/p′ is 0(.*)\)$/)[1];
  };
  const unshaped = { ...SETTING, temperature: 1, top_p: 1 };
  assert.equal(why([], unshaped), ": the guesses before it left nothing of the 0.30 that the target gave it");
  assert.match(why([], SETTING), /, or the sampler had removed it; before the sampler, /);
  assert.match(why([[6, " 6", 0, 0.1, 0.2, 0.1]], SETTING), /^: top-p 0\.9 removed it; /);
  assert.match(why([[6, " 6", 0.2, 0.1, 0.2, 0.1]], SETTING), /left nothing of the 0\.20 that the target gave it$/);
});

test("a token's place is its round and its draft", () => {
  const places = [PROMPT[0], accepted, discarded].map(placeOf);
  assert.deepEqual(places, ["prompt", "round 4, draft 1 of 3", "round 4, draft 3 of 3"]);
  assert.equal(placeOf(resampled), "round 4, the target's own");
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

test("a round says how long its draft could be, and why it is shorter", () => {
  const round = linked({ ...rejection(), gamma: 8, ended_by: "confidence" }, 0);
  assert.equal(lengthInWords(round), "γ 8 (shorter: the drafter was not sure enough of the next token)");
  assert.ok(roundInWords(round).endsWith(`, ${lengthInWords(round)}`));
  assert.equal(lengthInWords(linked({ ...allAccepted(4), gamma: 4, ended_by: "gamma" }, 0)), "γ 4");
  const alone = linked({ ...plain(), gamma: 0, ended_by: null }, 0);
  assert.equal(lengthInWords(alone), "");
  const unsure = linked({ ...plain(), gamma: 4, ended_by: "confidence" }, 0);
  const why = "nothing was drafted in this round (the drafter was not sure enough of the next token), so";
  assert.ok(verdictOn(unsure.next).startsWith(`Sampled: ${why}`));
});

test("a round says how much of the text was fed again to models that keep a state", () => {
  const round = (more) => linked({ ...rejection(), fed_again: null, target_forwards: 1, ...more }, 0);
  assert.equal(fedAgainInWords(round({})), "");
  assert.equal(fedAgainInWords(linked(rejection(), 0)), "", "of an older trace");
  assert.equal(fedAgainInWords(round({ fed_again: 0 })), "0 tokens of the text fed again");
  assert.equal(fedAgainInWords(round({ fed_again: 1 })), "1 token of the text fed again");
  const twice = "18 tokens of the text fed again, 2 target forwards";
  assert.equal(fedAgainInWords(round({ fed_again: 18, target_forwards: 2 })), twice);
  assert.ok(roundInWords(round({ fed_again: 18, target_forwards: 2 })).endsWith(`, ${twice}`));
});

test("a place of a block tells nothing of its token", () => {
  assert.equal(verdictOn(accepted, null, "place"), "A place of the block. It has no token yet.");
  assert.deepEqual([valuesOf(accepted, "place"), alternativesTo(accepted, "place")], [[], []]);
  assert.ok(isJudged("verdict") && isJudged("all") && !isJudged("draft") && !isJudged("place"));
});

test("what comes later in the round is not given away", () => {
  const drafted = "Drafted with probability q = 0.8000. The target has not judged it yet.";
  assert.equal(verdictOn(rejected, null, "draft"), drafted);
  assert.deepEqual(valuesOf(rejected, "draft").map(([symbol]) => symbol), ["q"]);
  assert.deepEqual(alternativesTo(rejected, "draft"), []);
  const judged = "Rejected: u = 0.5000 is not below min(1, p/q) = 0.2500.";
  assert.equal(verdictOn(rejected, null, "verdict"), judged);
  assert.deepEqual(alternativesTo(rejected, "verdict").map(({ id }) => id), [2]);
});

// What is left of the residual is inside .568 and outside .425: a number of .8071 draws "inside", whose id is larger.
function walked(number, shares, drawnId, more = {}) {
  const top = shares.map(([id, share]) => [id, ` ${id}`, share * 0.5, 0, share, 0]);
  const next = own(drawnId, { source: "resampled", residual_mass: 0.5, u: number, top, p: 0, q: 0, ...more });
  const share = shares.find(([id]) => id === drawnId)[1];
  Object.assign(next, { p: share * 0.5 });
  return walkTo(linked({ ...rejection(), next }, 0).next);
}

test("a draw goes through the tokens in the order of their ids, whichever is likeliest", () => {
  const { pieces, drawn, rest, isKnown, number } = walked(0.8071, [[90, 0.568], [40, 0.432]], 90);
  assert.deepEqual(pieces.map(({ text }) => text), [" 40", " 90"]);
  assert.ok(Math.abs(drawn.from - 0.432) < 1e-9 && Math.abs(drawn.to - 1) < 1e-9 && isKnown && rest === 0);
  assert.ok(drawn.from <= number && number < drawn.to);
});

test("a draw of which too little is recorded is not drawn as if it were known", () => {
  const little = walked(0.8071, [[90, 0.568], [40, 0.425]], 90);
  assert.ok(little.isKnown && Math.abs(little.rest - 0.007) < 1e-9, "the number is in the part, wherever the rest is");
  assert.equal(walked(0.428, [[90, 0.568], [40, 0.425]], 90).isKnown, false);
  assert.equal(walked(0.5, [[90, 0.2], [40, 0.2]], 90).isKnown, false);
});

test("no draw is shown where none was made: in greedy decoding, and of a drafted token", () => {
  const greedy = { ...SETTING, greedy: true };
  assert.equal(walkTo(accepted), null);
  assert.equal(walkTo(linked({ ...plain(), next: own(1, { source: "sampled", p: 1 }) }, 0, greedy).next), null);
  assert.notEqual(walkTo(sampled), null);
});

test("in a tree each guess is judged by what those before it at its place have left of p", () => {
  const { draft, next } = linked(tree(), 3);
  assert.equal(placeOf(draft[1]), "round 4, depth 1, guess 2 of 3");
  assert.match(verdictOn(draft[0]), /^Rejected: .* The next guess here, " 2", was judged by what was then left of p\.$/);
  assert.match(verdictOn(draft[2]), /^Discarded .*: " 2", which comes before it here, was accepted\.$/);
  assert.match(verdictOn(draft[3]), /^Discarded .*: it follows " 1", which was not kept\.$/);
  assert.match(verdictOn(draft[5]), /" 7" was drawn in its place\.$/);
  assert.match(verdictOn(next), /^Resampled: " 6" was rejected/);
  const symbols = ["p′", "q′", "Σ (p′ − q′)₊", "r = (p′ − q′)₊ / Σ", "number for the draw"];
  assert.deepEqual(valuesOf(next).map(([symbol]) => symbol), symbols, "of what replaces the second guess, too");
  for (const token of [draft[1], next]) assert.match(valuesOf(token)[0][1], /^what the guesses before it left/);
  assert.match(verdictOn(next), /min\(1, p′\/q′\) .* the part of p′ that exceeds q′, /);
  assert.equal(outlinesInWords(draft[0], null), "Outlined bars: the probabilities before temperature and filters.");
  const unshaped = { ...SETTING, temperature: 1, top_p: 1 };
  assert.equal(outlinesInWords(draft[0], unshaped), "", "none of it");
  assert.match(outlinesInWords(next, unshaped), /before the refused guesses before it\.$/);
  const masses = draft.map((token) => massAt(token));
  assert.deepEqual(masses.map((mass) => mass === null ? null : Number(mass.toFixed(9))), [0.8, null, null, null, null, 0.8]);
  const told = linked({ ...tree(), draft: tree().draft.map((token) => ({ ...token, residual_mass: 0.5 })) }, 0).draft;
  assert.deepEqual([massAt(told[5]), leftAfter(told[4]), leftAfter(told[5])], [0.5, 0.5, 0.25], "less with each refusal");
  const whole = { ...tree(), draft: tree().draft.slice(1, 2).map((token) => ({ ...token, parent: null })), next: own(7) };
  assert.match(verdictOn(linked(whole, 0).next), /^Bonus: the path through the tree ends after 1 accepted guess, /);
});
