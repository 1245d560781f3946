// @ts-check
// What the server sends: the same types as in specdemo/ui/wire.py. tests/pure/test_wire.py compares the two.

/**
 * A likely token at a place, as in a trace file. Probabilities are rounded to six digits.
 * @typedef {[id: number, text: string, p: number, q: number | null, raw_p: number, raw_q: number | null]
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
 * A drafted token. One that was never judged has no u, no accept_prob and no alternatives.
 * @typedef {object} DraftToken
 * @property {number} id
 * @property {string} text
 * @property {"accepted" | "rejected" | "discarded"} fate
 * @property {number} p
 * @property {number} q
 * @property {number} raw_p
 * @property {number} raw_q
 * @property {number | null} u
 * @property {number | null} accept_prob
 * @property {Alternative[]} top
 */

/**
 * The target's own token of a round. It has a q only if it was resampled.
 * @typedef {object} NextToken
 * @property {number} id
 * @property {string} text
 * @property {"resampled" | "bonus" | "sampled"} fate
 * @property {number} p
 * @property {number | null} q
 * @property {number} raw_p
 * @property {number | null} raw_q
 * @property {number} u
 * @property {number | null} residual_mass
 * @property {Alternative[]} top
 */

/**
 * One draft and the target forward that judged it. Times are the engine's, in milliseconds.
 * @typedef {object} WireRound
 * @property {DraftToken[]} draft
 * @property {NextToken | null} next
 * @property {number} draft_ms
 * @property {number} verify_ms
 */

/**
 * Rounds `since` to `until` (exclusive) of a run, and its numbers as the page writes them. A snapshot has
 * since = 0 and the prompt. finish is null while the run goes on. recorded: the run is played from a file.
 * @typedef {object} Update
 * @property {number} since
 * @property {number} until
 * @property {string | null} finish
 * @property {WireRound[]} rounds
 * @property {Record<string, string>} numbers
 * @property {PromptToken[]} [prompt]
 * @property {boolean} [recorded]
 */

/**
 * Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known.
 * @typedef {object} Notice
 * @property {"wait" | "note" | "error" | "recorded"} kind
 * @property {string} text
 * @property {number | null} share
 */

/**
 * A file for the visitor to save. requested_at (ns) makes two requests two different messages.
 * @typedef {object} TraceFile
 * @property {string} name
 * @property {string} text
 * @property {number} requested_at
 */

/**
 * One message: the number of the run that it is about, which grows from run to run, and any of three parts.
 * @typedef {object} Message
 * @property {number} run
 * @property {Update} [update]
 * @property {Notice} [notice]
 * @property {TraceFile} [file]
 */

export {};
