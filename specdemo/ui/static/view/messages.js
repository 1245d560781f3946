// @ts-check
// What the server sends. "python -m tests.browser_types" writes this file from specdemo/ui/view/wire.py
// and specdemo/events/__init__.py.

/**
 * One of the likeliest tokens at a position: id, text, p, q, raw_p, raw_q. q and raw_q are null where nothing
 * was drafted, and all but text and raw_p where a server has not told them.
 * @typedef {[number | null, string, number | null, number | null, number, number | null]} Alternative
 */

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
 * @typedef {object} JudgedInTree
 * @property {number | null} id
 * @property {string} text
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} u
 * @property {number | null} accept_prob
 * @property {"accepted" | "rejected" | "discarded"} fate
 * @property {Array<Alternative>} top
 * @property {number | null} distance
 * @property {number | null} allowed
 * @property {boolean} forbidden
 * @property {number | null} parent
 * @property {number | null} residual_mass
 */

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
 * @typedef {object} Judged
 * @property {number | null} id
 * @property {string} text
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} u
 * @property {number | null} accept_prob
 * @property {"accepted" | "rejected" | "discarded"} fate
 * @property {Array<Alternative>} top
 * @property {number | null} distance
 * @property {number | null} allowed
 * @property {boolean} forbidden
 */

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
 * @typedef {object} Next
 * @property {number | null} id
 * @property {string} text
 * @property {"resampled" | "bonus" | "sampled"} source
 * @property {number | null} p
 * @property {number | null} q
 * @property {number | null} raw_p
 * @property {number | null} raw_q
 * @property {number | null} u
 * @property {number | null} residual_mass
 * @property {Array<Alternative>} top
 * @property {number | null} allowed
 */

/**
 * How many of one draft's tokens each lossless rule keeps, judged with the same uniform numbers.
 * @typedef {object} Kept
 * @property {number} speculative
 * @property {number} block
 */

/**
 * How many experts of a layer the target read in a round, each expert once: the mean over its layers that are
 * mixtures of experts. check: by all rows, those of the draft and of the token before it. row: by that token's
 * alone, as in a plain round.
 * @typedef {object} ExpertsRead
 * @property {number} check
 * @property {number} row
 */

/**
 * One target forward over the draft, its verdicts, and the target's own token.
 *
 * `next` is null only when the text ended inside the accepted drafts. draft_ms and verify_ms are the engine's
 * own time, without what a consumer does between events. `kept` is null where nothing was drafted, and with
 * `alternatives` 0 under any rule but `block`. gamma: the most tokens that this round could draft; ended_by: why
 * it drafted no more, null in plain decoding. made: how many tokens the drafter made: those of the draft and
 * those that it was not sure enough of. fed_again: how many tokens of the text the target and the drafter were
 * fed once more, because rejected drafts have changed the one state of a recurrent layer. null where neither
 * model has such layers. target_forwards: more than one where the target had to be fed again by a forward of its
 * own, or one token at a time. experts_read: without rows after a drafted eos. null of a target without experts,
 * where it is not known which are chosen, one token at a time, with a tree and on a server.
 *
 * Of a server's round the times are null, and arrival_ms is the time since what came before it: the round
 * before, or the request. drafts_told: whether it is known how many tokens were drafted; else `draft` has only
 * those that were accepted.
 * @typedef {object} Round
 * @property {number} index
 * @property {Array<JudgedInTree | Judged>} draft
 * @property {Next | null} next
 * @property {Array<number | null>} emitted
 * @property {number | null} draft_ms
 * @property {number | null} verify_ms
 * @property {Kept | null} kept
 * @property {number | null} gamma
 * @property {"gamma" | "confidence" | "eos" | "grammar" | "length" | "drafter" | "pause" | null} ended_by
 * @property {number | null} made
 * @property {number | null} arrival_ms
 * @property {boolean} drafts_told
 * @property {number | null} fed_again
 * @property {number} target_forwards
 * @property {ExpertsRead | null} experts_read
 */

/**
 * A token of the prompt. Without a tokenizer the prompt is one piece, whose id is null.
 * @typedef {object} PromptToken
 * @property {number | null} id
 * @property {string} text
 * @property {"prompt"} fate
 */

/**
 * What judged a run's drafts: its row in events/choices.py, and the row's words.
 * @typedef {object} WireRule
 * @property {string} name
 * @property {string} symbol
 * @property {string} meaning
 * @property {string | null} residual
 * @property {string} accepted
 * @property {string} recorded
 * @property {string} about
 * @property {boolean} judges_whole_draft
 * @property {string | null} threshold
 */

/**
 * A server that made a run: how it drafts, and how much at most; null where it does not tell.
 * @typedef {object} Served
 * @property {string | null} method
 * @property {number | null} gamma
 */

/**
 * How a run was made; names of Params mean what they mean there. manner, drafting: how its drafts come about, by
 * name and in a sentence; null and empty where nothing is drafted or a server does not tell. adjusted: penalties
 * and biases in words; empty where there are none, or where only a server knows. bound: whether the text has to
 * follow a grammar of any kind. of_rule: the fields of Params that the rule uses. marks: those of the chat
 * template, by their ids, which have no text in the run. machine: the device, as the pair named it. conditions:
 * what a measurement must share to be drawn with this run. served: null for a run of the engine here.
 * @typedef {object} RunSetting
 * @property {string} draft_with
 * @property {"chain" | "block" | "block and chain" | "copy" | null} manner
 * @property {string} drafting
 * @property {number} ngram
 * @property {number | string} gamma
 * @property {WireRule} rule
 * @property {Record<string, number>} of_rule
 * @property {boolean} lossy
 * @property {boolean} greedy
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {string} adjusted
 * @property {boolean} bound
 * @property {boolean} chat
 * @property {Record<string, string>} marks
 * @property {string} machine
 * @property {string} conditions
 * @property {Served | null} served
 */

/**
 * What a draft length would bring. `formula`: by Leviathan et al. 2023 from the run's acceptance rate; null
 * where a server has not told p and q, and no speed-up where drafted tokens were dropped. `seen`: by the share
 * of drafts that were accepted at each place and this run's times. Speed-ups are null where the run's is.
 * @typedef {object} Estimate
 * @property {number} gamma
 * @property {number | null} formula_tokens
 * @property {number | null} formula_speedup
 * @property {number} seen_tokens
 * @property {number | null} seen_speedup
 * @property {[number, number] | null} seen_interval
 */

/**
 * What the target took to check full drafts, beside its plain rounds. rows: the tokens that a check feeds. *_ms:
 * means; *_spread: 10th and 90th percentile. ratio: how many plain rounds a check took.
 * @typedef {object} Checks
 * @property {number} rows
 * @property {number} plain_ms
 * @property {[number, number]} plain_spread
 * @property {number} draft_ms
 * @property {[number, number]} draft_spread
 * @property {number} verify_ms
 * @property {[number, number]} verify_spread
 * @property {number} ratio
 * @property {[number, number]} interval
 */

/**
 * What is known of a run when it has ended. In words, empty where there is nothing to say: no_speedup, why the
 * estimates have none, and experts, what checks read of a mixture of experts. best_gamma: of the estimates; null
 * where they have no speed-up. seconds: how long each kind of measurement would take. text: as it was recorded,
 * for the page to compare with its tokens. checks: null where they are not known.
 * @typedef {object} RunOutcome
 * @property {string} no_speedup
 * @property {string} experts
 * @property {Array<Estimate>} estimates
 * @property {Checks | null} checks
 * @property {number | null} best_gamma
 * @property {Record<string, number>} seconds
 * @property {string} text
 */

/**
 * What a server's counters added up to during a run. alone: whether that was this run's doing only. drafts: how
 * many were judged; by_place: how many were accepted up to each place.
 * @typedef {object} Counted
 * @property {boolean} alone
 * @property {number} drafts
 * @property {Array<number>} by_place
 */

/**
 * A turn of a conversation before the run's own: what was asked and what was answered. run: the name of the run
 * that answered, where the server keeps it; else null.
 * @typedef {object} Turn
 * @property {string} asked
 * @property {string} answered
 * @property {string | null} run
 */

/**
 * Rounds `since` to `until` (exclusive) of a run, its numbers as the page writes them, and whether speculation
 * pays. A snapshot has since = 0, the prompt, the setting, whose run it is in words, and the query of the
 * address that asks for the run. finish is null while the run goes on; with it comes the outcome. recorded: the
 * run is played from a file. counted: by the server that made it, so far. turns: those before it in its
 * conversation.
 * @typedef {object} Update
 * @property {number} since
 * @property {number} until
 * @property {string | null} finish
 * @property {Array<Round>} rounds
 * @property {Record<string, string>} numbers
 * @property {string} verdict
 * @property {"neutral" | "faster" | "slower" | "lossy"} tone
 * @property {Array<PromptToken>} [prompt]
 * @property {string} [whose]
 * @property {RunSetting} [setting]
 * @property {string} [link]
 * @property {RunOutcome} [outcome]
 * @property {boolean} [recorded]
 * @property {Counted} [counted]
 * @property {Array<Turn>} [turns]
 */

/**
 * Text next to the stage. share: the part of the loading that is done, from 0 to 1, if known.
 * @typedef {object} Notice
 * @property {"wait" | "note" | "error" | "recorded"} kind
 * @property {string} text
 * @property {number | null} share
 */

/**
 * One run of a race. ms: drafting and verifying of all rounds. Its tokens come without alternatives; one without
 * a text has its own row.
 * @typedef {object} Lane
 * @property {string} title
 * @property {number} tokens
 * @property {number} ms
 * @property {number} prefill_ms
 * @property {Array<Round>} rounds
 */

/**
 * What stands over a panel about one run: as in Update.
 * @typedef {object} Head
 * @property {string} whose
 * @property {Record<string, string>} numbers
 * @property {string} verdict
 * @property {"neutral" | "faster" | "slower" | "lossy"} tone
 */

/**
 * Two runs of the same prompt and seed, the target alone and one with drafts, and what came out, in words.
 * speedup: of the second over the first, with its interval; empty where it is not known. head: of the second
 * run, measured against the first.
 * @typedef {object} Race
 * @property {Array<Lane>} lanes
 * @property {string} verdict
 * @property {string} speedup
 * @property {Head} head
 */

/**
 * A measured draft length; gamma 0 is plain decoding. low, high: the speed-up's interval. speedup: null where
 * the interval is wide, and says it alone.
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
 * abouts: what each row's drafter does; empty where that is not known. firsts: which rows are shown at first.
 * @typedef {object} ComparisonTable
 * @property {Array<string>} columns
 * @property {Array<Array<string>>} rows
 * @property {Array<string>} abouts
 * @property {Array<boolean>} firsts
 * @property {string} winner
 * @property {string} csv
 * @property {string} json
 */

/**
 * What to set for a kind of work, in words. pays: whether it is to speculate.
 * @typedef {object} Advised
 * @property {string} work
 * @property {string} setting
 * @property {string} reason
 * @property {boolean} pays
 */

/**
 * A setting as it is typed into a server. command: null where the server has no such method. notes: what it
 * means otherwise, or lacks.
 * @typedef {object} Typed
 * @property {string} server
 * @property {string | null} command
 * @property {Array<string>} notes
 */

/**
 * What the adviser has found so far, in words. ended: why, and after how long. checks: what forwards over more
 * rows take. typed: the setting for all of the work. columns, rows: all that was measured.
 * @typedef {object} Advice
 * @property {Array<Advised>} advised
 * @property {string} ended
 * @property {Array<string>} checks
 * @property {Array<Typed>} typed
 * @property {Array<string>} columns
 * @property {Array<Array<string>>} rows
 */

/**
 * A game in which the visitor drafts, after a round. name: to be repeated with each guess. most: tokens that a
 * guess can have. link: the query of the address that begins the same game. prompt, setting: at its opening.
 * guessed, drafted: the round with the visitor's draft, and what would have come of the drafter's own one.
 * suggestions: words for the next round. finish: why the text has ended, if it has.
 * @typedef {object} Game
 * @property {string} name
 * @property {number} seed
 * @property {number} most
 * @property {string} link
 * @property {Array<string>} suggestions
 * @property {string | null} finish
 * @property {Array<PromptToken>} [prompt]
 * @property {RunSetting} [setting]
 * @property {Round} [guessed]
 * @property {Round} [drafted]
 */

/**
 * The first tokens of a run: in which share of the runs they came out, and in which they are due: p of the tiny
 * pair's target, or the share of runs without drafts. others: how many rarer ones this stands for; 0 if it is
 * one.
 * @typedef {object} TrialsCell
 * @property {string} text
 * @property {number} came
 * @property {number} due
 * @property {number} others
 */

/**
 * The trials so far, of `most` runs at the most. trial: "none", a mistake, or "pair". guesses: of the tiny pair,
 * how many at each place. lossy: the rule, if it is one.
 * @typedef {object} Trials
 * @property {number} runs
 * @property {number} judged
 * @property {number} accepted
 * @property {Array<TrialsCell>} cells
 * @property {number} distance
 * @property {number} by_chance
 * @property {number | null} statistic
 * @property {number} freedom
 * @property {number} p_value
 * @property {"few" | "alike" | "fits" | "unclear" | "differs"} found
 * @property {string} trial
 * @property {number} guesses
 * @property {number} most
 * @property {boolean} greedy
 * @property {string} lossy
 */

/**
 * A drafted token, as it is drawn.
 * @typedef {object} WorldsDraft
 * @property {number} id
 * @property {string} text
 * @property {string} fate
 */

/**
 * The token that a round adds itself, as it is drawn.
 * @typedef {object} WorldsNext
 * @property {number} id
 * @property {string} text
 * @property {string} source
 */

/**
 * dict() -> new empty dictionary dict(mapping) -> new dictionary initialized from a mapping object's     (key,
 * value) pairs dict(iterable) -> new dictionary initialized as if via:     d = {}     for k, v in iterable:
 * d[k] = v dict(**kwargs) -> new dictionary initialized with the name=value pairs     in the keyword argument
 * list.  For example:  dict(one=1, two=2)
 * @typedef {object} WorldsRound
 * @property {Array<WorldsDraft>} draft
 * @property {WorldsNext | null} next
 */

/**
 * Short runs so far, counted by their first two tokens. judged, accepted: drafted tokens. distance: total
 * variation; by_chance: its mean where there is no difference. statistic: of the chi-square test, null where it
 * is infinite. found: "alike" where only one text came or can come, so that the test finds nothing.
 * @typedef {object} Counts
 * @property {number} runs
 * @property {number} judged
 * @property {number} accepted
 * @property {Array<TrialsCell>} cells
 * @property {number} distance
 * @property {number} by_chance
 * @property {number | null} statistic
 * @property {number} freedom
 * @property {number} p_value
 * @property {"few" | "alike" | "fits" | "unclear" | "differs"} found
 */

/**
 * What is known of a stop so far. texts: the rounds of the two runs of a prompt. counts: of the tiny pair's runs
 * with its drafter.
 * @typedef {object} WorldsStop
 * @property {Record<"sampled" | "greedy", Array<WorldsRound>> | null} texts
 * @property {Counts | null} counts
 */

/**
 * All stops, from noise to the target itself. most: runs of the tiny pair at each.
 * @typedef {object} Worlds
 * @property {number} most
 * @property {Array<WorldsStop>} stops
 */

/**
 * What an instrument measures: all of it so far. id: another one for each measurement. whose: what is measured,
 * in words. text: what goes on or what went wrong. share: of its time, from 0 to 1. left: seconds until its end.
 * conditions: of gammas, as in RunSetting.
 * @typedef {object} Measurement
 * @property {string} id
 * @property {"race" | "gamma" | "compare" | "advise" | "guess" | "trials" | "worlds"} kind
 * @property {"waiting" | "running" | "ended" | "stopped" | "failed"} state
 * @property {string} whose
 * @property {string} text
 * @property {number | null} share
 * @property {number | null} left
 * @property {Race} [race]
 * @property {Array<GammaPoint>} [gammas]
 * @property {string} [conditions]
 * @property {ComparisonTable} [comparison]
 * @property {Advice} [advice]
 * @property {Game} [guess]
 * @property {Trials} [trials]
 * @property {Worlds} [worlds]
 */

/**
 * One message, with any of these parts. name: of what has been opened. controls: what is put into them, by name.
 * follow, measure: the name of a run or a measurement that has begun; at (ns) orders such answers. stored: the
 * whole run is to be fetched. ended: nothing more will come.
 * @typedef {object} Message
 * @property {Update} [update]
 * @property {Notice} [notice]
 * @property {Measurement} [measurement]
 * @property {string} [name]
 * @property {Record<string, string | number | boolean | null>} [controls]
 * @property {string} [follow]
 * @property {string} [measure]
 * @property {number} [at]
 * @property {boolean} [stored]
 * @property {boolean} [ended]
 */

export {};
