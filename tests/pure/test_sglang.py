"""Runs on SGLang's server, by answers that were written after its documentation and source (0.5.23): no real
one has been tried."""

import random
from contextlib import contextmanager

import pytest

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.servers.client import Request, Room, ServerError
from specdemo.servers.sglang import HowStarted, SGLangReader
from tests.pure.test_vllm_hostile import mutated, replayed
from tests.stand_ins.replayed import Replayed, breaks_off_at
from tests.stand_ins.vllm import fates

ROUNDS = ((5,), (6, 7, 8), (9, 10), (11,), (12,))  # two tokens are drafted in each but the first
TEXT = "".join(f" word{id_}" for id_ in range(5, 13))
SHORT = Params(temperature=0, max_new_tokens=8, seed=1, alternatives=2)
CHAIN = {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "speculative_num_steps": 2}
CHAIN |= {"speculative_num_draft_tokens": 3, "speculative_adaptive": False, "version": "0.5.23"}
COUNTS = {"spec_verify_ct": 4, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 8}
COUNTS |= {"spec_accept_rate": 0.375, "spec_accept_length": 2.0, "spec_correct_drafts_histogram": [2, 1, 1]}
OLDER = {"spec_verify_ct": 4, "spec_accept_token_num": 3, "spec_draft_token_num": 8}


def events(incremental=False, counts=COUNTS, finish=None, rounds=ROUNDS):
    """The events of a run: each has the whole text, or what is new."""
    made, found = [], []
    for number, ids in enumerate(rounds):
        made += ids
        is_last = number == len(rounds) - 1
        shown = list(ids) if incremental else made.copy()
        meta = {
            "id": "1",
            "prompt_tokens": 3,
            "completion_tokens": len(made),
            "finish_reason": (finish or {"type": "length", "length": 8}) if is_last else None,
            "output_token_logprobs": [[-0.5, id_, f" word{id_}"] for id_ in (*shown, *[9] * is_last)],
        }
        if incremental:
            meta["output_top_logprobs"] = [[[-0.5, id_, f" word{id_}"], [-1.5, 1, " else"]] for id_ in shown]
        if is_last:
            meta |= {"e2e_latency": 0.5, **(counts or {})}
        found.append(
            {"text": "".join(f" word{id_}" for id_ in shown), "output_ids": shown, "meta_info": meta}
        )
    return found


@contextmanager
def connected(info=CHAIN, path="/server_info", **settings):
    model = {"id": "org/target", "object": "model", "owned_by": "sglang", "max_model_len": 512}
    answers = {"/v1/models": {"data": [model]}, "/tokenize": {"tokens": [1, 2, 3], "count": 3}, path: info}
    incremental = bool(info.get("incremental_streaming_output"))
    server = Replayed(answers, "/generate", events(incremental, **settings), b"data: [DONE]\n\n")
    with server.serving() as url:
        yield server, load_pair(server=url)


def of_all(trace):
    return [fates(one) for one in trace.rounds]


@pytest.mark.parametrize("incremental", [False, True], ids=["the whole text", "what is new"])
def test_a_chunk_is_a_round_whether_it_has_the_whole_text_or_what_is_new(incremental):
    with connected(CHAIN | {"incremental_streaming_output": incremental}) as (server, pair):
        trace = generate(pair, "Once", SHORT)
    assert of_all(trace) == [" sampled", "aa bonus", "ar resampled", "rd resampled", "rd resampled"]
    assert trace.text == TEXT and trace.finish == "length" and trace.output_ids == [*range(5, 13)]
    counted = trace.stats.server
    assert (counted.drafts, counted.drafted, counted.accepted) == (4, 8, 3) and counted.alone
    assert counted.accepted_by_place == (2, 1) and counted.total_ms == 500
    assert trace.rounds[1].draft[0].raw_p == pytest.approx(0.6065, abs=1e-4)
    assert len(trace.rounds[0].next.top) == (2 if incremental else 0)
    assert any("--incremental-streaming-output" in note for note in pair.notes) == (not incremental)
    assert (pair.server.version, pair.server.method, pair.server.gamma) == ("0.5.23", "EAGLE3", 2)
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_older_names_are_read_too():
    with connected(CHAIN, "/get_server_info", counts=OLDER) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert (trace.stats.server.drafts, trace.stats.server.accepted, pair.always) == (4, 3, True)


def test_of_drafts_with_branches_only_what_was_accepted_is_known():
    tree = CHAIN | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    with connected(tree, counts=COUNTS | {"spec_num_proposed_drafts": 28}) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert of_all(trace) == [" sampled", "aa bonus", "a sampled", " sampled", " sampled"]
    assert trace.stats.acceptance_rate is None and trace.stats.server.drafted == 28
    assert any("branches" in note for note in pair.notes)


def test_probabilities_are_told_where_the_temperature_does_not_change_them():
    with connected() as (_, pair):
        trace = generate(pair, "Once", Params(temperature=0.7, max_new_tokens=8))
    assert trace.rounds[0].next.raw_p is None and trace.text == TEXT


def test_a_server_that_does_not_draft_and_one_that_tells_nothing():
    ones = [(5,), (6, 7), *((id_,) for id_ in range(8, 13))]  # two are sent at once
    alone = {"speculative_algorithm": None, "tp_size": 2}
    with connected(alone, rounds=ones, counts=None) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert pair.server.parallel == "tensor-parallel over 2" and not pair.drafts and trace.stats.drafted == 0
    assert len(trace.rounds) == 8 and trace.text == TEXT
    with connected({}) as (_, pair):
        trace = generate(pair, "Once", SHORT)
    assert pair.server.gamma is pair.server.method is None and trace.stats.drafted is None


def test_what_is_asked_for():
    with connected() as (server, pair):
        generate(pair, "Hi", Params(chat=True, max_new_tokens=8, top_p=0.5, seed=3, ignore_eos=True))
        (*_, (path, text), (_, sent)) = server.requests
    assert path == "/tokenize" and text["messages"] == [{"role": "user", "content": "Hi"}]
    wanted = {"top_k": -1, "top_p": 0.5, "sampling_seed": 3, "ignore_eos": True, "max_new_tokens": 8}
    assert wanted.items() <= sent["sampling_params"].items() and sent["input_ids"] == [1, 2, 3]
    assert sent["stream"] and sent["return_logprob"] and sent["top_logprobs_num"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"min_p": 0.1}, "min_p must be 0 here: SGLang does not take min-p where it drafts"),
        (
            {"repetition_penalty": 1.2},
            "repetition_penalty must be left out or 1 here: SGLang would not count",
        ),
        ({"stop": ("a",)}, "stop must be empty here: SGLang sends several rounds at once"),
        ({"max_new_tokens": 5000}, "max_new_tokens must be at most 4,096 here, since the server sends"),
        ({"grammar": "start: 'a'"}, "grammar must be left out for a server"),
    ],
)
def test_what_it_does_not_take_is_refused_by_name(change, words):
    with connected() as (_, pair), pytest.raises(ValueError, match=words):
        stream(pair, [1, 2], Params(**change))


def meta(**changes):
    return lambda sent: sent[2]["meta_info"].update(changes)


WRONG = {  # what is done to the events, and what is said of it
    "fewer tokens": (meta(completion_tokens=3), "counts 3 tokens in all after 4"),
    "more tokens": (meta(completion_tokens=7), "counts 7 tokens in all after 4"),
    "another text": (lambda sent: sent[2].update(text=" no"), "takes back a part of its text"),
    "others' probabilities": (
        meta(output_token_logprobs=[[-1, 1, "a"], [-1, 2, "b"]]),
        "of other tokens than",
    ),
    "an abort": (
        meta(finish_reason={"type": "abort", "message": "out of memory"}),
        "gave the run up: out of memory",
    ),
    "more judged": (
        lambda sent: sent[4]["meta_info"].update(spec_verify_ct=6),
        "some chunks hold more than one",
    ),
    "a merged chunk": (lambda sent: sent.pop(2), "sends several rounds in a chunk|some chunks hold more"),
}


@pytest.mark.parametrize("name", WRONG)
def test_counts_that_cannot_be_end_the_run_and_what_came_stays(name):
    change, words = WRONG[name]
    with connected() as (server, pair):
        change(server.events)
        run = stream(pair, "Once", SHORT)
        with pytest.raises(ServerError, match=words):
            list(run)
    assert run.trace.finish == "error"
    assert Trace.from_json(run.trace.to_json()).text.startswith(" word5 word6 word7 word8")


def test_a_server_that_goes_away_leaves_the_rounds_that_came():
    with connected() as (server, pair):
        server.before = breaks_off_at(3)
        run = stream(pair, "Once", SHORT)
        with pytest.raises(ServerError, match="broke off in the middle of its answer"):
            list(run)
    assert len(run.trace.rounds) == 3 and run.trace.finish == "error"


def test_a_stop_string_and_the_end_of_the_text():
    for matched, expected in (("word12", "stop"), (1, "eos")):
        with connected(finish={"type": "stop", "matched": matched}) as (_, pair):
            assert generate(pair, "Once", SHORT).finish == expected


def test_mutations_of_an_answer_end_in_sentences():
    chance, outcomes = random.Random(7), set()
    request = Request("/generate", {"sampling_params": {"temperature": 0}}, Room(24, 2, 100))
    for _ in range(300):
        sent = events(chance.choice([True, False]))
        place = chance.randrange(len(sent))
        sent[place] = mutated(sent[place], chance)
        outcomes.add(replayed(sent, SGLangReader(request, HowStarted.model_validate(CHAIN))))
    assert outcomes == {"read", "refused"}
