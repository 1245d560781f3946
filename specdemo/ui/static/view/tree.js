// @ts-check
// A round's tree: its guesses as nested lists, each beside the token that it follows, with the fates that are known.
// Below it the guesses at one place, as a table in the order of judging.

import { around, fill, find, h, update, write } from "./dom.js";
import { digits, short } from "./format.js";
import { leftAfter, uMatters } from "./rules.js";
import { endOfPath, familyOf, isChosen, isDrafted } from "./run.js";
import { columnHead, rowOf } from "./tables.js";
import { fateNamed, named } from "./textless.js";
import { inLanguage, say } from "./words.js";

/** @import { Attributes } from "./dom.js" */
/** @import { Drafted, Own, Round, Token } from "./run.js" */
/** @typedef {(token: Drafted | Own) => string} FateNow as far as it is known: "pending", or that of the token */
/**
 * A token of a tree. column: how many drafted tokens stand before it. after: the index of the token that it follows, null at
 * the root. p: null while it is pending.
 * @typedef {{ token: Drafted | Own, text: string, fate: string, column: number, after: number | null, p: number | null, q: number | null }} Branch
 */

const TALL = 8; // rows; a taller tree is folded at first

/**
 * @param {HTMLElement} panel has both
 * @param {FateNow} fateNow
 * @param {(token: Drafted | Own) => void} choose
 */
export function makeTree(panel, fateNow, choose) {
  const folded = /** @type {HTMLDetailsElement} */ (find(panel, ".tree"));
  const family = find(panel, ".family");
  /** @type {Round | null} */
  let latest = null; // that was shown
  /** @type {Branch[]} */
  let branches = [];
  let isFolded = false; // by the reader
  find(folded, "summary").addEventListener("click", () => { isFolded = folded.open; });
  folded.addEventListener("click", ({ target }) => {
    const branch = branches[Number(around(target, "button")?.dataset.branch ?? NaN)];
    if (branch) choose(branch.token);
  });
  return { show };

  /**
   * @param {Token} token
   * @param {number} depths that are drafted
   */
  function show(token, depths) {
    const round = token.fate !== "prompt" && token.round.isTree ? token.round : null;
    folded.hidden = family.hidden = true;
    if (!round || token.fate === "prompt") return;
    folded.hidden = false;
    branches = branchesOf(round, fateNow);
    update(find(folded, ".branches"), below(null, token, depths));
    const rows = branches.filter((_, at) => !branches.some(({ after }) => after === at)).length; // one for each end
    if (round !== latest) folded.open = !isFolded && rows <= TALL && !matchMedia("(max-width: 800px)").matches;
    latest = round;
    write(find(folded, "summary"), shapeInWords(round, fateNow));
    const lit = folded.querySelector('[aria-current="true"]');
    if (lit && panel.closest("[data-lecture]")) lit.scrollIntoView({ block: "nearest" }); // nobody else can scroll there
    showFamily(token);
  }

  /**
   * The branches that follow one, or the text.
   * @param {number | null} index
   * @param {Token} told of which the inspector tells
   * @param {number} depths that are drafted; of the others only the room is there
   */
  function below(index, told, depths) {
    /** @type {HTMLElement[]} */
    const items = branches.flatMap((one, at) => {
      if (one.after !== index) return [];
      const isThere = !isDrafted(one.token) || one.column < depths;
      const node = nodeOf(one, { "data-branch": at, disabled: !isThere, "aria-current": String(one.token === told) });
      return [h("li", { "data-fate": one.fate, class: !isThere && "absent" }, node, below(at, told, depths))];
    });
    return items.length ? h("ul", {}, items) : null;
  }

  /**
   * @param {Branch} branch
   * @param {Attributes} attributes
   */
  function nodeOf({ token, text, fate, p, q }, attributes) {
    const numbers = [p === null ? "" : `p = ${digits(p)}`, q === null ? "" : `q = ${digits(q)}`];
    const title = [`${named(token)}: ${fateNamed(token, fate)}`, ...numbers].filter(Boolean).join(", ");
    return h("button", { ...attributes, title, "data-fate": fate, "--p": p ?? 0, "--q": q ?? 0 }, h("b", {}, text), h("i"), h("i"));
  }

  /** @param {Drafted | Own} token */
  function showFamily(token) {
    const rows = familyOf(token);
    family.hidden = rows.length === 0 || fateNow(rows[0]) === "pending" || fateNow(token) === "pending";
    if (family.hidden) return;
    const isDrawn = rows.some((one) => one.u !== null && uMatters(one));
    const hasLeft = isDrawn && rows.some((one) => fateNow(one) === "rejected"); // greedy decoding leaves p as it is
    const ofLeft = hasLeft ? [say("inspector.tree.left")] : [];
    find(family, "caption").textContent = say(hasLeft ? "inspector.tree.familyLeft" : "inspector.tree.family");
    const heads = ["", "p", "q", ...(isDrawn ? ["u"] : []), ...ofLeft].map((name) => columnHead(name));
    fill(find(family, "thead"), h("tr", {}, heads));
    fill(find(family, "tbody"), rows.map((one) => familyRow(one, one === token, isDrawn, hasLeft)));
  }

  /**
   * @param {Drafted} token
   * @param {boolean} isShown
   * @param {boolean} isDrawn whether u is shown
   * @param {boolean} hasLeft whether what is left of p is shown
   */
  function familyRow(token, isShown, isDrawn, hasLeft) {
    const fate = fateNow(token);
    const word = h("span", { class: `token ${fate}`, title: fateNamed(token, fate) }, token.text.trim() || named(token));
    const isJudged = fate === "accepted" || fate === "rejected";
    const isFirst = fate !== "pending" && familyOf(token)[0].fate !== "rejected"; // so p is still the target's own
    const [u, left] = isJudged ? [token.u, fate === "rejected" ? leftAfter(token) : null] : [null, null];
    const p = isJudged || isFirst ? token.p : null;
    const values = [p, token.q, ...(isDrawn ? [u] : []), ...(hasLeft ? [left] : [])];
    const row = rowOf(word, values.map((value) => (
      value === null ? "–" : h("td", { title: inLanguage(String(value)) }, short(value)))));
    row.classList.toggle("shown", isShown);
    return row;
  }
}

/**
 * The drafter's own probability of a guess that was chosen, whose q counts as 1; of any other token q.
 * @param {Drafted | Own} token
 */
function ownQ(token) {
  return isDrafted(token) && isChosen(token.round) ? token.raw_q ?? token.q : token.q;
}

/**
 * How many guesses the round's tree has, and how many of them are judged and accepted as far as it is known.
 * @param {Round} round
 * @param {FateNow} fateNow
 */
function shapeInWords(round, fateNow) {
  const judged = round.draft.filter((one) => ["accepted", "rejected"].includes(fateNow(one)));
  const accepted = judged.filter(({ fate }) => fate === "accepted").length;
  const counts = { count: round.draft.length, judged: judged.length, accepted };
  return say(judged.length ? "inspector.tree.shape" : "inspector.tree.waits", counts);
}

/**
 * The tokens of a round's tree, each after the one that it follows, as far as they are there.
 * @param {Round} round
 * @param {FateNow} fateNow
 * @returns {Branch[]}
 */
export function branchesOf(round, fateNow) {
  const own = round.next && fateNow(round.next) !== "pending" ? round.next : null;
  /** @type {Branch[]} */
  const branches = [];
  addBelow(null, null, 0);
  return branches;

  /**
   * @param {number | null} parent its place
   * @param {number | null} after its index among the branches
   * @param {number} column
   */
  function addBelow(parent, after, column) {
    const drafted = round.draft.filter((one) => one.parent === parent);
    for (const token of [...drafted, ...(own && parent === endOfPath(round) ? [own] : [])]) {
      const [fate, text] = [fateNow(token), token.text.trim() || named(token)];
      const p = fate === "pending" ? null : token.p;
      const index = branches.push({ token, text, fate, column, after, p, q: ownQ(token) }) - 1;
      if (isDrafted(token)) addBelow(token.place, index, column + 1);
    }
  }
}
