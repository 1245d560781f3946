"""Runs on the real vLLM, its CPU build, beside the same runs of this engine: alone and with each way of
drafting. Sampling while it drafts is left out: that build gets it wrong."""

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.servers.client import ServerError
from specdemo.servers.software import ServedPair
from tests import recorded
from tests.vllm_server import CONTEXT, PAIR, python_with_vllm, serving

GAMMA, NEW_TOKENS = 4, 60
GREEDY = Params(temperature=0, max_new_tokens=NEW_TOKENS)
ALONE = replace(GREEDY, draft_with="none")
BALL = "Tim had a red ball. He loved his red ball. One day, Tim took his red"
LILY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun."
OPENING, STORY = "Once upon a time", "The big dog ran"
ENDS = [  # a stop string, the end of the text, and that of the context
    replace(GREEDY, stop=(" was",)),
    replace(GREEDY, max_new_tokens=300),
    replace(GREEDY, max_new_tokens=CONTEXT, ignore_eos=True),
]
GENERATED, RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]


@dataclass
class Server:
    pair: ServedPair
    address: str
    key: str | None

    def metric(self, name: str) -> float:
        """A counter's sum over all of its labels."""
        text = self.pair.client.ask("/metrics").decode()
        lines = re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, lines))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with_vllm(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def ours():
    return load_pair()


@pytest.fixture(scope="class")
def server(request, python, tmp_path_factory):
    of = request.cls
    drafting = of.drafting and {"num_speculative_tokens": GAMMA, **of.drafting}
    log = tmp_path_factory.mktemp("log") / f"{of.name}.txt"
    with serving(python, log, drafting, *of.options) as address:
        yield Server(load_pair(server=address, server_key=of.key), address, of.key)


class OfEachServer:
    """What holds for every way of drafting."""

    name: str
    drafting: dict[str, Any] | None = None
    options: tuple[str, ...] = ()
    key: str | None = None
    gamma, method = GAMMA, None

    def test_what_it_tells_of_itself(self, server):
        told = server.pair.server
        assert (told.gamma, told.method) == (self.gamma, self.method) and server.pair.always
        assert told.version == "0.32.0" and told.model == str(PAIR / "target")
        assert server.pair.context == CONTEXT and server.pair.drafts == bool(self.gamma)

    def test_a_greedy_run_is_this_engines(self, server, ours):
        prompt = BALL
        theirs, own = generate(server.pair, prompt, GREEDY), generate(ours, prompt, ALONE, measure=False)
        assert theirs.text == own.text and theirs.output_ids == own.output_ids
        assert len(own.output_ids) == NEW_TOKENS
        assert theirs.prompt_ids == own.prompt_ids and theirs.finish == "length"
        expected = [one.next.raw_p for one in own.rounds]
        tokens_told = (token for one in theirs.rounds for token in (*one.draft, one.next) if token)
        raws = [token.raw_p for token in tokens_told if token.raw_p is not None]
        assert raws == pytest.approx(expected, abs=1e-3)
        assert Trace.from_json(theirs.to_json()).to_json() == theirs.to_json()
        self.check_fates(theirs)

    def check_fates(self, trace):
        for one in trace.rounds[1:-1]:
            accepted = len(one.emitted) - 1
            assert one.drafts_told and len(one.draft) == one.gamma == GAMMA
            fates = ["accepted"] * accepted + ["rejected"] + ["discarded"] * GAMMA
            assert [token.fate for token in one.draft] == fates[:GAMMA]
            assert one.next.source == ("bonus" if accepted == GAMMA else "resampled")

    @pytest.mark.parametrize("params", ENDS, ids=["stop", "eos", "length"])
    def test_texts_end_as_here(self, server, ours, params):
        prompt, same = OPENING, replace(params, draft_with="none")
        if params.ignore_eos:
            prompt = ours.tokenizer(f"{LILY} " * 40).input_ids[: CONTEXT - 12]
            same = replace(same, max_new_tokens=12)
        theirs, own = generate(server.pair, prompt, params), generate(ours, prompt, same, measure=False)
        assert (theirs.text, theirs.output_ids, theirs.finish) == (own.text, own.output_ids, own.finish)

    def test_the_server_sends_what_is_recorded(self, server):
        fresh = recorded.record(server.pair, server.key, BALL)
        if recorded.RECORD:
            recorded.save(self.name, fresh)
        kept = recorded.recorded(self.name)
        assert recorded.keys_of(fresh) == recorded.keys_of(kept)
        for before, now in zip(kept["metrics"], fresh["metrics"], strict=True):
            assert recorded.labels_of(before) == recorded.labels_of(now)
        assert [tokens(event) for event in fresh["events"]] == [tokens(event) for event in kept["events"]]


def tokens(event: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in event["choices"]]


class TestDraftModel(OfEachServer):
    name = "draft_model"
    drafting = {"method": "draft_model", "model": str(PAIR / "drafter")}

    def test_a_closed_run_ends_on_the_server(self, server):
        before = server.metric(GENERATED)
        with stream(server.pair, OPENING, replace(GREEDY, max_new_tokens=480, ignore_eos=True)) as run:
            for _ in range(5):
                next(run)
        assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 4
        until = time.monotonic() + 60
        while server.metric(RUNNING):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert server.metric(GENERATED) < before + 200
        assert generate(server.pair, OPENING, replace(GREEDY, max_new_tokens=8)).finish == "length"


class TestTargetAlone(OfEachServer):
    name = "target"
    gamma, method = 0, "none"

    def check_fates(self, trace):
        assert trace.stats.accepted == trace.stats.drafted == 0
        assert {(one.draft, one.next.source, one.drafts_told) for one in trace.rounds} == {
            ((), "sampled", True)
        }

    def test_sampling_is_passed_on(self, server):
        sampled = Params(temperature=1, max_new_tokens=24, seed=5)
        first, second = (generate(server.pair, STORY, sampled) for _ in range(2))
        greedy = generate(server.pair, STORY, replace(GREEDY, max_new_tokens=24))
        assert first.output_ids == second.output_ids != greedy.output_ids
        only_the_likeliest = generate(server.pair, STORY, replace(sampled, min_p=0.999))
        assert only_the_likeliest.output_ids == greedy.output_ids


class TestEagle3(OfEachServer):
    name = "eagle3"
    drafting = {"method": "eagle3", "model": str(PAIR / "eagle3")}
    key = "a-secret-key"
    options = (
        *("--per-request-spec-decode-metrics", "detailed"),
        *("--api-key", key),
    )

    @pytest.mark.parametrize("key", [None, "another-key"])
    def test_a_wrong_key_and_none_are_told_in_a_sentence(self, server, key):
        with pytest.raises(ServerError, match="refuses the key"):
            load_pair(server=server.address, server_key=key)
