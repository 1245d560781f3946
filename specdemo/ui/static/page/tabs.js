// @ts-check
// The tabs over the stage: each shows one view of the run. A view is told of the run when it becomes visible,
// and again when the run changes while it is.

import { find, neighbour } from "../view/dom.js";
import { isGoingOn } from "../runs/measuring.js";
import { say } from "../view/words.js";

/** @import { Measurement } from "../view/messages.d.ts" */
/** @import { Run } from "../view/run.js" */
/**
 * @typedef {object} Panel
 * @property {(run: Run) => void} [show] draws the run, as far as it is known
 * @property {(measurement: Measurement) => void} [take] takes what the server has measured for this panel
 */
/** @typedef {ReturnType<typeof makeTabs>} Tabs */

/**
 * @param {HTMLElement} page
 * @param {(tab: string) => void} selected called when a tab is selected, before its panel shows anything
 * @param {Record<string, Panel>} panels by the tab's name
 */
export function makeTabs(page, selected, panels) {
  const list = find(page, ".tabs");
  const buttons = /** @type {HTMLElement[]} */ ([...list.querySelectorAll("[role=tab]")]);
  /** @type {Run | null} */
  let known = null;
  /** @type {Measurement | null} */
  let measured = null;
  for (const button of buttons) button.addEventListener("click", () => select(button.dataset.tab ?? "text"));
  list.addEventListener("keydown", onKey);
  select("text");
  return { select, show, take };

  /** @param {string} name */
  function select(name) {
    page.dataset.tab = name;
    for (const button of buttons) {
      const isIt = button.dataset.tab === name;
      button.setAttribute("aria-selected", String(isIt));
      button.tabIndex = isIt ? 0 : -1;
      if (isIt) list.scrollLeft = button.offsetLeft - (list.clientWidth - button.offsetWidth) / 2; // on a phone it scrolls
    }
    for (const panel of page.querySelectorAll(".run > .panel")) {
      panel.classList.toggle("selected", panel.id === `panel-${name}`);
    }
    page.toggleAttribute("data-filled", name !== "text" && name !== "positions"); // with a panel alone
    selected(name);
    if (known) panels[name]?.show?.(known);
  }

  /** @param {Run} run */
  function show(run) {
    known = run;
    panels[page.dataset.tab ?? ""]?.show?.(run);
  }

  /**
   * Gives it to its panel; says whether a measurement goes on. One that has begun ends the one before, which
   * another panel may be waiting for.
   * @param {Measurement} measurement
   */
  function take(measurement) {
    const begun = isGoingOn(measurement.state);
    if (begun && measured && measured.kind !== measurement.kind && isGoingOn(measured.state)) {
      panels[measured.kind]?.take?.({ ...measured, state: "stopped", text: say("measuring.stopped"), share: null });
    }
    if (begun || measured?.id === measurement.id) measured = measurement;
    panels[measurement.kind]?.take?.(measurement);
    return measured !== null && isGoingOn(measured.state);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const next = neighbour(event, buttons, ["ArrowLeft", "ArrowRight"]);
    if (!next) return;
    event.preventDefault();
    select(next.dataset.tab ?? "text");
    next.focus();
  }
}
