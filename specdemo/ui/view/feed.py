"""What is sent to the page: a run's rounds as JSON objects, with its numbers. static/view/messages.d.ts
describes all messages. Without torch and without Gradio."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from specdemo.events import (
    DRAFTER_KINDS,
    LIMITS,
    METHODS,
    RULES,
    ChatMessage,
    Finish,
    Manner,
    Round,
    is_lossy,
    manner_of,
    words_of_row,
)
from specdemo.events.params import GRAMMARS, field_of_grammar, turns_of, values_of_rule
from specdemo.events.speedup import best_gamma, checks, estimates
from specdemo.events.thoughts import MARKS
from specdemo.events.trace import Trace, pieces, round_objects
from specdemo.events.verdict import verdict, why_none
from specdemo.ui.view.settings import OFF, SECTIONS
from specdemo.ui.view.texts import number_texts, printable, recorded_on, whose
from specdemo.words.catalogue import say

MEASUREMENT_KINDS = ("race", "gamma", "compare", "advise", "guess", "trials", "worlds")
MOST_PROMPT_TOKENS = 50_000  # a prompt with more is shown as one piece
MOST_ROWS = 3_000  # tokens and alternatives in an update of a run that goes on; each takes some 60 bytes
GAMMAS = (1, 2, 3, 4, 6, 8, 12, 16)  # besides that of the run
REPEATS = 5  # times that each setting runs on one prompt where it cannot be timed in turns, and at most
SET_SIZE, SET_TOKENS = 5, 48  # prompts in a set, and tokens of each text, at most
TextsOf = Callable[[Iterable[int]], list[str]]


@dataclass(eq=False)
class RunFeed:
    """What pages are told of one run: the rounds from one on, or a snapshot of everything.

    texts_of: as a Pair has it; None shows the prompt as one piece. recorded: the run is not going on; the
    page plays it. link: the query of the address that asks for the run. settles: its last numbers may still
    change.
    """

    trace: Trace
    texts_of: TextsOf | None = None
    recorded: bool = False
    link: str = ""
    settles: bool = False

    def __post_init__(self) -> None:
        self._told = 0, 0  # rounds that can be told, and the length of their text
        self.ended = self.recorded  # its last numbers, which come after the last round, are there

    def update(self, since: int) -> dict[str, Any]:
        """The rounds from `since` on; while the run goes on, no more than one message can well hold. A run
        whose last token may have been cut ends with a snapshot, and so does a run whose rounds are told
        anew."""
        finish = self._finish
        until = self._until(finish)
        is_new = not 0 < since <= until
        if is_new or finish in ("stop", "cancelled", "error") or (finish and self.trace.revised):
            return self.snapshot()
        update = self._rounds(since, until if finish else self._portion(since, until), finish)
        return update | self._figures(finish)

    @property
    def until(self) -> int:
        """How many rounds can be told."""
        return self._until(self._finish)

    def _until(self, finish: Finish | None) -> int:
        """How many rounds can be told. While the run goes on, none whose text may still be cut."""
        rounds, (until, length) = self.trace.rounds, self._told
        if finish or self.recorded:
            return len(rounds)
        for one in rounds[until:]:
            length += sum(map(len, pieces(one)))
            if length > len(self.trace.text):
                break
            until += 1
            self._told = until, length
        return until

    def _portion(self, since: int, end: int) -> int:
        """The round at which an update's rounds end, `end` at the latest."""
        rounds, rows, until = self.trace.rounds, 0, since
        while until < end and rows < MOST_ROWS:
            own = (rounds[until].next,) if rounds[until].next else ()
            rows += sum(1 + len(token.top) for token in (*rounds[until].draft, *own))
            until += 1
        return until

    def snapshot(self) -> dict[str, Any]:
        finish = self._finish
        update = self._rounds(0, self._until(finish), finish)
        update["prompt"] = prompt_tokens(self.trace, self.texts_of, self.recorded)
        update |= {"whose": whose(self.trace, self.recorded), "setting": setting(self.trace)}
        update |= self._figures(finish)
        if self.link:
            update["link"] = self.link
        if self.recorded:
            update["recorded"] = True
        return update

    def _figures(self, finish: Finish | None) -> dict[str, Any]:
        """The parts of each update that are words."""
        trace, where = self.trace, recorded_on(self.trace) if self.recorded else ""
        result = verdict(trace, finish, recorded_on=where, settles=self.settles)
        return {"numbers": number_texts(trace), "verdict": result.text, "tone": result.tone}

    @property
    def _finish(self) -> Finish | None:
        # Nothing is measured after a run that was cancelled or has failed.
        return self.trace.finish if self.ended or self.trace.finish in ("cancelled", "error") else None

    def _rounds(self, since: int, until: int, finish: Finish | None) -> dict[str, Any]:
        """An update's rounds from `since` to `until`. finish: read before the rounds, since the run
        goes on, and an update that ends it must be complete."""
        trace = self.trace
        rounds = rounds_to_draw(trace.rounds[since:until])
        if since == 0 and (finish or self.recorded):
            cut_output(rounds, trace.text)
        update: dict[str, Any] = {"since": since, "until": until, "finish": finish, "rounds": rounds}
        if finish:
            update["outcome"] = outcome(trace)
        return update


def conversation(trace: Trace) -> tuple[ChatMessage, ...] | None:
    """The messages up to the trace's own answer; None where no chat template was used."""
    if not trace.params.chat:
        return None
    asked = turns_of(trace.messages or trace.prompt, trace.params)
    return (*asked, ChatMessage("assistant", trace.text))


def setting(trace: Trace) -> dict[str, Any]:
    params, server = trace.params, trace.pair.server
    manner, drafting = how_it_drafts(trace)
    as_set = ("draft_with", "gamma", "temperature", "chat")
    return {
        **{name: getattr(params, name) for name in as_set},
        "manner": manner,
        "drafting": drafting,
        "rule": wire_rule("speculative" if server else params.rule),  # a server's is its own matter
        "of_rule": values_of_rule(params),
        "lossy": not server and is_lossy(params),
        "greedy": params.temperature == 0,
        "bound": field_of_grammar(params) is not None,
        "marks": {str(mark.id): printable(mark.text) for mark in trace.marks if mark.text in MARKS},
        "machine": printable(trace.pair.device_name),
        "conditions": conditions_of(trace),
        "served": server and {"method": server.method, "gamma": server.gamma},
    }


def conditions_of(trace: Trace) -> str:
    """A digest of what two runs must share so that figures of both can stand in one chart of draft lengths:
    pair, device, what drafts and judges, and sampler; not the draft length, the seed and the prompt."""
    params, pair = trace.params, trace.pair
    method, rule = METHODS[params.draft_with], RULES[params.rule]
    sampling = (*OFF, *SECTIONS["penalties"], "logit_bias", *GRAMMARS)
    fields = dict.fromkeys([*sampling, *method.fields, *rule.fields])
    values = {field: getattr(params, field) for field in fields if field != "gamma"}
    models = [pair.target, pair.drafter, asdict(pair.dtype), asdict(pair.quantize)]
    shared = [*models, pair.device, pair.device_name, method.name, rule.name, values]
    return hashlib.sha256(json.dumps(shared, default=str).encode()).hexdigest()[:16]


def how_it_drafts(trace: Trace) -> tuple[Manner | None, str]:
    """How the run's drafts come about, by name and in a sentence. Both are told of a server where it names a
    kind of drafter that is known here."""
    method, kind, server = trace.params.draft_with, trace.pair.drafter_kind, trace.pair.server
    if server is not None:
        if server.method not in DRAFTER_KINDS:
            return None, ""
        method, kind = "model", server.method
    return manner_of(method, kind), how_in_words(method, kind)


def how_in_words(method: str, kind: str | None) -> str:
    """How a draft comes about, in words; empty where nothing is drafted."""
    if METHODS[method].is_by_drafter and kind in DRAFTER_KINDS:
        return words_of_row("kinds", kind, "sentence")
    if method == "none":
        return ""
    label = words_of_row("methods", method, "label")
    sentence = words_of_row("methods", method, "sentence")
    return say("choices.drafts_so", method=f"{label[0].upper()}{label[1:]}", sentence=sentence)


def wire_rule(name: str) -> dict[str, Any]:
    fields = ("name", "symbol", "residual", "judges_whole_draft", "threshold")
    words = {part: words_of_row("rules", name, part) for part in ("meaning", "accepted", "recorded", "about")}
    return {field: getattr(RULES[name], field) for field in fields} | words


def outcome(trace: Trace) -> dict[str, Any]:
    params, stats = trace.params, trace.stats
    at_once = how_it_drafts(trace)[0] in ("block", "block and chain")
    most = int(LIMITS["gamma"].largest)
    longest = min(most, (at_once and trace.pair.longest_draft) or most)
    own = params.gamma if isinstance(params.gamma, int) and not params.tree else None
    if (server := trace.pair.server) is not None:
        own = longest = min(most, server.gamma or 0)
    found = estimates(trace.rounds, stats, own, longest, at_once)
    is_fed_again = any(one.fed_again or one.target_forwards > 1 for one in trace.rounds)
    checked = None if is_fed_again else checks(stats, own)
    return {
        "estimates": list(map(asdict, found)),
        "best_gamma": best_gamma(found),
        "checks": checked and asdict(checked),
        "no_speedup": "" if stats.speedup_interval else why_none(stats, trace.finish),
        "text": trace.text,
    }


def prompt_tokens(trace: Trace, texts_of: TextsOf | None, recorded: bool = False) -> list[dict[str, Any]]:
    """The prompt's tokens; their texts join to the prompt (special tokens have none).

    The tokenizer of a recorded run may have changed since: if its pieces do not join to the prompt, the
    prompt stays whole.
    """
    whole: list[dict[str, Any]] = [{"id": None, "text": trace.prompt, "fate": "prompt"}]
    if trace.pair.server is not None:  # whose tokenizer nobody here has
        return whole if trace.prompt else []
    if (texts_of is None and trace.prompt) or len(trace.prompt_ids) > MOST_PROMPT_TOKENS:
        return whole
    texts = texts_of(trace.prompt_ids) if texts_of else [""] * len(trace.prompt_ids)
    if recorded and not trace.params.chat and "".join(texts) != trace.prompt:
        return whole
    ids_and_texts = zip(trace.prompt_ids, texts, strict=True)
    return [{"id": token_id, "text": text, "fate": "prompt"} for token_id, text in ids_and_texts]


def rounds_to_draw(rounds: list[Round]) -> list[dict[str, Any]]:
    """The rounds as a trace file has them, with less of their alternatives, which are most of what is sent:
    with six digits, and without those of a token that was never judged, because they follow a text that was
    rejected. For each token of a run of 1,000 with five alternatives that leaves 910 bytes of 1,470; at most
    1,200 are allowed (tests/web/test_visitors.py)."""
    objects = round_objects(rounds)
    for one in objects:
        for token in one["draft"]:
            if token["u"] is None and token["fate"] != "accepted":
                token["top"] = []
        for token in tokens_of(one):
            token["top"] = [[token_id, text, *map(_six_digits, row)] for token_id, text, *row in token["top"]]
    return objects


def _six_digits(value: float | None) -> float | None:
    """The value in six digits. A value that is not quite 1 does not become 1."""
    if value is None:
        return None
    rounded = float(f"{value:.6g}")
    return value if rounded == 1 else rounded


def cut_output(rounds: list[dict[str, Any]], text: str) -> None:
    """Cuts the output's tokens so that they join to `text`: a stop string can end a text inside a token."""
    every = (token for one in rounds for token in tokens_of(one))
    output = [token for token in every if token.get("fate") not in ("rejected", "discarded")]
    joined = "".join(token["text"] for token in output)
    left = len(text) if joined.startswith(text) else len(joined)  # a file may contain any text
    for token in output:
        token["text"] = token["text"][:left]
        left -= len(token["text"])


def tokens_of(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The round's tokens in reading order."""
    return [*one["draft"], one["next"]] if one["next"] else one["draft"]


def notice(kind: str, *lines: str, share: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "text": "\n".join(lines), "share": share}


def nothing_yet(wanted: object, name: str = "") -> dict[str, Any]:
    """A measurement of which nothing is known yet. wanted: as measurement_request takes it. name: the name
    that the measurement is followed by."""
    kind = wanted.get("kind") if isinstance(wanted, dict) else None
    kind, words = kind if kind in MEASUREMENT_KINDS else "compare", {"whose": "", "text": ""}
    return {"id": name, "kind": kind, "state": "waiting", **words, "share": None, "left": None}
