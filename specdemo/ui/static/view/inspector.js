// @ts-check
// The inspector: what is known of one token, and what decided its fate. Its frame is built once; show() fills
// it.

import { fill, find, h, math, within } from "./dom.js";
import { apart, digits, inQuotes, short } from "./format.js";
import { isBlock, primed, ruleOf, uMatters } from "./rules.js";
import { isAfterRefused, isChosen, isDrafted } from "./run.js";
import { isServed, isUnknown } from "./served.js";
import { columnHead, rowOf } from "./tables.js";
import { explained, fateNamed, named, sign } from "./textless.js";
import { makeTree } from "./tree.js";
import {
  alternativesTo, fedAgainInWords, isJudged, lengthInWords, placeOf, replacedBy, valuesOf, verdictOn,
} from "./verdict.js";
import { inLanguage, say } from "./words.js";

/** @import { Child } from "./dom.js" */
/** @import { RunSetting } from "./messages.d.ts" */
/** @import { Drafted, Own, Token } from "./run.js" */
/** @import { Kind } from "./textless.js" */
/** @import { FateNow } from "./tree.js" */
/** @import { Column, Known, Row } from "./verdict.js" */
/** @typedef {ReturnType<typeof makeInspector>} Inspector */

// Letters, signs and numbers of a formula: "max ( p ) 0".
const signs = (/** @type {string} */ formula) => formula.split(" ").map((one) => (
  math(/^\d$/.test(one) ? "mn" : /^\p{L}+$/u.test(one) ? "mi" : "mo", one)));
const mrow = (/** @type {string} */ formula) => math("mrow", signs(formula));
const display = (/** @type {Child[]} */ ...parts) => {
  const formula = math("math", parts);
  formula.setAttribute("display", "block");
  return formula;
};
const excess = (/** @type {string} */ x) => `max ( p ( ${x} ) − q ( ${x} ) , 0 )`;

// The rule, and why the text is distributed as the target's own.
const formulas = () => [
  h("p", { class: "greedy" }, say("inspector.formula.greedy")),
  h("p", {}, say("inspector.formula.rule")),
  display(signs("min ( 1 ,"), math("mfrac", mrow("p ( x )"), mrow("q ( x )")), signs(")")),
  h("p", {}, say("inspector.formula.never")),
  h("p", {}, say("inspector.formula.residual")),
  display(signs("r ( x ) ="), math("mfrac", mrow(excess("x")),
    math("mrow", math("munder", signs("∑ y")), signs(excess("y"))))),
  h("p", {}, say("inspector.formula.mass")),
  display(signs("min ( p , q ) + max ( p − q , 0 ) = p")),
  h("p", {}, say("inspector.formula.alpha")),
  display(math("mfrac",
    math("mrow", signs("1 −"), math("msup", signs("α"), mrow("γ + 1"))), mrow("1 − α"))),
  h("p", {}, say("inspector.formula.tokens")),
];

const content = () => [
  h("p", { class: "hint" }),
  h("div", { class: "facts", hidden: true },
    h("div", { class: "spoken", "aria-atomic": "true" },
      h("div", { class: "head" },
        h("p", { class: "where" }),
        h("button", { class: "unpin", title: say("inspector.unpin") },
          `${say("inspector.pinned")} `, h("span", { "aria-hidden": "true" }, "×"))),
      h("p", { class: "what" }, h("code"), " ", h("span", { class: "token" }), " ", h("small")),
      h("p", { class: "stands-for" }),
      h("p", { class: "verdict" })),
    h("div", { class: "judgement", role: "img" }),
    h("details", { class: "tree", hidden: true },
      h("summary"), h("p", { class: "bars" }, h("i"), "p ", h("i"), "q"), h("div", { class: "branches" })),
    h("table", { class: "family", hidden: true }, h("caption"), h("thead"), h("tbody")),
    h("details", { class: "formulas" }, h("summary", {}, say("inspector.formulas")), formulas()),
    h("table", { class: "likely" }, h("caption"), h("thead"), h("tbody")),
    h("p", { class: "raw" }, say("inspector.outlines")),
    h("p", { class: "values-of" }),
    h("dl", { class: "values" }),
    h("p", { class: "drafting" })),
];

/** @param {Column} column @param {boolean} isLeft by refused guesses @returns {[heading: string, name: string]} */
function headingOf(column, isLeft) {
  if (isLeft && column === "p") return ["p′", say("inspector.targetLeft")];
  if (isLeft && column === "q") return ["q′", say("inspector.drafterLeft")];
  if (column === "q") return ["q", say("inspector.drafter")];
  if (column === "residual") return ["r", say("inspector.residual")];
  return [column === "p" ? "p" : say("inspector.rawP"), say("inspector.target")];
}

/**
 * @param {HTMLElement} panel
 * @param {() => RunSetting | null} setting of the run on the stage
 * @param {FateNow} fateNow
 * @param {(token: Drafted | Own) => void} choose is told of a token that was chosen in a tree
 */
export function makeInspector(panel, setting, fateNow, choose) {
  fill(panel, content());
  const tree = makeTree(panel, fateNow, choose);
  const part = within(panel);
  const likely = /** @type {HTMLTableElement} */ (part(".likely"));
  const unpin = () => panel.dispatchEvent(new CustomEvent("unpin", { bubbles: true }));
  part(".unpin").addEventListener("click", unpin);
  const taps = matchMedia("(pointer: coarse)").matches;
  part(".hint").textContent = say(taps ? "inspector.hintTap" : "inspector.hintPoint");
  clear();
  return { show, clear };

  function clear() {
    setShown(false);
    panel.dataset.shows = "nothing";
  }

  /** @param {boolean} hasFacts whether there is a token to tell of */
  function setShown(hasFacts) {
    part(".hint").hidden = hasFacts;
    part(".facts").hidden = !hasFacts;
  }

  /**
   * @param {Token} token
   * @param {boolean} pinned
   * @param {boolean} chosen pinned, or reached by keyboard; what the pointer passes is not read out
   * @param {Known} known what comes later is not given away
   * @param {Kind | null} kind of a token without a text
   * @param {number} depths of its round's tree that are drafted
   */
  function show(token, pinned, chosen = pinned, known = "all", kind = null, depths = Infinity) {
    const fate = isJudged(known) ? token.fate : "pending";
    const isPlace = known === "place";
    part(".spoken").setAttribute("aria-live", chosen ? "polite" : "off");
    panel.scrollTop = 0;
    setShown(true);
    panel.dataset.shows = fate;
    part(".what code").textContent = isPlace || isUnknown(token) ? "?" : kind ? "" : inQuotes(token.text);
    if (kind) sign(part(".what code"), kind);
    else part(".what code").className = "";
    part(".stands-for").textContent = kind ? explained(kind) : "";
    part(".what .token").textContent = fateNamed(token, fate);
    part(".what .token").className = `token ${fate}`;
    part(".what small").textContent = isPlace || token.id === null ? "" : say("inspector.tokenId", { id: token.id });
    part(".unpin").hidden = !pinned;
    const ofRound = token.fate === "prompt" ? [] : [lengthInWords(token.round), fedAgainInWords(token.round)];
    part(".where").textContent = [placeOf(token), ...ofRound].filter(Boolean).join(", ");
    part(".verdict").textContent = verdictOn(token, setting(), known);
    part(".drafting").textContent = draftingOf(token);
    part(".formulas .greedy").hidden = !setting()?.greedy;
    showJudgement(token, known);
    tree.show(token, depths);
    showValues(token, known);
    showLikely(token, known);
  }

  /**
   * How the draft came about that the token is of; empty of any other token.
   * @param {Token} token
   */
  function draftingOf(token) {
    const sentence = setting()?.drafting;
    if (!sentence || !isDrafted(token)) return "";
    if (token.round.isTree) return say(isChosen(token.round) ? "inspector.tree.chosen" : "inspector.tree.drafting");
    return sentence;
  }

  /**
   * How the token was judged, or the one that it replaced: u on a bar from 0 to 1.
   * @param {Token} token
   * @param {Known} known
   */
  function showJudgement(token, known) {
    const replaced = replacedBy(token);
    const judged = replaced ?? token;
    const bar = part(".judgement");
    const usesU = ruleOf(judged).threshold === null;
    const wasJudged = isDrafted(judged) && usesU && uMatters(judged) && judged.u !== null && judged.accept_prob !== null;
    bar.hidden = !isJudged(known) || !wasJudged;
    const isOfOther = replaced !== undefined && !bar.hidden; // so what is whose has to be said
    part(".values-of").textContent = isOfOther ? say("inspector.valuesOf", { token: named(token) }) : "";
    if (!isDrafted(judged) || judged.u === null || judged.accept_prob === null) return;
    const { u, accept_prob: threshold } = judged;
    const [writtenU, writtenThreshold] = apart(u, threshold);
    bar.style.setProperty("--threshold", String(threshold));
    bar.style.setProperty("--u", String(u));
    const isWhole = isBlock(judged.round);
    const yes = say(isWhole ? "inspector.bar.passes" : "inspector.bar.accept");
    const no = say(isWhole ? "inspector.bar.fails" : "inspector.bar.reject");
    const spoken = { yes, no, side: u < threshold ? yes : no, threshold: writtenThreshold, u: writtenU };
    bar.setAttribute("aria-label", say("inspector.bar.spoken", spoken));
    fill(bar,
      h("p", { class: "judged" }, replaced ? say("inspector.bar.replaced", { token: named(judged) }) : ""),
      h("p", { class: "threshold" }, h("span", {}, `${primed(judged, ruleOf(judged).symbol)} = ${writtenThreshold}`)),
      h("div", { class: "sides" }, sideOf(yes, u, 0, threshold), sideOf(no, u, threshold, 1)),
      h("p", { class: "u" }, h("span", {}, `u = ${writtenU}`)));
  }

  /**
   * A side's word is where the mark at u leaves room, and is left out on a side that is too narrow for it.
   * @param {string} word
   * @param {number} u
   * @param {number} from
   * @param {number} to
   */
  function sideOf(word, u, from, to) {
    const where = to - from < 0.22 ? "narrow" : u < (from + to) / 2 ? "right" : "left";
    return h("span", { hidden: from === to, class: where }, word);
  }

  /**
   * @param {Token} token
   * @param {Known} known
   */
  function showValues(token, known) {
    fill(part(".values"), valuesOf(token, known).map(([symbol, meaning, value]) => (
      h("div", {}, h("dt", {}, symbol, h("small", {}, meaning)), value === null
        ? h("dd", { class: "untold" }, say("inspector.notTold"))
        : h("dd", { title: inLanguage(String(value)) }, digits(value))))));
  }

  /**
   * @param {Token} token
   * @param {Known} known
   */
  function showLikely(token, known) {
    const rows = alternativesTo(token, known);
    const recorded = token.fate !== "prompt" && token.top.length > 0;
    const served = isServed(token);
    likely.hidden = rows.length === 0;
    find(likely, "caption").textContent = say(recorded ? "inspector.likely" : "inspector.noneLikely");
    /** @type {Column[]} */
    const columns = served ? ["raw_p"] : rows.some((row) => row.q !== null) ? ["p", "q"] : ["p"];
    if (rows.some((row) => row.residual !== null)) columns.push("residual");
    const isLeft = isAfterRefused(token);
    const heads = columns.map((column) => {
      const [heading, name] = headingOf(column, isLeft);
      return columnHead([heading, h("small", {}, name)]);
    });
    fill(find(likely, "thead"), h("tr", {}, h("td"), heads));
    fill(find(likely, "tbody"), rows.map((row) => tableRow(row, columns)));
    part(".raw").hidden = !rows.some((row) => differs(row.p, row.raw_p) || differs(row.q, row.raw_q));
  }

  /**
   * @param {Row} row
   * @param {Column[]} columns
   */
  function tableRow(row, columns) {
    const code = h("code", {}, row.kind ? "" : inQuotes(row.text));
    if (row.kind) sign(code, row.kind);
    const drawn = row.drawn && h("small", {}, `◆ ${row.drawn.how}`);
    const title = row.id === null ? null : say("inspector.tokenId", { id: row.id });
    return rowOf([code, drawn], columns.map((column) => bar(row, column)), { title });
  }

  /**
   * @param {Row} row
   * @param {Column} column
   */
  function bar(row, column) {
    const value = row[column];
    const cell = h("td", {}, h("span", {}, short(value)));
    if (row.drawn?.from === column) cell.classList.add("drawn");
    if (value === null) return cell;
    cell.classList.add(column === "raw_p" ? "p" : column);
    cell.style.setProperty("--value", String(value));
    const raw = column === "residual" || column === "raw_p" ? null : row[`raw_${column}`];
    if (raw !== null) cell.style.setProperty("--raw", String(raw));
    cell.title = raw === null ? String(value) : say("inspector.beforeSampler", { value, raw });
    return cell;
  }

  /**
   * @param {number | null} shaped
   * @param {number | null} raw
   */
  function differs(shaped, raw) {
    return shaped !== null && raw !== null && Math.abs(shaped - raw) > 0.002;
  }
}
