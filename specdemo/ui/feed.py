"""What the page is told of a run, folded from its record: tokens with their fates, and the numbers. Knows neither torch nor gradio.

The page is sent JSON objects, each with the rounds since the one before. A whole one has all rounds and the prompt; a page that
has missed something asks for one.
"""

from collections.abc import Iterator

from specdemo.engine.detokenize import Pieces
from specdemo.events import Alternative, Judged, Next, Params, Round, Stats, metrics
from specdemo.events.trace import Trace

# Fate: (its word in the legend, what it means). The style sheet has one style for each.
FATES = {
    "prompt": ("prompt", "The text that was given."),
    "accepted": ("accepted", "Drafted, and kept by the target: u < min(1, p/q)."),
    "rejected": ("rejected", "Drafted, and refused by the target: u ≥ min(1, p/q). Not part of the text."),
    "resampled": (
        "resampled",
        "The target's own token in place of the rejected one, drawn from what p has more than q.",
    ),
    "bonus": ("bonus", "The target's own token after a draft that was accepted as a whole."),
    "sampled": ("sampled", "The target's own token in a round in which nothing was drafted."),
    "discarded": (
        "discarded",
        "Drafted behind a rejection or behind the end of the text, so it was dropped. Not part of the text.",
    ),
}
HIDEABLE = ("rejected", "discarded")
IN_TEXT = ("accepted", "resampled", "bonus", "sampled")

# Number: (its name on the page, its definition).
NUMBERS = {
    "tokens": ("tokens", "How many tokens the text has got."),
    "tokens_per_second": (
        "tokens/s",
        "Tokens divided by drafting and verifying time, on the engine's own clock.",
    ),
    "acceptance_rate": (
        "acceptance rate",
        "Accepted drafts among those that were judged: accepted / (accepted + rejected).",
    ),
    "mean_tokens_per_round": ("tokens/round", "Tokens divided by rounds. Without drafts it is 1."),
    "rounds": ("rounds", "A round is one draft and one target forward that judges it."),
    "target_forwards": ("target forwards", "The prefill's forwards and one for each round."),
    "saved": (
        "forwards saved",
        "Target forwards that plain decoding would have needed on top: one for each token, less one for each round.",
    ),
    "cost_ratio": (
        "cost ratio c",
        "A drafting step's time divided by a target step's, both for one token. Timed when the pair was loaded; for a lookup or an "
        "n-gram store it is this run's drafting time by drafted token.",
    ),
    "implied": (
        "speed-up implied",
        "Tokens per round / (drafted per round × c + 1): what these numbers promise over plain decoding if judging a whole draft takes no "
        "longer than one target step (Leviathan et al. 2023).",
    ),
    "measured": (
        "speed-up timed",
        "Tokens/s times the time of one target step: this run against a target that only steps. The step was timed with a short context "
        "when the pair was loaded.",
    ),
    "draft_ms": ("drafting", "Time spent drafting, all rounds."),
    "verify_ms": ("verifying", "Time spent verifying and judging, all rounds."),
    "seed": ("seed", "The seed of this run's dice. Give it again for the same text."),
    "finish": (
        "ended by",
        "eos: the model ended the text. stop: a stop string came. length: as long as was asked for. cancelled: Stop.",
    ),
}


class Telling:
    """One run as one page is told of it.

    number: grows from run to run; by it the page tells an old run's late message from a new one's. recorded: the run is not
    going on here, the page plays it. tokenizer: None shows the prompt as one piece.
    """

    def __init__(self, number: int, trace: Trace, tokenizer=None, recorded: bool = False):
        self.number, self.trace, self.tokenizer, self.recorded = number, trace, tokenizer, recorded
        self.told = 0  # rounds
        self.words: set[int] = set()  # ids of alternatives whose text the page knows

    def news(self) -> dict:
        """What came since the last message. A text that was cut or completed at its end makes it a whole one."""
        finish = self.trace.finish
        if self.told == 0 or finish in ("stop", "cancelled", "error"):
            message = self.whole()
        else:
            message = self._message(self.told, finish, self.words)
        self.told = message["until"]
        self.words |= message["words"].keys()
        return message

    def whole(self, number: int | None = None) -> dict:
        """All of it, and nothing is changed here. number: another one, for what has to count as later than all that was said."""
        message = self._message(0, self.trace.finish, set()) | {
            "prompt": prompt_tokens(self.trace, self.tokenizer, self.recorded)
        }
        return message | ({"run": number} if number else {}) | ({"recorded": True} if self.recorded else {})

    def _message(self, since: int, finish: str | None, known: set[int]) -> dict:
        """finish was read first: the run goes on meanwhile, and a message that calls it ended has to have all of it."""
        trace, until = self.trace, len(self.trace.rounds)
        rounds = [_round(round) for round in trace.rounds[since:until]]
        if since == 0 and finish:
            fit(rounds, trace.text)
        return {
            "run": self.number,
            "since": since,
            "until": until,
            "finish": finish,
            "rounds": rounds,
            "words": _words(trace.rounds[since:until], known),
            "numbers": shown(trace),
        }


def _words(rounds: list[Round], known: set[int]) -> dict[int, str]:
    tops = (
        shown_top(token)
        for round in rounds
        for token in (*round.draft, *([round.next] if round.next else []))
    )
    return {id: text for top in tops for id, text, *_ in top if id not in known}


def prompt_tokens(trace: Trace, tokenizer, recorded: bool = False) -> list[list]:
    """The prompt's tokens, [id, text]; their texts join to the prompt (special tokens are empty).

    recorded: the tokenizer may be another one by now; when it does not give the prompt again, the prompt stays in one piece.
    """
    if tokenizer is None and trace.prompt:
        return [[None, trace.prompt]]
    pieces = Pieces(tokenizer)
    tokens = [[id, pieces.push(id)] for id in trace.prompt_ids]
    if tokens:
        tokens[-1][1] += pieces.flush()
    if recorded and not trace.params.chat and "".join(text for _, text in tokens) != trace.prompt:
        return [[None, trace.prompt]]
    return tokens


def _round(round: Round) -> dict:
    return {
        "draft": [
            _token(token, token.fate) + [token.accept_prob, _top(shown_top(token))] for token in round.draft
        ],
        "next": _token(round.next, round.next.source) + [round.next.residual_mass, _top(round.next.top)]
        if round.next
        else None,
        "ms": [_short(round.draft_ms), _short(round.verify_ms)],
    }


def _token(token: Judged | Next, fate: str) -> list:
    """What decides stays unrounded, so that the page can show the verdict that was given."""
    return [token.id, token.text, fate, token.p, token.q, _short(token.raw_p), _short(token.raw_q), token.u]


def shown_top(token: Judged | Next) -> tuple[Alternative, ...]:
    """The alternatives at a token's place. Behind a rejection they are those of a text that never was, and not sent."""
    return () if isinstance(token, Judged) and token.u is None else token.top


def _top(top: tuple[Alternative, ...]) -> list[list]:
    return [[id, *map(_short, numbers)] for id, _, *numbers in top]


def _short(value: float | None) -> float | None:
    """Six digits: these are drawn as bars, and would be most of what is sent. What is not quite 1 stays so."""
    short = float(f"{value:.6g}") if value else value
    return value if short == 1 else short


def fit(rounds: list[dict], text: str) -> None:
    """Cuts the last pieces of the output so that they join to `text`: a stop string ends a text inside a token."""
    whole = "".join(
        token[1]
        for round in rounds
        for token in (*round["draft"], round["next"])
        if token and token[2] in IN_TEXT
    )
    left = len(text) if whole.startswith(text) else len(whole)  # a file may say anything
    for round in rounds:
        for token in round["draft"] + [round["next"]] * (round["next"] is not None):
            if token[2] in IN_TEXT:
                token[1] = token[1][:left]
                left -= len(token[1])


def shown(trace: Trace) -> dict[str, str]:
    """The numbers as the page writes them; – where there is none (yet)."""
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
    """c of whoever drafts in this run. Only the drafter model has a step that was timed by itself."""
    if params.draft_with == "model":
        return stats.cost_ratio
    return metrics.ratio(metrics.ratio(stats.draft_ms, stats.drafted), stats.target_step_ms)


def notice(number: int, kind: str, *lines: str, share: float | None = None) -> dict:
    """A message, or a part of one, that says something beside the stage: kind "wait", "note", "error" or "recorded".
    share: how much of what is waited for is done."""
    return {"run": number, "kind": kind, "notice": "\n".join(lines), "share": share}


def about(pair, params: Params) -> Iterator[str]:
    """What a reader should know of the pair and of this run: where it runs and why so, what it holds, what is left out."""
    info, held = pair.info, pair.bytes_held
    drafter = f" and {held.drafter / 1e6:,.1f} MB for the drafter" if held.drafter else ""
    yield f"{info.name} on {info.device} ({info.device_name}), {pair.dtype_reason}."
    yield f"Weights held: {held.target / 1e6:,.1f} MB for the target{drafter}."
    if params.draft_with == "none":
        yield "Drafting is off: every token is one forward of the target."
    for note in (*pair.notes, *((pair.runner.warming_up,) if pair.runner.warming_up else ())):
        yield note[:1].upper() + note[1:] + "."


def about_recorded(trace: Trace) -> str:
    """Where and with what a run that is only played was made."""
    pair, params = trace.pair, trace.params
    name, device, dtype = (
        plain(text) for text in (pair.name, pair.device_name, pair.dtype.target or "no dtype")
    )
    unfinished = "" if trace.finish else " It had not ended when it was saved."
    return (
        f"A recorded run, played without models: {name} on {device}, {dtype}; drafted with {params.draft_with}, γ {params.gamma}, "
        f"temperature {params.temperature:g}.{unfinished}"
    )


def plain(text: str) -> str:
    """Somebody else's name for something, as a part of our sentence: of bounded length, and with nothing in it that is not seen."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:80])
