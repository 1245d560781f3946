// Draws a run on the stage. Runs once, when the component appears; `element`, `props` and `watch` are Gradio's.
// Everything that a model or a visitor wrote goes through textContent, so it is text whatever it says.

const find = (id) => element.querySelector(`[data-testid="${id}"]`);
const stage = find("stage");
const inspector = find("inspector");
const facts = new WeakMap(); // token element -> its token
const shown = { run: 0, until: -1, finished: false }; // which rounds of which run the stage holds

function receive() {
  if (!props.value) return;
  const message = JSON.parse(props.value);
  if (message.run < shown.run) return; // a late one of an old run
  if (message.tokens) showTokens(message);
  if (message.notice !== undefined) showNotice(message);
}

function showTokens(message) {
  const sameRun = message.run === shown.run;
  if (sameRun && (shown.finished || (message.until < shown.until && !message.finished))) return; // known already
  if (message.since > 0 && !(sameRun && message.since === shown.until)) return; // one was missed: wait for a whole one
  const follow = stage.scrollHeight - stage.scrollTop - stage.clientHeight < 40;
  const elements = message.tokens.map(draw);
  if (message.since === 0) {
    stage.replaceChildren(...elements);
    inspector.replaceChildren();
  } else {
    stage.append(...elements);
  }
  if (!sameRun) stage.scrollTop = 0;
  else if (follow) stage.scrollTop = stage.scrollHeight;
  for (const [name, text] of Object.entries(message.numbers)) {
    element.querySelector(`[data-number="${name}"]`).textContent = text;
  }
  stage.setAttribute("aria-busy", String(!message.finished));
  Object.assign(shown, { run: message.run, until: message.until, finished: message.finished });
}

function showNotice({ notice, kind }) {
  const line = find("notice");
  line.dataset.kind = kind;
  line.textContent = notice;
}

function draw(token) {
  const span = document.createElement("span");
  span.dataset.fate = token.fate;
  span.dataset.token = token.id;
  if (token.round !== undefined) span.dataset.round = token.round;
  if (token.text === "") span.dataset.ws = "none";
  else if (/^[ \u00a0]+$/.test(token.text)) span.dataset.ws = "space";
  // A line end gets an element of its own, before which the style sheet draws its sign.
  for (const part of token.text.split(/(\n|\t)/)) {
    if (part === "\n" || part === "\t") {
      const mark = document.createElement("i");
      mark.className = part === "\n" ? "newline" : "tab";
      mark.textContent = part;
      span.append(mark);
    } else if (part) {
      span.append(part);
    }
  }
  facts.set(span, token);
  return span;
}

// One sentence on a token: what was drawn, and what decided.
function why(token) {
  const n = (value) => (value === null || value === undefined ? "none" : Number(value.toPrecision(4)).toString());
  const where = token.round === undefined ? "" : ` in round ${token.round}`;
  const { p, q, u } = token;
  switch (token.fate) {
    case "prompt":
      return `given, token ${token.id}.`;
    case "accepted":
      return `accepted${where}: u = ${n(u)} is below min(1, p/q) = ${n(token.accept_prob)}, with p = ${n(p)} and q = ${n(q)}.`;
    case "rejected":
      return `rejected${where}: u = ${n(u)} is not below min(1, p/q) = ${n(token.accept_prob)}, with p = ${n(p)} and q = ${n(q)}.`;
    case "discarded":
      return `discarded${where}: it stood behind a rejection or the end of the text. p = ${n(p)}, q = ${n(q)}.`;
    case "resampled":
      return `resampled${where} from the residual max(p − q, 0), whose mass is ${n(token.residual_mass)}, with u = ${n(u)}. p = ${n(p)}, q = ${n(q)}.`;
    case "bonus":
      return `bonus${where}: all drafts were accepted, so the target adds one of its own from p, with u = ${n(u)}. p = ${n(p)}.`;
    default:
      return `sampled${where} from p with u = ${n(u)}; nothing was drafted. p = ${n(p)}.`;
  }
}

function inspect(event) {
  const span = event.target.closest("[data-token]");
  if (!span) return;
  const token = facts.get(span);
  const name = document.createElement("code");
  name.textContent = token.text === "" ? `no text (token ${token.id})` : JSON.stringify(token.text);
  inspector.replaceChildren(name, ` ${why(token)}`);
}

function hideOrShow(event) {
  const button = event.target.closest("button[data-hides]");
  if (!button) return;
  const hide = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!hide));
  stage.classList.toggle(`hide-${button.dataset.hides}`, hide);
}

stage.addEventListener("pointerover", inspect);
stage.addEventListener("click", inspect);
element.addEventListener("click", hideOrShow);
watch("value", receive);
receive();
