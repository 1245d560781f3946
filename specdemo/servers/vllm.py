"""vLLM: a chunk is a round, /metrics count all visitors' requests, and after one it may tell each step."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from specdemo.events import LIMITS, PARAMETERS, Finish, Params, ServerStats
from specdemo.events.params import field_of_grammar
from specdemo.servers import software
from specdemo.servers.client import Body, Client, Condition, Request, never, readable
from specdemo.servers.software import Answer, Chunk, Likely, Misread, Sent, ServedPair, TokenWithTop
from specdemo.words.message import Message, about

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token whose character the next one completes
LONGEST_METRICS = 8_000_000  # bytes; those of many engines take about 1,000,000
LONGEST_SAMPLE = 10_000  # characters of a counter's line after its name
MOST_COUNTED = 2**53  # by a counter since the server started: floats are exact up to here
# What a server has counted, over all its engines and for all visitors, by the names in COUNTED; and by the
# number of each place that a draft can have, how many drafts were accepted up to there and beyond.
Counters = Counter[str | int]
Counts = Sequence[tuple[int, int | None]]  # of rounds: accepted and drafted tokens; None: not known
LATE = 2.0  # s that a server may take to count a request that has ended
DIFFER = "sent a chunk whose tokens and log-probabilities differ in number"
COUNTED = {  # what is read of the counters; a server writes thousands of others
    "vllm:spec_decode_num_drafts_total": "drafts",  # how many were judged
    "vllm:spec_decode_num_draft_tokens_total": "drafted",  # tokens
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "place",  # drafts
    "vllm:request_success_total": "ended",  # requests, but not those that were aborted
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "running",
    "vllm:generation_tokens_total": "generated",
    "vllm:request_queue_time_seconds_sum": "queue_ms",  # of all ended requests; sent in seconds
    "vllm:request_prefill_time_seconds_sum": "prefill_ms",
    "vllm:request_decode_time_seconds_sum": "decode_ms",
    "vllm:e2e_request_latency_seconds_sum": "total_ms",
}
TIMES = [name for name in COUNTED.values() if name.endswith("_ms")]
COUNTER_LINE = re.compile(rf"^[ \t]*({'|'.join(COUNTED)})(?![\w:])(.*)", re.MULTILINE)
LABEL = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')
# What follows a counter's name: labels, a number, a time, an exemplar. No part can end at several places, so
# that matching takes no longer than in proportion to the line's length.
LABELS = rf"\s*\{{(?P<labels>(?:{LABEL.pattern}(?:,|(?=\}})))*)\s*\}}"
SAMPLE = re.compile(rf"(?:{LABELS})?\s+(?P<number>[^\s#]+)(?:\s+-?[\d.]+)?\s*(?:#.*)?")
NOT_KNOWN = "so refused tokens are not known: start it with --per-request-spec-decode-metrics detailed"
VARIES = f"not every draft of this server has the same length, {NOT_KNOWN}"
OTHERS_USED_IT = f"others used the server when it was looked at, {NOT_KNOWN}"
NO_COUNTERS = "the server does not tell how it drafts: its /metrics cannot be read"
METHOD = AliasPath("vllm_config", "speculative_config", "method")


class _Names(BaseModel):
    """method: of drafting, which vLLM tells where it was started with VLLM_SERVER_DEV_MODE=1."""

    version: str | None = None
    method: software.Word | None = Field(None, validation_alias=METHOD)


def counters_of(text: str, model: str, is_over: Condition = never) -> Counters | None:
    """Those in the text of /metrics, of this model; None for a text of no vLLM, and once `is_over`."""
    counters: Counters = Counter()
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    try:
        for line in COUNTER_LINE.finditer(text):
            sample = SAMPLE.fullmatch(line[2]) if len(line[2]) <= LONGEST_SAMPLE else None
            if sample is None or is_over():
                return None
            name, number = COUNTED[line[1]], float(sample["number"])
            labels = dict(LABEL.findall(sample["labels"] or ""))
            if not 0 <= number <= MOST_COUNTED:  # nor NaN
                return None
            number = 1000 * number if name in TIMES else int(number)
            if labels.get("model_name", escaped) == escaped:
                counters[int(labels["position"]) if name == "place" else name] += number
    except (ValueError, KeyError):  # a number or a place that is none
        return None
    longest = longest_of(counters)
    are_vllms = "ended" in counters or "running" in counters
    is_whole = longest <= software.MOST_DRAFT and all(place in counters for place in range(longest))
    return counters if are_vllms and is_whole else None


def longest_of(counters: Counters) -> int:
    return sum(isinstance(name, int) for name in counters)


def added(now: Counters, before: Counters) -> Counters | None:
    """What has been counted since; None if the server has counted anew, or more than it can have. Those that
    run are those of both moments: 0 if nothing else ran."""
    counters = Counter({name: number - before[name] for name, number in now.items()})
    counters["running"] = now["running"] + before["running"]
    return counters if all(0 <= one <= software.MOST_OF_A_RUN for one in counters.values()) else None


OfSteps = Field(max_length=int(LIMITS["max_new_tokens"].largest), fail_fast=True)
PerStep = Annotated[list[software.DraftTokens], OfSteps]


class Steps(Sent):
    """What the server tells of one request's drafts after its end, if it was started with
    --per-request-spec-decode-metrics. num_spec_tokens: the most tokens of a draft. per_step_*: for each
    forward that judged a draft, at the level "detailed"."""

    num_spec_tokens: software.DraftTokens
    num_spec_steps: software.Count
    num_draft_tokens: software.Count
    num_accepted_draft_tokens: software.Count
    per_step_accepted: PerStep | None = None
    per_step_drafted: PerStep | None = None

    def counts(self, sizes: Sequence[int]) -> Counts | None:
        """Of each round; None where that is not told: forwards that judged no draft are not in the lists.
        sizes: how many tokens each round has added to the text."""
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


class PerRequest(Sent):
    """What the server tells of one request after its end. The times, with --enable-per-request-metrics, are
    those of waiting, from then to the first token, and from there to the last."""

    queue_time_ms: software.Milliseconds | None = None
    time_to_first_token_ms: software.Milliseconds | None = None
    generation_time_ms: software.Milliseconds | None = None
    speculative_decoding: Steps | None = None

    @property
    def times(self) -> dict[str, float | None]:
        """Those, and all together, by their names in ServerStats."""
        parts = (self.queue_time_ms, self.time_to_first_token_ms, self.generation_time_ms)
        total = None if None in parts else sum(part or 0 for part in parts)
        return dict(zip(TIMES, (*parts, total), strict=True))


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
    metrics: PerRequest | None = None


class VllmAnswer(Answer):
    """before, added: what is counted up to the request, and since. metrics, steps: of the request alone."""

    pair: "Vllm"
    added: Counters | None = None
    steps: Steps | None = None

    def __init__(self, pair: "Vllm", request: Request, is_over: Condition = never):
        super().__init__(pair, request)
        self.before, self.metrics = pair.counters(None, pair.left, is_over), PerRequest()
        if self.before and pair.longest is not None and longest_of(self.before) != pair.longest:
            raise Misread("drafts otherwise than when it was asked before: load it again")
        pair.left = True  # until the text has ended

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
        self.metrics = read.metrics or self.metrics
        self.steps = self.metrics.speculative_decoding
        rows = zip(ids, texts_of(words, [one.token for one in placed]), placed, strict=True)
        tokens = tuple(one.judged(id_, text) for id_, text, one in rows)
        self.prompt_ids = choice.prompt_token_ids or read.prompt_token_ids or self.prompt_ids
        return [Chunk(tokens, choice.finish(self.pair.client))]

    def settle(self, is_over: Condition) -> ServerStats | None:
        self.pair.left, was_stopped = False, self.finish == "stop"
        # After a stop string the server goes on for a round, and may judge one more draft.
        now = self.before and self.pair.counters(self.before, was_stopped, is_over)
        self.added = now and self.before and added(now, self.before)
        if (stats := self._stats(was_stopped)) is None:
            return None
        sizes = [len(chunk.tokens) for chunk in self.chunks[1:]]
        counts = self.steps and self.steps.counts(sizes)
        if stats.alone:
            _check_sums(stats, (self.steps and self.steps.per_step_drafted) or ())
            if counts is None and stats.drafts is not None:
                counts = _counts_by_sums(sizes, self.pair.longest, was_stopped, stats)
        for at, (accepted, drafted) in enumerate(counts or (), start=1):
            self.chunks[at] = replace(self.chunks[at], accepted=accepted, drafted=drafted)
        return stats

    def _stats(self, was_stopped: bool) -> ServerStats | None:
        """The request's numbers: as the server tells them of it alone, else by what it has counted since."""
        counted, times, steps = self.added or Counter(), self.metrics.times, self.steps
        is_alone = counted["ended"] == 1 and not counted["running"]
        # Requests of others may have been aborted, which do not count as ended.
        is_alone = is_alone and (was_stopped or counted["generated"] == self.tokens)
        if is_alone and not any(times.values()):
            times = {name: counted.get(name) for name in TIMES}
        if self.added is None and steps is None and not any(times.values()):
            return None
        sums = [counted.get(name) for name in ("drafts", "drafted", "accepted")]
        places = tuple(counted[place] for place in range(longest_of(counted)))
        if steps is not None:
            is_alone = True
            sums = [steps.num_spec_steps, steps.num_draft_tokens, steps.num_accepted_draft_tokens]
            places = software.accepted_by_place(steps.per_step_accepted or (), steps.num_spec_tokens)
        return ServerStats(is_alone, *sums, places, **times)


def _check_sums(stats: ServerStats, steps: Sequence[int]) -> None:
    """What is counted of one request has to fit together. steps: tokens of each draft; empty: not told."""
    drafts, drafted, accepted = (one or 0 for one in (stats.drafts, stats.drafted, stats.accepted))
    places = stats.accepted_by_place
    has_places = sorted((drafts, *places), reverse=True) == [drafts, *places] and sum(places) == accepted
    has_steps = (len(steps), sum(steps)) == (drafts, drafted)
    if accepted > drafted or (places and not has_places) or (steps and not has_steps):
        counts = f"{drafts:,} drafts of {drafted:,} tokens, {accepted:,} accepted, {sum(places):,} by place"
        raise Misread(f"counts {counts}, which contradicts itself")


def _counts_by_sums(sizes: list[int], longest: int | None, was_stopped: bool, stats: ServerStats) -> Counts:
    """Of each round, by what the server has counted of this request alone. sizes: see `Steps.counts`."""
    drafts, accepted, kept = stats.drafts or 0, stats.accepted or 0, [size - 1 for size in sizes]
    if (drafts > len(sizes) and not was_stopped) or accepted < sum(kept):
        counts = f"{drafts} drafts, accepted {accepted} tokens and sent {sum(sizes)} in {len(sizes)} chunks"
        raise software.Merged(f"has judged {counts}: some hold several rounds, so the drafts are not known")
    if longest is None or drafts != len(sizes) or stats.drafted != drafts * longest:
        return [(one, longest if one == longest else None) for one in kept]
    if kept and kept[-1] <= accepted - sum(kept[:-1]) <= longest:  # it was counted before the text was cut
        kept[-1] = accepted - sum(kept[:-1])
    return [(one, longest) for one in kept]


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
    left = False  # whether the server may still be at its last run, which was left early

    def look(self) -> None:
        for path in ("/version", "/server_info?config_format=json"):
            with suppress(ValidationError):
                names = _Names.model_validate_json(self.client.glance(path) or b"")
                self.version = self.version or (names.version and readable(names.version)[:40])
                self.method = names.method and readable(names.method)
        self.notes.append("the server tells no p, q and u: probabilities are the target's before the sampler")
        answer, stats = self.probed()
        if stats is None or (stats.drafts is None and answer.added is None):
            self.notes.append(NO_COUNTERS)
        elif stats.drafts is None:
            self.longest, self.always, self.method = 0, True, "none"
            return
        else:
            self.longest = answer.steps.num_spec_tokens if answer.steps else len(stats.accepted_by_place)
            rounds = len(answer.chunks) - 1
            full = (rounds, rounds * self.longest)
            self.always = stats.alone and full == (stats.drafts, stats.drafted)
            self.notes += [] if self.always else [VARIES if stats.alone else OTHERS_USED_IT]
        self.notes.append("min-p cannot be used, since vLLM does not take it where it drafts")

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

    def counters(self, before: Counters | None, idle: bool, is_over: Condition) -> Counters | None:
        """What the server has counted up to now; None where it does not tell. before: asks again until one
        more request has ended, which is counted a little later. idle: also until none runs, because a server
        that is told to end one goes on for a round."""
        until = time.monotonic() + LATE
        while True:
            text = self.client.glance("/metrics", is_over, LONGEST_METRICS)
            now = None if text is None else counters_of(text.decode("utf-8", "replace"), self.model, is_over)
            if now is None or time.monotonic() > until or is_over():
                return now
            has_ended = before is None or now["ended"] != before["ended"]
            if has_ended and not (idle and now["running"]):
                return now
            time.sleep(LATE / 40)
