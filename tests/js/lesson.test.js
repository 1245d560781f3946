import assert from "node:assert/strict";
import { test } from "node:test";
import "./words.js";
import { DEFAULTS } from "../../specdemo/ui/static/lesson/chosen.js";
import { compared, draw, freedomOf, noCounts, randomNumbers, rightTail } from "../../specdemo/ui/static/lesson/draws.js";
import { MISTAKES, isExact, pick, secondOf, trialOf, twoOf } from "../../specdemo/ui/static/lesson/identity.js";
import { placeAt } from "../../specdemo/ui/static/lesson/place.js";
import { rescaled, shaped } from "../../specdemo/ui/static/lesson/shaping.js";

const DRAWS = 10_000;
const SEEDS = Array.from({ length: 10 }, (_, at) => at + 1);

const near = (found, expected, within = 1e-12) => {
  assert.equal(found.length, expected.length);
  found.forEach((one, at) => assert.ok(Math.abs(one - expected[at]) < within, `${found} is not ${expected}`));
};
const { p, q } = DEFAULTS;
/** The trial with the default bars; the mistake "soft" is one of greedy decoding. */
const defaultTrial = (...mistakes) => {
  const temperature = mistakes.includes("soft") ? 0 : 1;
  return trialOf(shaped(p, temperature), shaped(q, temperature), new Set(mistakes), { p, q });
};
const comparison = (trial, seed) => {
  const counts = noCounts(trial.p.length);
  draw(trial, randomNumbers(seed), DRAWS, counts);
  return compared(counts, trial.p);
};

test("p-values are scipy's", () => {
  // scipy.stats.chi2.sf of scipy 1.17.1
  const known = [
    [0.5, 1, 0.47950012218695337], [3.84, 1, 0.05004352124870519], [30, 1, 4.3204630578274955e-08],
    [0.2, 2, 0.9048374180359595], [0.001, 4, 0.9999998750416589], [7.0, 5, 0.22064030793671066],
    [900, 5, 2.6614147330185637e-192], [20, 19, 0.394578182086001], [120, 100, 0.08440668109369177],
  ];
  for (const [statistic, freedom, expected] of known) {
    const found = rightTail(statistic, freedom);
    assert.ok(Math.abs(found / expected - 1) < 1e-6, `${statistic}, ${freedom}: ${found} is not ${expected}`);
  }
  assert.equal(rightTail(0, 3), 1);
  assert.equal(rightTail(0, 0), 1);
});

test("what a wrong rule gives, calculated by hand", () => {
  const [two, one] = [[0.75, 0.25], [0.5, 0.5]];
  near(trialOf(two, one, new Set(["from_p"])).out, [0.5 + 0.25 * 0.75, 0.25 + 0.25 * 0.25]);
  // Token 1 is never kept, and the residual has only token 0.
  near(trialOf(two, one, new Set(["likelier"])).out, [1, 0]);
  // Drawn from (0.8, 0.2), told at twice the temperature: (2/3, 1/3). Token 1 is kept with 0.25 · 3.
  const told = trialOf(two, [0.8, 0.2], new Set(["told"]));
  near(told.told, [2 / 3, 1 / 3]);
  near(told.out, [0.8 + 0.2 * 0.25, 0.2 * 0.75]);
  // Greedy drafts token 1, and by the probabilities before the sampler it is kept with 0.25 / 0.5.
  const soft = trialOf([1, 0], [0, 1], new Set(["soft"]), { p: two, q: one });
  near(soft.out, [0.5, 0.5]);
});

test("with a second guess p still comes out, by the formula and calculated by hand", () => {
  for (const [p, q] of [[DEFAULTS.p, DEFAULTS.q], [[1, 0, 0], [0, 1, 0]], [[0.5, 0.5, 0], [0, 0, 1]], [[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]]]) {
    const trial = trialOf(p, q);
    const two = twoOf(trial, q);
    near(two.out, p);
    assert.ok(isExact(two));
  }
  // Token 0 is kept with 1/2, and then token 1 is the only other guess: kept, since (0, 1) is left of p and of q.
  const two = twoOf(trialOf([0.5, 0.5], [1, 0]), [1, 0]);
  near(two.second, [0, 0.5]);
  near(two.replaced, [0, 0]);
  // Greedy: nothing is left of q, so the second guess is the next likeliest before the sampler, which p does not have.
  const greedy = secondOf(trialOf([0, 0, 1], [1, 0, 0]), 0, [0.6, 0.3, 0.1]);
  assert.deepEqual([greedy.drawn, greedy.accept], [[0, 1, 0], [1, 0, 1]]);
});

test("a second guess that is judged by p again makes another distribution, and two guesses keep more", () => {
  const trial = defaultTrial();
  const [right, wrong] = [twoOf(trial, q), twoOf(trial, q, true)];
  assert.ok(!isExact(wrong) && wrong.distance > 0.02);
  assert.ok(right.second.every((one) => one >= 0) && right.second.reduce((sum, one) => sum + one) > 0.1);
  const counts = Array(p.length).fill(0);
  const random = randomNumbers(3);
  for (let drawn = 0; drawn < DRAWS; drawn++) {
    const first = pick(q, random());
    const next = secondOf(trial, first, q);
    const second = pick(next.drawn, random());
    if (random() < trial.accept[first]) counts[first]++;
    else if (random() < next.accept[second]) counts[second]++;
    else counts[pick(next.replacement, random())]++;
  }
  const found = (expected) => compared({ accepted: counts, replaced: Array(p.length).fill(0) }, expected).chance;
  assert.ok(found(p) > 0.001 && found(wrong.out) < 1e-6);
});

for (const mistake of MISTAKES) {
  test(`10,000 draws find the mistake ${mistake}`, () => {
    const trial = defaultTrial(mistake);
    assert.ok(trial.distance > 0.02);
    for (const seed of SEEDS) assert.ok(comparison(trial, seed).chance < 1e-6, `seed ${seed}`);
  });
}

test("10,000 draws find nothing wrong with the right rule", () => {
  assert.ok(isExact(defaultTrial()));
  for (const seed of SEEDS) assert.ok(comparison(defaultTrial(), seed).chance > 0.001, `seed ${seed}`);
});

test("what is drawn has the distribution that the formula gives, whatever the mistakes", () => {
  for (const mistakes of [["from_p"], ["told"], ["likelier"], ["from_p", "told"], ["soft", "told"], MISTAKES]) {
    const trial = defaultTrial(...mistakes);
    const counts = noCounts(p.length);
    draw(trial, randomNumbers(5), DRAWS, counts);
    assert.ok(compared(counts, trial.out).chance > 0.001, `${mistakes}`);
    const parts = compared({ accepted: [...counts.accepted, ...counts.replaced], replaced: Array(2 * p.length).fill(0) },
      [...trial.accepted, ...trial.replaced]);
    assert.ok(parts.chance > 0.001, `${mistakes}`);
  }
});

test("random numbers fill [0, 1) evenly, in pairs, too, and the same seed gives the same ones", () => {
  const pairs = { accepted: Array(49).fill(0), replaced: Array(49).fill(0) };
  const random = randomNumbers(1);
  for (let at = 0; at < 100_000; at++) {
    const [one, other] = [random(), random()];
    assert.ok(one >= 0 && one < 1);
    pairs.accepted[Math.floor(one * 7) * 7 + Math.floor(other * 7)]++;
  }
  assert.ok(compared(pairs, Array(49).fill(1 / 49)).chance > 0.001);
  assert.deepEqual(comparison(defaultTrial(), 3), comparison(defaultTrial(), 3));
  assert.notDeepEqual(comparison(defaultTrial(), 3), comparison(defaultTrial(), 4));
});

test("a comparison joins what is too rare, and finds what cannot come", () => {
  const found = compared({ accepted: [60, 38, 1, 1], replaced: [0, 0, 0, 0] }, [0.6, 0.38, 0.01, 0.01]);
  assert.equal(found.freedom, 1); // 1 and 1 are joined, and then with 38
  assert.equal(found.statistic, 0);
  const impossible = compared({ accepted: [99, 1], replaced: [0, 0] }, [1, 0]);
  assert.deepEqual([impossible.statistic, impossible.chance], [Infinity, 0]);
  const sure = compared({ accepted: [60, 0], replaced: [40, 0] }, [1, 0]);
  assert.deepEqual([sure.distance, sure.statistic, sure.freedom, sure.chance], [0, 0, 0, 1]);
  assert.deepEqual([[1, 0], [0.9999, 0.0001], [0.5, 0.5], [0.5, 0.3, 0.2]].map((one) => freedomOf(one, DRAWS)), [0, 0, 1, 2]);
});

test("a bar that is pulled rescales the others", () => {
  near(rescaled([0.5, 0.3, 0.2], 0, 0.75), [0.75, 0.15, 0.1]);
  near(rescaled([1, 0, 0], 0, 0.5), [0.5, 0.25, 0.25]);
  near(rescaled([0, 1, 0], 0, 0), [0, 1, 0]);
  near(rescaled([0.5, 0.3, 0.2], 1, 1), [0, 1, 0]);
});

const setting = { greedy: false, rule: { name: "speculative", residual: "p − q" } };
/** A round in which " b" was rejected and " a" came in its place. */
const roundWith = (own) => {
  const top = [[1, " a", 0.5, 0.2, 0.4, 0.1], [2, " b", 0.3, 0.6, 0.35, 0.5], [3, " c", 0.1, 0.1, 0.1, 0.1]];
  const round = { index: 0, setting: { ...setting, ...own }, ended_by: null };
  const drafted = { id: 2, text: " b", p: 0.3, q: 0.6, raw_p: 0.35, raw_q: 0.5, u: 0.7, accept_prob: 0.5, fate: "rejected", top, place: 0, round };
  const next = { id: 1, text: " a", source: "resampled", fate: "resampled", p: 0.5, q: 0.2, raw_p: 0.4, raw_q: 0.1, u: 0.2, residual_mass: 0.34, top, round };
  return Object.assign(round, { draft: [drafted], next });
};

/** The same of a greedy run. */
const greedyRound = () => {
  const round = roundWith({ greedy: true, temperature: 0 });
  const top = round.next.top.map(([id, text, , , ...raw]) => [id, text, Number(id === 1), Number(id === 2), ...raw]);
  Object.assign(round.draft[0], { p: 0, q: 1, accept_prob: 0, top });
  Object.assign(round.next, { p: 1, q: 0, residual_mass: 1, top });
  return round;
};

test("a rejection brings its p and q, with all others as two, which leave the residual its mass", () => {
  const { draft: [drafted], next } = roundWith({});
  for (const token of [drafted, next]) {
    const place = placeAt(token);
    assert.deepEqual(place.others, ["above", "below"]);
    near([trialOf(place.p, place.q).rate], [1 - 0.34]);
    assert.deepEqual([place.draft, place.u, place.replacement, place.temperature], [1, 0.7, 0, 1]);
  }
});

test("the figure has p and q as the run's sampler made them, at its temperature, which acts no second time", () => {
  const own = { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.05 };
  const place = placeAt(roundWith(own).draft[0]);
  assert.deepEqual([place.temperature, place.done], [0.8, 0.8]);
  near(shaped(place.p, place.temperature, place.done), [0.5, 0.3, 0.1, 0.07, 0.03]);
  const one = Object.assign(greedyRound(), { setting: { ...setting, ...own } }).draft[0]; // the filters left one token each
  assert.deepEqual([placeAt(one).p, placeAt(one).temperature], [[1, 0, 0], 0.8]);
  const squares = place.p.map((one) => one ** 2);
  near(shaped(place.p, 0.4, 0.8), squares.map((one) => one / squares.reduce((a, b) => a + b)));
});

test("where the residual's mass is not told, or not that of p and q, all others are one", () => {
  const accepted = { ...roundWith({}).draft[0], fate: "accepted" };
  const otherRule = roundWith({ rule: { name: "block", residual: "w·p − q" } }).draft[0];
  assert.equal(placeAt(otherRule).replacement, null, "the run drew its replacement otherwise");
  const wrong = [null, 0.2, 0.9].map((mass) => {
    const round = roundWith({});
    round.next.residual_mass = mass;
    return round.draft[0];
  });
  for (const token of [accepted, otherRule, ...wrong]) {
    const place = placeAt(token);
    assert.deepEqual(place.others, ["all"]);
    near(place.p, [0.5, 0.3, 0.1, 0.1]);
    near(place.q, [0.2, 0.6, 0.1, 0.1]);
  }
  assert.equal(placeAt({ fate: "prompt", text: "a" }), null);
});

test("a token of a greedy run brings its own p and q where another one was likelier before a penalty or in a tree", () => {
  const round = greedyRound();
  const drafted = round.draft[0];
  round.next.raw_p = 0.2;
  const place = placeAt(drafted);
  const made = [place.p, place.q].map((raw) => shaped(raw, place.temperature, place.done));
  assert.deepEqual([made, place.draft], [[[1, 0, 0], [0, 1, 0]], 1]);
  assert.deepEqual([place.temperature, place.done], [0, 0]);
});
