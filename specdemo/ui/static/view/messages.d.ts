// What the server sends: the only description of its messages. specdemo/ui/view/feed.py fills in a run's, and
// tests/pure/test_browser_types.py compares them.

/**
 * One of the likeliest tokens at a position: id, text, p, q, raw_p, raw_q. q and raw_q are null where nothing
 * was drafted, and all but text and raw_p where a server has not told them.
 */
export type Alternative = [number | null, string, number | null, number | null, number, number | null];

/**
 * A drafted token of a tree. parent: the index in the draft of the token that it follows; null where it follows
 * the text.
 *
 * The children of a token are judged one after another, until one is accepted: p is what the refused ones before
 * have left of the target's distribution, and q what this one was drawn from without them. So several tokens of
 * a draft can be rejected. One that the path did not come to is discarded; its p is the target's at its place.
 * One that was refused after the end of the text is discarded, too, and keeps its u and accept_prob. top: the
 * likeliest tokens of the same two distributions. residual_mass: of a refused one, what it leaves of p, max(p -
 * q, 0).
 */
export interface JudgedInTree {
  id: number | null;
  text: string;
  p: number | null;
  q: number | null;
  raw_p: number | null;
  raw_q: number | null;
  u: number | null;
  accept_prob: number | null;
  fate: "accepted" | "rejected" | "discarded";
  top: Array<Alternative>;
  distance: number | null;
  allowed: number | null;
  forbidden: boolean;
  parent: number | null;
  residual_mass: number | null;
}

/**
 * A drafted token and its fate: "accepted", "rejected" or "discarded".
 *
 * Rule `speculative`: accept_prob = min(1, p/q); accepted exactly when u < accept_prob. A token after the
 * rejection was never judged: it is discarded, and its u and accept_prob are null. A token that was accepted
 * after the end of the text is discarded, too, and keeps both.
 *
 * Rule `block`: accept_prob is h of Sun et al. 2024, and all up to the last with u < accept_prob are accepted.
 * So all are judged, and all keep both.
 *
 * The lossy rules: as `speculative`, but with another accept_prob. distance: the total variation distance
 * between p and the distribution of the token that the rule emits here; null of one that was never judged.
 *
 * allowed: how many tokens the run's grammar allowed at this place; null without a grammar, and before it
 * begins. forbidden: whether it forbade this one, so that p is 0.
 *
 * A server tells raw_p of what it accepted, and nothing of what it refused, whose id is null, too.
 */
export interface Judged {
  id: number | null;
  text: string;
  p: number | null;
  q: number | null;
  raw_p: number | null;
  raw_q: number | null;
  u: number | null;
  accept_prob: number | null;
  fate: "accepted" | "rejected" | "discarded";
  top: Array<Alternative>;
  distance: number | null;
  allowed: number | null;
  forbidden: boolean;
}

/**
 * The token that the target itself adds at the end of a round.
 *
 * source: "resampled" after a rejection, from norm(max(p - q, 0)), whose mass before normalising is
 * `residual_mass`; "bonus" when all drafts were accepted and "sampled" when nothing was drafted, both from p. u
 * is the uniform number it was drawn with. q and raw_q are null unless it was resampled. allowed: as of Judged.
 *
 * A server tells raw_p only, or not even that; llama.cpp tells no id of a token that ends inside a character.
 * Where it does not tell how much was drafted, either, the source is "sampled", whatever it was, and the round's
 * `drafts_told` is false.
 */
export interface Next {
  id: number | null;
  text: string;
  source: "resampled" | "bonus" | "sampled";
  p: number | null;
  q: number | null;
  raw_p: number | null;
  raw_q: number | null;
  u: number | null;
  residual_mass: number | null;
  top: Array<Alternative>;
  allowed: number | null;
}

/**
 * One target forward over the draft, its verdicts, and the target's own token.
 *
 * `next` is null only when the text ended inside the accepted drafts. draft_ms and verify_ms are the engine's
 * own time, without what a consumer does between events. gamma: the most tokens that this round could draft;
 * ended_by: why it drafted no more, null in plain decoding. fed_again: how many tokens of the text the target and
 * the drafter were fed once more, because rejected drafts have changed the one state of a recurrent layer. null
 * where neither model has such layers. target_forwards: more than one where the target had to be fed again by a
 * forward of its own, or one token at a time.
 *
 * Of a server's round the times are null, and arrival_ms is the time since what came before it: the round
 * before, or the request. drafts_told: whether it is known how many tokens were drafted; else `draft` has only
 * those that were accepted.
 */
export interface Round {
  index: number;
  draft: Array<JudgedInTree | Judged>;
  next: Next | null;
  emitted: Array<number | null>;
  draft_ms: number | null;
  verify_ms: number | null;
  gamma: number | null;
  ended_by: "gamma" | "confidence" | "eos" | "grammar" | "length" | "drafter" | "pause" | null;
  arrival_ms: number | null;
  drafts_told: boolean;
  fed_again: number | null;
  target_forwards: number;
}

/**
 * A token of the prompt. Without a tokenizer the prompt is one piece, whose id is null.
 */
export interface PromptToken {
  id: number | null;
  text: string;
  fate: "prompt";
}

/**
 * What judged a run's drafts: its row in events/choices.py, and the row's words.
 */
export interface WireRule {
  name: string;
  symbol: string;
  meaning: string;
  residual: string | null;
  accepted: string;
  recorded: string;
  about: string;
  judges_whole_draft: boolean;
  threshold: string | null;
}

/**
 * A server that made a run: how it drafts, and how much at most; null where it does not tell.
 */
export interface Served {
  method: string | null;
  gamma: number | null;
}

/**
 * How a run was made; names of Params mean what they mean there. manner, drafting: how its drafts come about, by
 * name and in a sentence; null and empty where nothing is drafted or a server does not tell. bound: whether the
 * text has to follow a grammar of any kind. of_rule: the fields of Params that the rule uses. marks: those of
 * the chat template, by their ids, which have no text in the run. machine: the device, as the pair named it.
 * conditions: what a measurement must share to be drawn with this run. served: null for a run of the engine
 * here.
 */
export interface RunSetting {
  draft_with: string;
  manner: "chain" | "block" | "block and chain" | "copy" | null;
  drafting: string;
  gamma: number | string;
  rule: WireRule;
  of_rule: Record<string, number>;
  lossy: boolean;
  greedy: boolean;
  temperature: number;
  bound: boolean;
  chat: boolean;
  marks: Record<string, string>;
  machine: string;
  conditions: string;
  served: Served | null;
}

/**
 * What a draft length would bring. tokens: a round. speedup, interval: null where the run's own are; interval:
 * as much about the speed-up as the run's own is.
 */
export interface Estimate {
  gamma: number;
  tokens: number;
  speedup: number | null;
  interval: [number, number] | null;
}

/**
 * What the target took to check drafts, beside its plain rounds. rows: the tokens that the check of a full draft
 * feeds. *_ms: means. ratio: how many plain rounds a check took; interval: of that.
 */
export interface Checks {
  rows: number;
  plain_ms: number;
  draft_ms: number;
  verify_ms: number;
  ratio: number;
  interval: [number, number];
}

/**
 * What is known of a run when it has ended. no_speedup: why the estimates have none, in words; else empty.
 * best_gamma: of the estimates; null where they have no speed-up. text: as it was recorded, for the page to
 * compare with its tokens. checks: null where they are not known.
 */
export interface RunOutcome {
  no_speedup: string;
  estimates: Array<Estimate>;
  checks: Checks | null;
  best_gamma: number | null;
  text: string;
}

/**
 * Rounds `since` to `until` (exclusive) of a run, its numbers as the page writes them, and whether speculation
 * pays. A snapshot has since = 0, the prompt, the setting, whose run it is in words, and the query of the
 * address that asks for the run. finish is null while the run goes on; with it comes the outcome. recorded: the
 * run is played from a file.
 */
export interface Update {
  since: number;
  until: number;
  finish: string | null;
  rounds: Array<Round>;
  numbers: Record<string, string>;
  verdict: string;
  tone: "neutral" | "faster" | "slower" | "lossy";
  prompt?: Array<PromptToken>;
  whose?: string;
  setting?: RunSetting;
  link?: string;
  outcome?: RunOutcome;
  recorded?: boolean;
}

/**
 * Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known.
 */
export interface Notice {
  kind: "wait" | "note" | "error" | "recorded";
  text: string;
  share: number | null;
}

/**
 * One run of a race. ms: drafting and verifying of all rounds. Its tokens come without alternatives; one without
 * a text has its own row.
 */
export interface Lane {
  title: string;
  tokens: number;
  ms: number;
  prefill_ms: number;
  rounds: Array<Round>;
}

/**
 * Two runs of the same prompt and seed, the target alone and one with drafts, and what came out, in words.
 * speedup: of the second over the first, with its interval; empty where it is not known. tone: of the verdict,
 * as in Update.
 */
export interface Race {
  lanes: Array<Lane>;
  verdict: string;
  speedup: string;
  tone: "neutral" | "faster" | "slower" | "lossy";
}

/**
 * A measured draft length; gamma 0 is plain decoding. low, high: the speed-up's interval. speedup: null where
 * the interval is wide, and says it alone.
 */
export interface GammaPoint {
  gamma: number;
  speedup: number | null;
  low: number | null;
  high: number | null;
  tokens_per_round: number;
  runs: number;
}

/**
 * The table so far, as text, the fastest drafter first; who wins, in words; and the same as files to save.
 */
export interface ComparisonTable {
  columns: Array<string>;
  rows: Array<Array<string>>;
  winner: string;
  csv: string;
  json: string;
}

/**
 * What to set for a kind of work, in words. pays: whether it is to speculate.
 */
export interface Advised {
  work: string;
  setting: string;
  reason: string;
  pays: boolean;
}

/**
 * A setting as it is typed into a server. command: null where the server has no such method. notes: what it
 * means otherwise, or lacks.
 */
export interface Typed {
  server: string;
  command: string | null;
  notes: Array<string>;
}

/**
 * What the adviser has found so far, in words. ended: why, and after how long. requests: what several at once
 * bring. typed: the setting for all of the work. columns, rows: all that was measured.
 */
export interface Advice {
  advised: Array<Advised>;
  ended: string;
  requests: Array<string>;
  typed: Array<Typed>;
  columns: Array<string>;
  rows: Array<Array<string>>;
}

/**
 * A game in which the visitor drafts, after a round. name: to be repeated with each guess. most: tokens that a
 * guess can have. link: the query of the address that begins the same game. prompt, setting: at its opening.
 * guessed, drafted: the round with the visitor's draft, and what would have come of the drafter's own one.
 * suggestions: words for the next round. finish: why the text has ended, if it has.
 */
export interface Game {
  name: string;
  seed: number;
  most: number;
  link: string;
  suggestions: Array<string>;
  finish: string | null;
  prompt?: Array<PromptToken>;
  setting?: RunSetting;
  guessed?: Round;
  drafted?: Round;
}

/**
 * The first tokens of a run: in which share of the runs they came out, and in which they are due: p of the tiny
 * pair's target, or the share of runs without drafts. others: how many rarer ones this stands for; 0 if it is
 * one.
 */
export interface TrialsCell {
  text: string;
  came: number;
  due: number;
  others: number;
}

/**
 * The trials so far, of `most` runs at the most. trial: "none", a mistake, or "pair". guesses: of the tiny pair,
 * how many at each place. lossy: the rule, if it is one.
 */
export interface Trials {
  runs: number;
  judged: number;
  accepted: number;
  cells: Array<TrialsCell>;
  distance: number;
  by_chance: number;
  statistic: number | null;
  freedom: number;
  p_value: number;
  found: "few" | "alike" | "fits" | "unclear" | "differs";
  trial: string;
  guesses: number;
  most: number;
  greedy: boolean;
  lossy: string;
}

/**
 * A drafted token, as it is drawn.
 */
export interface WorldsDraft {
  id: number;
  text: string;
  fate: string;
}

/**
 * The token that a round adds itself, as it is drawn.
 */
export interface WorldsNext {
  id: number;
  text: string;
  source: string;
}

/**
 * A round, as it is drawn.
 */
export interface WorldsRound {
  draft: Array<WorldsDraft>;
  next: WorldsNext | null;
}

/**
 * Short runs so far, counted by their first two tokens. judged, accepted: drafted tokens. distance: total
 * variation; by_chance: its mean where there is no difference. statistic: of the chi-square test, null where it
 * is infinite. found: "alike" where only one text came or can come, so that the test finds nothing.
 */
export interface Counts {
  runs: number;
  judged: number;
  accepted: number;
  cells: Array<TrialsCell>;
  distance: number;
  by_chance: number;
  statistic: number | null;
  freedom: number;
  p_value: number;
  found: "few" | "alike" | "fits" | "unclear" | "differs";
}

/**
 * What is known of a stop so far. texts: the rounds of the two runs of a prompt. counts: of the tiny pair's runs
 * with its drafter.
 */
export interface WorldsStop {
  texts: Record<"sampled" | "greedy", Array<WorldsRound>> | null;
  counts: Counts | null;
}

/**
 * All stops, from noise to the target itself. most: runs of the tiny pair at each.
 */
export interface Worlds {
  most: number;
  stops: Array<WorldsStop>;
}

/**
 * What an instrument measures: all of it so far. id: another one for each measurement. whose: what is measured,
 * in words. text: what goes on or what went wrong. share: of its time, from 0 to 1. left: seconds until its end.
 * conditions: of gammas, as in RunSetting.
 */
export interface Measurement {
  id: string;
  kind: "race" | "gamma" | "compare" | "advise" | "guess" | "trials" | "worlds";
  state: "waiting" | "running" | "ended" | "stopped" | "failed";
  whose: string;
  text: string;
  share: number | null;
  left: number | null;
  race?: Race;
  gammas?: Array<GammaPoint>;
  conditions?: string;
  comparison?: ComparisonTable;
  advice?: Advice;
  guess?: Game;
  trials?: Trials;
  worlds?: Worlds;
}

/**
 * One message, with any of these parts. name: of what has been opened. controls, hints: what is put into and
 * beside them, by name. follow, measure: the name of a run or a measurement that has begun; at (ns) orders such
 * answers. stored: the whole run is to be fetched. ended: nothing more will come.
 */
export interface PageMessage {
  update?: Update;
  notice?: Notice;
  measurement?: Measurement;
  name?: string;
  controls?: Record<string, string | number | boolean | null>;
  hints?: Record<string, Record<string, string | boolean | null>>;
  follow?: string;
  measure?: string;
  at?: number;
  stored?: boolean;
  ended?: boolean;
}
