// @ts-check
// The inspector: what is known of one token, and what decided its fate. Its frame is built once; show() fills
// it.

import { escaped, find, make } from "./dom.js";
import { apart, digits, inQuotes, short } from "./format.js";
import { isBlock, primed, ruleOf, uMatters } from "./rules.js";
import { isAfterRefused, isChosen, isDrafted, isTree } from "./run.js";
import { isServed, isUnknown } from "./served.js";
import { explained, fateNamed, named, quoted, sign } from "./textless.js";
import { makeTree } from "./tree.js";
import {
  alternativesTo, fedAgainInWords, isJudged, lengthInWords, outlinesInWords, placeOf, replacedBy, valuesOf, verdictOn, walkTo,
} from "./verdict.js";
import { inLanguage, say } from "./words.js";

/** @import { RunSetting } from "./messages.d.ts" */
/** @import { Drafted, Own, Token } from "./run.js" */
/** @import { Kind } from "./textless.js" */
/** @import { FateNow } from "./tree.js" */
/** @import { Column, Known, Row, Walk } from "./verdict.js" */
/** @typedef {ReturnType<typeof makeInspector>} Inspector */

const words = (/** @type {string} */ key) => escaped(say(key));

// MathML for f(x) and for max(p(x) − q(x), 0).
const applied = (/** @type {string} */ f, /** @type {string} */ x) =>
  `<mi>${f}</mi><mo>(</mo><mi>${x}</mi><mo>)</mo>`;
const excess = (/** @type {string} */ x) =>
  `<mi>max</mi><mo>(</mo>${applied("p", x)}<mo>−</mo>${applied("q", x)}<mo>,</mo><mn>0</mn><mo>)</mo>`;

// The rule, and why the text is distributed as the target's own. No data is ever written in here.
const formulas = () => `
  <p class="greedy">${words("inspector.formula.greedy")}</p>
  <p>${words("inspector.formula.rule")}</p>
  <math display="block"><mi>min</mi><mo>(</mo><mn>1</mn><mo>,</mo>
    <mfrac><mrow>${applied("p", "x")}</mrow><mrow>${applied("q", "x")}</mrow></mfrac><mo>)</mo></math>
  <p>${words("inspector.formula.never")}</p>
  <p>${words("inspector.formula.residual")}</p>
  <math display="block">${applied("r", "x")}<mo>=</mo><mfrac><mrow>${excess("x")}</mrow>
    <mrow><munder><mo>∑</mo><mi>y</mi></munder>${excess("y")}</mrow></mfrac></math>
  <p>${words("inspector.formula.mass")}</p>
  <math display="block"><mi>min</mi><mo>(</mo><mi>p</mi><mo>,</mo><mi>q</mi><mo>)</mo><mo>+</mo>
    <mi>max</mi><mo>(</mo><mi>p</mi><mo>−</mo><mi>q</mi><mo>,</mo><mn>0</mn><mo>)</mo>
    <mo>=</mo><mi>p</mi></math>
  <p>${words("inspector.formula.alpha")}</p>
  <math display="block"><mfrac>
    <mrow><mn>1</mn><mo>−</mo><msup><mi>α</mi><mrow><mi>γ</mi><mo>+</mo><mn>1</mn></mrow></msup></mrow>
    <mrow><mn>1</mn><mo>−</mo><mi>α</mi></mrow></mfrac></math>
  <p>${words("inspector.formula.tokens")}</p>`;

const markup = () => `
  <p class="cue"></p>
  <p class="hint"></p>
  <div class="facts" hidden>
    <div class="spoken" aria-atomic="true">
      <div class="head"><p class="where"></p>
        <button type="button" class="unpin" title="${words("inspector.unpin")}">
          ${words("inspector.pinned")} <span aria-hidden="true">×</span></button>
      </div>
      <p class="what"><code></code> <span class="token"></span> <small></small></p>
      <p class="stands-for"></p>
      <p class="verdict"></p>
    </div>
    <div class="judgement" role="img">
      <p class="judged"></p>
      <p class="threshold"><span></span></p>
      <div class="sides"><span></span><span></span></div>
      <p class="u"><span></span></p>
    </div>
    <div class="walk" role="img"><p class="u"><span></span></p><div class="parts"></div></div>
    <p class="walk-how"></p>
    <details class="tree" hidden><summary></summary><p class="bars"><i></i>p <i></i>q</p><div
      class="branches"></div></details>
    <table class="family" hidden><caption></caption><thead></thead><tbody></tbody></table>
    <details class="formulas"><summary>${words("inspector.formulas")}</summary>${formulas()}</details>
    <table class="likely"><caption></caption><thead></thead><tbody></tbody></table>
    <p class="raw"></p>
    <p class="values-of"></p>
    <dl class="values"></dl>
    <p class="drafting"></p>
  </div>`;

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
 * @param {(index: number) => Token[]} copied what the round's draft is a copy of
 * @param {FateNow} fateNow
 * @param {(token: Drafted | Own) => void} choose is told of a token that was chosen in a tree
 */
export function makeInspector(panel, setting, copied, fateNow, choose) {
  panel.innerHTML = markup();
  const tree = makeTree(panel, fateNow, choose);
  const part = (/** @type {string} */ selector) => find(panel, selector);
  const likely = /** @type {HTMLTableElement} */ (part(".likely"));
  const unpin = () => panel.dispatchEvent(new CustomEvent("unpin", { bubbles: true }));
  part(".unpin").addEventListener("click", unpin);
  const taps = matchMedia("(pointer: coarse)").matches;
  let isCueFollowed = false;
  part(".cue").textContent = say(taps ? "inspector.cueTap" : "inspector.cuePoint");
  part(".hint").textContent = say(taps ? "inspector.hintTap" : "inspector.hintPoint");
  clear();
  return { show, clear, followCue, shownTree: tree.shown };

  function clear() {
    setShown(false);
    panel.dataset.shows = "nothing";
  }

  /** @param {boolean} hasFacts whether there is a token to tell of */
  function setShown(hasFacts) {
    part(".cue").hidden = hasFacts || isCueFollowed;
    part(".hint").hidden = hasFacts || !isCueFollowed;
    part(".facts").hidden = !hasFacts;
  }

  // It is not shown again.
  function followCue() {
    isCueFollowed = true;
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
    showWalk(known === "all" ? walkTo(token) : null, token);
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
    if (isTree(token.round)) return say(isChosen(token.round) ? "inspector.tree.chosen" : "inspector.tree.drafting");
    return copied(token.round.index).length ? `${sentence} ${say("inspector.copied")}` : sentence;
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
    part(".sides :first-child").textContent = yes;
    part(".sides :last-child").textContent = no;
    const side = u < threshold ? yes : no;
    const spoken = { yes, no, side, threshold: writtenThreshold, u: writtenU };
    bar.setAttribute("aria-label", say("inspector.bar.spoken", spoken));
    setWord(part(".sides :first-child"), u, 0, threshold);
    setWord(part(".sides :last-child"), u, threshold, 1);
    part(".judged").textContent = replaced ? say("inspector.bar.replaced", { token: named(judged) }) : "";
    part(".threshold span").textContent = `${primed(judged, ruleOf(judged).symbol)} = ${writtenThreshold}`;
    part(".u span").textContent = `u = ${writtenU}`;
  }

  /**
   * The way of a draw through the tokens, as a bar from 0 to 1; only words where too little of it is recorded.
   * @param {Walk | null} walk
   * @param {Token} token
   */
  function showWalk(walk, token) {
    const bar = part(".walk");
    bar.hidden = !walk?.isKnown;
    part(".walk-how").textContent = "";
    if (!walk) return;
    const { number, pieces, drawn, rest, isKnown } = walk;
    const [from, start] = apart(drawn.from, number);
    const to = apart(drawn.to, number)[0];
    const missing = { token: named(token), rest: digits(rest, 2), share: digits(drawn.to - drawn.from) };
    const told = isKnown
      ? [say("inspector.walk.how", { token: named(token), from, to }), rest ? say("inspector.walk.rest", missing) : ""]
      : [say("inspector.walk.unknown", missing)];
    part(".walk-how").textContent = told.filter(Boolean).join(" ");
    if (!isKnown) return;
    bar.style.setProperty("--u", String(number));
    bar.setAttribute("aria-label", told[0]);
    part(".walk .u span").textContent = start;
    part(".parts").replaceChildren();
    const others = rest ? [{ name: say("inspector.walk.notRecorded"), from: 1 - rest, to: 1, isDrawn: false }] : [];
    for (const one of [...pieces.map((piece) => ({ ...piece, name: quoted(piece) })), ...others]) {
      const [share, { name }] = [one.to - one.from, one];
      const made = make("span", share > 0.2 ? name : "");
      made.className = one.isDrawn ? "drawn" : others.includes(one) ? "rest" : "";
      made.style.flexGrow = String(share);
      made.title = `${name}: ${digits(one.from)}–${digits(one.to)}`;
      part(".parts").append(made);
    }
  }

  /**
   * A side's word is where the mark at u leaves room, and is left out on a side that is too narrow for it.
   * @param {HTMLElement} side
   * @param {number} u
   * @param {number} from
   * @param {number} to
   */
  function setWord(side, u, from, to) {
    side.hidden = from === to;
    side.className = to - from < 0.22 ? "narrow" : u < (from + to) / 2 ? "right" : "left";
  }

  /**
   * @param {Token} token
   * @param {Known} known
   */
  function showValues(token, known) {
    part(".values").replaceChildren();
    for (const [symbol, meaning, value] of valuesOf(token, known)) {
      const number = make("dd", value === null ? say("inspector.notTold") : digits(value));
      if (value === null) number.className = "untold";
      else number.title = inLanguage(String(value));
      part(".values").append(make("div", make("dt", symbol, make("small", meaning)), number));
    }
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
    const head = make("tr", make("td"));
    const isLeft = isAfterRefused(token);
    for (const column of columns) {
      const [heading, name] = headingOf(column, isLeft);
      const cell = make("th", heading, make("small", name));
      cell.scope = "col";
      head.append(cell);
    }
    find(likely, "thead").replaceChildren(head);
    find(likely, "tbody").replaceChildren();
    for (const row of rows) find(likely, "tbody").append(tableRow(row, columns));
    part(".raw").textContent = token.fate === "prompt" ? "" : outlinesInWords(token, setting());
    part(".raw").hidden = !rows.some((row) => differs(row.p, row.raw_p) || differs(row.q, row.raw_q));
  }

  /**
   * @param {Row} row
   * @param {Column[]} columns
   */
  function tableRow(row, columns) {
    const code = make("code", row.kind ? "" : inQuotes(row.text));
    if (row.kind) sign(code, row.kind);
    const name = make("th", code);
    name.scope = "row";
    if (row.id !== null) name.title = say("inspector.tokenId", { id: row.id });
    if (row.drawn) name.append(make("small", `◆ ${row.drawn.how}`));
    const made = make("tr", name);
    for (const column of columns) made.append(bar(row, column));
    return made;
  }

  /**
   * @param {Row} row
   * @param {Column} column
   */
  function bar(row, column) {
    const value = row[column];
    const cell = make("td", make("span", short(value)));
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
