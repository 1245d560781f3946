// @ts-check
// What Gradio's controls do not do by themselves. They are outside of the stage's element, and Gradio may draw
// them anew at any time, so all of this listens at the document.

const LARGEST_FILE = 16 * 2 ** 20; // bytes; the server refuses larger ones, too

/**
 * @param {object} page
 * @param {() => void} page.copy called when the link is to be copied
 * @param {() => void} page.asked called when a run is asked for, before the server knows
 * @param {(sentence: string) => void} page.refused called with what is wrong with a file
 */
export function watchControls({ copy, asked, refused }) {
  document.addEventListener("blur", keepNumber, true);
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("click", onClick, true);
  document.addEventListener("change", onChange, true);
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
  }

  /** @param {Event} event */
  function onChange(event) {
    const box = event.target;
    if (!(box instanceof HTMLInputElement) || box.type !== "file") return;
    const size = box.files?.[0]?.size ?? 0;
    if (size <= LARGEST_FILE) return;
    event.stopPropagation();
    box.value = ""; // so that it can be chosen again
    const most = LARGEST_FILE / 2 ** 20;
    refused(`The file has ${(size / 2 ** 20).toFixed(1)} MB, and at most ${most} MB can be opened.`);
  }
}
