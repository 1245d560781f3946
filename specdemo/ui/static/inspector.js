// The inspector: what the record says of one token, and what decided its fate. Its frame is built once, and show() fills it.
// Everything that a model or a visitor wrote goes through textContent, so it is text whatever it says.

// MathML for f(x) and for max(p(x) − q(x), 0).
const applied = (f, x) => `<mi>${f}</mi><mo>(</mo><mi>${x}</mi><mo>)</mo>`;
const excess = (x) => `<mi>max</mi><mo>(</mo>${applied("p", x)}<mo>−</mo>${applied("q", x)}<mo>,</mo><mn>0</mn><mo>)</mo>`;

// What decides, and why the text is distributed as the target's own. Constant: no data is ever written in here.
const FORMULAS = `
  <p>A draft x, drawn from the drafter's q, is accepted when u, uniform in [0, 1), is below</p>
  <math display="block"><mi>min</mi><mo>(</mo><mn>1</mn><mo>,</mo>
    <mfrac><mrow>${applied("p", "x")}</mrow><mrow>${applied("q", "x")}</mrow></mfrac><mo>)</mo></math>
  <p>So x is drafted and accepted with probability q·min(1, p/q) = min(p, q): never more often than the target would write it.</p>
  <p>After a rejection the token is drawn from the residual, what p has more than q:</p>
  <math display="block">${applied("r", "x")}<mo>=</mo><mfrac><mrow>${excess("x")}</mrow>
    <mrow><munder><mo>∑</mo><mi>y</mi></munder>${excess("y")}</mrow></mfrac></math>
  <p>A rejection is as likely as the sum below the line, the residual's mass. So both ways to x together give p, exactly:</p>
  <math display="block"><mi>min</mi><mo>(</mo><mi>p</mi><mo>,</mo><mi>q</mi><mo>)</mo><mo>+</mo>
    <mi>max</mi><mo>(</mo><mi>p</mi><mo>−</mo><mi>q</mi><mo>,</mo><mn>0</mn><mo>)</mo><mo>=</mo><mi>p</mi></math>
  <p>If each of γ drafts is accepted with probability α, a round brings, with the target's own token, on average</p>
  <math display="block"><mfrac><mrow><mn>1</mn><mo>−</mo><msup><mi>α</mi><mrow><mi>γ</mi><mo>+</mo><mn>1</mn></mrow></msup></mrow>
    <mrow><mn>1</mn><mo>−</mo><mi>α</mi></mrow></mfrac></math>
  <p>tokens. A better drafter makes them come faster, and leaves their distribution as it is.</p>`;

const INSPECTOR = `
  <p class="hint">Point at a token to see what decided its fate. Click or Enter pins it, arrow keys walk on, Escape lets go.</p>
  <div class="facts" hidden>
    <div class="said" aria-atomic="true">
      <div class="head"><p class="where"></p>
        <button type="button" class="letgo" title="Let go (Escape)">pinned <span aria-hidden="true">×</span></button></div>
      <p class="what"><code></code> <span class="token"></span> <small></small></p>
      <p class="verdict"></p>
    </div>
    <div class="coin" role="img">
      <p class="whose"></p>
      <p class="least"><span></span></p>
      <div class="sides"><span>accept</span><span>reject</span></div>
      <p class="u"><span></span></p>
    </div>
    <dl class="values"></dl>
    <table class="likely"><caption>The likeliest tokens here; ◆ was drawn</caption><thead></thead><tbody></tbody></table>
    <p class="raw">Outlined: before the sampler, at temperature 1 and unfiltered.</p>
  </div>
  <details class="formulas"><summary>Formulas</summary>${FORMULAS}</details>`;

function makeInspector(panel) {
  panel.classList.add("inspector");
  panel.innerHTML = INSPECTOR;
  const part = (selector) => panel.querySelector(selector);
  const [hint, facts, said, coin, values, likely] = [".hint", ".facts", ".said", ".coin", ".values", ".likely"].map(part);
  part(".letgo").addEventListener("click", () => panel.dispatchEvent(new CustomEvent("letgo", { bubbles: true })));
  clear();
  return { show, clear };

  function clear() {
    hint.hidden = false;
    facts.hidden = true;
    panel.dataset.shows = "nothing";
  }

  // chosen: pinned, or walked to by keyboard. Only what is chosen is read out, not everything that the pointer passes.
  function show(token, pinned, chosen = pinned) {
    said.setAttribute("aria-live", chosen ? "polite" : "off");
    panel.scrollTop = 0;
    hint.hidden = true;
    facts.hidden = false;
    panel.dataset.shows = token.fate;
    part(".what code").textContent = inQuotes(token.text);
    part(".what .token").textContent = token.fate;
    part(".what .token").className = `token ${token.fate}`;
    part(".what small").textContent = isKnown(token.id) ? `token ${token.id}` : "";
    part(".letgo").hidden = !pinned;
    part(".where").textContent = placeOf(token);
    part(".verdict").textContent = verdictOn(token);
    showCoin(token);
    showValues(token);
    showLikely(token);
  }

  // The coin that judged the token, or that refused the one that it replaced.
  function showCoin(token) {
    const judged = token.replaced ?? token;
    coin.hidden = !isKnown(judged.accept_prob);
    if (coin.hidden) return;
    const [u, least] = apart(judged.u, judged.accept_prob);
    coin.style.setProperty("--least", judged.accept_prob);
    coin.style.setProperty("--u", judged.u);
    const side = judged.u < judged.accept_prob ? "accept" : "reject";
    coin.setAttribute("aria-label", `The coin: accept reaches from 0 to ${least}, reject from there to 1; u = ${u} lies in ${side}.`);
    const [accept, reject] = part(".sides").children;
    setWord(accept, judged.u, 0, judged.accept_prob);
    setWord(reject, judged.u, judged.accept_prob, 1);
    part(".whose").textContent = token.replaced ? `The coin of ${inQuotes(judged.text)}, which it replaced:` : "";
    part(".least span").textContent = `min(1, p/q) = ${least}`;
    part(".u span").textContent = `u = ${u}`;
  }

  // A side's word stands where the mark at u leaves room, and nowhere on a side that is too narrow for it.
  function setWord(side, u, from, to) {
    side.hidden = from === to;
    side.className = to - from < 0.22 ? "narrow" : u < (from + to) / 2 ? "right" : "left";
  }

  function showValues(token) {
    const rows = valuesOf(token).filter(([, , value]) => isKnown(value));
    values.replaceChildren(...rows.map(([sign, means, value]) => {
      const name = make("dt", sign);
      name.append(make("small", means));
      const number = make("dd", digits(value));
      number.title = String(value);
      return make("div", name, number);
    }));
  }

  function showLikely(token) {
    const rows = alternativesTo(token);
    likely.hidden = rows.length === 0;
    likely.caption.textContent = `${token.top?.length ? "The likeliest tokens here" : "Nothing else is recorded here"}; ◆ was drawn`;
    const columns = rows.some((row) => isKnown(row.q)) ? ["p", "q", "residual"] : ["p"];
    const names = { p: "target", q: "drafter", residual: "residual" };
    const head = columns.map((column) => {
      const cell = make("th", column === "residual" ? "(p − q)₊" : column, make("small", names[column]));
      cell.scope = "col";
      return cell;
    });
    likely.tHead.replaceChildren(make("tr", make("td", ""), ...head));
    likely.tBodies[0].replaceChildren(...rows.map((row) => {
      const name = make("th", make("code", isKnown(row.text) ? inQuotes(row.text) : `token ${row.id}`));
      name.scope = "row";
      name.title = `token ${row.id}`;
      if (row.drawn) name.append(make("small", `◆ ${row.drawn.how}`));
      return make("tr", name, ...columns.map((column) => bar(row, column)));
    }));
    part(".raw").hidden = !rows.some((row) => differs(row.p, row.raw_p) || differs(row.q, row.raw_q));
  }

  function bar(row, column) {
    const value = row[column];
    const cell = make("td", make("span", short(value)));
    if (row.drawn?.from === column) cell.classList.add("drawn");
    if (!isKnown(value)) return cell;
    cell.classList.add(column);
    cell.style.setProperty("--value", value);
    const raw = row[`raw_${column}`];
    if (isKnown(raw)) cell.style.setProperty("--raw", raw);
    cell.title = isKnown(raw) ? `${value}, before the sampler ${raw}` : String(value);
    return cell;
  }

  function differs(shaped, raw) {
    return isKnown(raw) && Math.abs(shaped - raw) > 0.002;
  }
}

function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function isKnown(value) {
  return value !== null && value !== undefined;
}

// Four significant digits; 0 and 1 only where they are exact.
function digits(value, count = 4) {
  if (value === 0 || value === 1) return String(value);
  const [number, exponent] = (value < 0.001 ? value.toExponential(count - 1) : value.toPrecision(count)).split("e");
  if (!exponent) return number;
  return `${number} × 10${[...exponent].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
}

function short(value) {
  if (!isKnown(value)) return "–";
  if (value === 0 || value === 1) return String(value);
  return value < 0.0005 ? "<.001" : value.toFixed(3);
}

// Two numbers with as many digits as it takes to see which is the larger.
function apart(a, b) {
  for (let count = 4; count < 18; count++) {
    if (a === b || Number(a.toPrecision(count)) !== Number(b.toPrecision(count))) return [digits(a, count), digits(b, count)];
  }
  return [String(a), String(b)];
}

// A text as a program would write it, so that spaces, line ends and what has no shape are seen.
function inQuotes(text) {
  if (text === "") return "no text";
  const code = (sign) => {
    const hex = sign.codePointAt(0).toString(16);
    return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
  };
  return JSON.stringify(text).replace(/(?!\p{VS})[\p{Cc}\p{Cf}\p{Co}\p{DI}\p{Zl}\p{Zp}\u00a0]/gu, code);
}

function placeOf({ round, place, drafted }) {
  if (round === undefined) return "prompt";
  return isKnown(place) ? `round ${round}, draft ${place + 1} of ${drafted}` : `round ${round}, the target's own`;
}

function verdictOn(token) {
  switch (token.fate) {
    case "prompt":
      return "Given: a part of the prompt.";
    case "accepted":
      return `Accepted: ${judgement(token)}.`;
    case "rejected": {
      const other = token.replacement;
      const then = other ? `${inQuotes(other.text)} was drawn in its place.` : "Nothing takes its place: the text had ended before it.";
      return `Rejected: ${judgement(token)}. ${then}`;
    }
    case "discarded": {
      if (isKnown(token.u)) return `Discarded: it was accepted, since ${judgement(token)}, but the text had ended before it.`;
      const { refused } = token;
      const before = refused ? `draft ${refused.place + 1}, ${inQuotes(refused.text)},` : "a draft before it";
      return `Discarded, and never judged: ${before} was rejected, and all that was drafted behind it went with it.`;
    }
    case "resampled": {
      const { replaced, u } = token;
      const why = replaced ? `${inQuotes(replaced.text)} was rejected, because ${judgement(replaced)}` : "The draft here was rejected";
      return `Resampled: ${why}. In its place this one was drawn from the residual, what p has more than q, with u = ${digits(u)}.`;
    }
    case "bonus": {
      const drafts = token.drafted === 1 ? "the one draft of the round was" : `all ${token.drafted} drafts of the round were`;
      return `Bonus: ${drafts} accepted, so the same forward gives one more token, drawn from p with u = ${digits(token.u)}.`;
    }
    default:
      return `Sampled: nothing was drafted in this round, so its forward gives one token, drawn from p with u = ${digits(token.u)}.`;
  }
}

function judgement({ u, accept_prob }) {
  const [coin, least] = apart(u, accept_prob);
  const because = accept_prob === 1 ? ": p is not below q, so it is always accepted" : accept_prob === 0 ? ": p is 0, so it is never accepted" : "";
  return `u = ${coin} is ${u < accept_prob ? "" : "not "}below min(1, p/q) = ${least}${because}`;
}

// Sign, meaning and value of each number; null where the token has none.
function valuesOf(token) {
  const { p, q, u, residual_mass: mass } = token;
  const rows = [["p", "the target's probability", p], ["q", "the drafter's probability", q]];
  if (isKnown(token.place)) rows.push(["min(1, p/q)", "its chance to pass", token.accept_prob], ["u", "the coin", u]);
  else {
    const chance = mass > 0 ? Math.max(p - q, 0) / mass : null;
    rows.push(["Σ (p − q)₊", "the residual's mass", mass], ["(p − q)₊ / Σ", "its chance there", chance], ["u", "drawn with", u]);
  }
  return rows;
}

// The likeliest tokens at the token's place; with those that were really drawn there, which may be none of them.
function alternativesTo(token) {
  const rows = new Map((token.top ?? []).map((row) => [row.id, { ...row }]));
  for (const drawn of [token, token.replaced, token.replacement]) {
    if (!drawn || !isKnown(drawn.p)) continue;
    const { id, text, p, q, raw_p, raw_q } = drawn;
    rows.set(id, { ...rows.get(id), id, text, p, q, raw_p, raw_q, drawn: drawnFrom(drawn) });
  }
  for (const row of rows.values()) row.residual = isKnown(row.q) ? Math.max(row.p - row.q, 0) : null;
  return [...rows.values()].sort((a, b) => Boolean(b.drawn) - Boolean(a.drawn)); // what was drawn comes first, then by likelihood
}

function drawnFrom(token) {
  if (isKnown(token.place)) return { from: "q", how: "drafted" };
  if (token.fate === "resampled") return { from: "residual", how: "drawn" };
  return { from: "p", how: "drawn" };
}
