"""What a chunk of a vLLM server is: which of its tokens were drafted, and what is known of the rest. Runs of
a real server, recorded, are read as it counts them, and the stand-in has their shape."""

import json
import urllib.request
from dataclasses import replace
from unittest.mock import Mock

import pytest

from specdemo.servers.client import Request
from specdemo.servers.software import Chunk, Misread, round_of, token
from specdemo.servers.vllm import Steps, VllmAnswer, counted_in, texts_of
from tests.recorded import keys_of, labels_of, recorded
from tests.stand_ins.vllm import StandIn, fates

WORD = -0.5  # log-probability
UNCOUNTED = Mock(counted=lambda *_: None, longest=4, always=False)  # a server


def reader(tokens: int = 2_000, prompt_ids: int = 10_000) -> VllmAnswer:
    return VllmAnswer(UNCOUNTED, Request("", {}, tokens, 5, prompt_ids))


def chunk_of(event) -> Chunk:
    return reader().read(event)[0]


def chunk(*ids: int, finish: str | None = None):
    tokens = [f" {id_}" for id_ in ids]
    tops = [{token: WORD, " x": -2.0} for token in tokens]
    logprobs = {"tokens": tokens, "token_logprobs": [WORD] * len(ids), "top_logprobs": tops}
    choice = {"text": "".join(tokens), "token_ids": list(ids), "logprobs": logprobs, "finish_reason": finish}
    return chunk_of({"choices": [choice]})


@pytest.mark.parametrize(
    ("ids", "longest", "always", "finish", "expected", "told"),
    [
        ((7, 8, 9), 2, True, None, "aa bonus", True),
        ((7, 8, 9), 2, False, None, "aa bonus", True),
        ((7, 8), 2, True, None, "ar resampled", True),
        ((7,), 2, True, None, "rd resampled", True),
        ((7,), 2, False, None, " sampled", False),
        ((7, 8), None, False, None, "a sampled", False),
        ((7,), 0, True, None, " sampled", True),
        ((7, 8), 2, True, "length", "a sampled", True),
        ((7, 8, 9), 2, True, "stop", "aa bonus", True),
    ],
)
def test_the_fates_follow_from_the_counts(ids, longest, always, finish, expected, told):
    a_round = round_of(3, replace(chunk(*ids, finish=finish), arrival_ms=1.5), longest, always)
    assert (fates(a_round), a_round.drafts_told) == (expected, told)
    assert a_round.emitted == ids and a_round.arrival_ms == 1.5


def test_what_the_server_does_not_tell_is_null():
    a_round = round_of(1, chunk(7), 2, True)
    rejected, discarded = a_round.draft
    assert rejected.text == "" and discarded.fate == "discarded"
    assert rejected.id is rejected.raw_p is rejected.p is rejected.u is None
    own = a_round.next
    assert (own.p, own.q, own.u, own.residual_mass) == (None, None, None, None)
    assert own.raw_p == pytest.approx(0.6065, abs=1e-4)
    assert own.top[0][:2] == (7, " 7") and own.top[1][:2] == (None, " x") and own.top[0][4] == own.raw_p
    for nothing in (None, {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}):
        sent = {"choices": [{"text": "a", "token_ids": [5], "logprobs": nothing}]}
        assert chunk_of(sent).tokens == (token(5, "a", None, ()),)


@pytest.mark.parametrize(("index", "ids", "longest"), [(0, (7, 8), 2), (1, (1, 2, 3, 4), 2), (1, (1, 2), 0)])
def test_a_chunk_that_is_longer_than_a_round_can_be_is_refused(index, ids, longest):
    """The first round is the prefill's, and has one token."""
    with pytest.raises(Misread, match="several rounds in a chunk"):
        round_of(index, chunk(*ids), longest, True)


def steps(accepted: list[int], drafted: list[int], longest: int = 2) -> Steps:
    sums = dict.fromkeys(("num_spec_steps", "num_draft_tokens"), 0)
    return Steps(num_spec_tokens=longest, per_step_accepted=accepted, per_step_drafted=drafted, **sums)


def test_the_drafts_of_each_round_are_settled_by_lists_that_fit_its_chunks():
    assert steps([1, 1], [2, 2]).counts([2, 1, 2]) is None, "a round without a draft is in no list"
    for told in (steps([2, 0], [2, 2]), steps([1, 0], [2, 1], longest=1), steps([1, 0], [0, 1])):
        with pytest.raises(Misread, match="2 tokens for round 2, but counts . of . drafts accepted"):
            told.counts([2, 1])
    assert steps([2, 1], [2, 2]).counts([3, 1]) == [(2, 2), (1, 2)]
    cut = round_of(2, replace(chunk(7), accepted=1, drafted=2), 2, False)
    assert fates(cut) == "ad none", "the text has ended: there is no token of the target's own"
    assert [token.id for token in cut.draft] == [7, None]


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("é b", ["\ufffd", "\ufffd", " b"], ["", "é", " b"]),  # two tokens, one character
        ("é", ["\ufffd"], ["é"]),  # begun in the chunk before
        (" a", [" a", "\ufffd"], [" a", ""]),  # completed in the next chunk
        (".", [".", "<|eos|>"], [".", ""]),
        ("hi.", ["hi", ". The"], ["hi", "."]),  # cut after a stop string
        ("ab", [], []),
    ],
)
def test_the_texts_of_tokens_join_to_the_chunks_text(text, words, expected):
    assert texts_of(text, words) == expected


NAMES = ["target", "draft_model", "ngram", "eagle3"]


class Replayed:
    def __init__(self, name: str):
        kept = recorded(name)
        before, after = (counted_in("\n".join(lines)) for lines in kept["metrics"])
        self.longest, self.added = (
            after.longest,
            (after.drafts - before.drafts, after.drafted - before.drafted),
        )
        read = reader()
        self.chunks = [chunk for event in kept["events"] for chunk in read.read(event)]
        self.steps, self.prompt_ids = read.steps, read.prompt_ids
        self.with_tokens = [chunk for chunk in self.chunks if chunk.tokens]
        self.rounds = [round_of(at, one, self.longest, False) for at, one in enumerate(self.with_tokens)]


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_a_whole_text(name):
    run = Replayed(name)
    emitted = [token for one in run.rounds for token in one.emitted]
    assert len(emitted) == 24 and run.longest == (0 if name == "target" else 4)
    drafts = {"target": 0, "ngram": 3}.get(name, len(run.rounds) - 1)  # n-grams are not found in every round
    assert run.added == (drafts, drafts * run.longest)
    assert run.prompt_ids and [chunk.finish for chunk in run.chunks[-2:]] == ["length", None]
    for piece in (piece for chunk in run.chunks for piece in chunk.tokens):
        assert 0 < piece.raw_p <= 1 and [row[0] for row in piece.top].count(piece.id) == 1
    texts = ["".join(piece.text for piece in chunk.tokens) for chunk in run.chunks]
    sent = [event["choices"] for event in recorded(name)["events"]]
    assert texts == ["".join(choice["text"] for choice in choices) for choices in sent]


@pytest.mark.parametrize("name", NAMES)
def test_the_stand_in_sends_what_the_real_one_sends(name):
    kept = recorded(name)
    alone = {"gamma": None, "rounds": ((5,), (6,), (7,))}
    stand_in = StandIn(detailed=name == "eagle3", **(alone if name == "target" else {}))
    with stand_in.serving() as url:
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(kept["request"]).encode())
        with urllib.request.urlopen(asked, timeout=60) as answer:
            lines = [line.decode().strip().removeprefix("data: ") for line in answer]
        events = [json.loads(line) for line in lines if line and line != "[DONE]"]
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode().splitlines()
        models = json.loads(urllib.request.urlopen(f"{url}/v1/models", timeout=60).read())
    for theirs in kept["events"]:  # these need an option of their own
        for time in [key for key in theirs.get("metrics", {}) if key != "speculative_decoding"]:
            del theirs["metrics"][time]
    *chunks, usage = kept["events"]
    assert keys_of(events[:-1]) == keys_of(chunks) and keys_of(events[-1]) == keys_of(usage)
    assert keys_of(models) <= keys_of(kept["models"])
    assert labels_of(metrics) == labels_of(kept["metrics"][0])


def test_what_is_told_after_the_end_settles_every_round():
    run = Replayed("eagle3")
    counts = run.steps.counts([len(one.tokens) for one in run.with_tokens[1:]])
    told = zip(run.with_tokens[1:], counts, strict=True)
    rounds = [round_of(1, replace(one, accepted=kept, drafted=of), 4, False) for one, (kept, of) in told]
    for one in rounds[:-1]:
        accepted = len(one.emitted) - 1
        fate = "a" * accepted + ("rddd"[: 4 - accepted])
        assert fates(one) == f"{fate} {'bonus' if accepted == 4 else 'resampled'}" and one.drafts_told
    assert {"bonus", "resampled"} <= {one.next.source for one in rounds[:-1]}
    assert run.steps.per_step_accepted[:-1] == [len(one.emitted) - 1 for one in rounds[:-1]]
    assert run.added == (run.steps.num_spec_steps, run.steps.num_draft_tokens)
