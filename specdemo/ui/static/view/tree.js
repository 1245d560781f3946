// @ts-check
// A round's tree: its guesses as nested lists, each beside the token that it follows, with the fates that are known.
// Below it the guesses at one place, as a table in the order of judging.

import { find, make, write } from "./dom.js";
import { digits, inQuotes, short } from "./format.js";
import { massAt } from "./rules.js";
import { acceptedIn, depthOf, familyOf, isDrafted, isTree, parentOf } from "./run.js";
import { named } from "./textless.js";
import { inLanguage, say } from "./words.js";

/** @import { Drafted, Own, Round, Token } from "./run.js" */
/** @typedef {(token: Drafted | Own) => string} FateNow as far as it is known: "pending", or that of the token */

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
    const node = target instanceof Element ? target.closest("button") : null;
    const token = node && nodes.get(node);
    if (token) choose(token);
  });
  return { show };

  /**
   * @param {Token} token
   * @param {number} depths that are drafted
   */
  function show(token, depths) {
    const round = token.fate !== "prompt" && isTree(token.round) ? token.round : null;
    folded.hidden = family.hidden = true;
    if (!round || token.fate === "prompt") return;
    folded.hidden = false;
    if (round !== drawn) draw(round);
    for (const [node, one] of nodes) fill(node, one, one === token, depths);
    showOwn(round);
    const judged = round.draft.filter((one) => ["accepted", "rejected"].includes(fateNow(one)));
    const accepted = judged.filter(({ fate }) => fate === "accepted").length;
    const counts = { count: round.draft.length, judged: judged.length, accepted };
    write(find(folded, "summary"), say(judged.length ? "inspector.tree.shape" : "inspector.tree.waits", counts));
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
      const list = make("ul");
      for (const one of round.draft.filter((each) => parentOf(each) === parent)) list.append(itemOf(one));
      if (round.next && parent === end) own = { item: itemOf(round.next), list, after: item };
      if (list.firstChild) item?.append(list);
      return list;
    };
    const itemOf = (/** @type {Drafted | Own} */ one) => {
      const node = make("button", make("b"), make("i"), make("i"));
      node.type = "button";
      nodes.set(node, one);
      const item = make("li", node);
      if (isDrafted(one)) below(one.place, item);
      return item;
    };
    const branches = below(null, null);
    const rows = branches.querySelectorAll("li:not(:has(ul))").length;
    find(folded, ".branches").replaceChildren(branches);
    folded.open = !isFolded && rows <= TALL && !matchMedia("(max-width: 800px)").matches;
  }

  /**
   * @param {HTMLElement} node
   * @param {Drafted | Own} token
   * @param {boolean} isShown whether the inspector tells of it
   * @param {number} depths that are drafted
   */
  function fill(node, token, isShown, depths) {
    const fate = fateNow(token);
    const isThere = !isDrafted(token) || depthOf(token) < depths;
    const item = /** @type {HTMLElement} */ (node.parentElement);
    item.dataset.fate = node.dataset.fate = fate;
    item.classList.toggle("absent", !isThere);
    node.toggleAttribute("disabled", !isThere);
    node.setAttribute("aria-current", String(isShown));
    write(find(node, "b"), token.text.trim() || named(token));
    const [p, q] = [fate === "pending" ? null : token.p, token.q];
    node.style.setProperty("--p", String(p ?? 0));
    node.style.setProperty("--q", String(q ?? 0));
    const numbers = [p === null ? "" : `p = ${digits(p)}`, q === null ? "" : `q = ${digits(q)}`];
    node.title = [`${inQuotes(token.text)}: ${say(`view.fates.${fate}`)}`, ...numbers].filter(Boolean).join(", ");
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
    const heads = make("tr");
    for (const name of ["", "p", "q", "u", say("inspector.tree.left")]) {
      const cell = make("th", name);
      cell.scope = "col";
      heads.append(cell);
    }
    find(family, "thead").replaceChildren(heads);
    find(family, "tbody").replaceChildren();
    for (const one of rows) find(family, "tbody").append(familyRow(one, one === token));
  }

  /**
   * @param {Drafted} token
   * @param {boolean} isShown
   */
  function familyRow(token, isShown) {
    const fate = fateNow(token);
    const word = make("span", token.text.trim() || named(token));
    word.className = `token ${fate}`;
    word.title = say(`view.fates.${fate}`);
    const name = make("th", word);
    name.scope = "row";
    const isJudged = fate === "accepted" || fate === "rejected";
    const values = isJudged ? [token.p, token.q, token.u, fate === "rejected" ? massAt(token) : null] : [null, token.q, null, null];
    const row = make("tr", name);
    for (const value of values) {
      const cell = make("td", value === null ? "–" : short(value));
      if (value !== null) cell.title = inLanguage(String(value));
      row.append(cell);
    }
    if (isShown) row.className = "shown";
    return row;
  }
}
