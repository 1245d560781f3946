// @ts-check
// Be the drafter: the visitor drafts the next words, and the target judges them as it judges any draft. The
// game is held here; the server plays each round by itself.

import { around, fill, h, within } from "../view/dom.js";
import { apart, fixed, inQuotes, percent } from "../view/format.js";
import { makeInspector } from "../view/inspector.js";
import { makeReader } from "../view/reader.js";
import { Run, acceptedIn, inReadingOrder, inText, linked, rejectedIn } from "../view/run.js";
import { columnHead, rowOf } from "../view/tables.js";
import { makeText } from "../view/text.js";
import { named } from "../view/textless.js";
import { say } from "../view/words.js";
import { makeHall, onlyHere } from "./hall.js";
import { isGoingOn } from "./measuring.js";

/** @import { Game, Measurement } from "../view/messages.d.ts" */
/** @import { Round, Token } from "../view/run.js" */
/** @import { Panel } from "../page/tabs.js" */
/** @import { Server } from "./measuring.js" */
/**
 * What the server is told of a game with each guess, since it keeps none.
 * @typedef {object} Guess
 * @property {string} ids of the text after the prompt, with commas between them
 * @property {number} round how many rounds there were
 * @property {string} guess
 * @property {string} game the name that the server gave it
 * @property {number} seed
 * @property {string} hall the code of the hall that counts it; empty where none does
 */
/** @typedef {{ accepted: number, judged: number, tokens: number, rounds: number }} Score */

const SPACELESS = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;
const content = () => [
  h("div", { class: "beginning" },
    h("button", { class: "begin" }, say("guess.begin")),
    h("button", { class: "hall", hidden: true }, say("guess.link")),
    h("label", { class: "counts", hidden: true }, h("input", { type: "checkbox" }), ` ${say("guess.hall.count")}`),
    h("p", { class: "goes-on", role: "status" })),
  h("section", { class: "hall-plays", hidden: true }),
  h("p", { class: "about" }, say("guess.about")),
  h("div", { class: "table", hidden: true },
    h("div", { class: "playing-field" },
      h("div", {
        class: "stage", "data-testid": "guess-stage", tabindex: 0, role: "listbox", "aria-label": say("guess.stage"),
      }),
      h("form", { class: "guessing" },
        h("label", {}, h("span", {}, say("guess.label")), h("input", {
          type: "text", maxlength: 500, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
        })),
        h("button", { type: "submit", class: "send" }, say("guess.send")),
        h("p", { class: "how" }),
        h("div", { class: "suggested", role: "group", "aria-label": say("guess.suggested") })),
      h("p", { class: "verdict-of-guess", "aria-live": "polite", "data-testid": "guess-verdict" }),
      h("div", { class: "beside", hidden: true }, lane("yours"), lane("drafters")),
      h("table", { class: "score", "data-testid": "guess-score" },
        h("caption", {}, say("guess.score.title")),
        h("thead", {}, h("tr", {}, h("td"),
          columnHead(say("guess.score.accepted")), columnHead(say("guess.score.tokens")))),
        h("tbody"))),
    h("div", {
      class: "inspector", "data-testid": "guess-inspector", role: "region", "aria-label": say("guess.inspector"),
    })),
];
const lane = (/** @type {string} */ name) => h("section", { class: name },
  h("h3", {}, say(`guess.${name}`)),
  h("div", { class: "stage", role: "list", "aria-label": say(`guess.${name}`) }));

/**
 * @param {HTMLElement} panel
 * @param {Server} server
 * @returns {Panel}
 */
export function makeGuess(panel, server) {
  fill(panel, content());
  const part = within(panel);
  const box = /** @type {HTMLInputElement} */ (part(".guessing input"));
  const counts = /** @type {HTMLInputElement} */ (part(".counts input"));
  const begin = /** @type {HTMLButtonElement} */ (part(".begin"));
  const line = part(".goes-on");
  const stage = part(".playing-field > .stage");
  const run = new Run();
  const hall = new URLSearchParams(location.search).get("hall") ?? ""; // which this page plays in
  const openHall = makeHall(part(".hall-plays"));
  /** What would have come of the drafter's own drafts. @type {Round[]} */
  let beside = [];
  /** @type {Game | null} */
  let game = null;
  let taken = ""; // the name of the measurement that was taken last
  let sent = ""; // the latest guess
  let goesOn = false; // whether the box's words continue the text's last word
  const touched = matchMedia("(pointer: coarse)").matches;
  const text = makeText(stage);
  const inspector = makeInspector(
    part(".inspector"), () => run.setting, text.fateNow, (token) => reader.chooseInTree(token),
  );
  const reader = makeReader(panel, stage, text, inspector, { light() {} });
  const [yours, drafters] = ["yours", "drafters"].map((name) => makeText(part(`.${name} .stage`)));
  begin.addEventListener("click", () => server.measure({ kind: "guess", hall }));
  part(".hall").addEventListener("click", copyLink);
  part(".guessing").addEventListener("submit", send);
  part(".suggested").addEventListener("click", ({ target }) => pick(around(target, "button")));
  box.addEventListener("input", () => { goesOn &&= box.value !== ""; });
  panel.addEventListener("keydown", onKey);
  panel.addEventListener("unpin", (event) => event.stopPropagation()); // of this stage, and not of the run's
  return { take };

  /** @param {Measurement} measurement */
  function take({ id, state, text: words, guess }) {
    panel.dataset.state = state;
    line.dataset.state = state;
    allow(!isGoingOn(state));
    line.textContent = state === "waiting" && !words ? say("guess.waiting") : words;
    if (!guess || id === taken) return;
    taken = id;
    game = guess;
    if (guess.prompt) open(guess);
    else play(guess);
  }

  /** @param {boolean} on whether a guess can be sent */
  function allow(on) {
    const plays = on && game !== null && game.finish === null;
    begin.disabled = !on;
    box.readOnly = !plays;
    for (const button of panel.querySelectorAll(".send, .suggested button")) {
      /** @type {HTMLButtonElement} */ (button).disabled = !plays;
    }
  }

  /** @param {Game} opened */
  function open(opened) {
    run.begin(run.number + 1, opened);
    if (run.setting) run.setting.drafting = say("guess.drafting");
    beside = [];
    text.clear();
    reader.clear();
    text.add(run.prompt);
    begin.textContent = say("guess.again");
    part(".table").hidden = part(".hall").hidden = part(".counts").hidden = false;
    part(".about").hidden = true;
    part(".beside").hidden = true;
    part(".verdict-of-guess").textContent = "";
    showNext(opened);
  }

  /** @param {Game} played */
  function play(played) {
    if (!played.guessed || !played.drafted) return;
    const [mine, its] = [played.guessed, played.drafted].map((round) => (
      linked(/** @type {Parameters<typeof linked>[0]} */ (/** @type {unknown} */ (round)), run.setting)));
    run.rounds.push(mine);
    beside.push(its);
    reader.clear();
    text.add(inReadingOrder(mine));
    text.follow();
    part(".beside").hidden = false;
    for (const [lane, round] of /** @type {const} */ ([[yours, mine], [drafters, its]])) {
      lane.clear();
      lane.add(inReadingOrder(round));
    }
    const isCut = mine.draft.map(({ text: piece }) => piece).join("").length < sent.length;
    const told = [verdictInWords(mine), isCut ? say("guess.cut", { most: played.most }) : ""];
    if (played.finish) told.push(say("guess.ended"));
    part(".verdict-of-guess").textContent = told.filter(Boolean).join(" ");
    box.value = "";
    goesOn = false;
    showNext(played);
  }

  /** @param {Game} now */
  function showNext({ most, suggestions, finish }) {
    part(".how").textContent = finish ? "" : say("guess.how", { most });
    fill(part(".suggested"), suggestions.map((word, at) => (
      h("button", { "data-word": word }, h("kbd", {}, String(at + 1)), h("span", {}, word.trim())))));
    part(".guessing").toggleAttribute("data-over", finish !== null);
    showScore();
    allow(true);
    if (!touched && panel.offsetParent && finish === null) box.focus({ preventScroll: true });
  }

  function showScore() {
    fill(part("tbody"), scoreRow(say("guess.you"), run.rounds), scoreRow(say("guess.drafter"), beside));
    part(".score").hidden = run.rounds.length === 0;
  }

  /** @param {Event} event */
  function send(event) {
    event.preventDefault();
    const typed = box.value.trimEnd();
    if (!game || game.finish || box.readOnly) return;
    if (!typed.trim()) return fail(say("guess.empty"));
    sent = drafted(typed, textOf(run), goesOn);
    const { name, seed } = game;
    server.measure({
      kind: "guess", ids: idsOf(run.rounds), round: run.rounds.length, guess: sent, game: name, seed, hall,
    });
  }

  /** @param {string} sentence */
  function fail(sentence) {
    line.textContent = sentence;
    line.dataset.state = "failed";
  }

  /** @param {HTMLElement | null} button */
  function pick(button) {
    const word = button?.dataset.word;
    if (word === undefined || box.readOnly) return;
    if (box.value === "") {
      goesOn = !/^\s/.test(word);
      box.value = word.trimStart();
    } else {
      box.value += word;
    }
    if (!touched) box.focus();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key, target } = event;
    if (key === "Escape") {
      event.stopPropagation(); // it would unpin the run's token
      if (target !== box) return;
      box.value = "";
      goesOn = false;
    }
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (target === box && box.value === "" && isPlain && /^[1-9]$/.test(key)) {
      const button = part(".suggested").querySelectorAll("button")[Number(key) - 1];
      if (!button) return;
      event.preventDefault();
      pick(button);
    }
  }

  async function copyLink() {
    if (!game) return;
    let address = `${location.origin}${location.pathname}?${game.link}`;
    if (!new URLSearchParams(game.link).has("guess")) {
      line.textContent = say("guess.tooLong");
      return;
    }
    if (counts.checked) {
      const { link, wrong } = await openHall(game.name, game.most, game.link);
      if (!link) return fail(wrong ?? "");
      address = link;
    }
    try {
      await navigator.clipboard.writeText(address);
      line.textContent = `${say("guess.copied")} ${onlyHere(address)}`;
    } catch {
      line.textContent = `${say("guess.notCopied", { address })} ${onlyHere(address)}`;
    }
  }
}

/**
 * @param {string} who
 * @param {Round[]} rounds
 */
function scoreRow(who, rounds) {
  const { accepted, judged, tokens, rounds: count } = scoreOf(rounds);
  const share = judged ? say("guess.score.of", { accepted, judged, share: percent(accepted, judged) }) : "–";
  return rowOf(who, [share, count ? fixed(tokens / count, 2) : "–"]);
}

/** @param {Pick<Run, "prompt" | "rounds">} run */
export function textOf({ prompt, rounds }) {
  return [...prompt, ...rounds.flatMap(inText)].map(({ text }) => text).join("");
}

/**
 * A token as the verdict names it: without the spaces around its word.
 * @param {Token} token
 */
function wordOf(token) {
  return token.text.trim() ? inQuotes(token.text.trim()) : named(token);
}

/** @param {Round[]} rounds */
export function idsOf(rounds) {
  return rounds.flatMap(({ emitted }) => emitted).join(",");
}

/**
 * What is drafted for these words: a word begins with a space, unless the text ends with one.
 * @param {string} typed
 * @param {string} text so far
 * @param {boolean} goesOn whether they are to continue the text's last word
 */
export function drafted(typed, text, goesOn) {
  const beginsWord = /^[\p{L}\p{N}"“„«‘(]/u.test(typed) && !SPACELESS.test(typed);
  return beginsWord && !goesOn && /\S$/.test(text) ? ` ${typed}` : typed;
}

/**
 * The verdict on a round's draft, in a sentence.
 * @param {Round} round
 */
export function verdictInWords(round) {
  const { draft, next, setting } = round;
  const rejected = rejectedIn(round);
  const values = { accepted: acceptedIn(round), of: draft.length, next: next ? wordOf(next) : "" };
  if (!draft.length) return say("guess.verdict.none", values);
  if (!rejected) return say(next ? "guess.verdict.all" : "guess.verdict.end", values);
  const word = wordOf(rejected);
  if (setting?.greedy) return say("guess.verdict.greedy", { ...values, word });
  if (rejected.u === null || rejected.accept_prob !== rejected.p) return say("guess.verdict.other", { ...values, word });
  const [u, p] = apart(rejected.u, rejected.p ?? 0);
  return say("guess.verdict.rejected", { ...values, word, p, u });
}

/**
 * @param {Round[]} rounds
 * @returns {Score}
 */
export function scoreOf(rounds) {
  const accepted = rounds.reduce((sum, round) => sum + acceptedIn(round), 0);
  const rejected = rounds.filter(rejectedIn).length;
  const tokens = rounds.reduce((sum, { emitted }) => sum + emitted.length, 0);
  return { accepted, judged: accepted + rejected, tokens, rounds: rounds.length };
}
