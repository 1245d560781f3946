// @ts-check
// A round's tree: its guesses as nested lists, each beside the token that it follows, with the fates that are known.
// Below it the guesses at one place, as a table in the order of judging. `branchesOf` is the same tree for a picture.

import { around, fill, find, h, write } from "./dom.js";
import { digits, short } from "./format.js";
import { leftAfter, uMatters } from "./rules.js";
import { familyOf, isChosen, isDrafted } from "./run.js";
import { columnHead, rowOf } from "./tables.js";
import { fateNamed, named } from "./textless.js";
import { inLanguage, say } from "./words.js";

/** @import { Drafted, Own, Round, Token } from "./run.js" */
/** @typedef {(token: Drafted | Own) => string} FateNow as far as it is known: "pending", or that of the token */
/**
 * A token of a tree. column: how many drafted tokens stand before it. row: of its middle; a token stands in the middle of
 * those that follow it. after: the index of the token that it follows, null at the root. p: null while it is pending.
 * @typedef {{ text: string, fate: string, column: number, row: number, after: number | null, p: number | null, q: number | null }} Branch
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
  /** @type {Map<HTMLElement, Drafted | Own>} */
  const nodes = new Map();
  /** @type {Round | null} */
  let drawn = null;
  /** @type {{ item: HTMLElement, list: HTMLElement, after: HTMLElement | null } | null} */
  let own = null; // where the target's own token belongs, which is not there before it is drawn
  let isFolded = false; // by the reader
  find(folded, "summary").addEventListener("click", () => { isFolded = folded.open; });
  folded.addEventListener("click", ({ target }) => {
    const node = around(target, "button");
    const token = node && nodes.get(node);
    if (token) choose(token);
  });
  /** The tree that is shown, and how many of its depths are drafted. @type {{ round: Round, depths: number } | null} */
  let shown = null;
  return { show, shown: () => shown };

  /**
   * @param {Token} token
   * @param {number} depths that are drafted
   */
  function show(token, depths) {
    const round = token.fate !== "prompt" && token.round.isTree ? token.round : null;
    folded.hidden = family.hidden = true;
    shown = round && { round, depths };
    if (!round || token.fate === "prompt") return;
    folded.hidden = false;
    if (round !== drawn) draw(round);
    for (const [node, one] of nodes) drawNode(node, one, one === token, depths);
    showOwn(round);
    write(find(folded, "summary"), shapeInWords(round, fateNow));
    const lit = folded.querySelector('[aria-current="true"]');
    if (lit && panel.closest("[data-lecture]")) lit.scrollIntoView({ block: "nearest" }); // nobody else can scroll there
    showFamily(token);
  }

  /** @param {Round} round */
  function draw(round) {
    drawn = round;
    nodes.clear();
    own = null;
    const end = round.draft.filter(({ fate }) => fate === "accepted").at(-1)?.place ?? null;
    /**
     * @param {number | null} parent
     * @param {HTMLElement | null} item of it
     */
    const below = (parent, item) => {
      const list = h("ul");
      for (const one of round.draft.filter((each) => each.parent === parent)) list.append(itemOf(one));
      if (round.next && parent === end) own = { item: itemOf(round.next), list, after: item };
      if (list.firstChild) item?.append(list);
      return list;
    };
    const itemOf = (/** @type {Drafted | Own} */ one) => {
      const node = h("button", {}, h("b"), h("i"), h("i"));
      nodes.set(node, one);
      const item = h("li", {}, node);
      if (isDrafted(one)) below(one.place, item);
      return item;
    };
    const branches = below(null, null);
    const rows = branches.querySelectorAll("li:not(:has(ul))").length;
    fill(find(folded, ".branches"), branches);
    folded.open = !isFolded && rows <= TALL && !matchMedia("(max-width: 800px)").matches;
  }

  /**
   * @param {HTMLElement} node
   * @param {Drafted | Own} token
   * @param {boolean} isShown whether the inspector tells of it
   * @param {number} depths that are drafted
   */
  function drawNode(node, token, isShown, depths) {
    const fate = fateNow(token);
    const isThere = !isDrafted(token) || token.depth < depths;
    const item = /** @type {HTMLElement} */ (node.parentElement);
    item.dataset.fate = node.dataset.fate = fate;
    item.classList.toggle("absent", !isThere);
    node.toggleAttribute("disabled", !isThere);
    node.setAttribute("aria-current", String(isShown));
    write(find(node, "b"), token.text.trim() || named(token));
    const [p, q] = [fate === "pending" ? null : token.p, ownQ(token)];
    node.style.setProperty("--p", String(p ?? 0));
    node.style.setProperty("--q", String(q ?? 0));
    const numbers = [p === null ? "" : `p = ${digits(p)}`, q === null ? "" : `q = ${digits(q)}`];
    node.title = [`${named(token)}: ${fateNamed(token, fate)}`, ...numbers].filter(Boolean).join(", ");
  }

  /** @param {Round} round */
  function showOwn({ next }) {
    if (!own || !next) return;
    const { item, list, after } = own;
    if (fateNow(next) !== "pending") {
      list.append(item);
      after?.append(list);
    } else {
      item.remove();
      if (!list.firstChild) list.remove();
    }
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
export function shapeInWords(round, fateNow) {
  const judged = round.draft.filter((one) => ["accepted", "rejected"].includes(fateNow(one)));
  const accepted = judged.filter(({ fate }) => fate === "accepted").length;
  const counts = { count: round.draft.length, judged: judged.length, accepted };
  return say(judged.length ? "inspector.tree.shape" : "inspector.tree.waits", counts);
}

/**
 * The tokens of a round's tree, each after the one that it follows, as far as they are there.
 * @param {Round} round
 * @param {FateNow} fateNow
 * @param {number} depths that are drafted
 * @returns {Branch[]}
 */
export function branchesOf(round, fateNow, depths) {
  const end = round.draft.filter(({ fate }) => fate === "accepted").at(-1)?.place ?? null;
  const own = round.next && fateNow(round.next) !== "pending" ? round.next : null;
  /** @type {Branch[]} */
  const branches = [];
  let rows = 0;
  addBelow(null, null, 0);
  return branches;

  /**
   * @param {number | null} parent its place
   * @param {number | null} after its index among the branches
   * @param {number} column
   * @returns {number | null} the row of their middle, null where nothing follows
   */
  function addBelow(parent, after, column) {
    const drafted = column < depths ? round.draft.filter((one) => one.parent === parent) : [];
    const found = [...drafted, ...(own && parent === end ? [own] : [])].map((one) => add(one, after, column));
    return found.length ? (found[0] + found[found.length - 1]) / 2 : null;
  }

  /**
   * @param {Drafted | Own} token
   * @param {number | null} after
   * @param {number} column
   * @returns {number} its row
   */
  function add(token, after, column) {
    const fate = fateNow(token);
    const text = token.text.trim() || named(token);
    const branch = { text, fate, column, row: 0, after, p: fate === "pending" ? null : token.p, q: ownQ(token) };
    const index = branches.push(branch) - 1;
    branch.row = (isDrafted(token) ? addBelow(token.place, index, column + 1) : null) ?? rows++;
    return branch.row;
  }
}
