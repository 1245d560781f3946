// @ts-check
// The rounds of a run as CSV (RFC 4180), a row for each token. Rounds and places count from 1, as on the page. Numbers are unrounded; what is not known is empty. A text
// is a string of JSON: it then begins with a quotation mark, so no spreadsheet takes it for a formula, as it would take
// one that begins with =, +, - or @; and spaces and line ends are told apart.

import { tokensOf } from "../view/run.js";

/** @import { Round } from "../view/run.js" */

const COLUMNS = [
  "round", "place", "fate", "id", "text", "p", "q", "u", "accept_prob", "raw_p", "raw_q", "draft_ms", "verify_ms",
];

/** @param {Round[]} rounds */
export function roundsAsCsv(rounds) {
  const rows = rounds.flatMap((round) => tokensOf(round).map((token, place) => {
    const { fate, id, text, p, q, u, raw_p, raw_q } = token;
    const accept_prob = "accept_prob" in token ? token.accept_prob : null;
    const { index, draft_ms, verify_ms } = round;
    return [index + 1, place + 1, fate, id, JSON.stringify(text), p, q, u, accept_prob, raw_p, raw_q, draft_ms, verify_ms];
  }));
  return [COLUMNS, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** @param {string | number | null | undefined} value */
function cell(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
