// @ts-check
// The bars that the figure begins with: a drafter that is right half of the time, and wrong in each way.

/** The names of the tokens are words of the page. */
export const DEFAULTS = {
  p: [0.42, 0.22, 0.14, 0.1, 0.08, 0.04],
  q: [0.2, 0.38, 0.08, 0.22, 0.04, 0.08],
  draft: 1,
  u: 0.8,
  other: 0.3, // the random number that draws the replacement
};
