// @ts-check
// The page's address: what the run on the stage was asked for, the pinned token and the tab. So a reload, Back and a
// copied link show the same again.

import { say } from "../view/words.js";

/** @import { Token } from "../view/run.js" */
/** @typedef {ReturnType<typeof makeAddress>} Address */

// Of the frame around the page, Gradio's and its host's, besides those with __; the visitor's language, which is no
// setting of a run, the tour's step, the scene of a lecture, and the stop of "Two worlds".
const OTHERS = ["frame", "view", "deep_link", "embed", "logs", "lang", "tour", "lecture", "worlds"];

/** @param {string} text */
const isForeign = (text) => text.startsWith("__") || OTHERS.includes(text);
/** Of how the page shows the run; the last three were in older links. @param {string} text */
const isBeside = (text) => /^(token$|tab$|digest$|figure_|trials_)/.test(text);

/**
 * @param {string} start the name of the recorded run that every page shows at first
 * @param {() => string} tab the name of the one that is selected
 */
export function makeAddress(start, tab) {
  const given = new URLSearchParams(location.search);
  const pinned = /^(\d{1,9})\.(\d{1,9})$/.exec(given.get("token") ?? "");
  /** The token that the address asks for, until it has been pinned. @type {[round: number, place: number] | null} */
  let wanted = pinned && [Number(pinned[1]), Number(pinned[2])];
  let shown = given.toString(); // the address without its token
  let replaces = given.get("run") === "1"; // the first run is the address's own
  let isFirst = true;
  let isOurs = !replaces; // whether what is on the stage is what the address asks for
  let isLinked = true; // whether an address can ask for what is on the stage
  /** Which run is on the stage, where the address need not say so. */
  let unnamed = "";
  let isReady = false; // whether the page shows the address's tab
  shown = ours(given);
  addEventListener("popstate", onBack);
  return { begin, pin, takeWanted, copy, ready, write, wants: () => wanted !== null };

  /** From now on, the tab is the page's. */
  function ready() {
    isReady = true;
  }

  /** Writes what the page shows beside the run: another tab. */
  function write() {
    if (isReady) go(named(), true);
  }

  /** The address's names, with that of the run on the stage. */
  function named() {
    const query = new URLSearchParams(location.search);
    if (!replaces) for (const [name, value] of new URLSearchParams(unnamed)) query.set(name, value);
    return query;
  }

  /**
   * @param {string} link the query of the run that has begun; empty for what no address can ask for
   */
  function begin(link) {
    const kept = isFirst;
    isFirst = false;
    const query = new URLSearchParams(link);
    unnamed = kept && query.get("trace") === start && given.get("trace") !== start ? link : "";
    if (unnamed) return;
    isLinked = link !== "";
    const isSame = ours(query) === shown;
    if (isOurs && !isSame) wanted = null; // it was of another run
    isOurs = true;
    if (isSame) replaces = true;
    shown = ours(query);
    go(query, replaces);
    replaces = false;
  }

  /** @param {Token | null} token */
  function pin(token) {
    if (wanted && !token) return; // it is still to come
    const place = token && token.fate !== "prompt"
      && `${token.round.index}.${"place" in token ? token.place : token.round.draft.length}`;
    const isWanted = wanted?.join(".") === place;
    wanted = null;
    if (isWanted) return; // it is in the address
    const query = place ? named() : new URLSearchParams(location.search);
    query.delete("token");
    if (place) query.set("token", place);
    go(query, true);
  }

  /** @param {(round: number, place: number) => boolean} pinAt says whether the token is there */
  function takeWanted(pinAt) {
    if (!wanted || !isOurs) return;
    const [round, place] = wanted;
    if (pinAt(round, place)) wanted = null;
  }

  /**
   * @param {URLSearchParams} query of our names
   * @param {boolean} replace
   */
  function go(query, replace) {
    const whole = new URLSearchParams();
    for (const [name, value] of new URLSearchParams(location.search)) {
      if (isForeign(name)) whole.append(name, value);
    }
    for (const [name, value] of query) {
      if (!isForeign(name) && !(isReady && name === "tab")) whole.append(name, value);
    }
    if (isReady && tab() !== "text") whole.set("tab", tab());
    if (wanted) whole.set("token", wanted.join("."));
    const search = whole.toString();
    const url = `${location.pathname}${search ? `?${search}` : ""}${location.hash}`;
    if (url === `${location.pathname}${location.search}${location.hash}`) return;
    put(url, replace);
  }

  // The earlier run is shown by opening its address again.
  function onBack() {
    if (ours(new URLSearchParams(location.search)) !== shown) location.reload();
  }

  /** @param {URLSearchParams} query */
  function ours(query) {
    const own = [...query].filter(([name]) => !isForeign(name) && !isBeside(name));
    return own.map(([name, value]) => `${name}=${value}`).sort().join("&");
  }

  /**
   * Copies the page's address; says how that went.
   * @returns {Promise<string>}
   */
  async function copy() {
    if (!isLinked) return say("view.notCopied");
    write();
    const query = new URLSearchParams(location.search);
    const lacks = query.has("pair") && !query.has("prompt");
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      return say("view.copyRefused", { link: location.href });
    }
    return say(query.has("trace") ? "view.copiedRecorded" : lacks ? "view.copiedWithoutPrompt" : "view.copied");
  }
}

/**
 * Puts what is no setting of a run into the address, or takes it out.
 * @param {string} name
 * @param {string | null} value
 */
export function mark(name, value) {
  const address = new URL(location.href);
  if (address.searchParams.get(name) === value) return;
  if (value === null) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  put(address, true);
}

/**
 * In some frames, and after too many changes, a browser does not allow it. Then it stays as it is.
 * @param {string | URL} url
 * @param {boolean} replace
 */
function put(url, replace) {
  try {
    if (replace) history.replaceState(history.state, "", url);
    else history.pushState(null, "", url);
  } catch { /* as it is */ }
}
