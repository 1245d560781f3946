// Draws a run. Runs once, when the component appears; `element`, `props`, `watch` and `trigger` are Gradio's.
// Everything that a model or a visitor wrote goes through textContent, so it is text whatever it says.

const LARGEST_STEP = 200; // tokens drawn at once; more would keep the page from answering
const BEAT = 50; // ms between two steps of a replay

const page = element.querySelector(".run");
const find = (id) => page.querySelector(`[data-testid="${id}"]`);
const stage = find("stage");
const text = makeText(stage);
const timeline = makeTimeline(find("timeline"), { jump: (index) => reader.jump(index), point: (index) => reader.point(index) });
const reader = makeReader(page, stage, text, makeInspector(find("inspector")), timeline);
const [replayButton] = find("replay").getElementsByTagName("button");
const [speedSelect] = find("replay").getElementsByTagName("select");

// The run: what the server has told of it.
const run = { number: 0, rows: [], words: {}, numbers: {}, prompt: [], finish: null, recorded: false };
let asked = -Infinity; // when the server was asked to tell everything anew
let playedOnce = false;

// The screen: what of it is drawn.
const rounds = []; // made when they are first drawn
let drawn = 0; // rounds on the stage
let opened = null; // the round whose drafts are there and wait for their verdict
let speed = Infinity; // of a replay, by the engine's clock; else everything is drawn at once
let clock = 0; // engine milliseconds since the next round began
let ticked = 0; // when the clock was set
let timer = 0;

// Messages.

function receive() {
  const message = JSON.parse(props.value || "{}");
  if (!(message.run >= run.number)) return; // nothing, or a late one of an old run
  if (message.save) return hand(message.save);
  if (message.rounds) take(message);
  else if (message.run > run.number && message.kind === "wait") begin(message);
  else if (page.dataset.state === "waiting" && message.kind !== "wait") page.dataset.state = "empty";
  run.number = message.run;
  if (message.notice !== undefined) showNotice(message);
}

function take(message) {
  const same = message.run === run.number && page.dataset.state !== "waiting" && run.rows.length > 0;
  const { since, until, finish } = message;
  if (same && until < run.rows.length && !finish) return; // known already
  if (since > 0 && !(same && since <= run.rows.length)) return askForAll();
  if (since === 0 && same) correct(message.rounds);
  else if (since === 0) begin(message);
  asked = -Infinity;
  run.rows.push(...message.rounds.slice(run.rows.length - since));
  run.finish = finish;
  Object.assign(run.words, message.words);
  run.numbers = message.numbers;
  proceed();
}

function begin({ run: number, prompt, recorded, kind, finish }) {
  const nothing = { rows: [], words: {}, prompt: (prompt ?? []).map(([id, text]) => ({ id, text, fate: "prompt" })), finish: null };
  Object.assign(run, nothing, { number, recorded: Boolean(recorded) });
  rounds.length = 0;
  page.dataset.state = prompt ? "running" : "waiting";
  showNumbers({});
  // A recorded run that is opened plays; the first one slowly enough to be watched.
  const plays = recorded && kind === "recorded" && !matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (plays) speedSelect.value = playedOnce ? "1" : "0.1";
  playedOnce = true;
  if (!recorded && !finish && innerWidth <= 800) stage.scrollIntoView({ block: "nearest" }); // it is below what was pressed
  rewind(plays ? Number(speedSelect.value) : Infinity, plays || !finish);
}

// A text that was cut or completed at its end comes whole once more.
function correct(rows) {
  rows.slice(0, run.rows.length).forEach((row, index) => {
    const before = tokenRows(run.rows[index]);
    tokenRows(row).forEach((now, i) => {
      if (before[i][1] !== now[1] && rounds[index]) text.rewrite(rounds[index].tokens[i], now[1]);
      before[i][1] = now[1];
    });
  });
}

function askForAll() {
  if (performance.now() - asked < 2000) return;
  asked = performance.now();
  trigger("submit");
}

function showNotice({ notice, kind, share }) {
  const line = find("notice");
  line.dataset.kind = kind;
  line.textContent = notice;
  const progress = line.parentNode.querySelector("progress");
  progress.hidden = typeof share !== "number";
  if (!progress.hidden) progress.value = share;
}

function hand({ name, text }) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Rounds, from what was told to objects.

function tokenRows(row) {
  return row.next ? [...row.draft, row.next] : row.draft;
}

function roundAt(index) {
  return (rounds[index] ??= makeRound(run.rows[index], index));
}

function makeRound({ draft, next, ms: [draft_ms, verify_ms] }, index) {
  const drafted = draft.length;
  const tokens = draft.map(([id, text, fate, p, q, raw_p, raw_q, u, accept_prob, top], place) => (
    { id, text, fate, round: index, place, drafted, p, q, raw_p, raw_q, u, accept_prob, top: alternatives(top) }
  ));
  const round = { index, tokens, drafted, accepted: tokens.filter(({ fate }) => fate === "accepted").length, next: null, draft_ms, verify_ms };
  const rejected = tokens.find(({ fate }) => fate === "rejected");
  for (const token of tokens) if (rejected?.place < token.place) token.refused = rejected;
  if (!next) return round;
  const [id, text, fate, p, q, raw_p, raw_q, u, residual_mass, top] = next;
  round.next = { id, text, fate, round: index, drafted, p, q, raw_p, raw_q, u, residual_mass, top: alternatives(top) };
  if (rejected) [rejected.replacement, round.next.replaced] = [round.next, rejected];
  tokens.push(round.next);
  return round;
}

function alternatives(top) {
  return top.map(([id, p, q, raw_p, raw_q]) => ({ id, text: run.words[id], p, q, raw_p, raw_q }));
}

// The screen. A run that goes on is drawn as it comes. A replay goes by the engine's own times, stretched: first a round's
// drafts, and when judging them has taken its time, the verdict.

function rewind(newSpeed, follows = true) {
  clearTimeout(timer);
  reader.clear();
  text.clear(follows);
  timeline.clear();
  open(null);
  drawn = clock = 0;
  speed = newSpeed;
  ticked = performance.now();
  text.add(run.prompt);
}

function proceed() {
  clearTimeout(timer);
  setClock();
  const judged = [];
  let size = 0;
  while (drawn < run.rows.length && size < LARGEST_STEP) {
    const [draft_ms, verify_ms] = run.rows[drawn].ms;
    if (clock < draft_ms + verify_ms && speed < Infinity) break;
    clock -= draft_ms + verify_ms;
    judged.push(roundAt(drawn++));
    size += judged.at(-1).tokens.length;
  }
  if (judged.length) {
    const added = judged.flatMap((round) => (round === opened ? round.tokens.slice(round.drafted) : round.tokens));
    open(null);
    text.add(added);
    timeline.add(judged);
  }
  if (drawn < run.rows.length && !opened && speed < 1 && clock >= run.rows[drawn].ms[0]) open(roundAt(drawn));
  if (drawn < run.rows.length) timer = setTimeout(proceed, speed < Infinity ? BEAT : 0);
  settle();
}

function setClock() {
  const now = performance.now();
  if (speed < Infinity) clock += (now - ticked) * speed;
  ticked = now;
}

// Shows a round's drafts as they are before they are judged.
function open(round) {
  for (const { element } of opened?.tokens.slice(0, opened.drafted) ?? []) element.classList.remove("open");
  opened = round;
  if (!round) return;
  const drafts = round.tokens.slice(0, round.drafted);
  text.add(drafts);
  for (const { element } of drafts) element.classList.add("open");
}

function settle() {
  const busy = drawn < run.rows.length || !(run.finish || run.recorded); // a trace may have been saved before its run had ended
  page.dataset.state = busy ? "running" : run.recorded ? "recorded" : "ended";
  stage.setAttribute("aria-busy", String(busy));
  showNumbers(speed < Infinity && busy ? soFar() : run.numbers);
  if (!busy) speed = Infinity;
  replayButton.textContent = speed < Infinity ? "Skip" : "Replay";
  replayButton.disabled = !(run.finish || run.recorded) || run.rows.length === 0;
}

function showNumbers(numbers) {
  for (const number of page.querySelectorAll("[data-number]")) {
    const words = numbers[number.dataset.number] ?? "–";
    if (number.textContent !== words) number.textContent = words;
  }
}

// What the rounds that are drawn already add up to. The rest is of the whole run, and comes at its end.
function soFar() {
  const played = rounds.slice(0, drawn);
  const sum = (count) => played.reduce((total, round) => total + count(round), 0);
  const accepted = sum((round) => round.accepted);
  const judged = accepted + sum((round) => round.tokens.filter(({ fate }) => fate === "rejected").length);
  const tokens = accepted + sum((round) => (round.next ? 1 : 0));
  const numbers = { tokens, rounds: drawn, saved: tokens - drawn, seed: run.numbers.seed };
  if (judged) numbers.acceptance_rate = `${Math.round((100 * accepted) / judged)}%`;
  if (drawn) numbers.mean_tokens_per_round = (tokens / drawn).toFixed(2);
  return Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, String(value)]));
}

function replayOrSkip() {
  if (speed < Infinity) speed = Infinity;
  else rewind(Number(speedSelect.value));
  proceed();
}

function changeSpeed() {
  setClock();
  if (speed < Infinity) speed = Number(speedSelect.value);
}

function hideOrShow(event) {
  const button = event.target.closest("button[data-hides]");
  if (!button) return;
  const hide = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!hide));
  stage.classList.toggle(`hide-${button.dataset.hides}`, hide);
  reader.filtered();
  text.reflow();
}

function walkNumbers({ key, target }) {
  const to = { ArrowRight: target.nextElementSibling, ArrowLeft: target.previousElementSibling }[key];
  to?.focus();
}

find("metrics").addEventListener("keydown", walkNumbers);
replayButton.addEventListener("click", replayOrSkip);
speedSelect.addEventListener("change", changeSpeed);
find("legend").addEventListener("click", hideOrShow);
watch("value", receive);
receive();
