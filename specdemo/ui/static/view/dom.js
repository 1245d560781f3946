// @ts-check
// Elements. Text goes in as text nodes only, so what a model or a visitor wrote is never markup.

/** What stands in an element, or a list of that; null stands for nothing. @typedef {Node | string | null | readonly any[]} Child */
/**
 * Attributes as HTML names them: true has no value, false and null leave one out. A function listens to the event of
 * its name, `onclick`. What begins with -- is a number or text for the style sheet.
 * @typedef {Record<string, string | number | boolean | null | ((event: any) => void)>} Attributes
 */

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

/**
 * An element of HTML. A button submits nothing, unless its type says so.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} attributes
 * @param {Child[]} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  if (made instanceof HTMLButtonElement) made.type = "button";
  return filled(made, attributes, children);
}

/**
 * An element of a drawing.
 * @param {string} tag
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
export function svg(tag, attributes = {}, ...children) {
  return filled(/** @type {SVGElement} */ (document.createElementNS(SVG, tag)), attributes, children);
}

/**
 * An element of a formula.
 * @param {string} tag
 * @param {Child[]} children
 */
export function math(tag, ...children) {
  return filled(/** @type {MathMLElement} */ (document.createElementNS(MATHML, tag)), {}, children);
}

/**
 * @template {HTMLElement | SVGElement | MathMLElement} T
 * @param {T} element
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, String(value));
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/**
 * Appends any number of elements; as arguments of one call they would be too many from about 120,000 on.
 * @param {Element} parent
 * @param {Child[]} children
 */
export function append(parent, children) {
  const fragment = new DocumentFragment();
  for (const child of /** @type {(Node | string | null)[]} */ (children.flat(Infinity))) {
    if (child !== null) fragment.append(child);
  }
  parent.append(fragment);
}

/**
 * Puts these in place of what is in it.
 * @param {Element} parent
 * @param {Child[]} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/**
 * Makes what is in an element as these are, and leaves what is so already: a focus stays, only what is new is read out, and
 * what moves goes on. What the reader has unfolded stays open. Listeners are at the parent, since none is taken over.
 * @param {Element} parent
 * @param {Child[]} children
 */
export function update(parent, ...children) {
  const made = document.createElement("div");
  append(made, children);
  become(parent, made);
}

/** @param {Element} old @param {Element} made */
function become(old, made) {
  const [before, now] = [[...old.childNodes], [...made.childNodes]];
  for (const left of before.slice(now.length)) left.remove();
  now.forEach((node, at) => {
    const known = before[at];
    if (known?.isEqualNode(node)) return;
    if (!(known instanceof Element && node instanceof Element && known.tagName === node.tagName)) {
      return known ? known.replaceWith(node) : old.append(node);
    }
    for (const { name } of [...known.attributes]) if (name !== "open" && !node.hasAttribute(name)) known.removeAttribute(name);
    for (const { name, value } of node.attributes) known.setAttribute(name, value);
    become(known, node);
  });
}

/**
 * The element around what an event is about that the selector finds, or itself.
 * @param {EventTarget | null} target
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export function around(target, selector) {
  return target instanceof Element ? target.closest(selector) : null;
}

/**
 * Writes only what is new, since some of it is read aloud.
 * @param {Element} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Says on the page's line for it what went wrong.
 * @param {HTMLElement} page
 * @param {string} sentence
 */
export function tellWrong(page, sentence) {
  const line = find(page, ".notice");
  line.dataset.kind = "error";
  line.textContent = sentence;
}

/**
 * The element that the selector finds, which has to be there.
 * @param {Element} from
 * @param {string} selector
 * @returns {HTMLElement}
 */
export function find(from, selector) {
  const found = /** @type {HTMLElement | null} */ (from.querySelector(selector));
  if (!found) throw new Error(`there is no ${selector}`);
  return found;
}

/**
 * Finds the parts of an element, as `find` does.
 * @param {Element} place
 */
export function within(place) {
  return (/** @type {string} */ selector) => find(place, selector);
}

/**
 * Offers the visitor a file to save.
 * @param {string} name
 * @param {string | Blob} content
 */
export function saveFile(name, content, type = "application/json") {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * The one of these that a key moves to from the one that has the focus; null for any other key.
 * @template {HTMLElement} T
 * @param {KeyboardEvent} event
 * @param {T[]} items
 * @param {[back: string, on: string]} keys
 */
export function neighbour(event, items, [back, on]) {
  const { key, target, ctrlKey, metaKey, altKey } = event, at = items.findIndex((item) => item === target);
  /** @type {Record<string, number>} */
  const places = { [back]: at - 1, [on]: at + 1, Home: 0, End: items.length - 1 };
  if (at < 0 || !(key in places) || ctrlKey || metaKey || altKey) return null;
  event.preventDefault(); // the page does not move
  return items[places[key]] ?? null;
}

/**
 * Has a menu closed by Escape, which gives the focus back, and by a click elsewhere.
 * @param {HTMLElement} menu a details element
 */
export function makeMenu(menu) {
  const details = /** @type {HTMLDetailsElement} */ (menu);
  document.addEventListener("click", ({ target }) => {
    if (target instanceof Node && !details.contains(target)) details.open = false;
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    event.stopPropagation(); // or it would unpin the token
    close();
  });
  return { close };

  function close() {
    details.open = false;
    find(details, "summary").focus();
  }
}

/**
 * What a storage keeps by a name; null in a frame without one.
 * @param {"localStorage" | "sessionStorage"} where
 * @param {string} name
 */
export function recall(where, name) {
  let kept = null; // as an earlier version kept it, where it is no JSON
  try {
    kept = window[where].getItem(name);
    return JSON.parse(kept ?? "null");
  } catch {
    return kept;
  }
}

/**
 * Has a storage keep it, where there is one.
 * @param {"localStorage" | "sessionStorage"} where
 * @param {string} name
 * @param {unknown} value
 */
export function keep(where, name, value) {
  try {
    window[where].setItem(name, JSON.stringify(value));
  } catch { /* a frame without storage */ }
}
