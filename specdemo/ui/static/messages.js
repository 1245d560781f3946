// @ts-check
// What the server sends: the same types as in specdemo/ui/wire.py. tests/pure/test_wire.py compares the two.

/**
 * A likely token at a place, as in a trace file. Probabilities are rounded to six digits.
 * @typedef {[id: number | null, text: string, p: number | null, q: number | null, raw_p: number, raw_q: number | null]
 * } Alternative
 */

/**
 * A token of the prompt. Without a tokenizer the prompt is one piece, whose id is null.
 * @typedef {object} PromptToken
 * @property {number | null} id
 * @property {string} text
 * @property {"prompt"} fate
 */

/**
 * A drafted token. One that was never judged has no u, no accept_prob and no alternatives. A server tells no p
 * and q, and nothing of what it refused: that has no id and no text.
 * @typedef {object} DraftToken
 * @property {number | null} id
 * @property {string} text
 * @property {"accepted" | "rejected" | "discarded"} fate
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} u
 * @property {number | null} accept_prob
 * @property {number | null} distance
 * @property {Alternative[]} top
 */

/**
 * The target's own token of a round. It has a q only if it was resampled. A server tells raw_p
 * only.
 * @typedef {object} NextToken
 * @property {number} id
 * @property {string} text
 * @property {"resampled" | "bonus" | "sampled"} fate
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} u
 * @property {number | null} residual_mass
 * @property {Alternative[]} top
 */

/**
 * How many of one draft's tokens each lossless rule keeps.
 * @typedef {object} Kept
 * @property {number} speculative
 * @property {number} block
 */

/**
 * One draft and the target forward that judged it. Times are the engine's, in milliseconds. gamma and ended_by:
 * as in a trace file; null in older ones. Of a server's round only the time until it arrived is known, and without
 * drafts_told only the drafts that were accepted.
 * @typedef {object} WireRound
 * @property {DraftToken[]} draft
 * @property {NextToken | null} next
 * @property {number | null} draft_ms
 * @property {number | null} verify_ms
 * @property {Kept | null} kept
 * @property {number | null} gamma
 * @property {string | null} ended_by
 * @property {number | null} arrival_ms
 * @property {boolean} drafts_told
 */

/**
 * What a draft length would bring, estimated from one run; see events/estimate.py.
 * @typedef {object} Estimate
 * @property {number} gamma
 * @property {number | null} formula_tokens
 * @property {number | null} formula_speedup
 * @property {number} seen_tokens
 * @property {number | null} seen_speedup
 */

/**
 * What is known of a run when it has ended. best_gamma: of the estimates; null where they have no speed-up.
 * noisy: its times vary too much for one. text: as it was recorded, for the page to compare with its tokens.
 * @typedef {object} Outcome
 * @property {Estimate[]} estimates
 * @property {number | null} best_gamma
 * @property {boolean} noisy
 * @property {string} text
 */

/**
 * A server that made a run. method, gamma: how it drafts, and how much at most; null where it does not tell.
 * @typedef {object} Served
 * @property {string | null} method
 * @property {number | null} gamma
 */

/**
 * What a server's counters added up to during a run. alone: whether that was this run's doing only. drafts: how
 * many were judged; by_place: how many were accepted up to each place.
 * @typedef {object} Counted
 * @property {boolean} alone
 * @property {number} drafts
 * @property {number[]} by_place
 */

/**
 * How a run was made. top_k 0, top_p 1 and min_p 0 are off. gamma: "auto" where it was chosen round by round.
 * served: null for a run of the engine here.
 * @typedef {object} Setting
 * @property {string} draft_with
 * @property {number | string} gamma
 * @property {string} rule
 * @property {number} lenience
 * @property {boolean} lossy
 * @property {boolean} greedy
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {Served | null} served
 */

/**
 * Rounds `since` to `until` (exclusive) of a run, its numbers as the page writes them, and whether speculation
 * pays. A snapshot has since = 0, the prompt, the setting, whose run it is in words, and the query of the address
 * that asks for the run. finish is null while the run goes on; with it comes the outcome. recorded: the run is
 * played from a file. counted: by the server that made the run, so far.
 * @typedef {object} Update
 * @property {number} since
 * @property {number} until
 * @property {string | null} finish
 * @property {WireRound[]} rounds
 * @property {Record<string, string>} numbers
 * @property {string} verdict
 * @property {"neutral" | "faster" | "slower" | "lossy"} tone
 * @property {PromptToken[]} [prompt]
 * @property {string} [whose]
 * @property {Setting} [setting]
 * @property {string} [link]
 * @property {Outcome} [outcome]
 * @property {boolean} [recorded]
 * @property {Counted} [counted]
 */

/**
 * Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known. at (ns) makes
 * the same error twice two different messages.
 * @typedef {object} Notice
 * @property {"wait" | "note" | "error" | "recorded"} kind
 * @property {string} text
 * @property {number | null} share
 * @property {number} [at]
 */

/**
 * A file for the visitor to save, which the page fetches. stored: the name that it is kept under. requested_at
 * (ns) makes two requests two different messages.
 * @typedef {object} TraceFile
 * @property {string} name
 * @property {string} stored
 * @property {number} requested_at
 */

/**
 * One run of a race. ms: drafting and verifying of all rounds. Its tokens come without alternatives.
 * @typedef {object} Lane
 * @property {string} title
 * @property {number} tokens
 * @property {number} ms
 * @property {number} prefill_ms
 * @property {WireRound[]} rounds
 */

/**
 * Two runs of the same prompt and seed, and what came out, in words.
 * @typedef {object} Race
 * @property {Lane[]} lanes
 * @property {string} verdict
 */

/**
 * A measured draft length; gamma 0 is plain decoding. low, high: the speed-up's interval. speedup: null where
 * there is no interval yet, or a wide one.
 * @typedef {object} GammaPoint
 * @property {number} gamma
 * @property {number | null} speedup
 * @property {number | null} low
 * @property {number | null} high
 * @property {number} tokens_per_round
 * @property {number} runs
 */

/**
 * The table so far, as text, the fastest drafter first; who wins, in words; and the same as files to save.
 * @typedef {object} Comparison
 * @property {string[]} columns
 * @property {string[][]} rows
 * @property {string} winner
 * @property {string} csv
 * @property {string} json
 */

/**
 * What an instrument measures: all of it so far. id: another one for each measurement. whose: what is measured,
 * in words. text: what goes on or what went wrong. share: done, from 0 to 1.
 * @typedef {object} Measurement
 * @property {number} id
 * @property {"race" | "gamma" | "compare"} kind
 * @property {"waiting" | "running" | "ended" | "stopped" | "failed"} state
 * @property {string} whose
 * @property {string} text
 * @property {number | null} share
 * @property {Race} [race]
 * @property {GammaPoint[]} [gammas]
 * @property {Comparison} [comparison]
 */

/**
 * One message: the number of the run that it is about, which grows from run to run, and any of four parts.
 * stored: the name under which a long update is kept, for the page to fetch.
 * @typedef {object} Message
 * @property {number} run
 * @property {Update} [update]
 * @property {string} [stored]
 * @property {Notice} [notice]
 * @property {TraceFile} [file]
 * @property {Measurement} [measurement]
 */

export {};
