"""vLLM: a chunk is a round, /metrics count all visitors' drafts, and after a run it may tell each step."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import AliasPath, BaseModel, Field, ValidationError

from specdemo.events import LIMITS, PARAMETERS, Finish, Params
from specdemo.events.params import field_of_grammar
from specdemo.servers import software
from specdemo.servers.client import Body, Client, Condition, Request, never, readable
from specdemo.servers.software import Answer, Chunk, Likely, Misread, Sent, ServedPair, TokenWithTop
from specdemo.words.message import Message, about

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token whose character the next one completes
LONGEST_METRICS = 8_000_000  # bytes; those of many engines take about 1,000,000
MOST_COUNTED = 2**53  # by a counter since the server started: floats are exact up to here
LATE = 2.0  # s that a server may take to count a request that has ended
PROBES = 2  # at most: a server that was just started can send the first one's rounds together
DIFFER = "sent a chunk whose tokens and log-probabilities differ in number"
COUNTERS = "vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens_per_pos)_total"
COUNTER_LINE = re.compile(rf"^{COUNTERS}(?:\{{(.*?)\}})?[ \t]+(\S+)", re.MULTILINE)
VARIES = (
    "not every draft had the same length when the server was looked at, or others used it, so refused tokens "
    "are not known: start it with --per-request-spec-decode-metrics detailed"
)
NO_COUNTERS = "the server does not tell how it drafts: its /metrics cannot be read"


class _Version(BaseModel):
    version: str


class Counted(NamedTuple):
    """What a server has counted, over all its engines and for all visitors. longest: the most tokens of a
    draft; 0 if it does not draft. drafts, drafted: how many were judged, and their tokens."""

    longest: int
    drafts: int
    drafted: int


def counted_in(metrics: str) -> Counted | None:
    """None for a text of no vLLM, or with numbers that cannot be."""
    sums, places = Counter[str](), set[int]()
    with suppress(ValueError):
        for name, labels, value in COUNTER_LINE.findall(metrics):
            number = float(value)
            if not 0 <= number <= MOST_COUNTED:  # nor NaN
                return None
            sums[name] += int(number)
            places |= {int(place) for place in re.findall(r'position="(\d{1,4})"', labels)}
        if "vllm:" in metrics and len(places) <= software.MOST_DRAFT:
            return Counted(len(places), sums["drafts"], sums["draft_tokens"])
    return None


OfSteps = Field(max_length=int(LIMITS["max_new_tokens"].largest), fail_fast=True)
PerStep = Annotated[list[software.DraftTokens], OfSteps]


class Steps(Sent):
    """What the server tells of one request's drafts after its end, if it was started with
    --per-request-spec-decode-metrics. num_spec_tokens: the most tokens of a draft. per_step_*: for each
    forward that judged a draft, at the level "detailed"."""

    num_spec_tokens: software.DraftTokens
    num_spec_steps: software.Count
    num_draft_tokens: software.Count
    per_step_accepted: PerStep | None = None
    per_step_drafted: PerStep | None = None

    def counts(self, sizes: Sequence[int]) -> Sequence[tuple[int, int]] | None:
        """Of each round: accepted and drafted tokens; None where that is not told: forwards that judged no
        draft are not in the lists. sizes: how many tokens each round has added to the text."""
        kept, proposed = self.per_step_accepted or [], self.per_step_drafted or []
        if not len(kept) == len(proposed) == len(sizes):
            return None
        counts = [*zip(kept, proposed, strict=True)]
        for number, (size, (accepted, drafted)) in enumerate(zip(sizes, counts, strict=True), start=2):
            is_cut = number > len(sizes) and size <= accepted  # by the end of the text
            if not accepted <= drafted <= self.num_spec_tokens or (size != accepted + 1 and not is_cut):
                counted = f"{accepted} of {drafted} drafts accepted"
                raise Misread(f"has sent {size} tokens for round {number}, but counts {counted}")
        return counts


# A list with an entry for each of a chunk's tokens. Only its first fault is read: each costs a kilobyte.
OfTokens = Field(max_length=software.MOST_DRAFT + 1, fail_fast=True)
PromptIds = Annotated[tuple[software.TokenId, ...], Field(fail_fast=True)]
Top = Annotated[dict[str, Any], Field(max_length=software.MOST_ALTERNATIVES)]  # read as Likely


class _Logprobs(Sent):
    """The log probabilities of a chunk's tokens. A completion has lists by token, a chat has `content` with
    an entry for each token."""

    tokens: Annotated[list[software.Token], OfTokens] = []
    token_logprobs: Annotated[list[software.LogProb | None], OfTokens] = []
    top_logprobs: Annotated[list[Top | None], OfTokens] | None = None
    content: Annotated[list[TokenWithTop], OfTokens] | None = None

    def placed(self) -> list[TokenWithTop]:
        if self.content is not None:
            return self.content
        tops = self.top_logprobs or [None] * len(self.tokens)
        if not len(self.tokens) == len(self.token_logprobs) == len(tops):
            raise Misread(DIFFER)
        likely = [[Likely(token=text, logprob=of) for text, of in (top or {}).items()] for top in tops]
        rows = zip(self.tokens, self.token_logprobs, likely, strict=True)
        return [TokenWithTop(token=token, logprob=logprob, top_logprobs=top) for token, logprob, top in rows]


class _Delta(Sent):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(Sent):
    text: str = ""
    delta: _Delta = _Delta()
    logprobs: _Logprobs | None = None
    token_ids: Annotated[list[software.TokenId], OfTokens] | None = None
    prompt_token_ids: PromptIds | None = None
    finish_reason: software.Word | None = None
    stop_reason: int | str | None = None

    def finish(self, client: Client) -> Finish | None:
        if self.finish_reason in (None, "length"):
            return self.finish_reason
        if self.finish_reason not in ("stop", "tool_calls"):
            raise Misread(f"gave the run up: {client.without_host(str(self.finish_reason))}")
        return "stop" if isinstance(self.stop_reason, str) else "eos"

    @property
    def words(self) -> str:
        thought = self.delta.reasoning or self.delta.reasoning_content or ""
        return self.text + thought + (self.delta.content or "")


class _VllmEvent(Sent):
    choices: Annotated[list[_Choice], Field(max_length=1)]  # one is asked for
    prompt_token_ids: PromptIds | None = None
    steps: Steps | None = Field(None, validation_alias=AliasPath("metrics", "speculative_decoding"))


class VllmAnswer(Answer):
    """before: what was counted up to the request. steps: of the request alone."""

    pair: "Vllm"
    steps: Steps | None = None

    def __init__(self, pair: "Vllm", request: Request, is_over: Condition = never):
        super().__init__(pair, request)
        self.before = pair.counted(is_over)
        if self.before and pair.longest is not None and self.before.longest != pair.longest:
            raise Misread("drafts otherwise than when it was asked before: load it again")

    def chunks_of(self, event: Body) -> list[Chunk]:
        read = _VllmEvent.model_validate(event)
        choice = read.choices[0] if read.choices else _Choice()
        ids, words = choice.token_ids or [], choice.words
        placed = (choice.logprobs and choice.logprobs.placed()) or [TokenWithTop(token=UNFINISHED)] * len(ids)
        if words and not ids:
            raise Misread("sends text without the ids of its tokens: vLLM sends them from 0.10.2 on")
        if len(placed) != len(ids):
            raise Misread(DIFFER)
        self.count(len(ids), len(words))
        if len(words) > software.LONGEST_TOKEN * len(ids):
            raise Misread(f"sent {len(words):,} characters as the text of a chunk of {len(ids)} tokens")
        self.steps = read.steps or self.steps
        rows = zip(ids, texts_of(words, [one.token for one in placed]), placed, strict=True)
        tokens = tuple(one.judged(id_, text) for id_, text, one in rows)
        self.prompt_ids = choice.prompt_token_ids or read.prompt_token_ids or self.prompt_ids
        return [Chunk(tokens, choice.finish(self.pair.client))]

    def settle(self, is_over: Condition) -> bool:
        counts = self.steps and self.steps.counts([len(chunk.tokens) for chunk in self.chunks[1:]])
        if counts is None:
            return self.pair.always and (self.pair.longest == 0 or self.has_full_drafts(is_over))
        for at, (accepted, drafted) in enumerate(counts, start=1):
            self.chunks[at] = replace(self.chunks[at], accepted=accepted, drafted=drafted)
        return self.pair.always

    def has_full_drafts(self, is_over: Condition = never) -> bool:
        """Whether as many drafts were judged as rounds came, each of full length: by what the server tells of
        the request, else by what it has counted since, which it does a little later."""
        rounds, until = len(self.chunks) - 1, time.monotonic() + LATE
        if self.steps is not None:
            counted = (self.steps.num_spec_steps, self.steps.num_draft_tokens)
            return counted == (rounds, rounds * self.steps.num_spec_tokens)
        while self.before and (now := self.pair.counted(is_over)):
            counted = (now.drafts - self.before.drafts, now.drafted - self.before.drafted)
            if counted[0] >= rounds or time.monotonic() > until:
                return counted == (rounds, rounds * now.longest)
            time.sleep(LATE / 40)
        return False


def texts_of(text: str, words: list[str]) -> list[str]:
    """The part of a chunk's text that each token has. words: their names. One with an incomplete character,
    or of a special token, has no text: what is left before a known word is the token's in front of it."""
    texts, at = [""] * len(words), 0
    for place, word in enumerate(words):
        end = at + software.LONGEST_TOKEN + len(word)
        start = text.find(word, at, end) if word and UNFINISHED not in word else -1
        if start < 0 or (start > at and (place == 0 or texts[place - 1])):  # found by chance, farther on
            continue
        if start > at:
            texts[place - 1] = text[at:start]
        texts[place], at = word, start + len(word)
    if words:
        texts[-1] += text[at:]
    return texts


class Vllm(ServedPair):
    kind, answers = "vLLM", VllmAnswer

    def look(self) -> None:
        with suppress(ValidationError):
            told = _Version.model_validate_json(self.client.glance("/version") or b"")
            self.version = readable(told.version)[:40]
        self.notes.append("the server tells no p, q and u: probabilities are the target's before the sampler")
        for _ in range(PROBES):
            answer = self.probed()
            if answer.steps is not None:
                self.longest = answer.steps.num_spec_tokens
            elif answer.before is not None:
                self.longest = answer.before.longest
            self.always = self.longest == 0 or (self.longest is not None and answer.has_full_drafts())
            if self.always:
                break
        if self.longest == 0:
            self.method = "none"
            return
        self.notes += [] if self.always else [NO_COUNTERS if self.longest is None else VARIES]

    def asked(self, params: Params, prompt: Any, ids: list[int], most: int) -> tuple[str, Body]:
        body: Body = {
            "model": self.model,
            "max_tokens": most,
            **{name: getattr(params, name) for name, row in PARAMETERS.items() if row.on_vllm},
            "stop": list(params.stop),
            **{"stream": True, "return_token_ids": True, "include_stop_str_in_output": True},
            "stream_options": {"include_usage": True},
        }
        if params.repetition_penalty is not None:  # else the server takes the model's own
            body["repetition_penalty"] = params.repetition_penalty
        if params.logit_bias:
            body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
        if params.chat:
            body |= {"logprobs": True, "top_logprobs": params.alternatives}
            return "/v1/chat/completions", body | software.chat_of(prompt, params)
        return "/v1/completions", body | {"prompt": prompt or ids, "logprobs": params.alternatives}

    def faults(self, params: Params) -> Iterator[Message]:
        if params.min_p and params.temperature and self.drafts:
            yield about("min_p", "servers_min_p", software=self.kind)
        if params.logit_bias and self.drafts:
            yield about("logit_bias", "servers_bias", software=self.kind)
        if name := field_of_grammar(params):
            yield about(name, "grammar_not_sent")

    def counted(self, is_over: Condition) -> Counted | None:
        """Up to now; None where it does not tell, and once `is_over`."""
        metrics = self.client.glance("/metrics", is_over, LONGEST_METRICS)
        return None if metrics is None else counted_in(metrics.decode("utf-8", "replace"))
