"""Runs on the real llama.cpp server beside the same runs of this engine: the target alone, with the drafter,
and with what the drafter is sure of."""

from dataclasses import replace

import pytest

from specdemo import Params, Trace, generate, load_pair
from tests import recorded
from tests.llama_server import GAMMA, serving_llama
from tests.vllm_server import ROOT, environment

GREEDY = Params(temperature=0, max_new_tokens=60, alternatives=2)
OPENING, STORY = "Once upon a time", "The big dog ran"
BYTES = {"json_schema": {"enum": ["é😊 naïve"]}, "max_new_tokens": 30}  # characters of several tokens

pytestmark = [pytest.mark.peers, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    lists = ("-r", ROOT / "requirements.txt", "-r", ROOT / "tests" / "peers.txt")
    return environment(tmp_path_factory.mktemp("packages") / "venv", *lists)


@pytest.fixture(scope="module")
def ours():
    return load_pair(device="cpu")


@pytest.fixture(scope="module", params=["target", "draft", "sure"])
def server(request, python, tmp_path_factory):
    with serving_llama(python, tmp_path_factory.mktemp("llama"), request.param) as address:
        yield request.param, load_pair(server=address)


def same_as_here(theirs: Trace, ours, prompt: str, params: Params) -> Trace:
    own = generate(ours, prompt, replace(params, draft_with="none"), measure=False)
    assert theirs.prompt_ids == own.prompt_ids and theirs.output_ids == own.output_ids
    assert Trace.from_json(theirs.to_json()).to_json() == theirs.to_json()
    return own


def test_a_greedy_run_is_this_engines_and_its_rounds_add_up_to_what_the_server_counts(server, ours):
    (kind, pair), prompt = server, STORY
    theirs = generate(pair, prompt, GREEDY)
    own = same_as_here(theirs, ours, prompt, GREEDY)
    assert theirs.text == own.text and theirs.finish == "length" and len(own.output_ids) == 60
    for one in theirs.rounds[1:-1]:
        fates = [token.fate for token in one.draft]
        accepted = len(one.emitted) - 1
        assert fates == (["accepted"] * accepted + ["rejected"] + ["discarded"] * GAMMA)[: len(fates)]
        full = "bonus" if fates else "sampled"
        assert one.next.source == (full if accepted == len(fates) else "resampled")
    lengths = {len(one.draft) for one in theirs.rounds[1:-1]}
    assert lengths == {"target": {0}, "draft": {GAMMA}}.get(kind, lengths)
    assert pair.server.method == ("none" if kind == "target" else "draft-simple")
    assert pair.drafts == (kind != "target") and pair.context == ours.context
    if kind == "target":
        raw = [one.next.raw_p for one in theirs.rounds]
        assert raw == pytest.approx([one.next.raw_p for one in own.rounds], abs=1e-3)
    elif kind == "sure":
        assert len(lengths) > 2 and max(lengths) <= GAMMA
    else:  # the same drafter's drafts are accepted here; the server's first round is the prefill's token
        prefilled = [*theirs.prompt_ids, *theirs.rounds[0].emitted]
        drafted_here = replace(GREEDY, gamma=GAMMA, max_new_tokens=59)
        here = generate(ours, prefilled, drafted_here, measure=False)
        sizes = [len(one.emitted) for one in here.rounds]
        assert [len(one.emitted) for one in theirs.rounds[1:]] == sizes and max(sizes) > 1


@pytest.mark.parametrize(
    "changes",
    [{"stop": ("Lily",)}, {"max_new_tokens": 300}, {"repetition_penalty": 1.3, "logit_bias": {397: -50.0}}],
    ids=["a stop string", "the end of the text", "a penalty and a bias"],
)
def test_what_is_passed_on_does_what_it_does_here(server, ours, changes):
    params = replace(GREEDY, **changes)
    theirs = generate(server[1], OPENING, params)
    own = same_as_here(theirs, ours, OPENING, params)
    assert (theirs.text, theirs.finish) == (own.text, own.finish)
    if not params.stop:
        plain = generate(ours, OPENING, GREEDY, measure=False)
        assert own.output_ids != plain.output_ids


def test_the_filters_come_behind_the_temperature(server, ours):
    """At temperature 2, min-p 0.999 leaves ties only; before the temperature it would leave more."""
    sampled = replace(GREEDY, temperature=2, top_p=1.0, seed=5, max_new_tokens=24)
    greedy = generate(ours, STORY, replace(GREEDY, max_new_tokens=24), measure=False).output_ids
    pair = server[1]
    assert generate(pair, STORY, replace(sampled, min_p=0.999)).output_ids == greedy
    first, again = (generate(pair, STORY, sampled) for _ in range(2))
    assert first.output_ids == again.output_ids != greedy


def test_the_server_sends_what_is_recorded(server):
    kind, pair = server
    runs = {kind: replace(GREEDY, max_new_tokens=24, seed=1)}
    if kind != "sure":
        runs[f"{kind}-bytes"] = replace(GREEDY, seed=1, **BYTES)
    for name, params in runs.items():
        fresh = recorded.record_llama(pair, OPENING, params)
        if recorded.RECORD:
            recorded.save(name, fresh, "llama-cpp")
        kept = recorded.recorded(name, "llama-cpp")
        assert recorded.keys_of(kept["events"]) == recorded.keys_of(fresh["events"])
        assert [one["tokens"] for one in kept["events"]] == [one["tokens"] for one in fresh["events"]]
