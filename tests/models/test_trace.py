"""The trace: a round trip through JSON loses nothing, and a file that is no trace is rejected in one sentence
that says where."""

import json
import math
import random
import struct
from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

from specdemo import Params, Trace, generate, load_pair, stream
from specdemo.events import ByModel, Finished, Judged, Next, PairInfo, Round, Started
from specdemo.events.trace import SCHEMA, NotATrace
from tests.models.test_exact_stream import tiny_llama

PAIR = PairInfo("tiny", "target", None, "cpu", "a CPU", ByModel("float32", None), ByModel(None, None))


def any_float(dice):
    """Any double from 0 to 1, most of them tiny, subnormal ones too; or one evenly from [0, 1)."""
    if dice.random() < 0.5:
        return dice.random()
    value = math.inf
    while not value <= 1:
        (value,) = struct.unpack("<d", dice.getrandbits(63).to_bytes(8, "little"))
    return value


def any_trace(seed, rounds=5):
    dice = random.Random(seed)

    def number():
        return any_float(dice)

    def text():
        ranges = dice.choices([(0, 0xD800), (0xE000, 0x110000)], k=dice.randrange(4))
        return "".join(chr(dice.randrange(*ends)) for ends in ranges)

    def ends():
        return tuple(sorted((number(), number())))

    def ps():
        return number(), number(), number(), number()

    def top():
        return tuple(
            (one, text(), number() / 3, dice.choice([None, number() / 3]), number() / 3, number() / 3)
            for one in dice.sample(range(99), 3)
        )

    how = {"temperature": dice.random(), "top_p": 1 - dice.random(), "min_p": dice.random()}
    params = Params(seed=2**53 - 1, stop=("\n\n", "é"), **how)
    trace = Trace.begin(Started(PAIR, {"specdemo": "0"}, params, text(), (1, 2, 3)))
    trace.stats = replace(trace.stats, target_forwards=1, prefill_ms=number())
    for index in range(rounds):
        u = dice.random()
        accepted = Judged(4, text(), *ps(), u, number(), "accepted", top())
        rejected = Judged(5, text(), *ps(), u, 5e-324, "rejected", (), number())
        discarded = Judged(6, text(), 0.1 + 0.2, *ps()[1:], None, None, "discarded", top())
        own = Next(7, text(), "resampled", *ps(), u, number(), top())
        draft = (accepted, rejected, discarded)
        trace.add(Round(index, draft, own, (4, 7), dice.random(), dice.random()))
    measured = {"target_step_ms": 1 + number(), "target_step_spread": ends()}
    low, high = (end / 2 for end in ends())
    measured |= {"speedup": number(), "speedup_interval": (1 + low, 1 + high)}  # a claimed one is narrow
    trace.stats = replace(trace.stats, **measured)
    trace.end("length")
    return trace


def test_round_trip_to_the_last_bit():
    for seed in range(5):
        trace = any_trace(seed)
        again = Trace.from_json(trace.to_json())
        assert again == trace and again.to_json() == trace.to_json()
        assert repr(again) == repr(trace), "== takes 1.0 for 1 and -0.0 for 0.0; repr does not"
        read = json.loads(trace.to_json())["rounds"][0]["draft"][2]["p"]
        assert read == 0.30000000000000004, "in anybody's JSON reader, too"
    trace.finish = None  # one that is still being written can be saved, too
    again = Trace.from_json(trace.to_json())
    assert again == trace and not any(isinstance(event, Finished) for event in again.events())


@pytest.mark.parametrize("draft_with", ["model", "lookup", "none"])
def test_a_real_run_survives_a_file_and_replays_event_by_event(tmp_path, draft_with):
    pair = load_pair(target=tiny_llama(1), drafter=tiny_llama(2))
    run = stream(pair, [1, 2, 1, 2], Params(draft_with=draft_with, max_new_tokens=20, seed=3))
    events, path = list(run), tmp_path / "run.json"
    run.trace.save(path)
    again = Trace.load(path)
    assert again == run.trace
    assert list(again.events()) == events
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    emitted = [token_id for a_round in again.rounds for token_id in a_round.emitted]
    assert emitted == again.output_ids == list(events[-1].output_ids)


def without_times(trace):
    rounds = [replace(one, draft_ms=None, verify_ms=None) for one in trace.rounds]
    return rounds, trace.output_ids, trace.text, trace.finish


def traces_of(pair, requests):
    """By request. Each is a method and a seed, of which the draft length and the sampler follow."""
    found = {}
    for method, seed in requests:
        how = dict(gamma=1 + seed % 8, temperature=(0.0, 0.8, 1.2)[seed % 3], max_new_tokens=16)
        params = Params(draft_with=method, seed=seed, **how)
        prompt = "Once upon a time there was a little fox who"
        found[method, seed] = without_times(generate(pair, prompt, params, measure=seed % 2 == 0))
    return found


@pytest.mark.slow
def test_a_request_has_one_trace_whatever_ran_before():
    """Forwards of other numbers of rows are tried for the first time in some of them, and the cache grows."""
    requests = [(("model", "early-exit")[seed % 2], seed) for seed in range(4)]
    pair = load_pair(device="cpu")
    first, again = traces_of(pair, requests), traces_of(pair, requests)
    assert again == first
    assert traces_of(load_pair(device="cpu"), requests[::-1]) == first


def test_the_keys_are_those_of_the_schema():
    data = json.loads(any_trace(1).to_json())
    assert data["schema"] == SCHEMA == "specdemo.trace/1"
    first, pair = data["rounds"][0], data["pair"]
    expected = {
        "schema pair versions params prompt prompt_ids rounds finish error output_ids text stats messages "
        "marks date": data,
        "index draft next emitted draft_ms verify_ms gamma ended_by arrival_ms drafts_told "
        "fed_again target_forwards": first,
        "id text p q raw_p raw_q u accept_prob fate top distance allowed forbidden": first["draft"][0],
        "id text source p q raw_p raw_q u residual_mass top allowed": first["next"],
        "name target drafter device device_name dtype quantize server drafter_kind longest_draft": pair,
        "draft_with gamma tree confidence exit_layer rule temperature top_k top_p min_p repetition_penalty "
        "presence_penalty frequency_penalty logit_bias seed max_new_tokens stop ignore_eos "
        "chat system chat_template_kwargs json_schema regex grammar ngram alternatives lenience "
        "draft_temperature": data["params"],
    }
    assert [*expected] == [" ".join(part) for part in expected.values()]
    assert pair["dtype"] == {"target": "float32", "drafter": None}


def changed(path, value):
    """The JSON of a good trace with the value at `path` replaced, or left out (value is ...)."""
    data = json.loads(any_trace(1).to_json())
    place, (*above, last) = data, (int(key) if key.isdecimal() else key for key in path.split())
    for key in above:
        place = place[key]
    place[last] = value
    if value is ...:
        del place[last]
    return json.dumps(data)


# Where a value of a good trace is replaced, by what, and the place that is named; "" for the same.
WRONG = [
    ("schema", "specdemo.trace/2", ""),
    ("schema", ..., ""),
    ("versions torch", 2, ""),
    ("params gamma", 17, "gamma"),
    ("params temperature", True, "temperature"),
    ("params stop", "abc", "stop"),
    ("rounds", {}, ""),
    ("rounds 3 draft 1 p", ..., ""),
    ("rounds 3 draft 1 id", True, ""),
    ("rounds 3 draft 1 fate", "ignored", ""),
    ("rounds 3 draft 0 top 2", [1, "a", 0.5], ""),
    ("rounds 3 next id", None, "rounds.3.emitted"),
    ("rounds 3 emitted 0", None, "rounds.3.emitted"),
    # The types are right, but it cannot be a run.
    ("prompt_ids 1", -1, "prompt_ids"),
    ("prompt_ids 1", 10**400, "prompt_ids"),
    ("rounds 3 index", 4, ""),
    ("rounds 3 draft 1 id", 2**31, "rounds.3.draft.1"),
    ("rounds 3 draft 1 p", 1.5, "rounds.3.draft.1"),
    ("rounds 3 draft 1 distance", 1.5, "rounds.3.draft.1"),
    ("rounds 3 draft 0 top 2 4", 1.797e308, "rounds.3.draft.0"),
    ("rounds 3 next raw_p", -1e-9, "rounds.3.next"),
    ("rounds 3 verify_ms", 1e300, "rounds.3"),
    ("rounds 3 fed_again", -1, ""),
    ("rounds 3 target_forwards", 0, ""),
    ("output_ids 0", 8, "output_ids"),
    ("stats accepted", 1, "stats"),
    ("stats tokens_per_second", 1e300, "stats"),
]


def test_what_is_wrong_is_named():
    for path, value, named in WRONG:
        rejected(changed(path, value), named or path.replace(" ", "."))


def test_a_server_may_leave_out_the_ids_of_what_a_round_added_but_not_how_many():
    served = json.loads(any_trace(1).to_json())
    server = dict.fromkeys(("version", "method", "gamma"))
    served["pair"]["server"] = server | {"address": "http://a:1", "software": "vLLM", "model": "m"}
    served["rounds"][3]["emitted"] = served["output_ids"][6:8] = [None, None]
    assert Trace.from_json(json.dumps(served)).output_ids == served["output_ids"]
    served["rounds"][3]["emitted"] = served["output_ids"][6:8] = [None]
    rejected(json.dumps(served), "rounds.3.emitted")


def test_of_many_faults_in_a_list_the_first_is_named():
    """All of a million would take minutes and gigabytes."""
    lists = ("rounds", "rounds 3 draft", "rounds 3 draft 0 top", "rounds 3 emitted", "prompt_ids", "marks")
    for path in (*lists, "output_ids", "messages"):
        with pytest.raises(ValidationError) as error:
            TypeAdapter(Trace).validate_json(changed(path, ["x"] * 9), strict=True)
        assert error.value.error_count() < 9, path


def test_what_is_no_trace_at_all(tmp_path):
    """Numbers that are none are not valid JSON, or too large for a double."""
    whole = any_trace(1).to_json()
    for text in (
        "",
        "null",
        "[]",
        "3",
        "{}",
        "{",
        "not JSON",
        '{"schema": "specdemo.trace/1"',
        "[" * 100_000,
    ):
        rejected(text)
    for number in ("NaN", "-Infinity", "1e999"):
        rejected(changed("rounds 2 draft 0 p", "HERE").replace('"HERE"', number))
    for text in (whole[: len(whole) // 10], whole[:-1]):
        rejected(text)
    for content in (b"\xff\xfe{\x00}\x00", b"\x80abc"):
        (tmp_path / "trace.json").write_bytes(content)
        with pytest.raises(ValueError, match="^this is not a specdemo.trace/1 file"):
            Trace.load(tmp_path / "trace.json")


def test_an_older_file_can_lack_what_came_later_and_have_fields_of_params_that_are_gone_but_no_rule():
    older = json.loads(any_trace(1).to_json())
    older["params"] |= {"relaxed_top_k": 10, "synthetic_acceptance": 0.8}
    older |= {"opened": {"segments": ["thinking"]}, "grammar_from": 3}
    older["stats"]["made"] = older["rounds"][0]["made"] = 4
    assert Trace.from_json(json.dumps(older)).params == any_trace(1).params
    later = [(older, "date"), (older["params"], "lenience draft_temperature")]
    later.append((older["pair"], "drafter_kind longest_draft"))
    later += [(one, "arrival_ms fed_again") for one in older["rounds"]]
    for part, keys in later:
        for key in keys.split():
            del part[key]
    assert Trace.from_json(json.dumps(older)) == any_trace(1)
    rejected(changed("params rule", "fly"), "rule must be one of speculative, block")


def rejected(text, named=""):
    with pytest.raises(ValueError) as error:
        Trace.from_json(text)
    message = str(error.value)
    assert type(error.value) is NotATrace, "nothing of the library that found it"
    assert message.startswith("this is not a specdemo.trace/1 file: ")
    assert named in message and "\n" not in message and len(message) < 300
    assert error.value.__suppress_context__ or not error.value.__context__


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "finish", "kept"),
    [
        (("cd",), ("ab", "cd"), ("ab", "ab"), "stop", "ab"),
        (("d", "bc"), ("ab", "cd"), ("a", "a"), "stop", "a"),  # the first in the text, not in the list
        (("abcd",), ("ab", "cd"), ("", ""), "stop", ""),
        (("bcx",), ("ab", "c", "d"), ("a", "a", "abcd"), "length", "abcd"),
        (("aab",), ("a", "a", "a", "b"), ("", "", "a", "a"), "stop", "a"),
        (("bc", "bcd"), ("ab", "c", "d"), ("a", "a", "a"), "stop", "a"),
        *((("bcd",), ("ab", "c"), ("a", "a"), finish, "abc") for finish in ("cancelled", "error", "eos")),
    ],
)
def test_a_text_ends_before_a_stop_string_and_is_never_withdrawn(stops, pieces, shown, finish, kept):
    """The ids are kept whole."""
    trace = Trace.begin(Started(PAIR, {}, Params(stop=stops), "", (1,)))
    for index, (piece, text) in enumerate(zip(pieces, shown, strict=True)):
        own = Next(index, piece, "sampled", 1.0, None, 1.0, None, 0.5, None, ())
        trace.add(Round(index, (), own, (index,), 0.0, 0.0))
        assert trace.text == text
    trace.end(finish)
    finished = trace.finished
    assert (finished.text, trace.text, finished.output_ids) == (kept, kept, tuple(range(len(pieces))))
