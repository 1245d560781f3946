// @ts-check
// The coloured text as an SVG that stands alone: legend, tokens, verdict, and whose run it is. Lines are
// broken here, by widths that the caller measures. All text is escaped: what a model wrote is never markup.

/** @typedef {{ text: string, fate: string, sign: string }} Inked sign: drawn in place of a text that shows nothing */
/** @typedef {Inked & { word: boolean, end: boolean }} Part of a token; end: a line ends behind it */
/** @typedef {Part & { x: number, width: number }} Placed */
/**
 * @typedef {object} Content
 * @property {Inked[]} tokens in reading order
 * @property {Inked[]} legend a word for each fate
 * @property {string[]} verdict its first sentence, and the rest
 * @property {string} whose
 * @property {(name: string) => string} colour of a style sheet's variable
 * @property {(text: string, size: number, bold: boolean) => number} measure the width of a text in pixels
 */

const WIDTH = 900;
const MARGIN = 24;
const [SIZE, LINE] = [21, 38]; // of the text
const [SMALL, SMALL_LINE] = [13, 20];
const BOLD = ["resampled", "bonus"];
const STRUCK = ["rejected", "discarded"];
/** How the line below a token is drawn. @type {Record<string, { thick: number, dashes?: string, twice?: boolean }>} */
const LINES = {
  accepted: { thick: 2 },
  rejected: { thick: 2, dashes: "2 2" },
  resampled: { thick: 2 },
  bonus: { thick: 1, twice: true },
  sampled: { thick: 1 },
  discarded: { thick: 1, dashes: "4 3" },
  pending: { thick: 2, dashes: "2 2" },
};

/**
 * @param {Content} content
 * @returns {{ svg: string, width: number, height: number }}
 */
export function pictureOf({ tokens, legend, verdict, whose, colour, measure }) {
  const inner = WIDTH - 2 * MARGIN;
  /** @type {string[]} */
  const drawn = [];
  let y = MARGIN;
  drawLines(legend.flatMap((entry) => [entry, { text: "  ", fate: "prompt", sign: "" }]), SMALL, 26, true);
  y += 8;
  drawLines(tokens, SIZE, LINE);
  y += 12;
  const [first, ...rest] = verdict.filter(Boolean);
  if (first) drawWords(first, 17, 25, "--ink", true);
  for (const line of rest) drawWords(line, SMALL, SMALL_LINE, "--muted");
  if (whose) drawWords(whose, SMALL, SMALL_LINE, "--muted");
  const height = Math.ceil(y + MARGIN);
  const size = `width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}"`;
  const ground = `<rect width="${WIDTH}" height="${height}" fill="${inXml(colour("--paper"))}"/>`;
  const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} xml:space="preserve">`;
  const svg = `${head}${ground}${drawn.join("")}</svg>\n`;
  return { svg, width: WIDTH, height };

  /**
   * @param {Inked[]} inked
   * @param {number} size
   * @param {number} lineHeight
   */
  function drawLines(inked, size, lineHeight, isLegend = false) {
    const widthOf = (/** @type {Part} */ { text, fate, sign }) => measure(sign || text, sizeOf(sign, size), BOLD.includes(fate));
    for (const line of brokenInto(partsOf(inked), inner, widthOf)) {
      y += lineHeight;
      for (const part of line) drawn.push(tokenPart(part, size, y - lineHeight / 3, isLegend));
    }
  }

  /**
   * @param {string} words
   * @param {number} size
   * @param {number} lineHeight
   * @param {string} ink
   */
  function drawWords(words, size, lineHeight, ink, bold = false) {
    const parts = partsOf([{ text: words, fate: "prompt", sign: "" }]);
    for (const line of brokenInto(parts, inner, ({ text }) => measure(text, size, bold))) {
      y += lineHeight;
      const where = { x: MARGIN, y: y - lineHeight / 3, fill: colour(ink) };
      const how = { "font-family": "sans-serif", "font-size": size, "font-weight": bold ? 600 : null };
      drawn.push(tag("text", { ...where, ...how }, line.map(({ text }) => text).join("")));
    }
  }

  /**
   * @param {Placed} part
   * @param {number} size
   * @param {number} base of its letters
   * @param {boolean} isLegend whose words are not tokens
   */
  function tokenPart({ text, fate, sign, word, x, width }, size, base, isLegend) {
    const isPlain = fate === "prompt" || !word;
    const [fill, paper, stroke] = isPlain ? [colour("--ink")] : colourNames(fate).map(colour);
    const at = { x: MARGIN + x, y: base, "font-family": isLegend ? "sans-serif" : "serif", "font-size": sizeOf(sign, size) };
    const token = { "data-fate": isLegend ? null : fate };
    const looks = {
      "font-weight": BOLD.includes(fate) ? 700 : null, "text-decoration": STRUCK.includes(fate) && word ? "line-through" : null,
      // The width stays where another font stands in for the one that was measured.
      ...(word && width ? { textLength: width, lengthAdjust: "spacingAndGlyphs" } : {}),
    };
    const hidden = text ? tag("text", { ...at, fill: "none", ...token }, text) : "";
    const letters = sign ? tag("text", { ...at, fill }, sign) + hidden : tag("text", { ...at, fill, ...looks, ...token }, text);
    if (isPlain) return letters;
    const [top, below] = [base - size * 0.95, base + size * 0.35];
    const box = { x: at.x, y: top, width, height: below - top, rx: 3, fill: paper, stroke: fate === "resampled" ? stroke : null };
    const { thick, dashes = null, twice } = LINES[fate];
    const lines = (twice ? [below - 3, below] : [below]).map((height) => {
      const d = `M${round(at.x)} ${round(height)}h${round(width)}`;
      return tag("path", { d, stroke, "stroke-width": thick, "stroke-dasharray": dashes });
    });
    return [tag("rect", box), ...lines, letters].join("");
  }
}

/**
 * An element; null leaves an attribute out.
 * @param {string} name
 * @param {Record<string, string | number | null>} attributes
 */
function tag(name, attributes, text = "") {
  const written = Object.entries(attributes).map(([key, value]) => (
    value === null ? "" : ` ${key}="${typeof value === "number" ? round(value) : inXml(value)}"`));
  return `<${name}${written.join("")}${text ? `>${inXml(text)}</${name}>` : "/>"}`;
}

/**
 * A sign that is a word, such as that of the end, is small beside the words of the text.
 * @param {string} sign
 * @param {number} size of the text
 */
function sizeOf(sign, size) {
  return sign.length > 1 ? round(size * 0.6) : size;
}

/**
 * Of the letters, the ground and the line of a fate, as stage.css has them.
 * @param {string} fate
 */
function colourNames(fate) {
  return fate === "pending" ? ["--ink", "--page", "--mark"] : ["ink", "paper", "line"].map((tone) => `--${fate}-${tone}`);
}

/**
 * The tokens cut where a line can break: before and behind spaces, and behind a line end
 * that is in the text.
 * @param {Inked[]} tokens
 * @returns {Part[]}
 */
export function partsOf(tokens) {
  return tokens.flatMap(({ text, fate, sign }) => {
    if (sign) return [{ text, fate, sign, word: true, end: false }];
    const found = text.match(/ +|\n|[^ \n]+/g) ?? [];
    return found.map((part) => {
      const sign = part === "\n" ? "⏎" : "";
      return { text: part, fate, sign, word: !part.startsWith(" "), end: sign !== "" && !STRUCK.includes(fate) };
    });
  });
}

/**
 * Puts the parts into lines. Words are not broken, unless they are longer than a line; spaces hang over its end.
 * @param {Part[]} parts
 * @param {number} width of a line
 * @param {(part: Part) => number} widthOf
 * @returns {Placed[][]}
 */
export function brokenInto(parts, width, widthOf) {
  /** @type {Placed[][]} */
  const lines = [[]];
  let x = 0;
  for (let at = 0; at < parts.length;) {
    let until = at + 1;
    if (parts[at].word) while (parts[until]?.word) until++; // one word can be several tokens
    const word = parts.slice(at, until);
    const whole = word.reduce((sum, part) => sum + widthOf(part), 0);
    if (word[0].word && x > 0 && x + whole > width) begin();
    for (const part of whole > width && word[0].word ? word.flatMap(apart) : word) put(part);
    at = until;
  }
  return lines;

  function begin() {
    lines.push([]);
    x = 0;
  }

  /** @param {Part} part */
  function put(part) {
    const own = widthOf(part);
    if (part.word && x > 0 && x + own > width) begin();
    lines[lines.length - 1].push({ ...part, x, width: own });
    x += own;
    if (part.end) begin();
  }

  /** Its characters, one by one. @param {Part} part */
  function apart(part) {
    return part.sign ? [part] : [...part.text].map((text) => ({ ...part, text }));
  }
}

/**
 * As XML can hold it: it has no character for most control characters and for halves of surrogate pairs.
 * @param {string} text
 */
export function inXml(text) {
  return text
    .replace(/[^\t\n\r\u{20}-\u{d7ff}\u{e000}-\u{fffd}\u{10000}-\u{10ffff}]/gu, "\ufffd")
    .replace(/[&<>"\r\n\t]/g, (sign) => `&#${sign.codePointAt(0)};`);
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 100) / 100;
}
