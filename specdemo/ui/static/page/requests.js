// @ts-check
// What the visitor has asked the server for, and what it answers: a run or a measurement that is awaited, goes on
// and can be stopped, a trace that is opened.

import { find } from "../view/dom.js";
import { TRIES, ask, follow, sentenceOf } from "../traces/traces.js";
import { say } from "../view/words.js";
import { controlsHold } from "./controls.js";

/** @import { Following } from "../traces/traces.js" */
/** @import { Measurement, PageMessage } from "../view/messages.d.ts" */
/** @import { Run } from "../view/run.js" */
/** @import { Notice } from "./notice.js" */
/** @import { Stage } from "./stage.js" */
/** @import { Tabs } from "./tabs.js" */
/** @import { Tour } from "./tour.js" */

const PATIENCE = 30_000; // ms in which a server that is there answers

/**
 * @param {HTMLElement} page
 * @param {Run} run on the stage
 * @param {(event: string) => void} trigger an event of Gradio's, as page.py has them
 * @param {object} around
 * @param {Stage} around.stage
 * @param {Notice} around.notice
 * @param {Tabs} around.tabs
 * @param {Tour} around.tour
 * @param {(allowed: boolean) => void} around.allowStop is told whether there is anything to stop
 * @param {() => void} around.unfold shows what is hidden from a newcomer
 */
export function makeRequests(page, run, trigger, { stage, notice, tabs, tour, allowStop, unfold }) {
  const reply = find(page, "#reply");
  const session = [...crypto.getRandomValues(new Uint32Array(4))].join("-"); // by which the server knows the page
  let latest = 0; // when the latest run was begun, by the server's clock
  let wishes = 0; // for something else on the stage, so far
  let isAsked = false; // for a run, and the server has not answered yet
  let stopsIt = false; // as soon as it has
  let isLinked = new URLSearchParams(location.search).get("run") === "1"; // whether the next run is the address's own
  let hinted = 0; // how often the controls have changed
  let hinting = Promise.resolve(/** @type {PageMessage} */ ({}));
  document.addEventListener("hints", (/** @type {any} */ { detail }) => (detail.put = hints(detail.held)));
  trigger("apply");
  /** The run that goes on. @type {Following | null} */
  let going = null;
  /** The measurement that goes on. @type {Following | null} */
  let measuring = null;
  /** @type {Measurement | null} */
  let measured = null;
  return { askForRun, begin, stop, opened, changed };

  // What the visitor asks for.

  /** @param {"run" | "reply"} kind of a run */
  function askForRun(kind) {
    tour.end(false);
    unfold();
    notice.forgetError();
    wishes++;
    isAsked = true;
    isLinked = false;
    stopsIt = false;
    allow();
    begin({ kind });
  }

  /**
   * Asks for it with what the controls hold, and takes the answer.
   * @param {{ kind: string, run?: string, query?: string }} what a run, a measurement, or what the address says
   * @param {() => boolean} isWanted whether the answer still is
   */
  async function begin(what, isWanted = () => true) {
    try {
      const answer = await send(what, await controlsHold(trigger));
      if (isWanted()) await answered(answer);
    } catch (error) {
      stage.draw({ notice: { kind: "error", text: sentenceOf(error), share: null } });
    }
  }

  /** @param {object} asked @param {Record<string, unknown>} controls @returns {Promise<PageMessage>} */
  async function send(asked, controls) {
    const body = JSON.stringify({ session, asked: { run: stage.name(), ...asked }, controls });
    const how = { method: "POST", headers: await headers(), body, signal: AbortSignal.timeout(PATIENCE) };
    return (await ask("specdemo/runs", how, TRIES)).json();
  }

  /** What is put beside the controls: one answer after another, and the last. @param {Record<string, unknown>} held */
  function hints(held) {
    const mine = ++hinted;
    hinting = hinting.then(() => (mine === hinted ? send({ kind: "hints" }, held) : {})).catch(() => ({}));
    return hinting.then((answer) => answer.hints ?? {});
  }

  function stop() {
    stopsIt = isAsked;
    going?.stop();
    measuring?.stop();
  }

  /** @param {PageMessage} message a trace that the visitor has opened */
  async function opened(message) {
    tour.end(false);
    unfold();
    const wish = ++wishes;
    await begin({ kind: "controls", run: message.name }, () => wish === wishes);
    if (wish !== wishes) return; // for something else meanwhile
    leave();
    stage.open(message.name ?? "", message);
  }

  // What the server answers.

  /** @param {PageMessage} message */
  async function answered(message) {
    const { controls } = message;
    if (controls) await controlsHold(trigger, () => controls);
    if (message.notice?.kind === "error") isLinked = false; // the address's run does not come
    if (message.notice) stage.draw(message);
    if (message.measurement) takeMeasurement(message.measurement);
    if (message.measure) followMeasurement(message.measure);
    if (message.follow) followRun(message.follow, message.at ?? 0);
    if (message.follow) trigger("apply"); // the hints: more is known about a pair that is loaded now
  }

  /**
   * @param {string} name
   * @param {number} at when it was begun
   */
  function followRun(name, at) {
    if (at < latest) return; // a later one has begun, and ended this one
    latest = at;
    isAsked = false;
    leave();
    unfold();
    tour.end(false);
    const own = stage.clear();
    isLinked = false;
    const following = going = follow(name, {
      told(message) {
        if (!stage.isFor(own)) return;
        if (message.ended) going = null;
        stage.told(name, own, message);
      },
      lost(isGone) {
        if (!stage.isFor(own)) return;
        if (isGone) going = null;
        stage.lost(isGone);
      },
    });
    if (stopsIt) following.stop();
    allow();
  }

  /** @param {string} name */
  function followMeasurement(name) {
    measuring?.close();
    measuring = follow(name, {
      told({ measurement, ended }) {
        notice.forgetLost();
        if (ended) measuring = null;
        if (measurement) takeMeasurement(measurement);
      },
      lost(isGone) {
        if (isGone) measuring = null;
        if (!isGone || measured?.id !== name) notice.refuse(say("traces.lost"));
        else takeMeasurement({ ...measured, state: "failed", text: say("view.gone"), share: null });
        allow();
      },
    });
    allow();
  }

  /** @param {Measurement} measurement */
  function takeMeasurement(measurement) {
    measured = measurement;
    tabs.take(measurement);
    allow();
  }

  // The run that goes on is not to be seen any more.
  function leave() {
    going?.stop();
    going?.close();
    going = null;
  }

  // What can be done now.

  /** The page shows something else. @param {boolean} isWrong whether that is an error */
  function changed(isWrong = false) {
    if (isWrong) isAsked = false;
    allow();
  }

  function allow() {
    const { state } = page.dataset;
    const isLive = state === "waiting" || (state === "running" && !run.complete);
    allowStop(isAsked || isLive || measuring !== null);
    tour.allow(!isAsked && !isLive && run.rounds.length > 0, !isLinked);
    reply.hidden = isAsked || isLive || !run.setting?.chat;
  }
}

/**
 * What a request begins with. On ZeroGPU the page around this one knows whose quota counts, and Gradio's own client,
 * which has set the flag, asks it in the same way.
 * @returns {Promise<Record<string, string>>}
 */
async function headers() {
  const usual = { "Content-Type": "application/json", "x-gradio-user": "app" };
  if (!("supports_zerogpu_headers" in window)) return usual;
  const { port1, port2 } = new MessageChannel();
  parent.postMessage("zerogpu-headers", "https://huggingface.co", [port2]);
  return new Promise((done) => {
    port1.onmessage = ({ data }) => done({ ...usual, ...data });
  });
}
