"""What the page shows, folded from the record of a run: tokens with their fates, and the numbers. Knows neither torch nor gradio.

The page is sent JSON objects: the tokens of rounds `since` to `until`. One that starts at round 0 has the prompt too and
needs no earlier one; the others continue from the one before, and a page that has missed one waits for the next whole
one, which is the last of a run at the latest.
"""

from collections.abc import Iterator

from specdemo.events import DRAFT_WITH, Judged, Next, Params, Round, Stats
from specdemo.text import Pieces
from specdemo.trace import Trace

# Fate: (its word in the legend, what it means). The style sheet has one style for each.
FATES = {
    "prompt": ("prompt", "The text that was given."),
    "accepted": ("accepted", "Drafted, and kept by the target: u < min(1, p/q)."),
    "rejected": ("rejected", "Drafted, and refused by the target: u ≥ min(1, p/q). Not part of the text."),
    "resampled": ("resampled", "The target's own token in place of the rejected one, drawn from what p has more than q."),
    "bonus": ("bonus", "The target's own token after a draft that was accepted as a whole."),
    "sampled": ("sampled", "The target's own token in a round in which nothing was drafted."),
    "discarded": ("discarded", "Drafted behind a rejection or behind the end of the text, so it was dropped. Not part of the text."),
}
HIDEABLE = ("rejected", "discarded")
IN_TEXT = ("accepted", "resampled", "bonus", "sampled")

# Number: (its name on the page, its definition).
NUMBERS = {
    "tokens": ("tokens", "How many tokens the text has got."),
    "tokens_per_second": ("tokens/s", "Tokens divided by drafting and verifying time, on the engine's own clock."),
    "acceptance_rate": ("acceptance", "Accepted drafts among those that were judged: accepted / (accepted + rejected)."),
    "mean_tokens_per_round": ("tokens/round", "Tokens divided by rounds. Without drafts it is 1."),
    "rounds": ("rounds", "A round is one draft and one target forward that judges it."),
    "target_forwards": ("target forwards", "The prefill's forwards and one for each round."),
    "prefill_ms": ("prefill", "Time for the prompt, both models."),
    "draft_ms": ("draft", "Time spent drafting, all rounds."),
    "verify_ms": ("verify", "Time spent verifying and judging, all rounds."),
    "seed": ("seed", "The seed of this run's dice. Give it again for the same text."),
    "finish": ("ended by", "eos: the model ended the text. stop: a stop string came. length: as long as was asked for. cancelled: Stop."),
}

# Sampler: the fields of Params that matter to it. All others are switched off.
SAMPLERS = {
    "greedy": (),
    "multinomial": ("temperature",),
    "top-k": ("temperature", "top_k"),
    "top-p": ("temperature", "top_p"),
    "top-k with top-p": ("temperature", "top_k", "top_p"),
    "min-p": ("temperature", "min_p"),
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# Drafting method: (its words on the page, the fields of Params that matter to it).
DRAFTERS = dict(
    zip(
        DRAFT_WITH,
        (
            ("the drafter model", ("gamma",)),
            ("a lookup in the text so far", ("gamma", "ngram")),
            ("an n-gram store, all lengths", ("gamma", "ngram")),
            ("an n-gram store, one length", ("gamma", "ngram")),
            ("nobody: plain decoding", ()),
        ),
        strict=True,
    )
)


def sampling(sampler: str, **values) -> dict:
    """The sampling fields of Params for one of SAMPLERS: of `values` those that matter to it, the others off."""
    return {field: values[field] if field in SAMPLERS[sampler] else off for field, off in OFF.items()}


def whole_number(text: str) -> int | str | None:
    """What a text box says: None when it is empty, and what is no whole number as it is, for Params to refuse."""
    text = text.strip()
    return None if not text else int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else text


def message(run: int, trace: Trace, tokenizer, since: int = 0) -> dict:
    """The page's state behind round number `since`; the whole of it when the run has ended, because its text may have been cut.

    run: a number that grows from run to run, by which the page tells an old run's late message from a new one's.
    """
    if trace.finish:
        since = 0
    tokens = prompt_tokens(trace.prompt_ids, tokenizer) if since == 0 else []
    for round in trace.rounds[since:]:
        tokens += round_tokens(round)
    if trace.finish:
        fit(tokens, trace.text)
    numbers = shown(trace.stats) | {"seed": str(trace.params.seed), "finish": trace.finish or "…"}
    until, finished = len(trace.rounds), trace.finish is not None
    return {"run": run, "since": since, "until": until, "finished": finished, "tokens": tokens, "numbers": numbers}


def notice(run: int, kind: str, *lines: str) -> dict:
    """A message, or a part of one, that says something beside the stage: kind "wait", "note" or "error"."""
    return {"run": run, "kind": kind, "notice": "\n".join(lines)}


def about(pair, params: Params) -> list[str]:
    """What a reader should know of the pair and of this run: where it runs and why so, what it holds, what is left out."""
    info, held = pair.info, pair.bytes_held
    drafter = f" and {held.drafter / 1e6:,.1f} MB for the drafter" if held.drafter else ""
    lines = [
        f"{info.name} on {info.device} ({info.device_name}), {pair.dtype_reason}.",
        f"Weights held: {held.target / 1e6:,.1f} MB for the target{drafter}.",
    ]
    if params.draft_with == "none":
        lines.append("Drafting is off: every token is one forward of the target.")
    return lines + [note[:1].upper() + note[1:] + "." for note in pair.notes]


def prompt_tokens(ids: tuple[int, ...], tokenizer) -> list[dict]:
    """The prompt's tokens; their texts join to the prompt (special tokens are empty)."""
    pieces = Pieces(tokenizer)
    tokens = [{"id": id, "text": pieces.push(id), "fate": "prompt"} for id in ids]
    if tokens:
        tokens[-1]["text"] += pieces.flush()
    return tokens


def round_tokens(round: Round) -> Iterator[dict]:
    """A round's tokens in reading order: the drafted ones, then the target's own, which replaces the first refused one."""
    for token in round.draft:
        yield _token(token, token.fate, round) | {"accept_prob": token.accept_prob}
    if round.next:
        yield _token(round.next, round.next.source, round) | {"residual_mass": round.next.residual_mass}


def _token(token: Judged | Next, fate: str, round: Round) -> dict:
    return {"id": token.id, "text": token.text, "fate": fate, "round": round.index, "p": token.p, "q": token.q, "u": token.u}


def fit(tokens: list[dict], text: str) -> None:
    """Cuts the last pieces of the output so that they join to `text`: a stop string ends a text inside a token."""
    left = len(text)
    for token in tokens:
        if token["fate"] in IN_TEXT:
            token["text"] = token["text"][:left]
            left -= len(token["text"])


def shown(stats: Stats) -> dict[str, str]:
    """The numbers as the page writes them; – where there is none (yet)."""

    def write(value: float | None, pattern: str) -> str:
        return "–" if value is None else pattern.format(value)

    return {
        "tokens": write(stats.tokens, "{:,}"),
        "tokens_per_second": write(stats.tokens_per_second, "{:,.1f}"),
        "acceptance_rate": write(stats.acceptance_rate, "{:.0%}"),
        "mean_tokens_per_round": write(stats.mean_tokens_per_round, "{:.2f}"),
        "rounds": write(stats.rounds, "{:,}"),
        "target_forwards": write(stats.target_forwards, "{:,}"),
        "prefill_ms": write(stats.prefill_ms, "{:,.0f} ms"),
        "draft_ms": write(stats.draft_ms, "{:,.0f} ms"),
        "verify_ms": write(stats.verify_ms, "{:,.0f} ms"),
    }
