// @ts-check
// The handout, which is what the browser prints: the run with one worked rejection and the formulas, and on another page
// why it is exact, with that rejection's numbers. lecture.css has the looks.

/** @import { makeFigure } from "../lesson/figure.js" */
/** @import { Reader } from "../view/reader.js" */
/** @import { Run } from "../view/run.js" */

/**
 * @param {HTMLElement} page
 * @param {Run} run on the stage
 * @param {Reader} reader
 * @param {ReturnType<typeof makeFigure>} figure
 */
export function makeHandout(page, run, reader, figure) {
  addEventListener("beforeprint", () => {
    const rejected = run.rounds.flatMap(({ draft }) => draft).find(({ fate }) => fate === "rejected");
    const token = reader.pinned() ?? rejected;
    if (!token) return;
    if (!reader.pinned()) reader.present(token);
    figure.takeFrom(token);
    page.querySelector(".formulas")?.setAttribute("open", "");
  });
  addEventListener("afterprint", () => {
    if (!reader.pinned()) reader.present(null);
    page.querySelector(".formulas")?.removeAttribute("open");
  });
}
