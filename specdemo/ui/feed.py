"""What is sent to the page: a run's rounds as wire objects, its numbers as text. No torch, no gradio."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specdemo.engine.detokenize import Pieces
from specdemo.events import Alternative, Judged, Next, Params, Round, Stats, metrics
from specdemo.events.trace import Trace
from specdemo.ui.wire import (
    DraftToken,
    Kind,
    Message,
    NextToken,
    Notice,
    PromptToken,
    TraceFile,
    Update,
    WireRound,
)

if TYPE_CHECKING:
    from specdemo.loading.pair import Pair

# Fate: (its word in the legend, its definition). The style sheet has one style for each.
FATES = {
    "prompt": ("prompt", "The text that was given."),
    "accepted": ("accepted", "Drafted, and accepted by the target: u < min(1, p/q)."),
    "rejected": ("rejected", "Drafted, and rejected by the target: u ≥ min(1, p/q). Not part of the text."),
    "resampled": (
        "resampled",
        "The target's own token in place of a rejected one, drawn from the part of p that exceeds q.",
    ),
    "bonus": ("bonus", "The target's own token after a draft that was accepted in full."),
    "sampled": ("sampled", "The target's own token in a round in which nothing was drafted."),
    "discarded": (
        "discarded",
        "Drafted after a rejection or after the end of the text, and so dropped. Not part of the text.",
    ),
}
HIDEABLE = ("rejected", "discarded")
IN_TEXT = ("accepted", "resampled", "bonus", "sampled")

# Number: (its name on the page, its definition).
NUMBERS = {
    "tokens": ("tokens", "Tokens of the text so far, without the prompt."),
    "tokens_per_second": (
        "tokens/s",
        "Tokens divided by the time spent drafting and verifying, measured by the engine's own clock.",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "Accepted drafts as a share of those that were judged: accepted / (accepted + rejected).",
    ),
    "mean_tokens_per_round": ("tokens/round", "Tokens divided by rounds. It is 1 when nothing is drafted."),
    "rounds": ("rounds", "A round is one draft and the target forward that judges it."),
    "target_forwards": ("target forwards", "Forwards of the target: the prefill's, and one for each round."),
    "saved": (
        "forwards saved",
        "How many more target forwards plain decoding would have needed: it takes one for each token, not "
        "one for each round.",
    ),
    "cost_ratio": (
        "cost ratio c",
        "The time of a drafter step divided by the time of a target step, for one token each. Both were "
        "timed when the pair was loaded. For a lookup or an n-gram store, this run's drafting time for each "
        "drafted token takes the place of the drafter step.",
    ),
    "implied": (
        "speed-up implied",
        "Tokens per round / (drafted per round × c + 1): the speed-up over plain decoding that these numbers "
        "imply if judging a whole draft takes no longer than one target step (Leviathan et al. 2023).",
    ),
    "measured": (
        "speed-up timed",
        "Tokens/s times the time of one target step: how much faster this run was than the target alone. The "
        "step was timed with a short context when the pair was loaded.",
    ),
    "draft_ms": ("drafting", "Time spent drafting, in all rounds together."),
    "verify_ms": ("verifying", "Time spent verifying and judging, in all rounds together."),
    "seed": ("seed", "The seed of this run's random numbers. The same seed and settings give the same text."),
    "finish": (
        "ended by",
        "eos: the model ended the text. stop: a stop string appeared. length: the text has the requested "
        "length. cancelled: Stop was pressed.",
    ),
}


class RunFeed:
    """One run for one page: updates with the rounds since the last update, or a snapshot of everything.

    number: grows from run to run, so that the page can ignore late messages of an older run.
    tokenizer: None shows the prompt as one piece. recorded: the run is not going on; the page plays it.
    """

    def __init__(self, number: int, trace: Trace, tokenizer: Any = None, recorded: bool = False) -> None:
        self.number, self.trace, self.tokenizer, self.recorded = number, trace, tokenizer, recorded
        self.sent = 0  # rounds

    def update(self) -> Message:
        """The rounds since the last update. A run whose last token may have been cut ends with a snapshot."""
        finish = self.trace.finish
        if self.sent == 0 or finish in ("stop", "cancelled", "error"):
            message = self.snapshot()
        else:
            message = {"run": self.number, "update": self._rounds(self.sent, finish)}
        self.sent = message["update"]["until"]
        return message

    def snapshot(self, number: int | None = None) -> Message:
        """The whole run; it does not count as an update. number: a newer one, sent in place of the run's."""
        update = self._rounds(0, self.trace.finish)
        update["prompt"] = prompt_tokens(self.trace, self.tokenizer, self.recorded)
        if self.recorded:
            update["recorded"] = True
        return {"run": number or self.number, "update": update}

    def _rounds(self, since: int, finish: str | None) -> Update:
        """finish is read before the rounds: the run goes on, and an update that ends it must be complete."""
        trace, until = self.trace, len(self.trace.rounds)
        rounds = [wire_round(this_round) for this_round in trace.rounds[since:until]]
        if since == 0 and finish:
            cut_output(rounds, trace.text)
        return {
            "since": since,
            "until": until,
            "finish": finish,
            "rounds": rounds,
            "numbers": number_texts(trace),
        }


def prompt_tokens(trace: Trace, tokenizer: Any, recorded: bool = False) -> list[PromptToken]:
    """The prompt's tokens; their texts join to the prompt (special tokens have none).

    The tokenizer of a recorded run may have changed since: if its pieces do not join to the prompt, the
    prompt stays whole.
    """
    whole: list[PromptToken] = [{"id": None, "text": trace.prompt, "fate": "prompt"}]
    if tokenizer is None and trace.prompt:
        return whole
    pieces = Pieces(tokenizer)
    texts = [pieces.push(token_id) for token_id in trace.prompt_ids]
    if texts:
        texts[-1] += pieces.flush()
    if recorded and not trace.params.chat and "".join(texts) != trace.prompt:
        return whole
    ids_and_texts = zip(trace.prompt_ids, texts, strict=True)
    return [{"id": token_id, "text": text, "fate": "prompt"} for token_id, text in ids_and_texts]


def wire_round(this_round: Round) -> WireRound:
    return {
        "draft": [_draft_token(token) for token in this_round.draft],
        "next": _next_token(this_round.next) if this_round.next else None,
        "draft_ms": _six_digits(this_round.draft_ms),
        "verify_ms": _six_digits(this_round.verify_ms),
    }


# What decides (p, q, u, accept_prob, residual_mass) is sent unrounded, so that the page can show why.


def _draft_token(token: Judged) -> DraftToken:
    """A token that was never judged is sent without alternatives: they belong to a text that was rejected."""
    return {
        "id": token.id,
        "text": token.text,
        "fate": token.fate,
        "p": token.p,
        "q": token.q,
        "raw_p": _six_digits(token.raw_p),
        "raw_q": _six_digits(token.raw_q),
        "u": token.u,
        "accept_prob": token.accept_prob,
        "top": [] if token.u is None else _top(token.top),
    }


def _next_token(token: Next) -> NextToken:
    return {
        "id": token.id,
        "text": token.text,
        "fate": token.source,
        "p": token.p,
        "q": token.q,
        "raw_p": _six_digits(token.raw_p),
        "raw_q": None if token.raw_q is None else _six_digits(token.raw_q),
        "u": token.u,
        "residual_mass": token.residual_mass,
        "top": _top(token.top),
    }


def _top(top: tuple[Alternative, ...]) -> list[Alternative]:
    return [
        (
            token_id,
            text,
            _six_digits(p),
            None if q is None else _six_digits(q),
            _six_digits(raw_p),
            None if raw_q is None else _six_digits(raw_q),
        )
        for token_id, text, p, q, raw_p, raw_q in top
    ]


def _six_digits(value: float) -> float:
    """For what is drawn as bars, most of what is sent. A value that is not quite 1 does not become 1."""
    rounded = float(f"{value:.6g}")
    return value if rounded == 1 else rounded


def cut_output(rounds: list[WireRound], text: str) -> None:
    """Cuts the output's tokens so that they join to `text`: a stop string can end a text inside a token."""
    tokens = [token for this_round in rounds for token in (*this_round["draft"], this_round["next"]) if token]
    output = [token for token in tokens if token["fate"] in IN_TEXT]
    joined = "".join(token["text"] for token in output)
    left = len(text) if joined.startswith(text) else len(joined)  # a file may contain any text
    for token in output:
        token["text"] = token["text"][:left]
        left -= len(token["text"])


def number_texts(trace: Trace) -> dict[str, str]:
    """The numbers as the page writes them; – for one that is not known (yet)."""
    stats = trace.stats
    c = cost_ratio(stats, trace.params)

    def write(value: float | None, pattern: str) -> str:
        return "–" if value is None else pattern.format(value)

    return {
        "tokens": write(stats.tokens, "{:,}"),
        "tokens_per_second": write(stats.tokens_per_second, "{:,.1f}"),
        "acceptance_rate": write(stats.acceptance_rate, "{:.0%}"),
        "mean_tokens_per_round": write(stats.mean_tokens_per_round, "{:.2f}"),
        "rounds": write(stats.rounds, "{:,}"),
        "target_forwards": write(stats.target_forwards, "{:,}"),
        "saved": write(stats.tokens - stats.rounds, "{:,}"),
        "cost_ratio": write(c, "{:.3f}"),
        "implied": write(metrics.implied_speedup(stats, c), "{:.2f} ×"),
        "measured": write(metrics.measured_speedup(stats), "{:.2f} ×"),
        "draft_ms": write(stats.draft_ms, "{:,.0f} ms"),
        "verify_ms": write(stats.verify_ms, "{:,.0f} ms"),
        "seed": str(trace.params.seed),
        "finish": trace.finish or "…",
    }


def cost_ratio(stats: Stats, params: Params) -> float | None:
    """c of this run's drafter. Only the drafter model's step is timed by itself."""
    if params.draft_with == "model":
        return stats.cost_ratio
    return metrics.ratio(metrics.ratio(stats.draft_ms, stats.drafted), stats.target_step_ms)


def notice(number: int, kind: Kind, *lines: str, share: float | None = None) -> Message:
    """A message with a notice alone, which `|` can add to a message with an update."""
    text: Notice = {"kind": kind, "text": "\n".join(lines), "share": share}
    return {"run": number, "notice": text}


def trace_file(number: int, trace: Trace) -> Message:
    """The trace as a file for the visitor to save."""
    file: TraceFile = {
        "name": f"specdemo-seed-{trace.params.seed}.json",
        "text": trace.to_json(),
        "requested_at": time.time_ns(),
    }
    return {"run": number, "file": file}


def describe_pair(pair: "Pair", params: Params) -> Iterator[str]:
    """Sentences about the pair and this run: device, dtype and why, bytes held, and the pair's notes."""
    info, held = pair.info, pair.bytes_held
    drafter = f" and {held.drafter / 1e6:,.1f} MB for the drafter" if held.drafter else ""
    yield f"{info.name} on {info.device} ({info.device_name}), {pair.dtype_reason}."
    yield f"Weights held: {held.target / 1e6:,.1f} MB for the target{drafter}."
    if params.draft_with == "none":
        yield "Drafting is off: every token is one forward of the target."
    for note in (*pair.notes, *((pair.runner.warming_up,) if pair.runner.warming_up else ())):
        yield note[:1].upper() + note[1:] + "."


def describe_recorded(trace: Trace) -> str:
    """A sentence about where and how a recorded run was made."""
    pair, params = trace.pair, trace.params
    name, device, dtype = (
        printable(text) for text in (pair.name, pair.device_name, pair.dtype.target or "no dtype")
    )
    unfinished = "" if trace.finish else " It had not ended when it was saved."
    return (
        f"A recorded run, played without models: {name} on {device}, {dtype}; drafted with "
        f"{params.draft_with}, γ {params.gamma}, temperature {params.temperature:g}.{unfinished}"
    )


def printable(text: str) -> str:
    """A name out of a file for use in a sentence: at most 80 characters, with unprintable ones escaped."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:80])
