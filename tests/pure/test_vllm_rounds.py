"""What a chunk of a vLLM server is: which of its tokens were drafted, and what is known of the rest."""

import time

import pytest

from specdemo.events import Round
from specdemo.events.speedup import _verdicts_by_place
from specdemo.servers.chunks import Misread, PerRequest, Piece, Steps, texts_of
from specdemo.servers.client import Room
from specdemo.servers.counters import server_stats
from specdemo.servers.rounds import MOST_COUNTED, round_of, settled
from specdemo.servers.vllm import VllmReader, chunk_of
from tests.stand_ins.vllm import fates

WORD = -0.5  # log-probability


def chunk(*ids: int, finish: str | None = None):
    tokens = [f" {id_}" for id_ in ids]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [WORD] * len(ids),
        "top_logprobs": [{token: WORD, " x": -2.0} for token in tokens],
    }
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
    a_round = round_of(3, chunk(*ids, finish=finish), 1.5, longest, always)
    assert (fates(a_round), a_round.drafts_told) == (expected, told)
    assert a_round.emitted == ids and a_round.arrival_ms == 1.5


def test_what_the_server_does_not_tell_is_null():
    a_round = round_of(1, chunk(7), 1.0, 2, True)
    rejected, discarded = a_round.draft
    assert rejected.text == "" and discarded.fate == "discarded"
    assert rejected.id is rejected.raw_p is rejected.p is rejected.u is None
    own = a_round.next
    assert (own.p, own.q, own.u, own.residual_mass) == (None, None, None, None)
    assert own.raw_p == pytest.approx(0.6065, abs=1e-4)
    assert own.top[0][:2] == (7, " 7") and own.top[1][:2] == (None, " x")
    assert own.top[0][4] == own.raw_p and own.top[0][2] is own.top[0][3] is own.top[0][5] is None


@pytest.mark.parametrize(("index", "ids", "longest"), [(0, (7, 8), 2), (1, (1, 2, 3, 4), 2), (1, (1, 2), 0)])
def test_a_chunk_that_is_longer_than_a_round_can_be_is_refused(index, ids, longest):
    """The first round is the prefill's, and has one token."""
    with pytest.raises(Misread, match="several rounds in a chunk"):
        round_of(index, chunk(*ids), 1.0, longest, True)


def steps(accepted: list[int], drafted: list[int], longest: int = 2) -> Steps:
    return Steps(
        num_spec_tokens=longest,
        num_spec_steps=len(accepted),
        num_draft_tokens=sum(drafted),
        num_accepted_draft_tokens=sum(accepted),
        per_step_accepted=accepted,
        per_step_drafted=drafted,
    )


def shown(*sizes: int, finish: str = "length") -> list[Round]:
    """Rounds of so many tokens, as they are shown while the lengths of drafts are not known."""
    chunks = [
        chunk(*range(size), finish=finish if at == len(sizes) - 1 else None) for at, size in enumerate(sizes)
    ]
    return [round_of(index, one, 1.0, 2, False) for index, one in enumerate(chunks)]


def test_rounds_without_a_draft_are_in_no_list_so_nothing_is_settled():
    assert settled(shown(1, 2, 1, 2), steps([1, 1], [2, 2])) is None


def test_lists_that_contradict_the_chunks_are_seen():
    with pytest.raises(Misread, match="2 tokens for round 2, but counts 2 accepted"):
        settled(shown(1, 2, 1), steps([2, 0], [2, 2]))


def test_so_many_drafts_that_nobody_can_look_at_them_are_refused():
    count = MOST_COUNTED // 1_000 + 1
    with pytest.raises(Misread, match="has drafted more than 1,000,000 tokens: ask for a shorter text"):
        settled(shown(*[1] * (count + 1)), steps([0] * count, [1_000] * count, 1_000))


def test_a_draft_length_of_a_thousand_is_counted_at_once():
    """And not place by place in each of 32,000 drafts."""
    told = PerRequest(speculative_decoding=steps([1_000] * 32_000, [1_000] * 32_000, 1_000))
    began = time.thread_time()
    assert server_stats(None, told, None).accepted_by_place == (32_000,) * 1_000
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (" a b", [" a", " b"], [" a", " b"]),
        ("é b", ["\ufffd", "\ufffd", " b"], ["", "é", " b"]),  # two tokens, one character
        ("é", ["\ufffd"], ["é"]),  # begun in the chunk before
        (" a", [" a", "\ufffd"], [" a", ""]),  # completed in the next chunk
        (".", [".", "<|eos|>"], [".", ""]),
        ("hi.", ["hi", ". The"], ["hi", "."]),  # cut after a stop string
        ("é a", ["\ufffd", " a"], ["é", " a"]),
        ("", ["<|eos|>"], [""]),
        ("ab", [], []),
    ],
)
def test_the_texts_of_tokens_join_to_the_chunks_text(text, words, expected):
    assert texts_of(text, words) == expected
    assert "".join(expected) == (text if words else "")


def event(logprobs=None, **choice):
    """Of a chunk with one token, and with anything else in it."""
    return {"choices": [{"text": "a", "token_ids": [5], "logprobs": logprobs} | choice]}


def likely(name="a", of=WORD, top=None):
    return {"tokens": [name], "token_logprobs": [of], "top_logprobs": [top]}


def told(**steps):
    usual = dict.fromkeys(("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"), 8)
    return {"choices": [], "metrics": {"speculative_decoding": usual | {"num_spec_tokens": 2} | steps}}


NEVER = "sent a chunk that vLLM would not send: "
AT = f"{NEVER}choices.0."
STEPS = f"{NEVER}metrics.speculative_decoding."
REFUSED = [
    ({"choices": "?"}, f"{NEVER}choices"),
    ({"choices": [{"text": "a"}]}, "without the ids of its tokens"),
    (event(token_ids=[-1]), f"{AT}token_ids.0"),
    (event(token_ids=[2**31]), f"{AT}token_ids.0: Input should be less than 2147483648"),
    (event(token_ids=[8] * 1_002), f"{AT}token_ids: List should have at most 1001 items"),
    (event(likely(), token_ids=[5, 6]), "differ in number"),
    (event({"tokens": ["a"], "token_logprobs": []}), "differ in number"),
    (event(likely(of=float("nan"))), f"{AT}logprobs.token_logprobs.0: Input should be a finite number"),
    (
        event(likely(top={f"{number}": -5.0 for number in range(52)})),
        f"{AT}logprobs.top_logprobs.0: Dictionary should have at most 51",
    ),
    (event(likely(top={"y" * 1_001: -5.0})), f"{AT}logprobs.top_logprobs.0.y.*at most 1000 characters"),
    (event(likely(of=5.0)), f"{AT}logprobs.token_logprobs.0: Input should be less than"),
    ({"choices": event()["choices"] * 2}, f"{NEVER}choices: List should have at most 1 item"),
    (event(text="x" * 1_001), "sent 1,001 characters as the text of a chunk of 1 tokens"),
    (
        told(per_step_drafted=[1_001]),
        f"{STEPS}per_step_drafted.0: Input should be less than or equal to 1000",
    ),
    (told(per_step_drafted=[2] * 32_769), f"{STEPS}per_step_drafted: List should have at most 32768 items"),
    (told(num_spec_tokens=10**9), f"{STEPS}num_spec_tokens: Input should be less than or equal to 1000"),
]


@pytest.mark.parametrize(("event", "words"), REFUSED)
def test_a_chunk_that_vllm_would_not_send_is_refused_in_words(event, words):
    with pytest.raises(Misread, match=words) as refused:
        chunk_of(event)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([event()] * 9, "does not end its answer: it has sent more tokens than was asked for"),
        ([event(text="x" * 999)] * 4, "sent 3,996 characters as the text of 4 tokens"),
        ([event(prompt_token_ids=[1] * 21)], "says that the prompt has 21 tokens, which it cannot have"),
    ],
)
def test_chunks_that_are_too_many_together_are_refused(sent, words):
    reader = VllmReader(Room(tokens=8, alternatives=5, prompt_ids=20))
    for one in sent[:-1]:
        reader.read(one)
    with pytest.raises(Misread, match=words):
        reader.read(sent[-1])


def test_a_piece_without_probabilities_is_taken():
    for nothing in (None, likely(of=None)):
        assert chunk_of(event(nothing)).pieces == (Piece(5, "a", None, ()),)


def test_a_draft_that_was_dropped_after_the_end_is_in_no_share():
    rounds = settled(shown(1, 3, 1), steps([2, 1], [2, 2]))
    assert fates(rounds[2]) == "ad none", "the text has ended: there is no token of the target's own"
    assert [token.id for token in rounds[2].draft] == [0, None]
    assert [len(place) for place in _verdicts_by_place(rounds)] == [2, 1]
