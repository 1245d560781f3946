// @ts-check
// What Gradio's controls do not do by themselves. They are outside of the stage's element, and Gradio may draw
// them anew at any time, so all of this listens at the document.

/**
 * @param {object} page
 * @param {() => void} page.copy called when the link is to be copied
 * @param {() => void} page.asked called when a run is asked for, before the server knows
 * @param {() => void} page.open called when a trace is to be opened
 */
export function watchControls({ copy, asked, open }) {
  document.addEventListener("blur", keepNumber, true);
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("click", onClick, true);
  return { allowStop };

  /** @param {boolean} allowed whether there is anything to stop */
  function allowStop(allowed) {
    const stop = document.querySelector("button#end");
    if (stop instanceof HTMLButtonElement) stop.disabled = !allowed;
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
    if (key !== "Enter" || !(target instanceof Element)) return;
    if (target.closest("#ask textarea") && shiftKey) return asked(); // Gradio's own way from the prompt
    if (!(ctrlKey || metaKey) || !(target === document.body || target.closest("#ask, #settings"))) return;
    event.preventDefault();
    event.stopPropagation();
    const go = document.querySelector("button#go");
    if (go instanceof HTMLElement) go.click();
  }

  /** @param {MouseEvent} event */
  function onClick({ target }) {
    if (!(target instanceof Element)) return;
    if (target.closest("button#go")) asked();
    if (target.closest("button#copy")) copy();
    if (target.closest("button#open")) open();
  }
}
