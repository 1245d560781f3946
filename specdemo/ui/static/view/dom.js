// @ts-check
// Elements. Text goes in as text nodes only, so what a model or a visitor wrote is never markup.

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, ...children) {
  const made = document.createElement(tag);
  for (const child of children) made.append(child);
  return made;
}

/**
 * Appends any number of elements; as arguments of one call they would be too many from about 120,000 on.
 * @param {Element} parent
 * @param {Iterable<Element>} children
 */
export function appendAll(parent, children) {
  const fragment = new DocumentFragment();
  for (const child of children) fragment.append(child);
  parent.append(fragment);
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
 * Words as a part of markup that is our own.
 * @param {string} words
 */
export function escaped(words) {
  return words.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
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
 * Offers the visitor a file to save.
 * @param {string} name
 * @param {string | Blob} content
 */
export function saveFile(name, content, type = "application/json") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
