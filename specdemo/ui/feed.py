"""What is sent to the page: a run's rounds as wire objects, its numbers as text. No torch, no gradio."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.engine.detokenize import Pieces
from specdemo.events import Alternative, Finish, Judged, Next, Params, Round, metrics
from specdemo.events.estimate import best_gamma, estimates
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.ui.settings import DRAFTERS, sampler_in_words
from specdemo.ui.wire import (
    DraftToken,
    Kind,
    Message,
    NextToken,
    Notice,
    Outcome,
    PromptToken,
    Setting,
    TraceFile,
    Update,
    WireRound,
)
from specdemo.ui.wire import Estimate as WireEstimate

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
MAIN_NUMBERS = ("speedup", "tokens_per_second", "acceptance_rate", "mean_tokens_per_round")
IN_TEXT = ("accepted", "resampled", "bonus", "sampled")

# Number: (its name on the page, its definition).
NUMBERS = {
    "speedup": (
        "speed-up",
        "The time of a plain round times the tokens, divided by the time spent drafting and verifying: how "
        "many times as fast as the target alone. The plain rounds, with nothing drafted, were timed right "
        "behind this run, on its own text.",
    ),
    "tokens_per_second": (
        "tokens/s",
        "Tokens divided by the time spent drafting and verifying, measured by the engine's own clock.",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "Accepted drafts as a share of those that were judged: accepted / (accepted + rejected).",
    ),
    "mean_tokens_per_round": ("tokens/round", "Tokens divided by rounds. It is 1 when nothing is drafted."),
    "tokens": ("tokens", "Tokens of the text so far, without the prompt."),
    "rounds": ("rounds", "A round is one draft and the target forward that judges it."),
    "target_forwards": (
        "forwards with prefill",
        "Forwards of the target: one for each round, and those of the prefill, which read the prompt.",
    ),
    "saved": (
        "forwards saved",
        "How many more target forwards plain decoding would have needed: it takes one for each token, not "
        "one for each round.",
    ),
    "target_step": (
        "a plain round",
        "The time of a round in which nothing is drafted, timed right after this run, on its own text; in "
        "brackets its 10th and 90th percentile.",
    ),
    "drafter_step": ("a drafted token", "The time spent drafting, divided by the number of drafted tokens."),
    "cost_ratio": ("cost ratio c", "The time of a drafted token divided by the time of a plain round."),
    "implied": (
        "speed-up implied",
        "Tokens per round / (drafted per round × c + 1): the speed-up over plain decoding that these numbers "
        "imply if judging a whole draft takes no longer than a plain round (Leviathan et al. 2023).",
    ),
    "draft_ms": ("drafting", "Time spent drafting, in all rounds together."),
    "verify_ms": ("verifying", "Time spent verifying and judging, in all rounds together."),
    "ttft_ms": (
        "first tokens after",
        "The time of the prefill, which reads the prompt, and of one round.",
    ),
    "seed": (
        "seed",
        "The seed of this run's random numbers. The same seed and the same settings give the same text. "
        "Greedy decoding draws none.",
    ),
    "finish": (
        "ended by",
        "eos: the model ended the text. stop: a stop string appeared. length: the text has the requested "
        "length. cancelled: Stop was pressed.",
    ),
}


class RunFeed:
    """One run for one page: updates with the rounds since the last update, or a snapshot of everything.

    number: grows from run to run, so that the page can ignore late messages of an older run.
    tokenizer: None shows the prompt as one piece. recorded: the run is not going on; the page plays it. link:
    the query of the address that asks for the run.
    """

    def __init__(
        self, number: int, trace: Trace, tokenizer: Any = None, recorded: bool = False, link: str = ""
    ) -> None:
        self.number, self.trace, self.tokenizer, self.recorded = number, trace, tokenizer, recorded
        self.link = link
        self.sent = 0  # rounds
        self.ended = recorded  # its last numbers, which come behind the last round, are there

    def update(self, ended: bool) -> Message:
        """The rounds since the last update. A run whose last token may have been cut ends with a snapshot."""
        self.ended = ended
        finish = self._finish
        if self.sent == 0 or finish in ("stop", "cancelled", "error"):
            message = self.snapshot()
        else:
            message = {"run": self.number, "update": self._rounds(self.sent, finish)}
        self.sent = message["update"]["until"]
        return message

    def snapshot(self, number: int | None = None) -> Message:
        """The whole run; it does not count as an update. number: a newer one, sent in place of the run's."""
        update = self._rounds(0, self._finish)
        update["prompt"] = prompt_tokens(self.trace, self.tokenizer, self.recorded)
        update["whose"] = whose(self.trace, self.recorded)
        update["setting"] = setting(self.trace)
        if self.link:
            update["link"] = self.link
        if self.recorded:
            update["recorded"] = True
        return {"run": number or self.number, "update": update}

    @property
    def _finish(self) -> Finish | None:
        # Nothing is measured after a run that was cancelled or has failed.
        return self.trace.finish if self.ended or self.trace.finish in ("cancelled", "error") else None

    def _rounds(self, since: int, finish: Finish | None) -> Update:
        """finish is read before the rounds: the run goes on, and an update that ends it must be complete."""
        trace, until = self.trace, len(self.trace.rounds)
        rounds = [wire_round(this_round) for this_round in trace.rounds[since:until]]
        if since == 0 and finish:
            cut_output(rounds, trace.text)
        result = verdict(trace.stats, finish, trace.rounds)
        update: Update = {
            "since": since,
            "until": until,
            "finish": finish,
            "rounds": rounds,
            "numbers": number_texts(trace),
            "verdict": result.text,
            "tone": result.tone,
        }
        if finish:
            update["outcome"] = outcome(trace)
        return update


def whose(trace: Trace, recorded: bool = False) -> str:
    """Whose run it is: pair, drafter, gamma, sampler, seed, device."""
    params, pair = trace.params, trace.pair
    drafting = DRAFTERS[params.draft_with][0]
    if params.draft_with == "model":
        # Of a hub id or a directory, the two last parts.
        drafting = f"drafter {'/'.join(Path(printable(pair.drafter or 'model')).parts[-2:])}"
    elif params.draft_with == "none":
        drafting = "nothing drafted"
    parts = [
        f"{'Recorded run: ' if recorded else ''}{printable(pair.name)}",
        drafting,
        *([f"γ {params.gamma}"] if params.draft_with != "none" else []),
        sampler_in_words(params),
        *([f"seed {params.seed}"] if params.temperature else []),
        f"{printable(pair.device)} ({printable(pair.device_name)})",
    ]
    return " · ".join(parts)


def setting(trace: Trace) -> Setting:
    params = trace.params
    greedy = params.temperature == 0
    return {
        "pair": trace.pair.name,
        "draft_with": params.draft_with,
        "gamma": params.gamma,
        "greedy": greedy,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": None if greedy else params.seed,
    }


def outcome(trace: Trace) -> Outcome:
    found = estimates(trace.rounds, trace.stats)
    wire: list[WireEstimate] = [
        {
            "gamma": one.gamma,
            "formula_tokens": one.formula_tokens,
            "formula_speedup": one.formula_speedup,
            "seen_tokens": one.seen_tokens,
            "seen_speedup": one.seen_speedup,
        }
        for one in found
    ]
    return {"estimates": wire, "best_gamma": best_gamma(found), "text": trace.text}


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
    spread, noisy = stats.target_step_spread, metrics.is_noisy(stats, trace.rounds)
    measured = spread is not None and not noisy

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
        "speedup": "too noisy to say" if noisy else write(stats.speedup, "{:.2f} ×"),
        "target_step": f"{stats.target_step_ms:.2f} ms ({spread[0]:.2f}–{spread[1]:.2f})" if spread else "–",
        "drafter_step": write(stats.drafter_step_ms, "{:.2f} ms"),
        "cost_ratio": write(stats.cost_ratio if measured else None, "{:.3f}"),
        "implied": write(metrics.implied_speedup(stats) if measured else None, "{:.2f} ×"),
        "ttft_ms": write(stats.ttft_ms, "{:,.0f} ms"),
        "draft_ms": write(stats.draft_ms, "{:,.0f} ms"),
        "verify_ms": write(stats.verify_ms, "{:,.0f} ms"),
        "seed": str(trace.params.seed) if trace.params.temperature else "–",
        "finish": trace.finish or "…",
    }


def notice(number: int, kind: Kind, *lines: str, share: float | None = None) -> Message:
    """A message with a notice alone, which `|` can add to a message with an update."""
    text: Notice = {"kind": kind, "text": "\n".join(lines), "share": share}
    if kind == "error":
        text["at"] = time.time_ns()
    return {"run": number, "notice": text}


def trace_file(number: int, trace: Trace) -> Message:
    """The trace as a file for the visitor to save."""
    file: TraceFile = {
        "name": f"specdemo-seed-{trace.params.seed}.json"
        if trace.params.temperature
        else "specdemo-greedy.json",
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
