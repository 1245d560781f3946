// @ts-check
// The run that the page knows, put together from the server's updates. Its rounds are those of the trace's JSON,
// with what `linked` adds.

/** @import { Judged, JudgedInTree, Next, RunOutcome, PromptToken, RunSetting, Update, Round as RoundOfTrace } from "./messages.d.ts" */
/** @typedef {{ setting: RunSetting | null, isTree: boolean, draft: Drafted[], next: Own | null }} Linked */
/** @typedef {Omit<RoundOfTrace, "draft" | "next"> & Linked} Round */
/**
 * parent: the place of the drafted token that it follows, null where it follows the text. depth: how many drafted tokens
 * stand before it on its path.
 * @typedef {(Judged | JudgedInTree) & { round: Round, place: number, parent: number | null, depth: number }} Drafted
 */
/** @typedef {Next & { round: Round, fate: Next["source"] }} Own */
/** @typedef {PromptToken | Drafted | Own} Token */

export class Run {
  number = 0;
  /** @type {PromptToken[]} */
  prompt = [];
  /** @type {Round[]} */
  rounds = [];
  /** @type {Record<string, string>} */
  numbers = {};
  whose = "";
  verdict = "";
  /** @type {"neutral" | "faster" | "slower" | "lossy"} */
  tone = "neutral";
  /** @type {RunSetting | null} */
  setting = null;
  /** What is known when the run has ended. @type {RunOutcome | null} */
  outcome = null;
  /** @type {string | null} */
  finish = null;
  recorded = false;

  /** True when no further rounds will come. A trace may have been saved before its run had ended. */
  get complete() {
    return this.recorded || this.finish !== null;
  }

  // No more will come, even if it has not been told how the run ended.
  end() {
    this.finish ??= "error";
  }

  /**
   * Begins another run.
   * @param {number} number
   * @param {Pick<Update, "prompt" | "recorded" | "whose" | "setting">} update
   */
  begin(number, { prompt = [], recorded = false, whose = "", setting }) {
    const fresh = { rounds: [], numbers: {}, verdict: "", tone: "neutral", outcome: null, finish: null };
    Object.assign(this, { number, prompt, recorded, whose, setting: setting ?? null, ...fresh });
  }

  /**
   * Takes an update.
   * "known": nothing in it is new. "missed": rounds before it are missing, so it was not taken. "begun": it
   * is another run, or this one told anew. "continued": it has more of the same run; `corrected` are tokens whose text has changed.
   * @param {number} number
   * @param {Update} update
   * @returns {{ result: "known" | "missed" | "begun" | "continued", corrected: Token[] }}
   */
  take(number, update) {
    const { since, until, finish, rounds, numbers } = update;
    const revised = since === 0 && !this.#hasFatesOf(rounds);
    const same = number === this.number && this.rounds.length > 0 && !revised;
    if (same && until < this.rounds.length && finish === null) return { result: "known", corrected: [] };
    if (since > 0 && !(same && since <= this.rounds.length)) return { result: "missed", corrected: [] };
    if (!same) this.begin(number, update);
    const corrected = same && since === 0 ? this.#correct(rounds) : [];
    for (let at = this.rounds.length - since; at < rounds.length; at++) {
      this.rounds.push(linked(rounds[at], this.setting));
    }
    this.finish = finish;
    this.numbers = numbers;
    this.verdict = update.verdict;
    this.tone = update.tone;
    this.outcome = update.outcome ?? null;
    return { result: same ? "continued" : "begun", corrected };
  }

  /**
   * Whether the rounds that are known have the same tokens as the first of these. At its end a server can tell
   * more of them, and then they begin anew.
   * @param {RoundOfTrace[]} rounds
   */
  #hasFatesOf(rounds) {
    return this.rounds.slice(0, rounds.length).every((round, index) => {
      const [known, told] = [tokensOf(round), tokensOf(rounds[index])];
      return known.length === told.length && known.every((token, at) => fateOf(token) === fateOf(told[at]));
    });
  }

  /**
   * The end of a run can change the text of tokens that were sent before: it is cut or completed there.
   * @param {RoundOfTrace[]} rounds
   */
  #correct(rounds) {
    const known = this.rounds.slice(0, rounds.length).flatMap((round) => tokensOf(round));
    const texts = rounds.slice(0, this.rounds.length).flatMap(tokensOf).map(({ text }) => text);
    const corrected = known.filter(({ text }, at) => text !== texts[at]);
    known.forEach((token, at) => { token.text = texts[at]; });
    return corrected;
  }
}

/**
 * The trace's round as a round of the page: it gets its run's setting, its drafts get their round and place, and
 * the target's own token its round and, as its fate, its source. A chain is a tree whose tokens follow each other.
 * @param {RoundOfTrace} told
 * @param {RunSetting | null} setting
 * @returns {Round}
 */
export function linked(told, setting = null) {
  const isTree = told.draft.some((token) => "parent" in token);
  const round = /** @type {Round} */ (/** @type {unknown} */ (Object.assign(told, { setting, isTree })));
  round.draft.forEach((token, place) => {
    const parent = isTree ? token.parent : place ? place - 1 : null;
    const depth = parent === null ? 0 : round.draft[parent].depth + 1;
    Object.assign(token, { round, place, parent, depth });
  });
  if (round.next) Object.assign(round.next, { round, fate: fateOf(round.next) });
  return round;
}

/** @param {Judged | Next} token */
function fateOf(token) {
  return "source" in token ? token.source : token.fate;
}

/**
 * A round's tokens in reading order.
 * @template {RoundOfTrace | Round} R
 * @param {R} round
 * @returns {(R["draft"][number] | NonNullable<R["next"]>)[]}
 */
export function tokensOf({ draft, next }) {
  return next ? [...draft, next] : draft;
}

/**
 * Sums over the first so many rounds of a run. Earlier ones are kept, since a run that goes on only grows.
 * @template S
 * @param {S} nothing
 * @param {(sum: S, round: Round) => S} add
 * @returns {(rounds: Round[], count: number) => S}
 */
export function summed(nothing, add) {
  /** @type {WeakMap<Round[], S[]>} */
  const known = new WeakMap();
  return (rounds, count) => {
    const sums = known.get(rounds) ?? [nothing];
    known.set(rounds, sums);
    for (let at = sums.length - 1; at < count; at++) sums.push(add(sums[at], rounds[at]));
    return sums[count];
  };
}

/**
 * Whether the places of a draft come at once, as a block.
 * @param {Pick<Round, "setting">} round
 */
export function comesAtOnce({ setting }) {
  return setting?.manner === "block" || setting?.manner === "block and chain";
}

/**
 * @param {Token} token
 * @returns {token is Drafted}
 */
export function isDrafted(token) {
  return token.fate === "accepted" || token.fate === "rejected" || token.fate === "discarded";
}

/** @param {Round} round */
function acceptedOf({ draft }) {
  return draft.filter(({ fate }) => fate === "accepted");
}

/** Those that were judged and refused: one of a chain at most. @param {Round} round */
export function rejectedOf({ draft }) {
  return draft.filter(({ fate }) => fate === "rejected");
}

/** @param {Round} round */
export function acceptedIn(round) {
  return acceptedOf(round).length;
}

/**
 * What a round took: the engine's time, or how long a server's round was awaited.
 * @param {Pick<Round, "draft_ms" | "verify_ms" | "arrival_ms">} round
 */
export function msOf({ draft_ms, verify_ms, arrival_ms }) {
  return arrival_ms ?? (draft_ms ?? 0) + (verify_ms ?? 0);
}

/** How many drafted tokens can follow each other. @param {Round} round */
export function depthsOf({ draft }) {
  return draft.reduce((most, { depth }) => Math.max(most, depth + 1), 0);
}

/** The place of the last token on the path, null where none was accepted. @param {Round} round */
export function endOfPath(round) {
  return acceptedOf(round).at(-1)?.place ?? null;
}

/**
 * The guesses at one place, in the order in which they are judged: the token's siblings with itself; of the target's own
 * token, those that follow the last accepted one.
 * @param {Drafted | Own} token
 */
export function familyOf(token) {
  const parent = isDrafted(token) ? token.parent : endOfPath(token.round);
  return token.round.draft.filter((other) => other.parent === parent);
}

/** The guess that is judged next at its place. @param {Drafted} token @returns {Drafted | undefined} */
export function siblingAfter(token) {
  const family = familyOf(token);
  return family[family.indexOf(token) + 1];
}

/**
 * Whether p and q at the token's place are what refused guesses before it have left.
 * @param {Token} token
 */
export function isAfterRefused(token) {
  if (token.fate === "prompt") return false;
  const judged = isDrafted(token) ? token : token.fate === "resampled" ? rejectedIn(token.round) : undefined;
  return judged !== undefined && judged.u !== null && familyOf(judged).indexOf(judged) > 0;
}

/**
 * Whether a tree's guesses were chosen, by the drafter's probabilities or from a text, and not drawn from q: also
 * those of a greedy run, which are the drafter's likeliest ones.
 * @param {Round} round
 */
export function isChosen(round) {
  return round.isTree && round.draft.every(({ q }) => q === 1);
}

/**
 * The round's tokens in reading order: each is followed by its own children, and what was kept stands in the order of
 * the text.
 * @param {Round} round
 * @returns {(Drafted | Own)[]}
 */
export function inReadingOrder(round) {
  /** @param {number | null} parent @returns {Drafted[]} */
  const below = (parent) => round.draft.filter((token) => token.parent === parent)
    .flatMap((token) => [token, ...below(token.place)]);
  return round.next ? [...below(null), round.next] : below(null);
}

/**
 * The draft that the target's own token replaces: the last that was judged, if it was rejected.
 * @param {Round} round
 */
export function rejectedIn(round) {
  const last = round.draft.filter(({ fate }) => fate !== "discarded").at(-1);
  return last?.fate === "rejected" ? last : undefined;
}

/**
 * The target's own token, if it replaces this one.
 * @param {Token | undefined} token
 */
export function replacementOf(token) {
  return token?.fate === "rejected" && rejectedIn(token.round) === token ? token.round.next : null;
}

/**
 * The round's tokens that are in the text.
 * @param {Round} round
 * @returns {(Drafted | Own)[]}
 */
export function inText(round) {
  return inReadingOrder(round).filter(({ fate }) => fate !== "rejected" && fate !== "discarded");
}
