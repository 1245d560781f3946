// @ts-check
// "Save as": the run as one HTML file; and, as the page shows them now, the coloured text as a picture, and the rounds as
// a table.

import { find, h, makeMenu, saveFile, tellWrong } from "../view/dom.js";
import { isUnknown } from "../view/served.js";
import { signOf } from "../view/textless.js";
import { say } from "../view/words.js";
import { roundsAsCsv } from "./csv.js";
import { pictureOf } from "./picture.js";

/** @import { Run, Token } from "../view/run.js" */
/** @import { Screen } from "../view/screen.js" */
/** @import { Inked } from "./picture.js" */

const KINDS = /** @type {const} */ (["html", "svg", "png", "csv"]);
const HIGHEST = 16_000; // pixels of a picture that browsers can still draw
const SHARPNESS = 2; // pixels of a PNG to one of the SVG, if it has room

/**
 * Puts the menu behind the button that saves the trace.
 * @param {HTMLElement} page
 * @param {Run} run
 * @param {Screen} screen
 * @param {() => Promise<{ name: string, text: string }>} [fetchHtml] gives the HTML file; without it, none is offered
 */
export function offerSaving(page, run, { text }, fetchHtml) {
  const part = (/** @type {string} */ id) => find(page, `[data-testid="${id}"]`);
  const buttons = KINDS.filter((kind) => kind !== "html" || fetchHtml).map((kind) => {
    const failed = (/** @type {Error} */ error) => tellWrong(page, kind === "html" ? error.message : say("keep.failed"));
    return h("button", { "data-saves": kind, onclick: () => save(kind).catch(failed) }, say(`keep.${kind}`));
  });
  const menu = h("details", { class: "save-as" }, h("summary", {}, say("keep.save_as")), h("div", {}, buttons));
  find(page, "#save").after(menu);
  const { close } = makeMenu(menu);

  /** @param {typeof KINDS[number]} kind */
  async function save(kind) {
    close();
    if (kind === "html") return fetchHtml?.().then((file) => saveFile(file.name, file.text, "text/html"));
    const name = `specdemo-${/^\d+$/.test(run.numbers.seed ?? "") ? `seed-${run.numbers.seed}` : "greedy"}.${kind}`;
    if (kind === "csv") return saveFile(name, roundsAsCsv(run.rounds), "text/csv");
    const picture = pictureOf(content());
    if (kind === "svg") return saveFile(name, picture.svg, "image/svg+xml");
    const { height } = picture;
    if (height > HIGHEST) return tellWrong(page, say("keep.too_high", { pixels: height, most: HIGHEST }));
    saveFile(name, await pixelsOf(picture), "image/png");
  }

  function content() {
    const style = getComputedStyle(page);
    const canvas = h("canvas").getContext("2d");
    if (!canvas) throw new Error("no canvas");
    const legend = [...part("legend").querySelectorAll("[data-explains]")].filter((entry) => entry.checkVisibility());
    return {
      tokens: text.shown().flatMap(inked),
      legend: legend.map((entry) => ({
        text: (find(entry, ".token").textContent ?? "").replaceAll(" ", "\u00a0"), // in one box
        fate: /** @type {HTMLElement} */ (entry).dataset.explains ?? "",
        sign: "",
      })),
      verdict: [...part("verdict").children].map(({ textContent }) => textContent ?? ""),
      whose: part("whose").textContent ?? "",
      colour: (/** @type {string} */ name) => style.getPropertyValue(name).trim(),
      measure(/** @type {string} */ words, /** @type {number} */ size, /** @type {boolean} */ bold) {
        canvas.font = `${bold ? "bold " : ""}${size}px ${size > 20 ? "serif" : "sans-serif"}`;
        return canvas.measureText(words).width;
      },
    };
  }

  /**
   * With what the style sheet draws before it.
   * @param {Token} token
   * @returns {Inked[]}
   */
  function inked(token) {
    const kind = text.kindOf(token);
    const sign = kind ? signOf(kind) : isUnknown(token) ? "?" : /^ +$/.test(token.text) ? "␣" : "";
    const [before] = /[^"]+(?="$)/.exec(getComputedStyle(text.elementOf(token), "::before").content) ?? [];
    const own = { text: token.text, fate: text.isOpen(token) ? "pending" : token.fate, sign };
    return before ? [{ text: "", fate: "prompt", sign: before }, own] : [own];
  }
}

/**
 * @param {{ svg: string, width: number, height: number }} picture
 * @returns {Promise<Blob>} a PNG
 */
async function pixelsOf({ svg, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`; // some notebooks allow no blobs
  await image.decode();
  const scale = Math.min(SHARPNESS, HIGHEST / height);
  const canvas = h("canvas");
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  if (!blob) throw new Error("the canvas is too large");
  return blob;
}
