// Reading the stage: pointing shows a token in the inspector, a click or Enter pins it, arrow keys walk, Escape lets go.

function makeReader(page, stage, text, inspector, timeline) {
  let pinned = null;
  let stop = null; // the token that Tab comes to; until there is one, the stage itself
  let lit = [];
  stage.addEventListener("pointerover", (event) => point(text.tokenAt(event.target)));
  stage.addEventListener("pointerleave", () => light(pinned?.round));
  stage.addEventListener("click", onClick);
  stage.addEventListener("focusin", (event) => point(text.tokenAt(event.target), true));
  stage.addEventListener("keydown", onKey);
  page.addEventListener("keydown", (event) => event.key === "Escape" && letGo());
  page.addEventListener("letgo", letGo);
  return { clear, filtered, point: (index) => light(index ?? pinned?.round), jump };

  function clear() {
    pin(null);
    stopAt(null);
    inspector.clear();
  }

  // What is hidden now can be neither pinned nor come to.
  function filtered() {
    if (pinned && !text.isShown(pinned)) letGo();
    if (stop && !text.isShown(stop)) stopAt(null);
  }

  function point(token, chosen = false) {
    if (!token) return;
    light(token.round, chosen);
    if (!pinned) inspector.show(token, false, chosen);
  }

  function onClick(event) {
    const token = text.tokenAt(event.target);
    if (!token || !getSelection().isCollapsed) return; // the end of selecting is no click
    stopAt(token);
    toggle(token);
  }

  function toggle(token) {
    if (token === pinned) letGo();
    else pin(token);
  }

  function pin(token) {
    mark(pinned, false);
    pinned = token;
    mark(pinned, true);
    page.toggleAttribute("data-pinned", Boolean(pinned));
    light(pinned?.round);
    if (!pinned) return;
    inspector.show(pinned, true);
    pinned.element.scrollIntoView({ block: "nearest" });
  }

  function letGo() {
    if (!pinned) return;
    const { element } = pinned;
    const focused = !stage.contains(document.activeElement);
    pin(null);
    inspector.clear();
    if (focused && element.hasAttribute("tabindex")) element.focus({ preventScroll: true }); // the button that let go is gone
  }

  function mark(token, isPinned) {
    token?.element.classList.toggle("pinned", isPinned);
    if (token && token === stop) token.element.setAttribute("aria-pressed", String(isPinned));
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey) return selectAll(event);
    if (event.altKey || event.shiftKey) return;
    const from = text.tokenAt(event.target) ?? stop; // after a click the focus is on the stage
    const to = { Home: edge, End: edge, ArrowLeft: beside, ArrowRight: beside, ArrowUp: above, ArrowDown: above }[event.key];
    if (to && (from || to === beside)) walkTo(to(event.key, from));
    else if (from && (event.key === "Enter" || event.key === " ")) toggle(from);
    else return;
    event.preventDefault();
  }

  function selectAll(event) {
    if (event.key.toLowerCase() !== "a") return;
    getSelection().selectAllChildren(stage);
    event.preventDefault();
  }

  function edge(key) {
    return text.shown().at(key === "Home" ? 0 : -1);
  }

  function beside(key, from) {
    const shown = text.shown();
    if (!from) return shown[0];
    const at = shown.indexOf(from);
    return shown[at + (key === "ArrowRight" ? 1 : -1)];
  }

  // On the next line, the token that stands nearest to above or below.
  function above(key, from) {
    const shown = text.shown();
    const step = key === "ArrowDown" ? 1 : -1;
    const place = (token) => token.element.querySelector("b").getBoundingClientRect();
    const start = place(from);
    const distance = (token) => Math.abs(place(token).left - start.left);
    let best, line;
    for (let at = shown.indexOf(from) + step; shown[at]; at += step) {
      const { top } = place(shown[at]);
      if (Math.abs(top - start.top) < 4) continue;
      line ??= top;
      if (Math.abs(top - line) > 4 || (best && distance(shown[at]) > distance(best))) break;
      best = shown[at];
    }
    return best;
  }

  function walkTo(token) {
    if (!token) return;
    stopAt(token);
    token.element.focus({ preventScroll: true });
    if (pinned) pin(token);
    else token.element.scrollIntoView({ block: "nearest" });
  }

  // Only the token that Tab comes to is a button: thousands of them would be in the way of reading.
  function stopAt(token) {
    if (token === stop) return; // without its tabindex it would lose the focus
    for (const name of ["tabindex", "role", "aria-label", "aria-pressed"]) stop?.element.removeAttribute(name);
    if (stop && (stop.fate === "rejected" || stop.fate === "discarded")) stop.element.setAttribute("role", "deletion");
    stop = token;
    stage.tabIndex = token ? -1 : 0;
    if (!token) return;
    const { element, fate, round } = token;
    const label = `${token.text.trim() || JSON.stringify(token.text)}, ${fate}${round === undefined ? "" : ` in round ${round}`}`;
    const attributes = { tabindex: 0, role: "button", "aria-label": label, "aria-pressed": token === pinned };
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  }

  // The tokens of one round, or none, and its mark in the timeline.
  function light(index, reveal = false) {
    for (const element of lit) element.classList.remove("lit");
    lit = Number.isInteger(index) ? [...stage.querySelectorAll(`[data-round="${index}"]`)] : [];
    for (const element of lit) element.classList.add("lit");
    timeline.light(index ?? null, reveal);
  }

  function jump(index) {
    light(index, true);
    const first = lit.map(text.tokenAt).find(text.isShown);
    if (!first) return;
    stopAt(first);
    pin(first);
  }
}
