// @ts-check
// A hall: the lecturer's page opens it, shows its link as a picture, too, and asks the server for the counts while it can
// be seen. Here they are drawn for the game.

import { ask } from "../traces/traces.js";
import { append, fill, h, keep, recall, svg, write } from "../view/dom.js";
import { fixed } from "../view/format.js";
import { say } from "../view/words.js";

/** @typedef {{ players: number[], hall: number | null, drafter: number | null }} Counts tokens a round; the players' least first */

const PERIOD = 2000; // ms
const [WIDTH, HEIGHT, AXIS, EDGE, NAME] = [600, 150, 24, 30, 22]; // of the plot; below its dots, beside them, above them
const BIN = 0.25; // tokens a round
const LARGEST = 16; // of a dot, across

/** What is said of a link at localhost, 127.0.0.1 or ::1, else "". @param {string} link */
export function onlyHere(link) {
  const host = new URL(link).hostname;
  return /^(localhost|127(\.\d+){3}|\[::1\])$/.test(host) ? say("guess.hall.onlyHere", { host }) : "";
}

const KEPT = "specdemo.hall"; // so that a reload shows it again

/**
 * What the server answers; null where it cannot be reached or does not let it in.
 * @param {string} name
 * @param {RequestInit} [how]
 */
export function askFor(name, how) {
  return ask(`specdemo/halls/${name}`, how).then((answer) => answer.json()).catch(() => null);
}

/**
 * Opens a hall. link: for the hall; picture: the same as a QR code, as an address; empty where it is too long.
 * @param {string} name of the game, or "exercises"
 * @param {string} query of the page's address for the hall
 * @returns {Promise<{ code?: string, key?: string, link?: string, picture?: string, wrong?: string }>}
 */
export async function openHall(name, query) {
  const body = `${location.origin}${location.pathname}?${query}`;
  return await askFor(`${name}/open`, { method: "POST", body }) ?? { wrong: say("traces.lost") };
}

/** How others come to a hall. @param {string} link @param {string} picture */
export function wayTo(link, picture) {
  return [picture && h("img", { src: picture, alt: "" }), h("code", {}, link), h("p", { class: "warning" }, onlyHere(link))];
}

/** @param {HTMLElement} place */
export function makeHall(place) {
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  const [played, means, wrong] = [h("p", { class: "played" }), h("p"), h("p", { role: "status" })];
  const way = h("div", { class: "way" });
  append(place, [way, h("h3", {}, say("guess.hall.title")), played, means, wrong]);
  let isOpen = false; // as far as is known, the hall that is shown
  /** That this page, or the one before it in this tab, has opened. @type {{ game: string, code: string, most: number, link: string, picture: string }} */
  let shown = recall("sessionStorage", KEPT) ?? { game: "", code: "", most: 1, link: "", picture: "" };
  if (shown.code) show();
  return open;

  /**
   * Opens a hall for a game and shows it, unless it does already.
   * @param {string} game its name
   * @param {number} most tokens that a draft can have
   * @param {string} query of the page's address for it
   * @returns {Promise<{ link?: string, wrong?: string }>}
   */
  async function open(game, most, query) {
    if (isOpen && shown.game === game) return shown;
    const opened = await openHall(game, query);
    const { code, link = "", picture = "" } = opened;
    if (code) {
      shown = { game, code, most, link, picture };
      keep("sessionStorage", KEPT, shown);
      show();
    }
    return opened;
  }

  function show() {
    means.after(plot); // not before: a page has no picture that it does not show
    place.hidden = false;
    fill(way, wayTo(shown.link, shown.picture));
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
        return keep("sessionStorage", KEPT, null);
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
    const x = (/** @type {number} */ tokens) => EDGE + (tokens - 1) / most * (WIDTH - 2 * EDGE);
    const floor = HEIGHT - AXIS;
    const ticks = Array.from({ length: most + 1 }, (_, at) => svg("text", { x: x(at + 1), y: HEIGHT - 5 }, String(at + 1)));
    fill(plot, svg("path", { class: "axis", d: `M${EDGE} ${floor}H${WIDTH - EDGE}` }), ticks, dots(players, x, floor));
    if (drafter === null) return;
    const at = { x: Math.min(Math.max(x(drafter), 90), WIDTH - 90), y: NAME - 8 };
    append(plot, [
      svg("path", { class: "mark", d: `M${x(drafter)} ${floor}V${NAME - 4}` }),
      svg("text", at, say("guess.hall.drafter", { drafter: fixed(drafter) })),
    ]);
  }
}

/**
 * A dot for each player, those of a bin in a pile.
 * @param {number[]} players
 * @param {(tokens: number) => number} x
 * @param {number} floor
 */
function dots(players, x, floor) {
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
  return stacked.map(({ one, below }) => (
    svg("ellipse", { cx: x(one), cy: floor - high * (below + 0.5), rx: 0.45 * across, ry: 0.45 * high })));
}
