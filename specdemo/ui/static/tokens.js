// The text on the stage: one element for each token, in reading order, whose textContent is the token's text and nothing else.
// The style sheet draws signs for what has no shape of its own, so that nothing is in the text that was not in the token.

// Control characters, what Unicode calls ignorable (joiners, bidi marks, soft hyphens), line and paragraph separators.
const SHAPELESS = /((?!\p{VS})[\p{Cc}\p{DI}\p{Zl}\p{Zp}])/u;
const NOT_IN_TEXT = '[data-fate="rejected"], [data-fate="discarded"]';
const BLOCK = 150; // tokens; a longer block is cut

function makeText(stage) {
  const tokens = new WeakMap(); // element -> token
  let block, following, top, frame, width;
  stage.addEventListener("scroll", onScroll, { passive: true });
  document.addEventListener("copy", onCopy);
  new ResizeObserver(onResize).observe(stage);
  clear();
  return { clear, add, rewrite, reflow, shown, isShown, tokenAt };

  function clear(follows = true) {
    cancelAnimationFrame(frame);
    stage.replaceChildren();
    block = null;
    following = follows; // the end stays in sight until the reader scrolls back
    top = 0; // where the reader has scrolled to
    frame = 0;
  }

  function add(added) {
    if (!added.length) return;
    if (!block) stage.append((block = makeBlock("run-on")));
    block.append(...added.map((token) => token.element ?? draw(token)));
    frame ||= requestAnimationFrame(afterLayout);
  }

  function makeBlock(className) {
    const made = document.createElement("div");
    made.className = className;
    return made;
  }

  // In a frame of its own, when the layout is due anyway.
  function afterLayout() {
    frame = 0;
    if (following && !stage.querySelector(".pinned")) stage.scrollTop = 1e7;
    if (block?.childElementCount > BLOCK) cut();
  }

  // A token that comes makes the browser lay out and paint its whole block anew. So a long one is cut where a line begins, which
  // looks the same, until reflow makes all one block again.
  function cut() {
    const shown = [...block.children].filter((element) => isShown(tokens.get(element)));
    if (shown.length < BLOCK / 2 || !getSelection().isCollapsed) return; // a selection would not survive it
    const last = shown.slice(-BLOCK / 2);
    const boxes = last.map((element) => element.querySelector("b").getBoundingClientRect());
    const first = boxes.findIndex(({ top }, at) => at > 0 && top > boxes[at - 1].bottom);
    if (first < 0) return;
    const breaksByItself = !last[first - 1].textContent.endsWith("\n");
    const next = makeBlock(breaksByItself ? "run-on goes-on" : "run-on");
    block.after(next);
    const elements = [...block.children];
    move(elements.slice(elements.indexOf(last[first])), next);
  }

  // After what changes where lines end.
  function reflow() {
    const elements = [...stage.querySelectorAll("[data-token]")];
    if (!elements.length) return;
    const before = [...stage.children];
    const place = following ? null : elements.find((element) => element.getBoundingClientRect().bottom > stage.getBoundingClientRect().top);
    stage.append(makeBlock("run-on"));
    move(elements, stage.lastChild);
    for (const empty of before) empty.remove();
    place?.scrollIntoView({ block: "start" }); // what was read stays in sight
    frame ||= requestAnimationFrame(afterLayout);
  }

  function move(elements, to) {
    const focused = elements.find((element) => element === document.activeElement);
    to.append(...elements);
    focused?.focus({ preventScroll: true });
    block = to;
  }

  function draw(token) {
    const span = document.createElement("span");
    span.setAttribute("data-fate", token.fate);
    span.setAttribute("data-token", token.id ?? "");
    if (span.matches(NOT_IN_TEXT)) span.setAttribute("role", "deletion"); // for those who hear it read
    if (token.round !== undefined) span.setAttribute("data-round", token.round);
    token.element = span;
    tokens.set(span, token);
    fill(token);
    return span;
  }

  function rewrite(token, text) {
    token.text = text;
    if (token.element) fill(token);
  }

  // The ground and the line of a token belong to its word. Spaces around it stand outside, or one that a line break leaves at the
  // end of a line would show as a sliver there.
  function fill(token) {
    const { text, element } = token;
    const word = document.createElement("b");
    if (text.trim() === "" && !SHAPELESS.test(text)) {
      word.className = text === "" ? "none" : "space";
      word.textContent = text;
      element.replaceChildren(word);
      return;
    }
    const bare = text.replace(/^ +| +$/g, "");
    if (SHAPELESS.test(bare)) word.append(...bare.split(SHAPELESS).filter(Boolean).map(sign));
    else word.textContent = bare;
    const start = text.indexOf(bare);
    element.replaceChildren(...[text.slice(0, start), word, text.slice(start + bare.length)].filter(Boolean));
  }

  function sign(part) {
    if (!SHAPELESS.test(part)) return part;
    const mark = document.createElement("i");
    mark.textContent = part;
    if (part === "\n") mark.className = "newline";
    else if (part === "\t") mark.className = "tab";
    else {
      mark.className = "shapeless";
      mark.dataset.sign = part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    }
    return mark;
  }

  function shown() {
    return [...stage.querySelectorAll("[data-token]")].map(tokenAt).filter(isShown);
  }

  function isShown(token) {
    return !stage.classList.contains(`hide-${token.fate}`);
  }

  function tokenAt(node) {
    return tokens.get(node?.closest?.("[data-token]"));
  }

  function onResize([{ contentRect }]) {
    if (contentRect.width === width) return;
    width = contentRect.width;
    reflow();
  }

  // Only the reader scrolls back; a late event of an own scroll finds the end farther on, which says nothing.
  function onScroll() {
    const now = stage.scrollTop;
    if (now < top - 1) following = false;
    else if (now + stage.clientHeight > stage.scrollHeight - 40) following = true;
    top = now;
  }

  // What is selected here is copied as the text that it stands for, and without what is not part of that.
  function onCopy(event) {
    const selection = getSelection();
    if (selection.isCollapsed || !stage.contains(selection.anchorNode)) return;
    const range = selection.getRangeAt(0).cloneRange();
    if (!stage.contains(range.startContainer)) range.setStart(stage, 0);
    if (!stage.contains(range.endContainer)) range.setEnd(stage, stage.childNodes.length);
    const copied = range.cloneContents();
    for (const left of copied.querySelectorAll(NOT_IN_TEXT)) left.remove();
    event.clipboardData.setData("text/plain", copied.textContent);
    event.preventDefault();
  }
}
