// Rounds as the server sends them, for the tests.

import { readFileSync } from "node:fs";

import { linked as linkedBy } from "../../specdemo/ui/static/view/run.js";

/** The rules as the server sends them; tests/pure/test_js.py holds the file against the server's own. */
export const RULES = JSON.parse(readFileSync(new URL("rules.json", import.meta.url), "utf-8"));

/** A drafted token; one without a fate is accepted. */
export function drafted(id, more = {}) {
  const usual = { text: ` ${id}`, fate: "accepted", p: 0.5, q: 0.5, raw_p: 0.3, raw_q: 0.6, u: 0.25 };
  const token = { id, ...usual, top: [], ...more };
  return { ...token, accept_prob: token.u === null ? null : Math.min(1, token.p / token.q) };
}

/** The target's own token; one without a source is a bonus. */
export function own(id, more = {}) {
  const usual = { text: ` ${id}`, source: "bonus", p: 0.5, q: null, raw_p: 0.3, raw_q: null, u: 0.25 };
  return { id, ...usual, residual_mass: null, top: [], ...more };
}

/** Accepted, rejected, discarded; resampled. */
export function rejection() {
  const draft = [
    drafted(1, { text: " a" }),
    drafted(2, { text: " b", fate: "rejected", p: 0.2, q: 0.8, u: 0.5 }),
    drafted(3, { text: " c", fate: "discarded", u: null }),
  ];
  const next = own(4, { text: " d", source: "resampled", p: 0.5, q: 0.1, residual_mass: 0.8 });
  return { draft, next, draft_ms: 10, verify_ms: 20 };
}

export function allAccepted(count = 2, draft_ms = 10, verify_ms = 20) {
  const draft = Array.from({ length: count }, (_, at) => drafted(10 + at));
  return { draft, next: own(20), draft_ms, verify_ms };
}

/** Three children of the text, of which the second is accepted, and two of its own, both refused. */
export function tree() {
  const refused = { fate: "rejected", p: 0.2, q: 0.8, u: 0.5 };
  const draft = [
    drafted(1, { ...refused, parent: null }), drafted(2, { parent: null }),
    drafted(3, { fate: "discarded", u: null, parent: null }), drafted(4, { fate: "discarded", u: null, parent: 0 }),
    drafted(5, { ...refused, parent: 1 }), drafted(6, { ...refused, parent: 1 }),
  ];
  const next = own(7, { source: "resampled", p: 0.5, q: 0.1, residual_mass: 0.8 });
  return { draft, next, draft_ms: 1, verify_ms: 1 };
}

export function plain() {
  return { draft: [], next: own(30, { source: "sampled" }), draft_ms: 0, verify_ms: 20 };
}

export function update(since, rounds, more = {}) {
  const numbers = { rounds: String(rounds.length) };
  rounds.forEach((round, at) => { round.index = since + at; });
  return { since, until: since + rounds.length, finish: null, rounds, numbers, ...more };
}

export const PROMPT = [{ id: 7, text: "Once", fate: "prompt" }];

export const SETTING = {
  pair: "toy", draft_with: "model", gamma: 4, rule: RULES.speculative, of_rule: {}, lossy: false, greedy: false, temperature: 0.8, bound: false, chat: false, marks: {},
  seed: 7,
};

/** A round of a run with these settings. */
export function linked(round, index, setting = SETTING) {
  return linkedBy(Object.assign(round, { index }), setting);
}
