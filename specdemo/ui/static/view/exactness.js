// @ts-check
// The tab on exactness: every verdict recomputed, and why the text is the target's own.

import { fill, h, within } from "./dom.js";
import { grouped } from "./format.js";
import { differenceInWords, isExact, recomputed } from "./recompute.js";
import { uMatters } from "./rules.js";
import { say } from "./words.js";

/** @import { Recomputed } from "./recompute.js" */
/** @import { Drafted, Run } from "./run.js" */

const content = () => [
  h("p", { class: "answer" }),
  h("ul", { class: "checks" }),
  h("ul", { class: "differing" }),
  h("p", { class: "about" }),
  h("h2", {}, say("exactness.heading")),
  h("p", {}, say("exactness.why")),
  h("p", {}, `${say("exactness.greedy")} `, h("strong")),
];
const LISTED = 8; // differences that are listed

/** @param {HTMLElement} panel */
export function makeExactness(panel) {
  fill(panel, content());
  const part = within(panel);
  let state = ""; // how much of which run was recomputed
  return { show };

  /** @param {Run} run */
  function show(run) {
    const served = Boolean(run.setting?.served);
    const judged = !served && run.rounds.some(({ draft }) => draft.length);
    const how = run.setting?.greedy ? "exactness.isGreedy" : "exactness.isSampled";
    part("strong").textContent = run.setting ? say(how) : "";
    panel.dataset.rule = served ? "served" : run.setting?.rule.name ?? "speculative";
    const now = `${run.number} ${run.rounds.length} ${run.complete}`;
    if (now === state) return;
    state = now;
    const found = judged ? recomputed(run) : null;
    const fits = run.setting?.lossy ? "lossy" : "exact";
    panel.dataset.tone = found && !isExact(found) ? "differs" : found ? fits : "none";
    part(".answer").textContent = found ? answer(found, run) : whyNone(run);
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
}
