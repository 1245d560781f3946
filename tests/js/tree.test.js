import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { branchesOf } from "../../specdemo/ui/static/view/tree.js";
import { linked, tree } from "./runs.js";

test("of a tree that is still drafted or judged, nothing is given away", () => {
  const round = linked(tree(), 0);
  const first = branchesOf(round, () => "pending");
  assert.ok(first.length === 6 && first.every(({ fate, p }) => fate === "pending" && p === null));
  assert.equal(branchesOf(round, ({ fate }) => fate).length, 7);
});
