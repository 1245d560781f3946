// The timeline's scale: chosen once, and only doubled.

import assert from "node:assert/strict";
import test from "node:test";

import { scaleFor } from "../../specdemo/ui/static/view/scale.js";

const costs = (rounds, verify = 10) => Array.from({ length: 2 * rounds }, (_, at) => (at % 2 ? verify + (at % 7) / 10 : 1));

test("nearly all costs stay below it, whatever came first", () => {
  for (const rounds of [1, 5, 60, 1000]) {
    const scale = scaleFor(costs(rounds), 0);
    assert.ok(scale >= 10 && scale <= 30, `${rounds} rounds: ${scale}`);
  }
  assert.equal(scaleFor([0, 0], 0) > 0, true);
  assert.equal(scaleFor([], 0), 0);
});

test("it does not jump while a run goes on, and one disturbed round changes nothing", () => {
  const all = costs(1000);
  all[401] = 900;
  let scale = 0;
  const seen = new Set();
  for (let count = 1; count <= 1000; count *= 2) {
    scale = scaleFor(all.slice(0, 2 * count), scale);
    seen.add(scale);
  }
  assert.equal(seen.size, 1);
});

test("it grows by doubling where rounds become longer, and never shrinks", () => {
  const first = scaleFor(costs(8), 0);
  const later = scaleFor([...costs(8), ...costs(200, 100)], first);
  assert.ok(later >= 100 && Number.isInteger(Math.log2(later / first)));
  assert.equal(scaleFor(costs(500), later), later);
});
