// @ts-check
// How a hall plays: the lecturer's page asks the server for the counts while it can be seen, and draws them.

import { ask } from "../traces/traces.js";
import { make, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";

/** @typedef {{ players: number[], hall: number | null, drafter: number | null }} Counts tokens a round; the players' least first */

const PERIOD = 2000; // ms
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, AXIS, EDGE, NAME] = [600, 150, 24, 30, 22]; // of the plot; below its dots, beside them, above them
const BIN = 0.25; // tokens a round
const LARGEST = 16; // of a dot, across

/** What is said of a link at localhost, 127.0.0.1 or ::1, else "". */
export function onlyHere(host = location.hostname) {
  return /^(localhost|127(\.\d+){3}|\[::1\])$/.test(host) ? say("guess.hall.onlyHere", { host }) : "";
}

const KEPT = "specdemo.hall"; // so that a reload shows it again

/**
 * What the server answers; null where it cannot be reached or does not let it in.
 * @param {string} name
 * @param {RequestInit} [how]
 */
function askFor(name, how) {
  return ask(`specdemo/halls/${name}`, how).then((answer) => answer.json()).catch(() => null);
}

/**
 * The hall that this page, or the one before it in this tab, has opened.
 * @returns {{ game: string, code: string, most: number } | null}
 */
function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  } catch {
    return null;
  }
}

/** @param {{ game: string, code: string, most: number } | null} hall */
function keep(hall) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(hall));
  } catch { /* a page in a frame may have nothing to keep it in; it is shown until it is left */ }
}

/** @param {HTMLElement} place */
export function makeHall(place) {
  const plot = document.createElementNS(SVG, "svg");
  plot.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  plot.setAttribute("aria-hidden", "true");
  place.append(make("h3", say("guess.hall.title")), make("p"), make("p"), make("p"), make("p", onlyHere()));
  const [played, means, wrong, warning] = place.querySelectorAll("p");
  warning.className = "warning";
  played.className = "played";
  wrong.setAttribute("role", "status");
  let isOpen = false; // as far as is known, the hall that is shown
  let shown = kept() ?? { game: "", code: "", most: 1 };
  if (shown.code) show();
  return open;

  /**
   * Opens a hall for a game and shows it, unless it does already.
   * @param {string} game its name
   * @param {number} most tokens that a draft can have
   * @returns {Promise<{ code?: string, wrong?: string }>}
   */
  async function open(game, most) {
    if (isOpen && shown.game === game) return shown;
    const opened = await askFor(game, { method: "POST" }) ?? { wrong: say("traces.lost") };
    if (opened.code) {
      shown = { game, code: opened.code, most };
      keep(shown);
      show();
    }
    return opened;
  }

  function show() {
    means.after(plot); // not before: a page has no picture that it does not show
    place.hidden = false;
    isOpen = true;
    look(shown.code);
  }

  /** @param {string} code */
  async function look(code) {
    if (!document.hidden) {
      const counts = await askFor(code);
      if (shown.code !== code) return; // another one has been opened meanwhile
      write(wrong, counts ? counts.wrong ?? "" : say("guess.hall.lost"));
      if (counts?.players) draw(counts);
      if (counts?.wrong) {
        isOpen = false;
        return keep(null);
      }
    }
    setTimeout(look, PERIOD, code);
  }

  /** @param {Counts} counts */
  function draw({ players, hall, drafter }) {
    const { most } = shown;
    const count = players.length;
    write(played, count ? say("guess.hall.played", { count, number: String(count) }) : say("guess.hall.nobody"));
    const isPlayed = hall !== null && drafter !== null;
    const [least, largest] = [players[0], players[count - 1]].map((one) => isPlayed ? fixed(one) : "");
    write(means, isPlayed ? say("guess.hall.means", { hall: fixed(hall), drafter: fixed(drafter), least, most: largest }) : "");
    plot.toggleAttribute("hidden", drafter === null);
    plot.replaceChildren();
    const x = (/** @type {number} */ tokens) => EDGE + (tokens - 1) / most * (WIDTH - 2 * EDGE);
    const floor = HEIGHT - AXIS;
    add("path", { class: "axis", d: `M${EDGE} ${floor}H${WIDTH - EDGE}` });
    for (let tokens = 1; tokens <= most + 1; tokens++) add("text", { x: x(tokens), y: HEIGHT - 5 }, String(tokens));
    /** @type {Map<number, number>} */
    const heights = new Map();
    const stacked = players.map((one) => {
      const bin = Math.round(one / BIN);
      const below = heights.get(bin) ?? 0;
      heights.set(bin, below + 1);
      return { one, below };
    });
    const across = Math.min(LARGEST, x(1 + BIN) - x(1));
    const highest = [...heights.values()].reduce((most, one) => Math.max(most, one), 1);
    const high = Math.min(across, (floor - NAME) / highest); // flat where many are in one pile
    for (const { one, below } of stacked) {
      add("ellipse", { cx: x(one), cy: floor - high * (below + 0.5), rx: 0.45 * across, ry: 0.45 * high });
    }
    if (drafter === null) return;
    add("path", { class: "mark", d: `M${x(drafter)} ${floor}V${NAME - 4}` });
    add("text", { x: Math.min(Math.max(x(drafter), 90), WIDTH - 90), y: NAME - 8 }, say("guess.hall.drafter", { drafter: fixed(drafter) }));
  }

  /**
   * @param {string} tag
   * @param {Record<string, string | number>} attributes
   */
  function add(tag, attributes, text = "") {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
    made.textContent = text;
    plot.append(made);
  }
}
