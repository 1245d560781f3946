// @ts-check
// The tab on exactness: every verdict recomputed, and how two ways to a token add up to the target's p.

import { fill, h, within } from "./dom.js";
import { grouped, roundedUp } from "./format.js";
import { addends, differenceInWords, identityAt, isExact, recomputed, tokenToDraw } from "./recompute.js";
import { massAt, primed, uMatters } from "./rules.js";
import { isAfterRefused } from "./run.js";
import { columnHead, rowOf } from "./tables.js";
import { named, quoted } from "./textless.js";
import { placeOf } from "./verdict.js";
import { say } from "./words.js";

/** @import { Recomputed } from "./recompute.js" */
/** @import { Drafted, Run, Token } from "./run.js" */

const content = () => [
  h("p", { class: "answer" }),
  h("div", { class: "columns" },
    h("div", { class: "proof" },
      h("ul", { class: "checks" }),
      h("ul", { class: "differing" }),
      h("p", { class: "about" }),
      h("h2", {}, say("exactness.heading")),
      h("p", {}, say("exactness.why")),
      h("p", {}, `${say("exactness.greedy")} `, h("strong"))),
    h("figure", { class: "identity" },
      h("figcaption", {}, h("h2", {}, "min(p, q) + (p − q)₊ = p"), h("p", { class: "place" })),
      h("p", { class: "key" }, ["kept", "added"].map((part) => (
        h("span", {}, h("i", { class: part }), h("span", {}, say(`exactness.${part}`)))))),
      h("table", {},
        h("thead", {}, h("tr", {}, h("td"), h("td"), ["min(p, q)", "+ (p − q)₊", "= p"].map((words) => columnHead(words)))),
        h("tbody")),
      h("p", { class: "mass" }))),
];
const LISTED = 8; // differences that are listed

/**
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
export function makeExactness(panel, pinned) {
  fill(panel, content());
  const part = within(panel);
  let state = ""; // how much of which run was recomputed
  const ofPAndQ = /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll("figure :is(h2, .key span > span, th)"));
  const formulas = [...ofPAndQ].map((element) => ({ element, plain: element.textContent ?? "" }));
  return { show };

  /** @param {Run} run */
  function show(run) {
    const served = Boolean(run.setting?.served);
    const judged = !served && run.rounds.some(({ draft }) => draft.length);
    panel.classList.toggle("nothing", !judged);
    const how = run.setting?.greedy ? "exactness.isGreedy" : "exactness.isSampled";
    part(".columns strong").textContent = run.setting ? say(how) : "";
    if (judged) showIdentity(run);
    panel.dataset.rule = served ? "served" : run.setting?.rule.name ?? "speculative";
    const now = `${run.number} ${run.rounds.length} ${run.complete}`;
    if (now === state) return;
    state = now;
    const found = served ? null : recomputed(run); // what is hidden keeps nothing of the run before
    const fits = run.setting?.lossy ? "lossy" : "exact";
    panel.dataset.tone = judged && found && !isExact(found) ? "differs" : judged ? fits : "none";
    part(".answer").textContent = judged && found ? answer(found, run) : whyNone(run);
    part(".about").textContent = (!served && run.setting?.rule.about) || "";
    fill(part(".checks"), found && checksOf(run, found));
    fill(part(".differing"), found && differing(found));
  }

  /** @param {Run} run of a server, or in which nothing was drafted */
  function whyNone(run) {
    if (run.rounds.length === 0 && !run.complete) return say("view.notBegun");
    if (run.setting?.served) return say("exactness.served");
    if (!run.complete && run.setting?.draft_with !== "none") return say("view.nothingSoFar");
    return say("exactness.nothing");
  }

  /**
   * @param {Recomputed} found
   * @param {Run} run
   */
  function answer(found, run) {
    const { verdicts, follow } = found;
    const recorded = byLikeliest(run) ? say("exactness.recordedGreedy") : run.setting?.rule.recorded ?? "";
    const sentences = [say("exactness.follow", { count: verdicts, follow, recorded })];
    if (follow === verdicts && !isExact(found)) sentences.push(say("exactness.but"));
    if (run.setting?.lossy) sentences.push(say("exactness.lossy", { distance: run.numbers.distance }));
    return sentences.join(" ");
  }

  /** Whether greedy decoding decided all verdicts, and u none. @param {Run} run */
  function byLikeliest({ setting, rounds }) {
    const isByU = (/** @type {Drafted} */ token) => token.u !== null && uMatters(token);
    return setting?.greedy === true && setting.rule.threshold === null && !rounds.some(({ draft }) => draft.some(isByU));
  }

  /**
   * @param {Run} run
   * @param {Recomputed} found
   */
  function checksOf(run, { accepted, rejected, afterEnd, afterRejection, differences, brokenRounds, brokenText }) {
    const own = run.rounds.filter(({ next }) => next).length;
    const fates = [say("exactness.counts", { accepted, rejected })];
    if (afterRejection) fates.push(say("exactness.afterRejection", { count: afterRejection }));
    if (afterEnd) fates.push(say("exactness.afterEnd", { count: afterEnd }));
    const rule = run.setting?.rule;
    const rounds = { fitting: run.rounds.length - brokenRounds.length, all: run.rounds.length };
    const ofChain = rule?.judges_whole_draft ? "exactness.orderOfBlock" : "exactness.order";
    const order = say(run.rounds.some(({ isTree }) => isTree) ? "exactness.orderOfTree" : ofChain, rounds);
    const isCut = own < run.rounds.length && !brokenRounds.length;
    const howAccepted = byLikeliest(run) ? "exactness.acceptedIfLikeliest" : "exactness.acceptedExactly";
    const sum = `${grouped(accepted)} + ${grouped(own)} = ${grouped(accepted + own)}`;
    /** @type {[holds: boolean, what: string][]} */
    const checks = [
      [!differences.length, say(howAccepted, { when: rule?.accepted ?? "", fates: fates.join(", ") })],
      [!brokenRounds.length, isCut ? `${order} ${say("exactness.cut")}` : order],
      [!brokenText, say("exactness.text", { sum })],
    ];
    return checks.map(([holds, what]) => h("li", { "data-holds": String(holds) }, what));
  }

  /** @param {Recomputed} found */
  function differing({ differences, brokenRounds, brokenText }) {
    const all = [
      ...differences.map(differenceInWords),
      ...brokenRounds.map(([{ index }, what]) => say("exactness.roundDiffers", { round: index + 1, what })),
      ...(brokenText ? [brokenText] : []),
    ];
    const more = all.length > LISTED ? [say("exactness.more", { count: all.length - LISTED })] : [];
    return [...all.slice(0, LISTED), ...more].map((words) => h("li", {}, words));
  }

  /** @param {Run} run */
  function showIdentity(run) {
    const chosen = pinned();
    const token = tokenToDraw(run.rounds, chosen);
    if (!token) return;
    const rows = identityAt(token);
    for (const { element, plain } of formulas) element.textContent = primed(token, plain);
    const place = say(whichToken(token, chosen), { token: named(token), place: placeOf(token) });
    part(".place").textContent = isAfterRefused(token) ? `${place} ${say("exactness.left")}` : place;
    const scale = roundedUp(Math.max(0.001, rows.reduce((most, { p }) => Math.max(most, p), 0)));
    fill(part("figure tbody"), rows.map((row) => identityRow(row, scale)));
    const mass = massAt(token);
    const [accept, reject] = mass === null ? ["", ""] : addends(1, 1 - mass);
    part(".mass").textContent = mass === null
      ? ""
      : say("exactness.mass", { accept, reject });
  }

  /**
   * @param {Token} token
   * @param {Token | null} chosen
   */
  function whichToken(token, chosen) {
    if (token === chosen) return "exactness.atPinned";
    if (token.fate === "rejected") return chosen ? "exactness.atRejectionInstead" : "exactness.atRejection";
    return chosen ? "exactness.atDraftInstead" : "exactness.atDraft";
  }

  /**
   * @param {ReturnType<typeof identityAt>[number]} row
   * @param {number} scale the p whose bar has the full length
   */
  function identityRow({ id, text, kind, drawn, p, kept, written }, scale) {
    const name = [h("code", {}, quoted({ text, kind })), drawn && h("small", {}, ` ◆ ${drawn.how}`)];
    const parts = { "--kept": kept / scale, "--added": (p - kept) / scale };
    const bar = h("td", { class: "sum", ...parts }, h("i"), h("i"));
    return rowOf(name, [bar, ...written], { title: say("inspector.tokenId", { id: id ?? "" }) });
  }
}
