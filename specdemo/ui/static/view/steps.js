// @ts-check
// A run as a list of steps. In each round the draft appears as it was made, and waits: token by token; at once,
// as a block; or as a block of empty places, each of which then gets its token. Then one token after another is
// judged, and what was drafted after the last of these is dropped; then the round's own token is drawn. A tree appears
// depth by depth; in the text are only the guesses at the places that the verdicts have come to.

import { digits } from "./format.js";
import { isBlock, ruleOf, uMatters } from "./rules.js";
import {
  acceptedIn, comesAtOnce, depthsOf, familyOf, inReadingOrder, isDrafted, rejectedIn, summed, tokensOf,
} from "./run.js";
import { isFromServer, isServed, nameOf, servedRoundInWords, servedVerdict } from "./served.js";
import { named } from "./textless.js";
import { comparison, judgement, whyNoMore } from "./verdict.js";
import { say } from "./words.js";

/** @import { Drafted, Own, Round } from "./run.js" */
/**
 * A place in a run: so many rounds are complete, and so many steps of the next one are done, never all.
 * @typedef {{ round: number, step: number }} Place
 */
/** @typedef {"round" | "token"} Stride */
/** How a drafted token is shown: as an empty place, waiting for its verdict, or judged. @typedef {"place" | "waits" | "judged"} Shown */
/**
 * @typedef {{ kind: "block" | "drafted" | "judged", round: Round, token: Drafted }
 *   | { kind: "depth", round: Round, token: Drafted, depths: number }
 *   | { kind: "drawn", round: Round, token: Own | null }} Step
 */

/**
 * @param {Place} one
 * @param {Place} other
 */
export function isBefore(one, other) {
  return one.round < other.round || (one.round === other.round && one.step < other.step);
}

/**
 * @param {Round[]} rounds
 * @returns {Place}
 */
export function endOf(rounds) {
  return { round: rounds.length, step: 0 };
}

/**
 * A round of whose drafting a share is done, from 0 to 1; by default all, so that the draft waits for its verdict.
 * @param {Round} round
 * @returns {Place}
 */
export function draftedIn(round, share = 1) {
  const done = Math.floor(share * draftingSteps(round));
  return { round: round.index, step: Math.min(done, stepsIn(round) - 1) };
}

/** @param {Round} round */
export function stepsIn(round) {
  return Math.max(1, draftingSteps(round) + judgedIn(round.draft).length + (round.next ? 1 : 0));
}

/**
 * How many steps the round's draft takes: one for a block, one for each token that comes in its turn, and one for each
 * depth of a tree.
 * @param {Round} round
 */
export function draftingSteps(round) {
  const count = round.draft.length;
  if (round.isTree) return depthsOf(round);
  return count && Number(comesAtOnce(round)) + (comesInTurn(round) ? count : 0);
}

/** Whether the tokens of a draft come one after another. @param {Round} round */
function comesInTurn({ setting }) {
  return setting?.manner !== "block";
}

/**
 * How many of the draft's places are on the stage after so many steps of the round.
 * @param {Round} round
 * @param {number} step
 */
function placesAfter(round, step) {
  const count = round.draft.length;
  return comesAtOnce(round) && step > 0 ? count : Math.min(step, count);
}

/**
 * How many of these have their token.
 * @param {Round} round
 * @param {number} step
 */
function tokensAfter(round, step) {
  const inTurn = Math.max(0, step - Number(comesAtOnce(round)));
  return comesInTurn(round) ? Math.min(inTurn, round.draft.length) : placesAfter(round, step);
}

/** @param {Drafted[]} draft */
function judgedIn(draft) {
  return draft.filter(({ fate }) => fate !== "discarded");
}

/**
 * @param {Round[]} rounds
 * @param {Place} place
 * @param {Stride} stride
 * @returns {Place}
 */
export function after(rounds, { round, step }, stride) {
  if (round >= rounds.length) return endOf(rounds);
  const inside = stride === "token" && step + 1 < stepsIn(rounds[round]);
  return inside ? { round, step: step + 1 } : { round: round + 1, step: 0 };
}

/**
 * @param {Round[]} rounds
 * @param {Place} place
 * @param {Stride} stride
 * @returns {Place}
 */
export function before(rounds, { round, step }, stride) {
  if (step > 0) return { round, step: stride === "token" ? step - 1 : 0 };
  if (round === 0) return { round, step };
  return { round: round - 1, step: stride === "token" ? stepsIn(rounds[round - 1]) - 1 : 0 };
}

/**
 * The place after so many steps from the start.
 * @param {Round[]} rounds
 * @param {number} steps
 * @returns {Place}
 */
export function placeAfter(rounds, steps) {
  let left = steps;
  for (const round of rounds) {
    if (left < stepsIn(round)) return { round: round.index, step: left };
    left -= stepsIn(round);
  }
  return endOf(rounds);
}

/**
 * How many steps lead from the start to the place.
 * @param {Round[]} rounds
 * @param {Place} place
 */
export function stepsTo(rounds, { round, step }) {
  return stepsBefore(rounds, round) + step;
}

const stepsBefore = summed(0, (sum, round) => sum + stepsIn(round));

/**
 * A place on the way to `to` that is about `limit` tokens ahead at most. Back it goes at once.
 * @param {Round[]} rounds
 * @param {Place} from
 * @param {Place} to
 * @param {number} limit
 * @returns {Place}
 */
export function onTheWay(rounds, from, to, limit) {
  let round = from.round;
  for (let size = 0; round < to.round && size < limit; round++) size += tokensOf(rounds[round]).length + 1;
  return round < to.round ? { round, step: 0 } : to;
}

/**
 * What changes on the stage from one place to another: the tokens at its end that leave, those that come, and
 * how drafted tokens are shown now, of all rounds in which something changes.
 * @param {Round[]} rounds
 * @param {Place} from
 * @param {Place} to
 */
export function between(rounds, from, to) {
  /** @type {{ gone: (Drafted | Own)[], added: (Drafted | Own)[] }} */
  const { gone, added } = { gone: [], added: [] };
  /** @type {{ token: Drafted, shown: Shown }[]} */
  const drafted = [];
  const first = Math.min(from.round, to.round);
  for (const round of rounds.slice(first, Math.max(from.round, to.round) + 1)) {
    const [before, now] = [tokensAt(round, from), tokensAt(round, to)];
    const differs = now.findIndex((token, at) => token !== before[at]);
    const same = differs < 0 ? now.length : differs;
    for (const token of before.slice(same)) gone.push(token);
    for (const token of now.slice(same)) added.push(token);
    for (const token of now.filter(isDrafted)) drafted.push({ token, shown: shownAs(token, to) });
  }
  return { gone, added, drafted };
}

/**
 * The round's tokens that are on the stage at that place, in reading order.
 * @param {Round} round
 * @param {Place} place
 */
function tokensAt(round, place) {
  const tokens = inReadingOrder(round);
  if (round.index !== place.round) return round.index < place.round ? tokens : [];
  if (!round.isTree) return tokens.slice(0, placesAfter(round, place.step));
  const known = verdictsAt(round, place);
  if (place.step === 0) return [];
  if (known.length > 0 && known.length === judgedIn(round.draft).length) return tokens.filter(isDrafted);
  const followed = [null, ...known.filter(({ fate }) => fate === "accepted").map((token) => token.place)];
  return tokens.filter((token) => isDrafted(token) && followed.includes(token.parent));
}

/**
 * The drafts of the round whose verdicts are known at that place of it.
 * @param {Round} round
 * @param {Place} place
 */
function verdictsAt(round, { step }) {
  return judgedIn(round.draft).slice(0, Math.max(0, step - draftingSteps(round)));
}

/**
 * @param {Drafted} token one that is on the stage at that place
 * @param {Place} place
 * @returns {Shown}
 */
function shownAs(token, place) {
  const { round } = token;
  if (round.index !== place.round) return "judged";
  if (!round.isTree && token.place >= tokensAfter(round, place.step)) return "place";
  const known = verdictsAt(round, place);
  const allFallen = known.length > 0 && known.length === judgedIn(round.draft).length;
  const isFollowed = familyOf(token).some((one) => one.fate === "accepted" && known.includes(one));
  return allFallen || isFollowed || known.includes(token) ? "judged" : "waits";
}

/**
 * The step that led to the place; at the start there is none.
 * @param {Round[]} rounds
 * @param {Place} place
 * @returns {Step | null}
 */
export function stepTo(rounds, place) {
  const { round: index, step } = before(rounds, place, "token");
  if (place.round === 0 && place.step === 0) return null;
  const round = rounds[index];
  const { draft, next } = round;
  const judged = judgedIn(draft);
  const [blocks, drafting] = [Number(comesAtOnce(round)), draftingSteps(round)];
  if (round.isTree && step < drafting) return { kind: "depth", round, token: draft[0], depths: step + 1 };
  if (step < Math.min(blocks, drafting)) return { kind: "block", round, token: draft[0] };
  if (step < drafting) return { kind: "drafted", round, token: draft[step - blocks] };
  if (step < drafting + judged.length) return { kind: "judged", round, token: judged[step - drafting] };
  return { kind: "drawn", round, token: next };
}

/**
 * What has just happened, in a sentence or two: in the last step, or in the last round.
 * @param {Round[]} rounds
 * @param {Place} place
 * @param {Stride} stride
 */
export function inWords(rounds, place, stride) {
  const step = stepTo(rounds, place);
  if (!step) return say("player.start");
  if (stride === "round" && place.step === 0) return roundDone(step.round);
  if (step.kind === "drawn") return drawnInWords(step.token);
  if (step.kind === "block") return blockInWords(step.round);
  if (step.kind === "depth") return depthInWords(step.round, step.depths);
  return step.kind === "drafted" ? draftedInWords(step.token) : judgedInWords(step.token);
}

/** @param {Round} round */
function roundDone(round) {
  const { draft, next } = round;
  if (isFromServer(round)) return servedRoundInWords(round);
  const judged = judgedIn(draft).length;
  const what = round.isTree
    ? say("player.tree.drafts", { accepted: acceptedIn(round), count: judged, all: draft.length })
    : draft.length
    ? say("player.drafts", { count: draft.length, accepted: acceptedIn(round) })
    : say("player.nothingDrafted");
  const why = whyNoMore(round);
  const drafts = why ? say("player.because", { what, why }) : what;
  if (!next) return say("player.done.ends", { drafts });
  if (!uMatters(next)) return say("player.done.likeliest", { drafts, token: named(next) });
  const isFromP = next.fate === "resampled" && ruleOf(next).residual === null;
  return say(`player.done.${isFromP ? "resampledFromP" : next.fate}`, { drafts, token: named(next) });
}

/** @param {Round} round whose draft comes as a block */
function blockInWords(round) {
  const all = round.draft.length;
  if (comesInTurn(round)) return say("player.block.places", { count: all });
  const waits = all === 1
    ? say("player.block.one", { token: nameOf(round.draft[0]) })
    : say("player.block.tokens", { all });
  return sentences(waits, endOfDraft(round));
}

/**
 * @param {Round} round
 * @param {number} depths of its tree that are drafted now
 */
function depthInWords(round, depths) {
  const count = round.draft.filter((token) => token.depth === depths - 1).length;
  if (depths === 1) return say("player.tree.first", { count });
  const isLast = depths === draftingSteps(round);
  return sentences(
    say("player.tree.deeper", { count, depth: depths }),
    isLast ? say("player.tree.last", { all: round.draft.length }) : "",
  );
}

/** @param {Round} round */
function endOfDraft(round) {
  const why = whyNoMore(round);
  return why && say("player.draftEnds", { why });
}

/** @param {Drafted} token */
function draftedInWords(token) {
  const { round, place } = token;
  const all = round.draft.length;
  const which = { token: nameOf(token), place: place + 1, all };
  if (place + 1 < all) return say("player.drafted", which);
  return sentences(say(all === 1 ? "player.draftedOnly" : "player.draftedLast", which), endOfDraft(round));
}

/** @param {Drafted} token */
function judgedInWords(token) {
  const { fate, round } = token;
  const name = nameOf(token);
  const verdict = isServed(token)
    ? say(`player.judged.${fate}`, { token: name })
    : say(`player.judgedWhy.${fate}`, { token: name, why: isBlock(round) ? judgement(token) : comparison(token) });
  if (token !== judgedIn(round.draft).at(-1)) {
    return sentences(verdict, round.isTree && fate === "rejected" ? say("player.tree.left") : "");
  }
  const dropped = round.draft.length - judgedIn(round.draft).length;
  const ends = !round.next && fate === "accepted" ? say("player.textEnds") : "";
  const words = round.isTree ? "player.tree.dropped" : "player.dropped";
  return sentences(verdict, ends, dropped ? say(words, { count: dropped }) : "");
}

/** @param {Own | null} token */
function drawnInWords(token) {
  if (!token) return say("player.textEnds");
  if (isServed(token)) return servedVerdict(token);
  const { fate, round } = token;
  const [replaced, why] = [rejectedIn(round), whyNoMore(round)];
  const values = { token: named(token), number: digits(token.u), why, replaced: replaced ? named(replaced) : "" };
  const how = uMatters(token) ? "" : "Greedy";
  if (fate === "sampled") return say(`player.sampled${why && "Why"}${how}`, values);
  if (fate === "bonus") return say(round.isTree ? `player.tree.bonus${how}` : `player.bonus${how}`, values);
  const from = uMatters(token) && ruleOf(token).residual === null ? "FromP" : "";
  return say(`player.resampled${from}${replaced ? "Instead" : ""}${how}`, values);
}

/** @param {string[]} parts some of them empty */
function sentences(...parts) {
  return parts.filter(Boolean).join(" ");
}
