import "./words.js";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { LAST, OWN, figuresOf, textOf } from "../../specdemo/ui/static/runs/worlds.js";

const file = new URL("../../assets/worlds.json", import.meta.url);
const { worlds } = JSON.parse(readFileSync(file, "utf8"));

test("what moves: red and tokens a round; what stays: the greedy text and the counts", () => {
  assert.equal(worlds.stops.length, LAST + 1);
  const figures = worlds.stops.map(({ texts }) => figuresOf(texts.sampled));
  const red = figures.map(({ rejected, judged }) => rejected / judged);
  assert.ok(red[0] > 0.9 && red[LAST] === 0, red.join(" "));
  assert.ok(red[0] > red[2] && red[2] > red[OWN] && red[OWN] > red[6]);
  assert.ok(figures[0].perRound < figures[OWN].perRound && figures[OWN].perRound < figures[LAST].perRound);
  assert.equal(new Set(worlds.stops.map(({ texts }) => textOf(texts.sampled))).size > 4, true);
  assert.equal(new Set(worlds.stops.map(({ texts }) => textOf(texts.greedy))).size, 1);
  for (const { counts } of worlds.stops) {
    assert.equal(counts.runs, worlds.most);
    assert.ok(counts.found === "fits" && counts.distance < 2 * counts.by_chance);
    assert.deepEqual(counts.cells.map(({ due }) => due), worlds.stops[0].counts.cells.map(({ due }) => due));
  }
});
