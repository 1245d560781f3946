// @ts-check
// What Gradio's controls hold, and what they do not do by themselves. They are outside of the stage's element, and
// Gradio may draw them anew at any time, so all of this listens at the document.

import { say } from "../view/words.js";

/** @typedef {"settings" | "examples"} Fold */
/** @typedef {Record<string, unknown>} Held */

/** Panels that are hidden until their button is pressed. @type {Record<Fold, { button: string, panel: string }>} */
const FOLDS = {
  settings: { button: "#set", panel: "#settings" },
  examples: { button: "#try", panel: "#examples" },
};
const NAMES = /** @type {Fold[]} */ (Object.keys(FOLDS));
const LABELS = "#prompt [data-testid=block-info], #settings :is([data-testid=block-info], .label-text)";
const OVER = "(max-width: 1099px)"; // where the settings lie over the run, as in layout.css

const element = (/** @type {string} */ selector) =>
  /** @type {HTMLElement | null} */ (document.querySelector(selector));

/**
 * What the prompt and the other controls hold, by name.
 * @param {(event: string) => void} trigger an event of Gradio's, as page.py has them
 * @param {(held: Held) => Held} [change] gives what is put into them
 * @returns {Promise<Held>}
 */
export function controlsHold(trigger, change) {
  const held = before.then(() => new Promise((done, fail) => {
    const onHeld = (/** @type {any} */ { detail }) => {
      detail.put = change?.(detail.held) ?? {};
      done(detail.held);
    };
    document.addEventListener("controls", onHeld, { once: true });
    setTimeout(() => fail(new Error(say("traces.lost"))), PATIENCE);
    trigger(change ? "edit" : "copy");
  }));
  before = held.catch(() => {});
  return held;
}

/** The call before: of two at once, each would take the other's event. @type {Promise<unknown>} */
let before = Promise.resolve();
const PATIENCE = 30_000; // ms until the event must have come

/**
 * @param {object} page
 * @param {() => void} page.copy called when the link is to be copied
 * @param {() => void} page.run called when a run is asked for
 * @param {() => void} page.stop called when what goes on is to be stopped
 * @param {() => void} page.save called when the trace is to be saved
 * @param {() => void} page.reply called when the prompt is to be the next message of the conversation
 * @param {() => void} page.open called when a trace is to be opened
 * @param {(name: string) => void} page.record called when a recorded run is to be shown
 */
export function watchControls({ copy, run, stop, save, reply, open, record }) {
  document.addEventListener("blur", keepNumber, true);
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("click", onClick, true);
  matchMedia(OVER).addEventListener("change", keepBehind);
  for (const { button } of Object.values(FOLDS)) element(button)?.setAttribute("aria-expanded", "false");
  return { allowStop, markWrong };

  /**
   * Opens or closes the panel of one of the bar's buttons. The focus moves into it, and back to the button.
   * @param {Fold} name
   * @param {boolean} open
   * @param {boolean} focuses
   */
  function unfold(name, open, focuses = true) {
    const { button, panel } = FOLDS[name];
    const isOpen = document.documentElement.classList.contains(`${name}-open`);
    if (open === isOpen) return;
    document.documentElement.classList.toggle(`${name}-open`, open);
    const [opener, inside] = [element(button), element(`${panel} button`)];
    opener?.setAttribute("aria-expanded", String(open));
    keepBehind();
    if (open && focuses) inside?.focus({ preventScroll: true });
    if (!open && document.activeElement?.closest(panel)) opener?.focus({ preventScroll: true });
  }

  // Tab does not go to what is behind the open settings.
  function keepBehind() {
    const isCovered = document.documentElement.classList.contains("settings-open") && matchMedia(OVER).matches;
    for (const other of element("#settings")?.parentElement?.children ?? []) {
      if (other instanceof HTMLElement && other.id !== "settings") other.inert = isCovered;
    }
  }

  /** @param {Fold} name */
  function toggle(name) {
    unfold(name, !document.documentElement.classList.contains(`${name}-open`));
  }

  /** @param {boolean} allowed whether there is anything to stop */
  function allowStop(allowed) {
    const stop = document.querySelector("button#end");
    if (stop instanceof HTMLButtonElement) stop.disabled = !allowed;
  }

  /**
   * Marks the control that an error is about, and opens the settings beside the run if it is there. What is wrong
   * with a value stands at its control since it was typed.
   * @param {string} sentence with the control's label at its start; "" if nothing is wrong
   */
  function markWrong(sentence) {
    for (const old of document.querySelectorAll("[aria-invalid]")) old.removeAttribute("aria-invalid");
    const named = [...document.querySelectorAll(LABELS)].find((label) =>
      [" ", ":"].some((after) => sentence.startsWith(`${label.textContent?.trim()}${after}`)));
    const control = named?.closest("#prompt, [id^=set-]");
    if (!control) return;
    for (const input of control.querySelectorAll("input, textarea")) input.setAttribute("aria-invalid", "true");
    if (!control.closest("#settings") || matchMedia(OVER).matches) return;
    unfold("settings", true, false);
    control.scrollIntoView({ block: "nearest" });
  }

  // When a slider's box is left, Gradio moves what was typed into the slider's range without a word. It stays,
  // with the warning beside it, and Params refuses it.
  /** @param {FocusEvent} event */
  function keepNumber(event) {
    const box = event.target;
    if (box instanceof HTMLInputElement && box.dataset.testid === "number-input") event.stopPropagation();
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const { key, ctrlKey, metaKey, shiftKey, target } = event;
    if (key === "Escape" && target instanceof Element && !target.matches('[aria-expanded="true"][role="combobox"]')) {
      for (const name of NAMES) if (target.closest(`${FOLDS[name].panel}, ${FOLDS[name].button}`)) unfold(name, false);
    }
    if (key !== "Enter" || !(target instanceof Element)) return;
    if (target.closest("#prompt textarea") && shiftKey) {
      event.preventDefault();
      return run();
    }
    if (!(ctrlKey || metaKey) || !(target === document.body || target.closest("#ask, #settings"))) return;
    event.preventDefault();
    event.stopPropagation();
    const go = document.querySelector("button#go");
    if (go instanceof HTMLElement && go.checkVisibility()) go.click();
  }

  /** @param {MouseEvent} event */
  function onClick({ target }) {
    if (!(target instanceof Element)) return;
    if (!target.closest("#try, #examples")) unfold("examples", false);
    if (target.closest("#try")) toggle("examples");
    if (target.closest("#set")) toggle("settings");
    if (target.closest("#done")) unfold("settings", false);
    if (target.closest(".run-here")) element("button#go")?.click();
    if (target.closest("button#go, #examples button")) {
      unfold("examples", false);
      if (matchMedia(OVER).matches) unfold("settings", false);
    }
    const actions = { go: run, reply, end: stop, save, copy, open };
    for (const [name, act] of Object.entries(actions)) if (target.closest(`button#${name}`)) act();
    const recorded = target.closest("#recorded button");
    if (recorded instanceof HTMLElement) record(recorded.dataset.trace ?? "");
  }
}
