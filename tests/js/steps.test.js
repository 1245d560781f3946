import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { tokensOf } from "../../specdemo/ui/static/view/run.js";
import {
  after, before, between, draftedIn, endOf, inWords, isBefore, placeAfter, stepsTo,
} from "../../specdemo/ui/static/view/steps.js";
import { SETTING, allAccepted, drafted, linked, plain, rejection, tree } from "./runs.js";

const START = { round: 0, step: 0 };

/** The text ended with the draft's first token; the second was accepted too late. */
function ended() {
  const draft = [drafted(40, { text: " end" }), drafted(41, { fate: "discarded" })];
  return { draft, next: null, draft_ms: 10, verify_ms: 20 };
}

// Every fate: 3 drafted, 2 judged, 1 drawn; 2, 2, 1; 1 drawn; 2, 1, none.
const ROUNDS = [rejection(), allAccepted(), plain(), ended()].map((round, index) => linked(round, index));

function walk(step, from, stride, rounds = ROUNDS) {
  const places = [from];
  for (let at = step(rounds, from, stride); isBefore(at, places.at(-1)) || isBefore(places.at(-1), at);) {
    places.push(at);
    at = step(rounds, at, stride);
  }
  return places;
}

const PLACES = walk(after, START, "token");

/** The stage as a list: what each token shows as. */
class Stage {
  tokens = [];
  shown = new Map();
  at = START;

  go(to, rounds = ROUNDS) {
    const { gone, added, drafted } = between(rounds, this.at, to);
    const kept = this.tokens.length - gone.length;
    assert.deepEqual(this.tokens.slice(kept), gone, "only tokens at the end leave");
    this.tokens = [...this.tokens.slice(0, kept), ...added];
    for (const { token, shown } of drafted) this.shown.set(token, shown);
    this.at = to;
    return this;
  }

  get seen() {
    return this.tokens.map((token) => {
      const shown = this.shown.get(token) ?? "judged";
      return shown === "place" ? "[]" : `${token.text}:${shown === "waits" ? "?" : token.fate}`;
    });
  }
}

test("by token every step is passed, by round every end of a round, and both ways", () => {
  assert.equal(PLACES.length, 6 + 5 + 1 + 3 + 1);
  assert.deepEqual(PLACES.slice(4, 8), [4, 5].map((step) => ({ round: 0, step })).concat(
    [0, 1].map((step) => ({ round: 1, step })),
  ));
  assert.deepEqual(PLACES.at(-1), endOf(ROUNDS));
  assert.deepEqual(walk(before, endOf(ROUNDS), "token"), PLACES.toReversed());
  const ends = [0, 1, 2, 3, 4].map((round) => ({ round, step: 0 }));
  assert.deepEqual(walk(after, START, "round"), ends);
  assert.deepEqual(walk(before, endOf(ROUNDS), "round"), ends.toReversed());
  assert.deepEqual(after(ROUNDS, { round: 0, step: 4 }, "round"), { round: 1, step: 0 });
  assert.deepEqual(before(ROUNDS, { round: 1, step: 2 }, "round"), { round: 1, step: 0 });
});

test("a place is a number of steps, and the other way round", () => {
  PLACES.forEach((place, steps) => {
    assert.equal(stepsTo(ROUNDS, place), steps);
    assert.deepEqual(placeAfter(ROUNDS, steps), place);
  });
  assert.deepEqual(placeAfter(ROUNDS, 1000), endOf(ROUNDS));
});

test("the draft comes first and waits, then the verdicts fall one by one, then the own token is drawn", () => {
  const stage = new Stage();
  const seen = PLACES.slice(0, 7).map((place) => stage.go(place).seen.join(""));
  assert.deepEqual(seen, [
    "",
    " a:?",
    " a:? b:?",
    " a:? b:? c:?",
    " a:accepted b:? c:?",
    " a:accepted b:rejected c:discarded",
    " a:accepted b:rejected c:discarded d:resampled",
  ]);
});

function walked(manner) {
  const rounds = [rejection(), plain()].map((round, index) => linked(round, index, { ...SETTING, manner }));
  const places = walk(after, START, "token", rounds);
  assert.deepEqual(walk(before, endOf(rounds), "token", rounds), places.toReversed());
  const stage = new Stage();
  const seen = places.map((place) => stage.go(place, rounds).seen.join(""));
  places.toReversed().forEach((place, at) => {
    assert.equal(stage.go(place, rounds).seen.join(""), seen.at(-1 - at), "back as forth");
  });
  assert.deepEqual(stepsTo(rounds, endOf(rounds)), places.length - 1);
  return { seen, whole: draftedIn(rounds[0]).step };
}

const JUDGED = [
  " a:accepted b:? c:?",
  " a:accepted b:rejected c:discarded",
  " a:accepted b:rejected c:discarded d:resampled",
  " a:accepted b:rejected c:discarded d:resampled 30:sampled",
];

test("a block appears at once, in one step", () => {
  const { seen, whole } = walked("block");
  assert.deepEqual(seen, ["", " a:? b:? c:?", ...JUDGED]);
  assert.equal(whole, 1);
});

test("a block that is corrected token by token appears as empty places, which get their tokens in turn", () => {
  const { seen, whole } = walked("block and chain");
  assert.deepEqual(seen, ["", "[][][]", " a:?[][]", " a:? b:?[]", " a:? b:? c:?", ...JUDGED]);
  assert.equal(whole, 4);
});

test("every way to a place leads to the same stage", () => {
  const direct = PLACES.map((place) => new Stage().go(place).seen);
  const stage = new Stage();
  PLACES.forEach((place, at) => assert.deepEqual(stage.go(place).seen, direct[at]));
  PLACES.toReversed().forEach((place, at) => assert.deepEqual(stage.go(place).seen, direct.at(-1 - at)));
  for (const [from, one] of PLACES.entries()) {
    for (const [to, other] of PLACES.entries()) {
      assert.deepEqual(new Stage().go(one).go(other).seen, direct[to], `from ${from} to ${to}`);
    }
  }
  const all = ROUNDS.flatMap(tokensOf).map(({ text, fate }) => `${text}:${fate}`);
  assert.deepEqual(direct.at(-1), all);
});

test("a round of nothing but discarded tokens, as a file may have it, can be passed", () => {
  const draft = [drafted(1, { fate: "discarded", u: null })];
  const odd = [linked({ draft, next: null, draft_ms: 1, verify_ms: 1 }, 0)];
  assert.deepEqual(after(odd, START, "token"), endOf(odd));
  assert.deepEqual(new Stage().go(endOf(odd), odd).seen, [" 1:discarded"]);
  assert.deepEqual(draftedIn(odd[0]), START);
});

test("a tree appears depth by depth, and the text has the guesses at the places that were come to", () => {
  const rounds = [linked(tree(), 0)];
  const walked = walk(after, START, "token", rounds);
  const [stage, back] = [new Stage(), new Stage().go(endOf(rounds), rounds)];
  const seen = walked.map((place) => stage.go(place, rounds).seen.join(""));
  const first = " 1:? 2:? 3:?";
  const all = " 1:rejected 4:discarded 2:accepted 5:rejected 6:rejected 3:discarded";
  assert.deepEqual(seen, [
    "", first, first, " 1:rejected 2:? 3:?", " 1:rejected 2:accepted 5:? 6:? 3:discarded",
    " 1:rejected 2:accepted 5:rejected 6:? 3:discarded", all, `${all} 7:resampled`,
  ]);
  assert.deepEqual(walked.reverse().map((place) => back.go(place, rounds).seen.join("")), seen.reverse());
});

test("a step tells its numbers, and a round its counts", () => {
  const told = PLACES.map((place) => inWords(ROUNDS, place, "token"));
  assert.match(told[4], /^" a" is accepted: u = 0\.2500 is below .* = 1\.$/);
  assert.match(told[5], /^" b" is rejected: u = 0\.5000 is not below .* = 0\.2500\. /);
  assert.match(told[6], /^" d" is resampled .*" b", .* 0\.2500\.$/);
  const all = [...ROUNDS, linked(tree(), 4)];
  const rounds = all.map((_, at) => inWords(all, { round: at + 1, step: 0 }, "round"));
  assert.deepEqual(rounds.map((words) => words.match(/\d+/g)?.map(Number).slice(0, 2)), [[1, 3], [2, 2], [30], [1, 2], [1, 4]]);
});
