// @ts-check
// All words that a visitor sees, by their keys, in the visitor's language. The catalogues are
// specdemo/words/*.json, in the format of i18next (JSON v4): nested keys, {{name}} for a value, and the
// endings _one, _other, ... where the number `count` chooses the form.

/** @typedef {{ [key: string]: string | Catalogue }} Catalogue */

/** @type {Catalogue} */
let words = {};
let plurals = new Intl.PluralRules("en");
let signs = signsOf("en");

/**
 * From now on, says everything in this language.
 * @param {string} tag such as "en"
 * @param {Catalogue} catalogue
 */
export function speak(tag, catalogue) {
  words = catalogue;
  signs = signsOf(tag);
  plurals = new Intl.PluralRules(tag);
}

/**
 * The words of a key, with these values in them. Throws an Error where the catalogue lacks the key or the
 * value. Not at a module's top: no language is known when a module is loaded.
 * @param {string} key such as "run.tokens"
 * @param {Record<string, string | number>} [values] `count` chooses the form
 */
export function say(key, values = {}) {
  const { count } = values;
  const found = lookUp(key) ?? (typeof count === "number" ? lookUp(`${key}_${plurals.select(count)}`) : undefined);
  if (typeof found !== "string") throw new Error(`no words for ${key}`);
  return found.replace(/\{\{(\w+)\}\}/g, (_, name) => {
    if (!(name in values)) throw new Error(`no ${name} for ${key}`);
    const value = String(values[name]);
    return typeof values[name] === "number" ? inLanguage(value) : value;
  });
}

/**
 * A number as this language writes it; its digits stay as they are.
 * @param {string} written as English writes it: "1,234.5", "76%"
 */
export function inLanguage(written) {
  return written.replace(/[,.%]/g, (sign) => signs[sign]);
}

/**
 * A language's signs by those of English.
 * @param {string} tag
 * @returns {Record<string, string>}
 */
function signsOf(tag) {
  const parts = new Intl.NumberFormat(tag, { style: "percent", minimumFractionDigits: 1 }).formatToParts(12345);
  const sign = (/** @type {string} */ type) => parts.find((part) => part.type === type)?.value ?? "";
  return { ",": sign("group"), ".": sign("decimal"), "%": sign("literal") + sign("percentSign") };
}

/** @param {string} key */
function lookUp(key) {
  /** @type {string | Catalogue | undefined} */
  let found = words;
  for (const part of key.split(".")) found = typeof found === "object" ? found[part] : undefined;
  return found;
}
