"""What is sent to the page: a run's rounds as wire objects, with its numbers. No torch, no gradio."""

import time
from typing import Any, overload

from specdemo.engine.detokenize import Pieces
from specdemo.events import Finish, Judged, Next, Params, Round, is_lossy, metrics
from specdemo.events.estimate import best_gamma, counted_estimates, estimates
from specdemo.events.trace import Trace
from specdemo.events.verdict import verdict
from specdemo.ui.served import counted, served
from specdemo.ui.texts import number_texts, whose
from specdemo.ui.wire import (
    Alternative,
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

IN_TEXT = ("accepted", "resampled", "bonus", "sampled")
MOST_PROMPT_TOKENS = 50_000  # a prompt with more is shown as one piece
MOST_ROWS = 3_000  # tokens and alternatives in an update of a run that goes on; each takes some 60 bytes


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
        self.ended = recorded  # its last numbers, which come after the last round, are there

    def update(self, ended: bool) -> Message:
        """The rounds since the last update; while the run goes on, no more than one message can well hold.
        Later updates bring the others. A run whose last token may have been cut ends with a snapshot, as does
        one whose rounds are told anew."""
        self.ended = ended
        finish = self._finish
        if self.sent == 0 or finish in ("stop", "cancelled", "error") or (finish and self.trace.revised):
            message = self.snapshot()
        else:
            until = len(self.trace.rounds) if finish else self._portion()
            message = {"run": self.number, "update": self._rounds(self.sent, until, finish)}
        self.sent = message["update"]["until"]
        return message

    def _portion(self) -> int:
        """Where the next update's rounds end."""
        rounds, rows, until = self.trace.rounds, 0, self.sent
        while until < len(rounds) and rows < MOST_ROWS:
            own = (rounds[until].next,) if rounds[until].next else ()
            rows += sum(1 + len(token.top) for token in (*rounds[until].draft, *own))
            until += 1
        return until

    def snapshot(self, number: int | None = None) -> Message:
        """The whole run; it does not count as an update. number: a newer one, sent in place of the run's."""
        finish = self._finish
        update = self._rounds(0, len(self.trace.rounds), finish)
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

    def _rounds(self, since: int, until: int, finish: Finish | None) -> Update:
        """finish is read before the rounds: the run goes on, and an update that ends it must be complete."""
        trace = self.trace
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
        if counts := counted(trace.stats):
            update["counted"] = counts
        if finish:
            update["outcome"] = outcome(trace)
        return update


def setting(trace: Trace) -> Setting:
    params = trace.params
    greedy = params.temperature == 0
    server = served(trace.pair)
    return {
        "draft_with": params.draft_with,
        "gamma": params.gamma,
        "rule": "speculative" if server else params.rule,  # what a server does by is its own matter
        "lenience": params.lenience,
        "lossy": not server and is_lossy(params),
        "greedy": greedy,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "served": server,
    }


def outcome(trace: Trace) -> Outcome:
    found = estimates(trace.rounds, trace.stats, trace.params.rule) or counted_estimates(trace.stats.server)
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
    return {
        "estimates": wire,
        "best_gamma": best_gamma(found),
        "noisy": metrics.is_noisy(trace.stats, trace.rounds),
        "text": trace.text,
    }


def prompt_tokens(trace: Trace, tokenizer: Any, recorded: bool = False) -> list[PromptToken]:
    """The prompt's tokens; their texts join to the prompt (special tokens have none).

    The tokenizer of a recorded run may have changed since: if its pieces do not join to the prompt, the
    prompt stays whole.
    """
    whole: list[PromptToken] = [{"id": None, "text": trace.prompt, "fate": "prompt"}]
    if trace.pair.server is not None:  # whose tokenizer nobody here has
        return whole if trace.prompt else []
    if (tokenizer is None and trace.prompt) or len(trace.prompt_ids) > MOST_PROMPT_TOKENS:
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
    kept = this_round.kept
    return {
        "draft": [_draft_token(token) for token in this_round.draft],
        "next": _next_token(this_round.next) if this_round.next else None,
        "draft_ms": _six_digits(this_round.draft_ms),
        "verify_ms": _six_digits(this_round.verify_ms),
        "kept": {"speculative": kept.speculative, "block": kept.block} if kept else None,
        "gamma": this_round.gamma,
        "ended_by": this_round.ended_by,
        "arrival_ms": _six_digits(this_round.arrival_ms),
        "drafts_told": this_round.drafts_told,
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
        "distance": _six_digits(token.distance),
        "top": [] if token.u is None and token.fate != "accepted" else _top(token.top),
    }


def _next_token(token: Next) -> NextToken:
    return {
        "id": token.id,
        "text": token.text,
        "fate": token.source,
        "p": token.p,
        "q": token.q,
        "raw_p": _six_digits(token.raw_p),
        "raw_q": _six_digits(token.raw_q),
        "u": token.u,
        "residual_mass": token.residual_mass,
        "top": _top(token.top),
    }


def _top(top: tuple[Alternative, ...]) -> list[Alternative]:
    return [
        (token_id, text, _six_digits(p), _six_digits(q), _six_digits(raw_p), _six_digits(raw_q))
        for token_id, text, p, q, raw_p, raw_q in top
    ]


@overload
def _six_digits(value: float) -> float: ...
@overload
def _six_digits(value: None) -> None: ...
def _six_digits(value: float | None) -> float | None:
    """For what is drawn as bars, most of what is sent. A value that is not quite 1 does not become 1."""
    if value is None:
        return None
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


def notice(number: int, kind: Kind, *lines: str, share: float | None = None) -> Message:
    """A message with a notice alone, which `|` can add to a message with an update."""
    text: Notice = {"kind": kind, "text": "\n".join(lines), "share": share}
    if kind == "error":
        text["at"] = time.time_ns()
    return {"run": number, "notice": text}


def trace_file(number: int, params: Params, stored: str) -> Message:
    """A trace for the visitor to save. stored: the name under which the page can fetch it."""
    name = f"specdemo-seed-{params.seed}.json" if params.temperature else "specdemo-greedy.json"
    file: TraceFile = {"name": name, "stored": stored, "requested_at": time.time_ns()}
    return {"run": number, "file": file}
