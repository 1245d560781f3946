// @ts-check
// The page within another one (?frame=1): reduced to the run, with a way to the whole page.

import { h } from "../view/dom.js";
import { say } from "../view/words.js";

/** Whether it is. page/serve.py puts the class there, before anything is drawn. */
export function isFramed() {
  return document.documentElement.classList.contains("reduced");
}

/**
 * A button above the text that starts the run which the address asks for, once.
 * @param {HTMLElement} page
 * @param {() => void} start
 */
export function addStart(page, start) {
  const button = h("button", { class: "start" }, say("keep.run"));
  button.addEventListener("click", () => {
    button.remove();
    start();
  });
  page.append(button);
}

/** @param {HTMLElement} foot */
export function addWayOut(foot) {
  const leading = { onpointerover: lead, onfocus: lead };
  const link = h("a", { class: "way-out", target: "_blank", rel: "noopener", ...leading }, say("keep.open"));
  lead();
  foot.append(link);

  // The address of the frame changes with the run and the pinned token.
  function lead() {
    const address = new URL(location.href);
    address.searchParams.delete("frame");
    link.href = address.href;
  }
}
