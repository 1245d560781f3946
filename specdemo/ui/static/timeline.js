// The timeline: a column for each round. What it brought stands above the line, what it cost hangs below. A column is one
// element, painted by the style sheet from a few custom properties, so that thousands of them stay cheap.

const TIMELINE = `
  <p class="key"><span class="name">Rounds</span>
    <span><i class="accepted-brick"></i>accepted</span> <span><i class="bonus-brick"></i>bonus, sampled</span>
    <span><i class="resampled-brick"></i>resampled</span> <span><i class="refused-line"></i>refused or dropped</span>
    <span><i class="draft-bar"></i>drafting</span> <span><i class="verify-bar"></i>verifying<span class="scale"></span></span></p>
  <div class="rail" role="toolbar" aria-label="Rounds: arrow keys walk, Enter jumps to the round's text"></div>
  <p class="readout" aria-hidden="true"></p>`;

function makeTimeline(strip, { jump, point }) {
  strip.classList.add("timeline");
  strip.innerHTML = TIMELINE;
  const [rail, readout, scale] = [".rail", ".readout", ".scale"].map((name) => strip.querySelector(name));
  const marks = []; // a round's index -> its element
  let costs, tallest, lit, stop, following, left, frame;
  rail.addEventListener("click", onClick);
  rail.addEventListener("keydown", onKey);
  rail.addEventListener("scroll", onScroll, { passive: true });
  rail.addEventListener("pointerover", (event) => pointAt(event.target));
  rail.addEventListener("pointerleave", () => pointAt(null));
  rail.addEventListener("focusin", (event) => pointAt(event.target));
  rail.addEventListener("focusout", () => pointAt(null));
  clear();
  return { clear, add, light };

  function clear() {
    cancelAnimationFrame(frame);
    rail.replaceChildren();
    marks.length = 0;
    costs = []; // milliseconds of all that was drafted and verified
    tallest = 0; // the most bricks in a column
    lit = null; // the round that is lit
    stop = 0; // the round that Tab comes to
    following = true; // the end stays in sight until the reader scrolls back
    left = 0; // where the reader has scrolled to
    frame = 0;
    readout.textContent = scale.textContent = "";
    strip.dataset.rounds = "0";
  }

  function add(rounds) {
    const drawn = rounds.map(draw);
    if (!drawn.length) return;
    rail.append(...drawn);
    strip.dataset.rounds = marks.length;
    const most = Math.max(tallest, ...rounds.map((round) => round.drafted + 1));
    if (most > tallest) setHeight(most);
    const before = costs.length;
    costs.push(...rounds.flatMap((round) => [round.draft_ms, round.verify_ms]));
    // Only when their number has doubled: a new scale paints every column anew.
    if (Math.floor(Math.log2(costs.length)) > Math.floor(Math.log2(before))) setScale();
    if (following && !frame) frame = requestAnimationFrame(showEnd);
  }

  function draw(round) {
    const { index, drafted, accepted, next, draft_ms, verify_ms } = round;
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.dataset.index = index;
    mark.dataset.own = next ? next.fate : "none";
    mark.setAttribute("role", "button");
    mark.tabIndex = index === stop ? 0 : -1;
    mark.setAttribute("aria-label", inWords(round));
    const refused = drafted - accepted;
    const numbers = { accepted, own: next ? 1 : 0, refused, draft: draft_ms, verify: verify_ms };
    for (const [name, value] of Object.entries(numbers)) mark.style.setProperty(`--${name}`, value);
    marks[index] = mark;
    return mark;
  }

  function inWords({ index, drafted, accepted, next, draft_ms, verify_ms }) {
    const drafts = drafted ? `${accepted} of ${drafted} drafts accepted` : "nothing drafted";
    const tokens = accepted + (next ? 1 : 0);
    const times = `drafting ${milliseconds(draft_ms)}, verifying ${milliseconds(verify_ms)}`;
    return `round ${index}: ${drafts}, ${tokens} token${tokens === 1 ? "" : "s"}, ${times}`;
  }

  function milliseconds(value) {
    return `${value < 100 ? value.toFixed(1) : value.toFixed(0)} ms`;
  }

  function setHeight(most) {
    tallest = most;
    rail.style.setProperty("--bricks", most);
    rail.style.setProperty("--brick", most > 9 ? "4px" : "6px");
  }

  // The longest bar stands for a round number of milliseconds that nearly all stay below; what takes longer ends there.
  function setScale() {
    const sorted = Float64Array.from(costs).sort();
    const usual = Math.max(1.25 * sorted[Math.floor(0.95 * (sorted.length - 1))], 0.001);
    const power = 10 ** Math.floor(Math.log10(usual));
    const top = [1, 2, 3, 5, 10].find((step) => step * power >= usual) * power;
    rail.style.setProperty("--longest", top);
    scale.textContent = `, a full bar is ${Number(top.toPrecision(1))} ms or more`;
  }

  // In a frame of its own, when the layout is due anyway.
  function showEnd() {
    frame = 0;
    rail.scrollLeft = 1e7;
  }

  // Only the reader scrolls back; a late event of an own scroll finds the end farther on, which says nothing.
  function onScroll() {
    const now = rail.scrollLeft;
    if (now < left - 1) following = false;
    else if (now + rail.clientWidth > rail.scrollWidth - 24) following = true;
    left = now;
  }

  function roundOf(target) {
    const mark = target?.closest?.(".mark");
    return mark ? Number(mark.dataset.index) : null;
  }

  function pointAt(target) {
    const index = roundOf(target);
    light(index);
    point(index);
  }

  function onClick(event) {
    const index = roundOf(event.target);
    if (index === null) return;
    stopAt(index);
    jump(index);
  }

  function onKey(event) {
    const index = roundOf(event.target);
    const steps = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: marks.length - 1 };
    if (index === null || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") jump(index);
    else if (!(event.key in steps)) return;
    else if (marks[steps[event.key]]) {
      stopAt(steps[event.key]);
      marks[stop].focus();
    }
    event.preventDefault();
    event.stopPropagation();
  }

  function stopAt(index) {
    if (marks[stop]) marks[stop].tabIndex = -1;
    stop = index;
    marks[stop].tabIndex = 0;
  }

  // Lights a round's column, or none. `reveal` scrolls to it, for a round that was asked for and not merely passed.
  function light(index, reveal = false) {
    marks[lit]?.classList.remove("lit");
    lit = index;
    const mark = marks[index];
    mark?.classList.add("lit");
    readout.textContent = mark ? mark.getAttribute("aria-label") : "";
    if (mark && reveal) {
      stopAt(index);
      // Not scrollIntoView: that would scroll the page, too.
      const seen = mark.offsetLeft >= rail.scrollLeft && mark.offsetLeft + mark.offsetWidth <= rail.scrollLeft + rail.clientWidth;
      if (!seen) rail.scrollLeft = mark.offsetLeft - rail.clientWidth / 2;
    }
  }
}
