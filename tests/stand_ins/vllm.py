"""A stand-in for a vLLM server: it plays a list of rounds in the shape in which the real one sends them,
counts as the real one does, and misbehaves as a test wants. A test compares its shape with recordings of the
real one."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from specdemo import load_pair
from specdemo.events import Round
from specdemo.servers.software import ServedPair
from tests.stand_ins.serving import Handler, serving

MODEL = "stand-in"
SENT = {"id": "cmpl-1", "object": "text_completion", "created": 1}  # with each event
ROUNDS = ((5,), (6, 7, 8), (9, 10), (11,), (12,))
TEXT = "".join(f" word{id_}" for id_ in range(5, 13))  # of these rounds
WORDS = {id_: f" word{id_}" for id_ in range(1000)}


@dataclass
class StandIn:
    """rounds: the ids of each chunk; drafted: how many tokens were drafted for each chunk but the first, None
    for gamma each time. gamma: None for a server that does not draft. finish, stop: as its last chunk says.
    before_chunk: called with the chunk's number and a function that writes bytes; it may wait, write, or
    raise BreakOff. others: drafts of other visitors that it judges during each run. detailed: it was started
    with --per-request-spec-decode-metrics detailed. likely: the log-probabilities that it tells of each token
    and of another one at its place."""

    rounds: Sequence[Sequence[int]] = ROUNDS
    gamma: int | None = 2
    drafted: Sequence[int] | None = None
    finish: str = "length"
    stop: str | None = None
    words: dict[int, str] = field(default_factory=lambda: dict(WORDS))
    model: str = MODEL
    owner: str = "vllm"
    key: str | None = None
    context: int = 512
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)  # in place of its own
    before_answer: Callable[[str], None] = lambda path: None  # called with the path of each request
    before_chunk: Callable[[int, Callable[[bytes], None]], None] = lambda number, write: None
    others: int = 0
    detailed: bool = False
    likely: tuple[float, float] = (-0.5, -1.5)
    probe: Sequence[Sequence[int]] | None = None  # what it plays to the first request; None: `rounds`
    requests: list[dict[str, Any]] = field(default_factory=list)
    tokenised: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    drafted_at_first: Sequence[int] | None = None  # the same for `probe`
    tells: dict[str, Any] = field(default_factory=dict)  # of its drafts after the end, in place of the truth
    at_once: bool = False  # whether a proxy collects the whole answer
    judge_more: int = 0  # drafts that it judges without a chunk of their own
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = field(default_factory=list)  # by place
    aborted: int = 0
    running: int = 0

    def __post_init__(self) -> None:
        self.accepted = [0] * (self.gamma or 0)
        self.asked = 0

    def serving(self, tls: ssl.SSLContext | None = None) -> AbstractContextManager[str]:
        """Gives its address."""
        return serving(handler(self), tls)

    def behave(self, **settings: Any) -> None:
        """As a new one with these settings would, for the next test that shares it."""
        vars(self).update(vars(StandIn(**settings)) | {"running": self.running})

    def metrics(self) -> str:
        label = f'engine="0",model_name="{self.model}"'
        lines = sample("vllm:num_requests_running", "gauge", label, self.running)
        if self.gamma:
            lines += [
                *sample("vllm:spec_decode_num_drafts", "counter", label, self.drafts),
                *sample("vllm:spec_decode_num_draft_tokens", "counter", label, self.draft_tokens),
                "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter",
            ]
            per_place = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            for place, count in enumerate(self.accepted):
                lines.append(f'{per_place}{{{label},position="{place}"}} {float(count)}')
        return "\n".join(lines) + "\n"

    def play(self, chat: bool, body: dict[str, Any], write: Callable[[bytes], None]) -> None:
        self.running += 1
        prompt_ids = body["prompt"] if isinstance(body.get("prompt"), list) else [1, 2, 3]
        all_rounds = self.rounds if self.probe is None or self.asked else self.probe
        rounds = list(cut(all_rounds, body["max_tokens"]))
        self.asked += 1
        steps: list[tuple[int, int]] = []
        try:
            if chat:
                first = {"delta": {"role": "assistant", "content": ""}, "index": 0, "finish_reason": None}
                write(line({"choices": [first], "prompt_token_ids": prompt_ids}))
            for number, ids in enumerate(rounds):
                self.before_chunk(number, write)
                is_last = number == len(rounds) - 1
                write(line(self.chunk(ids, prompt_ids if number == 0 else None, is_last, chat)))
                if number and self.gamma:
                    lengths = self.drafted_at_first if all_rounds is self.probe else self.drafted
                    drafted = self.gamma if lengths is None else lengths[number - 1]
                    self.judge(len(ids) - 1, drafted, steps)
            for _ in range(self.judge_more):
                self.judge(0, self.gamma or 0, steps)
            for _ in range(self.others):
                self.judge(0, self.gamma or 0, [])
            self.before_chunk(len(rounds), write)
            read, made = len(prompt_ids), sum(map(len, rounds))
            usage = {"prompt_tokens": read, "total_tokens": read + made, "completion_tokens": made}
            end: dict[str, Any] = {**SENT, "model": self.model, "choices": [], "usage": usage}
            end["system_fingerprint"] = "vllm"
            if self.detailed:
                end["metrics"] = {"speculative_decoding": self.detail(steps)}
        except OSError:
            self.aborted += 1
            self.running -= 1
            raise
        self.running -= 1
        write(line(end))
        write(b"data: [DONE]\n\n")

    def judge(self, accepted: int, drafted: int, steps: list[tuple[int, int]]) -> None:
        if not drafted:
            return
        steps.append((accepted, drafted))
        self.drafts += 1
        self.draft_tokens += drafted
        for place in range(accepted):
            self.accepted[place] += 1

    def detail(self, steps: list[tuple[int, int]]) -> dict[str, Any]:
        drafted, accepted = sum(drafted for _, drafted in steps), sum(accepted for accepted, _ in steps)
        counts = [accepted for accepted, _ in steps]
        mean, rate = 1 + accepted / max(1, len(steps)), accepted / max(1, drafted)
        told: dict[str, Any] = {"mean_acceptance_length": mean, "draft_acceptance_rate": rate}
        told["acceptance_histogram"] = [counts.count(length) for length in range((self.gamma or 0) + 1)]
        told |= {"num_spec_tokens": self.gamma, "num_spec_steps": len(steps), "num_draft_tokens": drafted}
        told |= {"num_accepted_draft_tokens": accepted, "per_step_accepted": counts}
        return told | {"per_step_drafted": [drafted for _, drafted in steps]} | self.tells

    def chunk(
        self, ids: Sequence[int], prompt_ids: list[int] | None, is_last: bool, chat: bool
    ) -> dict[str, Any]:
        words = [self.words[id_] for id_ in ids]
        own, other = self.likely
        finish, stop = (self.finish, self.stop) if is_last else (None, None)
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "stop_reason": stop}
        choice, text = choice | {"token_ids": list(ids)}, "".join(words)
        if chat:
            names = {"token": " else", "logprob": other}
            likely = [{"token": word, "logprob": own, "bytes": list(word.encode())} for word in words]
            content = [one | {"top_logprobs": [one, names]} for one in likely]
            return {"choices": [choice | {"delta": {"content": text}, "logprobs": {"content": content}}]}
        logprobs: dict[str, Any] = {"text_offset": [0] * len(ids), "token_logprobs": [own] * len(ids)}
        logprobs |= {"tokens": words, "top_logprobs": [{word: own, " else": other} for word in words]}
        choice |= {"text": text, "logprobs": logprobs, "prompt_token_ids": prompt_ids}
        return {**SENT, "model": self.model, "choices": [choice]}


def cut(rounds: Sequence[Sequence[int]], most: int) -> Iterator[Sequence[int]]:
    for ids in rounds:
        if most > 0:
            yield ids[:most]
        most -= len(ids)


class BreakOff(OSError):
    """Ends the connection in the middle of an answer."""


def line(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def sample(name: str, kind: str, label: str, value: float) -> list[str]:
    total = "_total" if kind == "counter" else ""
    return [f"# TYPE {name}{total} {kind}", f"{name}{total}{{{label}}} {float(value)}"]


def handler(stand_in: StandIn) -> type[Handler]:
    class Answers(Handler):
        def do_GET(self) -> None:
            self.answered("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self.answered("POST", json.loads(self.rfile.read(length)))

        def answered(self, method: str, body: dict[str, Any]) -> None:
            stand_in.keys.append(self.headers.get("Authorization"))
            stand_in.before_answer(self.path)
            model = {"id": stand_in.model, "owned_by": stand_in.owner, "max_model_len": stand_in.context}
            own = {"/version": {"version": "0.32.0"}, "/v1/models": {"object": "list", "data": [model]}}
            if self.path in stand_in.answers:
                self.reply(*stand_in.answers[self.path])
            elif stand_in.key and self.headers.get("Authorization") != f"Bearer {stand_in.key}":
                self.reply(401, {}, b'{"error": "Unauthorized"}')
            elif self.path in own:
                self.reply(200, {}, json.dumps(own[self.path]).encode())
            elif self.path == "/metrics":
                self.reply(200, {}, stand_in.metrics().encode())
            elif self.path == "/tokenize":
                stand_in.tokenised.append(body)
                self.reply(200, {}, b'{"tokens": [1, 2, 3]}')
            elif self.path in ("/v1/completions", "/v1/chat/completions"):
                stand_in.requests.append(body)
                self.stream("chat" in self.path, body)
            else:
                self.reply(404, {}, b'{"detail": "Not Found"}')

        def stream(self, chat: bool, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            collected: list[bytes] = []

            def write(content: bytes) -> None:
                if stand_in.at_once:
                    collected.append(content)
                else:
                    self.wfile.write(content)
                    self.wfile.flush()

            try:
                stand_in.play(chat, body, write)
                self.wfile.write(b"".join(collected))
            except OSError:
                self.close_connection = True

    return Answers


def slowly(seconds: float) -> Callable[[int, Callable[[bytes], None]], None]:
    return lambda number, write: time.sleep(seconds)


class Gate:
    """Holds a server up until a test opens it. If nobody does for a minute, `was_missed`."""

    def __init__(self) -> None:
        self.reached, self.opened, self.was_missed = threading.Event(), threading.Event(), False

    def hold(self, *_: object) -> None:
        self.reached.set()
        self.was_missed |= not self.opened.wait(60)


@contextmanager
def connected(**settings: Any) -> Iterator[tuple[StandIn, ServedPair]]:
    """A new server, and what takes the place of a pair for it."""
    server = StandIn(**settings)
    with server.serving() as url:
        yield server, load_pair(server=url)


def fates(a_round: Round) -> str:
    """First letters of the drafts' fates, then the source of the target's own token."""
    own = a_round.next.source if a_round.next else "none"
    return f"{''.join(token.fate[0] for token in a_round.draft)} {own}"
