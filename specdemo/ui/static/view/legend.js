// @ts-check
// The legend: pointing at a fate marks its tokens on the stage; the style sheet shows what it means. Tab comes to the
// first fate and to the switches, and arrow keys to all.

/**
 * @param {HTMLElement} legend
 * @param {HTMLElement} stage
 */
export function watchLegend(legend, stage) {
  legend.addEventListener("pointerover", ({ target }) => point(target));
  legend.addEventListener("pointerleave", () => point(null));
  legend.addEventListener("focusin", ({ target }) => point(target));
  legend.addEventListener("focusout", () => point(null));
  legend.addEventListener("keydown", move);

  /** @param {EventTarget | null} target */
  function point(target) {
    const entry = target instanceof Element ? target.closest("[data-explains]") : null;
    if (entry instanceof HTMLElement) stage.dataset.points = entry.dataset.explains;
    else delete stage.dataset.points;
  }

  /** @param {KeyboardEvent} event */
  function move({ key, target }) {
    const entry = target instanceof Element ? target.closest("[data-explains]") : null;
    const steps = { ArrowRight: entry?.nextElementSibling, ArrowLeft: entry?.previousElementSibling };
    const next = key === "ArrowRight" || key === "ArrowLeft" ? steps[key]?.firstElementChild : null;
    if (next instanceof HTMLElement) next.focus();
  }
}
