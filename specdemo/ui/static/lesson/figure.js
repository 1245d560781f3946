// @ts-check
// The tab "Why it is exact": p and q as bars to be pulled, what comes out by the rule or by a mistake, one
// draft with its random number, and 10,000 of them. All in the browser, by identity.js.

import { appendAll, find, make } from "../view/dom.js";
import { digits, fixed, inQuotes } from "../view/format.js";
import { addends } from "../view/recompute.js";
import { inLanguage, say } from "../view/words.js";
import { classed, makeColumns, setNumber } from "./columns.js";
import { DEFAULTS } from "./defaults.js";
import { compared, draw as drawInto, noCounts, randomNumbers } from "./draws.js";
import { makeHandle } from "./handle.js";
import { MISTAKES, isExact, pick, trialOf } from "./identity.js";
import { MISTAKE_WORDS } from "./mistakes.js";
import { placeAt } from "./place.js";
import { NEUTRAL, rescaled, shaped, sumOf } from "./shaping.js";

/** @import { Run, Token } from "../view/run.js" */
/** @import { Columns } from "./columns.js" */
/** @import { Counts } from "./draws.js" */
/** @import { Mistake, Trial } from "./identity.js" */
/** @import { Others } from "./place.js" */
/** @import { Shaping } from "./shaping.js" */
/** @typedef {"p" | "q"} Which */

const FIGURE = `
  <div class="lead"><p class="answer"></p>
    <div class="doing"><button type="button" class="take" data-say="figure.take"></button>
      <button type="button" class="reset" data-say="figure.reset"></button></div></div>
  <div class="mistakes" role="group"></div>
  <div class="whys" role="status"></div>
  <p class="place"></p>
  <div class="lesson">
    <section class="pull"><h2 data-say="figure.pull.title"></h2>
      <p class="key"><span><i class="of-p"></i><span data-say="figure.pull.p"></span></span>
        <span><i class="of-q"></i><span data-say="figure.pull.q"></span></span>
        <span class="raw-key"><i class="raw"></i><span data-say="figure.pull.raw"></span></span></p>
      <div class="chart"></div>
      <div class="shaping"></div></section>
    <section class="parts"><h2></h2>
      <p class="key"><span><i class="kept"></i><span data-say="figure.parts.kept"></span></span>
        <span><i class="added"></i><span data-say="figure.parts.added"></span></span>
        <span><i class="due"></i><span data-say="figure.parts.due"></span></span></p>
      <div class="chart"></div>
      <div class="area" role="img"></div>
      <p class="sums"><b class="rate"></b><span class="mass"></span></p>
      <p class="bound note" data-say="figure.parts.bound"></p>
      <p class="poor note" data-say="figure.parts.poor"></p></section>
    <section class="one"><h2 data-say="figure.one.title"></h2>
      <div class="drafting"><p class="drafted"></p><button type="button" class="draw-one" data-say="figure.one.draw"></button></div>
      <div class="judging"><p class="threshold"><span></span></p>
        <div class="strip verdicts"><span class="accept"></span><span class="reject"></span><i class="u"></i></div>
        <p class="u-value"><span></span></p></div>
      <p class="greedy"></p>
      <p class="outcome-of-one" role="status"><b></b> <span></span></p>
      <div class="replacing"><p class="from"></p>
        <div class="strip replacements"><i class="u"></i></div></div></section>
    <section class="many"><h2 data-say="figure.many.title"></h2>
      <p class="key"><span><i class="kept"></i><i class="added"></i><span data-say="figure.many.came"></span></span>
        <span><i class="formula"></i><span data-say="figure.many.formula"></span></span>
        <span><i class="of-p"></i><span data-say="figure.parts.due"></span></span></p>
      <div class="chart"></div>
      <div class="drawing"><button type="button" class="draw-many" data-say="figure.many.draw"></button>
        <dl><div><dt data-say="figure.many.distance"></dt><dd class="distance"></dd></div>
          <div><dt class="statistic-name"></dt><dd class="statistic"></dd></div>
          <div><dt data-say="figure.many.chance"></dt><dd class="chance"></dd></div></dl></div>
      <p class="found" role="status"></p></section>
  </div>`;
const DRAWS = 10_000; // as the words have it, too
const A_FRAME = 250; // drafts, so that the columns are seen to fill
const AT_ONCE = 2500; // of them a frame, where no motion is wanted
const SURE = 1e-6; // the p-value below which a rule is called wrong
const LIKELY = 0.001; // and the one from which nothing is said against it
const HALF = 0.5; // how far the bars' scale goes while none is longer
const TOKENS = [
  "figure.tokens.one", "figure.tokens.two", "figure.tokens.three", "figure.tokens.four", "figure.tokens.five", "figure.tokens.six",
];
const ROOM = 0.2; // of a strip, which a word needs
/** @type {Record<Others, string>} */
const OTHERS = { above: "figure.others.above", below: "figure.others.below", all: "figure.others.all" };
/** @type {[name: keyof Shaping, label: string, least: number, most: number, step: number][]} */
const FILTERS = [
  ["temperature", "figure.pull.temperature", 0, 2, 0.05],
  ["top_k", "figure.pull.top_k", 0, 6, 1],
  ["top_p", "figure.pull.top_p", 0.05, 1, 0.05],
  ["min_p", "figure.pull.min_p", 0, 0.95, 0.05],
];

/**
 * The panel is filled when it is first looked at.
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
export function makeFigure(panel, pinned) {
  /** @type {ReturnType<typeof fill> | null} */
  let filled = null;
  return { show: () => (filled ??= fill(panel, pinned)).show() };
}

/**
 * @param {HTMLElement} panel
 * @param {() => Token | null} pinned
 */
function fill(panel, pinned) {
  panel.innerHTML = FIGURE;
  const part = (/** @type {string} */ selector) => find(panel, selector);
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll("[data-say]"))) {
    element.textContent = say(element.dataset.say ?? "");
  }
  const take = /** @type {HTMLButtonElement} */ (part(".take"));
  const strips = { verdicts: part(".verdicts"), replacements: part(".replacements") };
  const handles = { u: find(strips.verdicts, ".u"), other: find(strips.replacements, ".u") };
  const dice = randomNumbers(DRAWS); // of the drafts that are drawn one by one

  // What is chosen.
  /** @type {string[]} */
  let names = [];
  /** The last of the names: those that stand for more than one token. @type {Others[]} */
  let others = [];
  let asTaken = false; // whether p and q are the pinned token's, unchanged
  /** Before the sampler. @type {Record<Which, number[]>} */
  let raw = { p: [], q: [] };
  /** @type {Shaping} */
  let shaping = { ...NEUTRAL };
  let temperatureBefore = 1; // the mistake that is about greedy decoding
  /** @type {Set<Mistake>} */
  let mistakes = new Set();
  let draft = 0;
  let u = 0;
  let other = 0; // the random number that draws the replacement
  let place = ""; // where p and q are from

  // What follows from it.
  /** @type {Trial} */
  let trial;
  let top = HALF; // of the bars' scale
  let seed = 0; // of the last 10,000
  /** @type {Counts | null} */
  let counts = null;
  let drawing = 0; // the number of the drawing that goes on
  /** @type {Record<"pull" | "parts" | "many", Columns>} */
  let columns;
  /** @type {{ which: Which, at: number, bar: HTMLElement, raw: HTMLElement, handle: HTMLElement }[]} */
  let bars = [];
  /** @type {HTMLButtonElement[]} */
  let choices = [];

  makeShaping();
  makeMistakes();
  const strip = (/** @type {HTMLElement} */ of) => () => of.getBoundingClientRect().width;
  makeHandle(handles.u, {
    upright: false, length: strip(strips.verdicts), read: () => u, write: (value) => { u = belowOne(value); drawOne(); },
  });
  makeHandle(handles.other, {
    upright: false, length: strip(strips.replacements), read: () => other,
    write: (value) => { other = belowOne(value); drawOne(); },
  });
  handles.u.setAttribute("aria-label", say("figure.one.u_name"));
  handles.other.setAttribute("aria-label", say("figure.one.other_name"));
  take.addEventListener("click", takePinned);
  part(".reset").addEventListener("click", begin);
  part(".draw-one").addEventListener("click", () => {
    [draft, u, other] = [pick(trial.drawn, dice()), dice(), dice()];
    drawOne();
  });
  part(".draw-many").addEventListener("click", drawMany);
  begin();
  return { show: allowTaking };

  // What can be done.

  function begin() {
    names = TOKENS.map((key) => inQuotes(say(key)));
    others = [];
    asTaken = false;
    raw = { p: DEFAULTS.p, q: DEFAULTS.q };
    shaping = { ...NEUTRAL };
    mistakes = new Set();
    ({ draft, u, other } = DEFAULTS);
    place = say("figure.after_default");
    build();
    allowTaking();
  }

  function allowTaking() {
    take.disabled = placeAt(pinned()) === null;
    take.title = take.disabled ? say("figure.take_hint") : "";
  }

  function takePinned() {
    const token = pinned();
    const found = placeAt(token);
    if (!token || !found) return;
    others = found.others;
    names = [...found.names, ...others.map((kind) => say(OTHERS[kind]))];
    asTaken = true;
    raw = { p: found.p, q: found.q };
    shaping = { ...found.shaping };
    mistakes = new Set();
    const where = { token: inQuotes(token.text) };
    const sampled = ["figure.after_pinned.listed", "figure.after_pinned.one", "figure.after_pinned.two"][others.length];
    place = say(shaping.temperature === 0 ? "figure.after_greedy" : sampled, where);
    draft = found.draft ?? 0;
    u = found.u ?? DEFAULTS.u;
    build();
    if (found.replacement !== null) other = middleOf(trial.replacement, found.replacement);
    drawOne();
  }

  /** @param {Mistake} mistake */
  function turn(mistake) {
    if (mistakes.has(mistake)) mistakes.delete(mistake);
    else mistakes.add(mistake);
    if (mistake === "soft" && mistakes.has("soft")) {
      temperatureBefore = shaping.temperature || 1;
      shaping.temperature = 0;
    } else if (mistake === "soft") {
      shaping.temperature = temperatureBefore;
    }
    change();
  }

  /** Draws 10,000, a part of them in each frame, so that nothing waits. */
  function drawMany() {
    const own = ++drawing;
    const random = randomNumbers(++seed);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const fresh = counts = noCounts(names.length);
    let drawn = 0;
    part(".found").textContent = "";
    step();

    function step() {
      if (own !== drawing) return; // something was changed, or it was begun again
      const now = Math.min(still ? AT_ONCE : A_FRAME, DRAWS - drawn);
      drawInto(trial, random, now, fresh);
      drawn += now;
      drawCounts();
      if (drawn < DRAWS) requestAnimationFrame(step);
      else tellFound(fresh);
    }
  }

  // What is drawn.

  /** Makes the columns, when there are other tokens. */
  function build() {
    const tokens = names.length;
    columns = {
      pull: makeColumns(part(".pull .chart"), tokens, say("figure.pull.table"), ["p", "q", "told"]),
      parts: makeColumns(part(".parts .chart"), tokens, say("figure.parts.table"), ["of-kept", "of-added", "sum", "excess"]),
      many: makeColumns(part(".many .chart"), tokens, say("figure.many.table"), ["share", "p"]),
    };
    bars = [];
    choices = names.map((name, at) => {
      const choice = make("button", bare(name));
      choice.type = "button";
      choice.title = say("figure.pull.choose", { token: name });
      choice.addEventListener("click", () => {
        draft = at;
        drawOne();
      });
      columns.pull.names[at].replaceChildren(choice);
      for (const where of [columns.parts, columns.many]) where.names[at].replaceChildren(make("span", bare(name)));
      for (const { names: heads } of Object.values(columns)) heads[at].classList.toggle("others", at >= tokens - others.length);
      makeBars(at);
      appendAll(columns.parts.columns[at], ["kept", "added", "due"].map((kind) => classed(make("i"), kind)));
      appendAll(columns.many.columns[at], ["kept", "added", "formula", "of-p"].map((kind) => classed(make("i"), kind)));
      return choice;
    });
    strips.replacements.replaceChildren();
    appendAll(strips.replacements, [...names.map((name) => make("span", bare(name))), handles.other]);
    part(".area").replaceChildren();
    appendAll(part(".area"), ["kept", "added"].flatMap((kind) => names.map((name) => {
      const piece = classed(make("i"), kind);
      piece.title = name;
      return piece;
    })));
    change();
  }

  /** @param {number} at */
  function makeBars(at) {
    for (const which of /** @type {Which[]} */ (["p", "q"])) {
      const column = columns.pull.columns[at];
      const side = classed(make("div"), `side ${which}`);
      const made = { which, at, bar: classed(make("i"), `of-${which}`), raw: classed(make("i"), "raw"), handle: make("b") };
      side.append(made.bar, made.raw, made.handle);
      column.append(side);
      bars.push(made);
      let before = raw[which]; // the bars as they were when this one was taken
      makeHandle(made.handle, {
        upright: true,
        length: () => column.getBoundingClientRect().height / top,
        read: () => raw[which][at],
        write: (value) => {
          raw = { ...raw, [which]: rescaled(before, at, value) };
          asTaken = false;
          change(true);
        },
        grasped: () => { before = raw[which]; },
        released: () => change(),
      });
      const name = which === "p" ? say("figure.pull.bar_p", { token: names[at] }) : say("figure.pull.bar_q", { token: names[at] });
      made.handle.setAttribute("aria-label", name);
    }
  }

  /** Draws everything. @param {boolean} [isPulled] whether a bar is in somebody's hand: the scale stays */
  function change(isPulled = false) {
    if (shaping.temperature > 0) mistakes.delete("soft");
    trial = trialOf(shaped(raw.p, shaping), shaped(raw.q, shaping), mistakes, raw);
    drawing++;
    counts = null;
    seed = 0;
    const { p, drawn, out } = trial;
    const longest = [...raw.p, ...raw.q, ...p, ...drawn, ...out].reduce((most, one) => Math.max(most, one), 0);
    if (!isPulled) top = longest > HALF ? 1 : HALF;
    setNumber(panel, "top", top);
    for (const plot of /** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".plot"))) plot.dataset.top = String(top);
    drawLead();
    drawBars();
    drawShaping();
    drawParts();
    drawOne();
    drawMistakes();
    drawCounts();
    tellFound(null);
  }

  function drawLead() {
    const exact = isExact(trial);
    panel.dataset.tone = exact ? "exact" : "differs";
    write(".answer", exact ? say("figure.exact") : say("figure.off", { share: fixed(100 * trial.distance, 1) }));
    write(".place", place);
    part(".bound").hidden = !(asTaken && others.includes("all") && mistakes.size === 0);
    part(".poor").hidden = !exact;
  }

  function drawBars() {
    const after = { p: trial.p, q: trial.drawn };
    for (const { which, at, bar, raw: outline, handle } of bars) {
      const [value, result] = [raw[which][at], after[which][at]];
      const differs = Math.abs(value - result) > 0.0005;
      setNumber(bar, "value", result);
      setNumber(outline, "value", value);
      outline.hidden = !differs;
      setNumber(handle, "value", value);
      handle.setAttribute("aria-valuenow", value.toFixed(3));
      const text = differs ? say("figure.pull.shaped", { value: fixed(value, 3), shaped: fixed(result, 3) }) : fixed(value, 3);
      handle.setAttribute("aria-valuetext", text);
    }
    part(".raw-key").hidden = bars.every(({ raw: outline }) => outline.hidden);
    columns.pull.write(0, "p", inColumn(after.p));
    columns.pull.write(1, "q", inColumn(after.q));
    columns.pull.write(2, say("figure.pull.told"), inColumn(trial.told), mistakes.has("told"));
  }

  function makeShaping() {
    for (const [name, label, least, most, step] of FILTERS) {
      const range = make("input");
      Object.assign(range, { type: "range", min: least, max: most, step });
      range.dataset.name = name;
      range.addEventListener("input", () => {
        shaping[name] = Number(range.value);
        asTaken = false;
        change();
      });
      part(".shaping").append(make("label", make("span", say(label)), range, make("output")));
    }
  }

  function drawShaping() {
    for (const label of part(".shaping").children) {
      const range = /** @type {HTMLInputElement} */ (find(label, "input"));
      const name = /** @type {keyof Shaping} */ (range.dataset.name);
      const isOff = name !== "temperature" && shaping[name] === NEUTRAL[name];
      const text = isOff ? say("figure.pull.no_filter") : fixed(shaping[name], name === "top_k" ? 0 : 2);
      range.value = String(shaping[name]);
      range.setAttribute("aria-valuetext", text);
      find(label, "output").textContent = text;
    }
  }

  function drawParts() {
    const { accepted, replaced, out, p, rate } = trial;
    const exact = isExact(trial);
    write(".parts h2", exact ? say("figure.parts.title") : say("figure.parts.title_off"));
    columns.parts.columns.forEach((column, at) => {
      setNumber(column, "kept", accepted[at]);
      setNumber(column, "added", replaced[at]);
      setNumber(column, "due", p[at]);
    });
    const written = out.map((one, at) => addends(one, accepted[at]));
    const row = (/** @type {number} */ which) => written.map((texts) => texts[which]);
    const excess = out.map((one, at) => signed(one - p[at]));
    columns.parts.write(0, exact ? say("figure.parts.accepted") : say("figure.parts.accepted_off"), row(0));
    columns.parts.write(1, exact ? say("figure.parts.replaced") : say("figure.parts.replaced_off"), row(1));
    columns.parts.write(2, exact ? say("figure.parts.out") : say("figure.parts.out_off"), row(2));
    columns.parts.write(3, say("figure.parts.excess_off"), excess, !exact);
    [...part(".area").children].forEach((piece, at) => {
      if (piece instanceof HTMLElement) setNumber(piece, "share", [...accepted, ...replaced][at]);
    });
    const [kept, missing] = addends(1, rate);
    part(".area").setAttribute("aria-label", say("figure.parts.area", { rate: kept, mass: missing }));
    write(".rate", exact ? say("figure.parts.rate", { rate: kept }) : say("figure.parts.rate_off", { rate: kept }));
    write(".mass", exact ? say("figure.parts.mass", { mass: missing }) : say("figure.parts.mass_off", { mass: missing }));
  }

  function drawOne() {
    const { p, drawn, told, judged, accept, replacement } = trial;
    const soft = mistakes.has("soft");
    const greedilyDrafted = shaping.temperature === 0; // only the drafter's likeliest token
    const greedy = greedilyDrafted && !soft;
    const at = greedilyDrafted ? drawn.indexOf(1) : draft;
    const replaces = pick(replacement, other);
    const isNever = drawn[at] === 0;
    const isAccepted = !isNever && u < accept[at];
    choices.forEach((choice, index) => {
      choice.setAttribute("aria-pressed", String(index === at));
      choice.disabled = greedilyDrafted;
    });
    const drafted = { token: names[at] };
    write(".drafted", greedilyDrafted ? say("figure.one.drafted_greedy", drafted) : say("figure.one.drafted", drafted));
    const threshold = fixed(accept[at], 3);
    const plain = mistakes.size === 0;
    write(".threshold span", plain ? say("figure.one.threshold", { value: threshold }) : say("figure.one.threshold_off", { value: threshold }));
    panel.dataset.verdict = isNever ? "never" : isAccepted ? "accepted" : "rejected";
    part(".judging").hidden = isNever;
    setNumber(part(".judging"), "threshold", accept[at]);
    setNumber(part(".judging"), "u", u);
    write(".verdicts .accept", accept[at] > ROOM ? say("figure.one.accept") : "");
    write(".verdicts .reject", 1 - accept[at] > ROOM ? say("figure.one.reject") : "");
    handles.u.hidden = part(".u-value").hidden = greedy;
    const short = fixed(u, 3);
    tellValue(handles.u, u, isAccepted ? say("figure.one.u_accepted", { value: short }) : say("figure.one.u_rejected", { value: short }));
    write(".u-value span", say("figure.one.u", { value: short }));
    write(".greedy", greedy ? say("figure.one.greedy") : "");

    // What replaces it.
    part(".replacing").hidden = isNever || isAccepted || greedy;
    write(".from", mistakes.has("from_p") ? say("figure.one.from_off") : say("figure.one.from"));
    setNumber(strips.replacements, "u", other);
    names.forEach((_, index) => {
      const piece = /** @type {HTMLElement} */ (strips.replacements.children[index]);
      setNumber(piece, "share", replacement[index]);
      piece.hidden = replacement[index] === 0;
      piece.classList.toggle("drawn", index === replaces);
    });
    tellValue(handles.other, other, say("figure.one.other_value", { value: fixed(other, 3), token: names[replaces] }));

    const words = { token: names[at], other: names[replaces], threshold };
    write(".outcome-of-one b", outcome());
    write(".outcome-of-one span", plain && !isNever ? reason() : "");

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

  function makeMistakes() {
    part(".mistakes").setAttribute("aria-label", say("figure.mistakes.label"));
    part(".mistakes").append(make("span", say("figure.mistakes.label")));
    for (const mistake of MISTAKES) {
      const button = make("button", say(MISTAKE_WORDS[mistake][0]));
      button.type = "button";
      button.dataset.mistake = mistake;
      button.addEventListener("click", () => turn(mistake));
      part(".mistakes").append(button);
    }
  }

  function drawMistakes() {
    for (const mistake of MISTAKES) {
      find(panel, `[data-mistake="${mistake}"]`).setAttribute("aria-pressed", String(mistakes.has(mistake)));
    }
    const made = MISTAKES.filter((mistake) => mistakes.has(mistake));
    const whys = made.length ? made.map((mistake) => say(MISTAKE_WORDS[mistake][1])) : [say("figure.mistakes.none")];
    panel.toggleAttribute("data-mistaken", made.length > 0);
    if (made.length && isExact(trial)) whys.push(say("figure.mistakes.harmless"));
    const shown = [...part(".whys").children].map(({ textContent }) => textContent).join();
    if (shown === whys.join()) return;
    part(".whys").replaceChildren();
    appendAll(part(".whys"), whys.map((why) => make("p", why)));
  }

  function drawCounts() {
    const { out, p } = trial;
    columns.many.columns.forEach((column, at) => {
      setNumber(column, "kept", (counts?.accepted[at] ?? 0) / DRAWS);
      setNumber(column, "added", (counts?.replaced[at] ?? 0) / DRAWS);
      setNumber(column, "formula", out[at]);
      find(column, ".formula").hidden = out[at] < 0.0005;
      setNumber(column, "due", p[at]);
    });
    columns.many.write(0, say("figure.many.share"), out.map((_, at) => (counts ? fixed((counts.accepted[at] + counts.replaced[at]) / DRAWS, 3) : "–")));
    columns.many.write(1, say("figure.many.target"), inColumn(p));
  }

  /** @param {Counts | null} drawn all of them, or nothing yet */
  function tellFound(drawn) {
    const found = drawn && sumOf([...drawn.accepted, ...drawn.replaced]) ? compared(drawn, trial.p) : null;
    write(".distance", found ? fixed(found.distance, 3) : "–");
    write(".statistic-name", say("figure.many.statistic", { count: found?.freedom ?? Math.max(0, names.length - 1) }));
    write(".statistic", found ? (found.statistic === Infinity ? "∞" : fixed(found.statistic, 1)) : "–");
    write(".chance", found ? digits(found.chance, 2) : "–");
    panel.dataset.found = found ? (found.chance < SURE ? "differs" : found.chance < LIKELY ? "unclear" : "fits") : "nothing";
    const words = { seed };
    const sentences = {
      differs: () => say("figure.many.differs", words),
      unclear: () => say("figure.many.unclear", words),
      fits: () => say("figure.many.fits", words),
      nothing: () => say("figure.many.none"),
    };
    write(".found", sentences[/** @type {keyof typeof sentences} */ (panel.dataset.found)]());
  }

  /**
   * Only what is new, since some of it is read aloud.
   * @param {string} selector
   * @param {string} text
   */
  function write(selector, text) {
    const element = part(selector);
    if (element.textContent !== text) element.textContent = text;
  }
}

/** A name without its quotes, for where there is little room. @param {string} name */
function bare(name) {
  return name.replace(/^"(.*)"$/s, "$1");
}

/**
 * @param {HTMLElement} handle
 * @param {number} value
 * @param {string} text
 */
function tellValue(handle, value, text) {
  handle.setAttribute("aria-valuenow", value.toFixed(3));
  handle.setAttribute("aria-valuetext", text);
}

/** Random numbers are below 1. @param {number} value */
function belowOne(value) {
  return Math.min(value, 0.999);
}

/**
 * The middle of a token's part of the cumulative distribution.
 * @param {number[]} weights
 * @param {number} index
 */
function middleOf(weights, index) {
  return belowOne((sumOf(weights.slice(0, index)) + weights[index] / 2) / sumOf(weights));
}

/** @param {number[]} values */
function inColumn(values) {
  return values.map((value) => fixed(value, 3));
}

/** Without the 0 before the point, which would take the sign's room. @param {number} value */
function signed(value) {
  const written = Math.abs(value).toFixed(3);
  return Number(written) === 0 ? "0" : `${value > 0 ? "+" : "−"}${inLanguage(written.replace(/^0/, ""))}`;
}
