// @ts-check
// A handle that is dragged by mouse or finger, or moved by keys: a slider from 0 to 1.

const STEP = 0.01;
const LEAP = 0.1; // with Page Up and Page Down

/**
 * @typedef {object} Grip
 * @property {boolean} upright whether it is moved up and down
 * @property {() => number} length of its way, in pixels from 0 to 1
 * @property {() => number} read its value
 * @property {(value: number) => void} write
 * @property {() => void} [grasped] called before it is moved by a pointer or a key
 * @property {() => void} [released] called after that
 */

/**
 * The caller tells its name, and by `tell` its value, when that has changed, with the text for it.
 * @param {HTMLElement} handle
 * @param {Grip} grip
 */
export function makeHandle(handle, { upright, length, read, write, grasped, released }) {
  handle.setAttribute("role", "slider");
  handle.setAttribute("aria-valuemin", "0");
  handle.setAttribute("aria-valuemax", "1");
  handle.setAttribute("aria-orientation", upright ? "vertical" : "horizontal");
  handle.tabIndex = 0;
  /** Where it was taken. @type {{ pointer: number, at: number, value: number } | null} */
  let taken = null;
  const along = (/** @type {PointerEvent} */ event) => (upright ? -event.clientY : event.clientX);
  const within = (/** @type {number} */ value) => Math.min(1, Math.max(0, value));

  handle.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || taken) return;
    event.preventDefault(); // no text is selected
    handle.focus({ preventScroll: true });
    handle.setPointerCapture(event.pointerId);
    grasped?.();
    taken = { pointer: event.pointerId, at: along(event), value: read() };
  });
  handle.addEventListener("pointermove", (event) => {
    if (taken?.pointer !== event.pointerId) return;
    write(within(taken.value + (along(event) - taken.at) / length()));
  });
  for (const end of /** @type {const} */ (["pointerup", "pointercancel"])) {
    handle.addEventListener(end, (event) => {
      if (taken?.pointer !== event.pointerId) return;
      taken = null;
      released?.();
    });
  }
  handle.addEventListener("keydown", (event) => {
    const to = target(event.key);
    if (to === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    grasped?.();
    write(within(to));
    released?.();
  });

  return { handle, tell };

  /** @param {string} text */
  function tell(text) {
    handle.setAttribute("aria-valuenow", read().toFixed(3));
    handle.setAttribute("aria-valuetext", text);
  }

  /** @param {string} key */
  function target(key) {
    if (key === "Home") return 0;
    if (key === "End") return 1;
    /** @type {Record<string, number>} */
    const steps = {
      ArrowUp: STEP, ArrowRight: STEP, ArrowDown: -STEP, ArrowLeft: -STEP, PageUp: LEAP, PageDown: -LEAP,
    };
    return key in steps ? Math.round((read() + steps[key]) / STEP) * STEP : null;
  }
}
