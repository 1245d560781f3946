// @ts-check
// How a hall plays: the lecturer's page asks the server for the counts while it can be seen, and draws them.

import { make, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";

/** @typedef {{ players: number[], hall: number | null, drafter: number | null }} Counts tokens a round; the players' least first */

const PERIOD = 2000; // ms
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, AXIS, EDGE, NAME] = [600, 150, 24, 30, 22]; // of the plot; below its dots, beside them, above them
const BIN = 0.25; // tokens a round
const LARGEST = 16; // of a dot, across

const ask = async (/** @type {string} */ name, /** @type {RequestInit} */ how = {}) => {
  try {
    return await (await fetch(new URL(`specdemo/halls/${name}`, document.baseURI), how)).json();
  } catch {
    return null;
  }
};

/** @param {HTMLElement} place */
export function makeHall(place) {
  const plot = document.createElementNS(SVG, "svg");
  plot.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  plot.setAttribute("aria-hidden", "true");
  place.append(make("h3", say("guess.hall.title")), make("p"), make("p"), plot, make("p"));
  const [played, means, wrong] = place.querySelectorAll("p");
  played.className = "played";
  wrong.setAttribute("role", "status");
  let timer = 0; // 0 while no hall is shown that is open
  let shown = { game: "", code: "" };
  return open;

  /**
   * Opens a hall for a game and shows it, unless it does already.
   * @param {string} game its name
   * @param {number} most tokens that a draft can have
   * @returns {Promise<{ code?: string, wrong?: string }>}
   */
  async function open(game, most) {
    if (timer && shown.game === game) return shown;
    const opened = await ask(game, { method: "POST" }) ?? { wrong: say("traces.lost") };
    if (opened.code) {
      shown = { game, code: opened.code };
      show(opened.code, most);
    }
    return opened;
  }

  /**
   * @param {string} code
   * @param {number} most tokens that a draft can have
   */
  function show(code, most) {
    place.hidden = false;
    clearInterval(timer);
    const look = async () => {
      if (document.hidden) return;
      const counts = await ask(code);
      if (shown.code !== code) return; // another one has been opened meanwhile
      write(wrong, counts ? counts.wrong ?? "" : say("guess.hall.lost"));
      if (counts?.wrong) {
        clearInterval(timer);
        timer = 0;
      }
      if (counts?.players) draw(counts, most);
    };
    timer = setInterval(look, PERIOD);
    look();
  }

  /**
   * @param {Counts} counts
   * @param {number} most
   */
  function draw({ players, hall, drafter }, most) {
    const count = players.length;
    write(played, count ? say("guess.hall.played", { count, number: String(count) }) : say("guess.hall.nobody"));
    write(means, hall === null || drafter === null ? "" : say("guess.hall.means", { hall: fixed(hall), drafter: fixed(drafter) }));
    plot.toggleAttribute("hidden", drafter === null);
    plot.replaceChildren();
    const x = (/** @type {number} */ tokens) => EDGE + (tokens - 1) / most * (WIDTH - 2 * EDGE);
    const floor = HEIGHT - AXIS;
    add("path", { class: "axis", d: `M${EDGE} ${floor}H${WIDTH - EDGE}` });
    for (let tokens = 1; tokens <= most + 1; tokens++) add("text", { x: x(tokens), y: HEIGHT - 5 }, String(tokens));
    /** @type {Map<number, number>} */
    const heights = new Map();
    const bins = players.map((one) => Math.round(one / BIN));
    for (const bin of bins) heights.set(bin, (heights.get(bin) ?? 0) + 1);
    const highest = [...heights.values()].reduce((most, one) => Math.max(most, one), 1);
    const across = Math.min(LARGEST, (floor - NAME) / highest, x(1 + BIN) - x(1));
    for (const [bin, dots] of heights) {
      for (let at = 0; at < dots; at++) add("circle", { cx: x(bin * BIN), cy: floor - across * (at + 0.5), r: 0.45 * across });
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
