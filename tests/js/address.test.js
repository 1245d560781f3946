import "./words.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import { makeAddress } from "../../specdemo/ui/static/page/address.js";

/** A page that was opened at this query, and its address from then on. */
function openedAt(query) {
  const entries = [`?${query}`];
  const show = (search) => Object.assign(globalThis.location, { search });
  globalThis.location = { pathname: "/", search: entries[0], hash: "" };
  globalThis.addEventListener = () => {};
  globalThis.history = {
    state: null,
    pushState: (state, title, url) => show(entries[entries.push(url.slice(1)) - 1]),
    replaceState: (state, title, url) => show(entries[entries.length - 1] = url.slice(1)),
  };
  return { entries, address: makeAddress("first", () => "figure") };
}

test("a run has its own entry in the history, with its pinned token and what is not the page's", () => {
  const { entries, address } = openedAt("__theme=dark&token=0.1");
  address.begin("prompt=One&run=1");
  address.pin({ fate: "accepted", round: { index: 2, draft: [] }, place: 3 });
  address.begin("prompt=Two&run=1");
  address.ready();
  address.write();
  assert.deepEqual(entries, [
    "?__theme=dark&token=0.1", "?__theme=dark&prompt=One&run=1&token=2.3", "?__theme=dark&prompt=Two&run=1&tab=figure",
  ]);
});
