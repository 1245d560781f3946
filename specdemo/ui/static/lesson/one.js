// @ts-check
// One draft of the figure, judged: the random number u against the threshold, and the one that draws a replacement.

import { fill, find, h, update, within, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";
import { belowOne, draftOf, draftsGreedily } from "./chosen.js";
import { bare, setNumber } from "./columns.js";
import { randomNumbers } from "./draws.js";
import { makeHandle } from "./handle.js";
import { pick } from "./identity.js";

/** @import { Chosen } from "./chosen.js" */
/** @import { Trial } from "./identity.js" */

const content = () => [
  h("h2", {}, say("figure.one.title")),
  h("div", { class: "drafting" }, h("p", { class: "drafted" }), h("button", { class: "draw-one" }, say("figure.one.draw"))),
  h("div", { class: "judging" },
    h("p", { class: "threshold" }, h("span")),
    h("div", { class: "strip verdicts" }, h("span", { class: "accept" }), h("span", { class: "reject" }),
      h("i", { class: "u", "aria-label": say("figure.one.u_name") })),
    h("p", { class: "u-value" }, h("span"))),
  h("p", { class: "greedy" }),
  h("p", { class: "outcome-of-one", role: "status" }, h("b"), " ", h("span")),
  h("div", { class: "replacing" },
    h("p", { class: "from" }),
    h("div", { class: "strip replacements" },
      h("div", { class: "pieces" }), h("i", { class: "u", "aria-label": say("figure.one.other_name") }))),
];
const SEED = 10_000; // of the drafts that are drawn one by one; the seeds of the many are smaller
const ROOM = 0.2; // of a strip, which a word needs

/**
 * @param {HTMLElement} panel which tells the style sheet the verdict
 * @param {HTMLElement} section
 * @param {Chosen} chosen
 * @param {() => void} drafted called when another draft is chosen, or another of its random numbers
 */
export function makeOne(panel, section, chosen, drafted) {
  fill(section, content());
  const part = within(section);
  const strips = { verdicts: part(".verdicts"), replacements: part(".replacements") };
  const dice = randomNumbers(SEED);
  /** What is drafted from. @type {Trial} */
  let trial;
  const handleOf = (/** @type {"u" | "other"} */ name, /** @type {HTMLElement} */ strip) => makeHandle(find(strip, ".u"), {
    upright: false,
    length: () => strip.getBoundingClientRect().width,
    read: () => chosen[name],
    write: (value) => {
      chosen[name] = belowOne(value);
      drafted();
    },
  });
  const handles = { u: handleOf("u", strips.verdicts), other: handleOf("other", strips.replacements) };
  part(".draw-one").addEventListener("click", () => {
    Object.assign(chosen, { draft: pick(trial.drawn, dice()), u: dice(), other: dice() });
    drafted();
  });
  return { draw };

  /** @param {Trial} shown */
  function draw(shown) {
    trial = shown;
    const { names, mistakes, u, other } = chosen;
    const { p, drawn, told, judged, accept, replacement } = trial;
    const greedilyDrafted = draftsGreedily(chosen, trial);
    const greedy = greedilyDrafted && !mistakes.has("soft");
    const at = draftOf(chosen, trial);
    const replaces = pick(replacement, other);
    const isNever = drawn[at] === 0;
    const isAccepted = !isNever && u < accept[at];
    const plain = mistakes.size === 0;
    const words = { token: names[at], other: names[replaces], threshold: fixed(accept[at], 3) };
    write(part(".drafted"), greedilyDrafted ? say("figure.one.drafted_greedy", words) : say("figure.one.drafted", words));
    panel.dataset.verdict = isNever ? "never" : isAccepted ? "accepted" : "rejected";
    drawJudging();
    drawReplacing();
    write(part(".greedy"), greedy ? say("figure.one.greedy") : "");
    write(part(".outcome-of-one b"), outcome());
    write(part(".outcome-of-one span"), plain && !isNever ? reason() : "");

    function drawJudging() {
      const value = { value: words.threshold };
      write(part(".threshold span"), plain ? say("figure.one.threshold", value) : say("figure.one.threshold_off", value));
      part(".judging").hidden = isNever;
      setNumber(part(".judging"), "threshold", accept[at]);
      setNumber(part(".judging"), "u", u);
      write(part(".accept"), accept[at] > ROOM ? say("figure.one.accept") : "");
      write(part(".reject"), 1 - accept[at] > ROOM ? say("figure.one.reject") : "");
      handles.u.handle.hidden = part(".u-value").hidden = greedy;
      const short = { value: fixed(u, 3) };
      handles.u.tell(isAccepted ? say("figure.one.u_accepted", short) : say("figure.one.u_rejected", short));
      write(part(".u-value span"), say("figure.one.u", short));
    }

    function drawReplacing() {
      part(".replacing").hidden = isNever || isAccepted || greedy;
      const from = mistakes.has("from_p") ? "figure.one.from_off" : "figure.one.from";
      const drawnToken = { value: fixed(other, 3), token: names[replaces] };
      write(part(".from"), say(from, drawnToken));
      setNumber(strips.replacements, "u", other);
      update(part(".pieces"), replacement.map((share, index) => {
        const looks = { hidden: share === 0, class: index === replaces && "drawn", "--share": share.toFixed(5) };
        return h("span", looks, bare(names[index]));
      }));
      handles.other.tell(say("figure.one.other_value", drawnToken));
    }

    function outcome() {
      if (isNever) return say("figure.one.never", words);
      if (!isAccepted && replaces === at) return say("figure.one.again", words);
      if (greedy) return isAccepted ? say("figure.one.greedy_accepted", words) : say("figure.one.greedy_rejected", words);
      return isAccepted ? say("figure.one.accepted", words) : say("figure.one.rejected", words);
    }

    function reason() {
      if (greedy) return say("figure.one.greedy_reason");
      const [due, proposed] = [judged[at], told[at]];
      const [p_, missing] = [fixed(due, 3), fixed(due - proposed, 3)];
      const numbers = { p: p_, q: fixed(proposed, 3), missing };
      if (Math.abs(due - proposed) < 1e-9) return say("figure.one.same");
      return p[at] > proposed ? say("figure.one.more", numbers) : say("figure.one.less", numbers);
    }
  }
}
