// @ts-check
// The tab on exactness: every verdict recomputed, and how two ways to a token add up to the target's p.

import { find, make } from "./dom.js";
import { inQuotes, roundedUp } from "./format.js";
import { addends, differenceInWords, identityAt, isExact, recomputed, tokenToDraw } from "./recompute.js";
import { keptByBoth, massAt } from "./rules.js";
import { named } from "./textless.js";
import { placeOf } from "./verdict.js";

/** @import { Recomputed } from "./recompute.js" */
/** @import { Run, Token } from "./run.js" */

const EXACTNESS = `
  <p class="answer"></p>
  <div class="columns">
    <div class="proof">
      <ul class="checks"></ul>
      <ul class="differing"></ul>
      <p class="both"></p>
      <p class="about"></p>
      <h2>Why the text is the target's own</h2>
      <p>The drafter proposes a token with probability q, and the target accepts it with min(1, p/q): both
        together have the probability min(p, q). What is missing from p is (p − q)₊, and after a rejection
        a token is drawn from exactly that. So each token comes with the target's own p, whatever the drafter guesses:
        a bad drafter costs time and changes nothing else.</p>
      <p>Greedy text is identical, word for word: only the target's likeliest token is ever accepted, or drawn
        instead (where two are almost equally likely, rounding can choose the other). Sampled text has the same distribution, not the same words: over many runs each text comes as often as from the
        target alone, but with one seed the words differ, because the random numbers decide other things.
        <strong></strong></p>
    </div>
    <figure class="identity">
      <figcaption><h2>min(p, q) + (p − q)₊ = p</h2><p class="place"></p></figcaption>
      <p class="key"><span><i class="kept"></i>min(p, q): drafted and accepted</span>
        <span><i class="added"></i>(p − q)₊: drawn after a rejection</span></p>
      <table><thead><tr><td></td><td></td><th scope="col">min(p, q)</th><th scope="col">+ (p − q)₊</th>
        <th scope="col">= p</th></tr></thead><tbody></tbody></table>
      <p class="mass"></p>
    </figure>
  </div>`;
const SERVED = "No verdict can be recomputed: a server made this run, and it does not tell p, q and u, by which it decided. "
  + "Nor can it be seen from here whether its text has the target's own distribution.";
const LISTED = 8; // differences that are listed

/**
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
export function makeExactness(panel, pinned) {
  panel.innerHTML = EXACTNESS;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  let state = ""; // how much of which run was recomputed
  return { show };

  /** @param {Run} run */
  function show(run) {
    const served = Boolean(run.setting?.served);
    const judged = !served && run.rounds.some(({ draft }) => draft.length);
    panel.classList.toggle("nothing", !judged);
    const how = run.setting?.greedy ? "greedy" : "sampled";
    part(".columns strong").textContent = run.setting ? `This run is ${how}.` : "";
    if (judged) showIdentity(run);
    panel.dataset.rule = served ? "served" : run.setting?.rule.name ?? "speculative";
    const now = `${run.number} ${run.rounds.length} ${run.complete}`;
    if (now === state) return;
    state = now;
    if (served) return showNothing(run);
    const found = recomputed(run);
    const fits = run.setting?.lossy ? "lossy" : "exact";
    panel.dataset.tone = judged && !isExact(found) ? "differs" : judged ? fits : "none";
    part(".answer").textContent = judged ? answer(found, run) : whyNone(run);
    part(".both").textContent = sameDrafts(run);
    part(".about").textContent = run.setting?.rule.about ?? "";
    showChecks(run, found);
  }

  // What is hidden keeps nothing of the run before.
  /** @param {Run} run of a server */
  function showNothing(run) {
    panel.dataset.tone = "none";
    part(".answer").textContent = run.rounds.length || run.complete ? SERVED : "The run has not begun.";
    part(".both").textContent = part(".about").textContent = "";
    part(".checks").replaceChildren();
    part(".differing").replaceChildren();
  }

  /** @param {Run} run in which nothing was drafted */
  function whyNone(run) {
    if (run.rounds.length === 0 && !run.complete) return "The run has not begun.";
    if (!run.complete && run.setting?.draft_with !== "none") return "Nothing has been drafted so far.";
    const each = "each token was drawn from p itself";
    return `Nothing was drafted in this run, so there is nothing to verify: ${each}.`;
  }

  /**
   * @param {Recomputed} found
   * @param {Run} run
   */
  function answer(found, run) {
    const { verdicts, follow } = found;
    const one = verdicts === 1;
    const count = `${follow} of ${verdicts} verdict${one ? " follows" : "s follow"}`;
    const but = follow === verdicts && !isExact(found) ? " But not everything fits:" : "";
    const lossy = run.setting?.lossy ? ` But the rule is lossy: ${run.numbers.distance} from the target's distribution on average.` : "";
    return `${count} from the recorded ${run.setting?.rule.recorded}.${but}${lossy}`;
  }

  /** What each lossless rule would have kept of this run's drafts. @param {Run} run */
  function sameDrafts(run) {
    const kept = keptByBoth(run.rounds);
    if (!kept) return "";
    const { speculative, block, rounds } = kept;
    return `The same ${rounds === 1 ? "draft" : `${rounds} drafts`}, judged by both lossless rules with the same random numbers: the speculative rule `
      + `keeps ${speculative.toFixed(2)} drafted tokens a round, block verification ${block.toFixed(2)}. In one run either can keep more; on average block verification keeps no fewer.`;
  }

  /**
   * @param {Run} run
   * @param {Recomputed} found
   */
  function showChecks(run, found) {
    const { accepted, rejected, afterEnd, afterRejection, differences, brokenRounds, brokenText } = found;
    const own = run.rounds.filter(({ next }) => next).length;
    const rounds = `${run.rounds.length - brokenRounds.length} of ${run.rounds.length} rounds`;
    const after = afterEnd ? `, ${afterEnd} accepted after the end of the text and dropped` : "";
    const also = afterRejection ? `, ${afterRejection} judged after a rejection and dropped` : "";
    const fates = `${accepted} accepted, ${rejected} rejected${also}${after}`;
    const rule = run.setting?.rule;
    const judged = rule?.judges_whole_draft ? "the whole draft judged" : "nothing judged after it";
    const order = `At most one rejection a round, ${judged}, then the target's own token`;
    const cut = own < run.rounds.length && !brokenRounds.length ? " The text ended in the last one's draft, so that one has none." : "";
    const sum = `${accepted} + ${own} = ${accepted + own}`;
    /** @type {[holds: boolean, what: string][]} */
    const checks = [
      [!differences.length, `Accepted exactly ${rule?.accepted}: ${fates}.`],
      [!brokenRounds.length, `${order}: ${rounds}.${cut}`],
      [!brokenText, `The text is the accepted tokens and the target's own: ${sum} tokens.`],
    ];
    part(".checks").replaceChildren();
    for (const [holds, what] of checks) {
      const line = make("li", what);
      line.dataset.holds = String(holds);
      part(".checks").append(line);
    }
    const all = [
      ...differences.map(differenceInWords),
      ...brokenRounds.map(([{ index }, what]) => `round ${index + 1}: ${what}`),
      ...(brokenText ? [brokenText] : []),
    ];
    part(".differing").replaceChildren();
    for (const words of all.slice(0, LISTED)) part(".differing").append(make("li", words));
    if (all.length > LISTED) part(".differing").append(make("li", `and ${all.length - LISTED} more`));
  }

  /** @param {Run} run */
  function showIdentity(run) {
    const chosen = pinned();
    const token = tokenToDraw(run.rounds, chosen);
    if (!token) return;
    const rows = identityAt(token);
    const which = `${whichToken(token, chosen)} (${placeOf(token)})`;
    part(".place").textContent = `At ${named(token)}, ${which}.`;
    const scale = roundedUp(Math.max(0.001, rows.reduce((most, { p }) => Math.max(most, p), 0)));
    part("figure tbody").replaceChildren();
    for (const row of rows) part("figure tbody").append(identityRow(row, scale));
    const mass = massAt(token);
    const [accept, reject] = mass === null ? ["", ""] : addends(1, 1 - mass);
    part(".mass").textContent = mass === null
      ? ""
      : `Averaged over what could be drafted here, a draft is accepted with probability ${accept} and rejected with ${reject}.`;
  }

  /**
   * @param {Token} token
   * @param {Token | null} chosen
   */
  function whichToken(token, chosen) {
    if (token === chosen) return "the pinned token";
    const which = token.fate === "rejected" ? "the run's first rejection" : "the run's first draft";
    return chosen ? `${which}, because nothing was judged at the pinned token` : which;
  }

  /**
   * @param {ReturnType<typeof identityAt>[number]} row
   * @param {number} scale the p whose bar has the full length
   */
  function identityRow({ id, text, drawn, p, kept, written }, scale) {
    const name = make("th", make("code", inQuotes(text)));
    name.scope = "row";
    name.title = `token ${id}`;
    if (drawn) name.append(make("small", ` ◆ ${drawn.how}`));
    const bar = make("td", make("i"), make("i"));
    bar.className = "sum";
    bar.style.setProperty("--kept", String(kept / scale));
    bar.style.setProperty("--added", String((p - kept) / scale));
    const made = make("tr", name, bar);
    for (const number of written) made.append(make("td", number));
    return made;
  }
}
