"""Runs of a real vLLM server, recorded: they are read as the server counts them, and the stand-in has their
shape."""

import json
import urllib.request

import pytest

from specdemo.servers.counters import counters_of
from specdemo.servers.rounds import round_of, settled
from specdemo.servers.vllm import chunk_of
from tests.recorded import keys_of, labels_of, recorded
from tests.stand_ins.vllm import StandIn, fates

NAMES = ["target", "draft_model", "ngram", "eagle3"]


class Replayed:
    """always: whether each draft has all its tokens."""

    def __init__(self, name: str, always: bool):
        kept = recorded(name)
        model = kept["models"]["data"][0]["id"]
        before, after = (counters_of("\n".join(lines) + "\n", model) for lines in kept["metrics"])
        self.added = after.since(before)
        self.chunks = [chunk_of(event) for event in kept["events"]]
        longest = len(self.added.by_place)
        with_tokens = [chunk for chunk in self.chunks if chunk.pieces]
        self.rounds = [
            round_of(index, chunk, 1.0, longest, always) for index, chunk in enumerate(with_tokens)
        ]
        self.steps = self.chunks[-1].told.steps if self.chunks[-1].told else None


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_a_whole_text(name):
    run = Replayed(name, False)
    emitted = [token for one in run.rounds for token in one.emitted]
    assert len(emitted) == 24 == run.added.generated and run.added.is_of_one
    assert run.chunks[0].prompt_ids and [chunk.finish for chunk in run.chunks[-2:]] == ["length", None]
    for piece in (piece for chunk in run.chunks for piece in chunk.pieces):
        assert 0 < piece.probability <= 1 and [row[0] for row in piece.top].count(piece.id) == 1
    texts = ["".join(piece.text for piece in chunk.pieces) for chunk in run.chunks]
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
    kinds = {line for line in metrics if line.startswith("#")}
    assert kinds == {line for line in kept["metrics"][0] if line.startswith("#")}


def test_rounds_of_ngram_that_drafted_nothing_are_not_counted():
    run = Replayed("ngram", False)
    drafted = [one for one in run.rounds[1:] if one.draft]
    assert len(drafted) <= run.added.drafts < len(run.rounds) - 1
    assert run.added.drafted == 4 * run.added.drafts
    for one in run.rounds[1:-1]:
        is_full = len(one.emitted) == 5
        assert one.drafts_told == is_full and one.next.source == ("bonus" if is_full else "sampled")
        assert fates(one).startswith("a" * (len(one.emitted) - 1) + " ")
    check_accepted(run)


def test_what_is_told_after_the_end_settles_every_round():
    run = Replayed("eagle3", False)
    rounds = settled(run.rounds, run.steps)
    check_fates(rounds)
    assert run.steps.per_step_accepted[:-1] == [len(one.emitted) - 1 for one in rounds[1:-1]]
    assert (run.added.drafts, run.added.drafted) == (run.steps.num_spec_steps, run.steps.num_draft_tokens)
    assert run.added.accepted == run.steps.num_accepted_draft_tokens == sum(run.steps.per_step_accepted)
    check_accepted(run)


def check_fates(rounds):
    for one in rounds[1:-1]:
        accepted = len(one.emitted) - 1
        fate = "a" * accepted + ("rddd"[: 4 - accepted])
        assert fates(one) == f"{fate} {'bonus' if accepted == 4 else 'resampled'}" and one.drafts_told
    assert {"bonus", "resampled"} <= {one.next.source for one in rounds[1:-1]}


def check_accepted(run):
    """The server counts the last round before it is cut."""
    accepted = [len(one.emitted) - 1 for one in run.rounds[1:]]
    more = run.added.accepted - sum(accepted)
    assert 0 <= more <= 4 - accepted[-1] and run.added.accepted == sum(run.added.by_place)
    for place, count in enumerate(run.added.by_place):
        seen = sum(one > place for one in accepted)
        assert count == seen + (accepted[-1] <= place < accepted[-1] + more)
