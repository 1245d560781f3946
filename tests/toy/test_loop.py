"""The loop, checked by hand: fates, ends, counts of forwards, and a record that decides every verdict
again."""

import math
from dataclasses import replace
from functools import reduce
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specdemo.engine.draft import Drafter, one_hot_draft
from specdemo.engine.sampling import draw
from specdemo.events import RULES, Params
from tests.oracle import CPU, KINDS, ROUNDING, TableLM, decoding, random_table

V = 6
LETTERS = "abcdef"

# A target that writes a b c d e f a b c ... : greedy, every verdict can be told by eye.
ALPHABET = torch.full((V + 1, V, V), -5.0)
for last in range(V):
    ALPHABET[:, last, (last + 1) % V] = 5.0

GREEDY = Params(temperature=0.0, gamma=4, max_new_tokens=20, alternatives=0, seed=1)


def letters():
    """One letter a token, by a real tokenizer."""
    tokenizer = Tokenizer(models.WordLevel(dict(zip(LETTERS, range(V), strict=True)), unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class Script(Drafter):
    """Drafts what it is told, round by round, as a lookup would: with a one-hot q."""

    def __init__(self, *drafts):
        self.drafts = [[LETTERS.index(letter) for letter in draft] for draft in drafts]
        self.asked = []

    def propose(self, ids, k, u):
        self.asked.append(k)
        return one_hot_draft(self.drafts.pop(0)[:k] if self.drafts else [], V, CPU)


def run(decoding):
    """All events, and why the text ended."""
    return list(decoding), decoding.finish


def play(*drafts, params=GREEDY, prompt="a", **options):
    """Rounds of the alphabet's target, written as letters, with the drafts given."""
    tokenizer = letters()
    ids = [LETTERS.index(letter) for letter in prompt]
    (_, *rounds), finish = run(
        decoding(TableLM(ALPHABET), Script(*drafts), params, ids, tokenizer=tokenizer, **options)
    )
    return rounds, finish


def fates(this_round):
    """b+ c- d. for accepted, rejected, discarded; then the next token with r, b or s for its source."""
    signs = {"accepted": "+", "rejected": "-", "discarded": "."}
    draft = "".join(LETTERS[token.id] + signs[token.fate] for token in this_round.draft)
    return draft + (f" {LETTERS[this_round.next.id]}{this_round.next.source[0]}" if this_round.next else "")


def spelled(ids):
    return "".join(LETTERS[token_id] for token_id in ids)


FATES = {
    "bcde": ("b+c+d+e+ fb", "bcdef"),
    "bcae": ("b+c+a-e. dr", "bcd"),
    "acde": ("a-c.d.e. br", "b"),
    "bcda": ("b+c+d+a- er", "bcde"),
    "b": ("b+ cb", "bc"),
    "": (" bs", "b"),
}


def test_fates():
    for draft, expected in FATES.items():
        first = play(draft)[0][0]
        assert (fates(first), spelled(first.emitted)) == expected
        assert "".join(token.text for token in first.draft) == draft, "those that are not kept have text, too"
        assert first.next.text == expected[1][-1]


ENDS = {
    "an eos in the draft": ("bcde", dict(eos="d"), ["b+c+d+"], "eos"),
    "a refused eos ends the draft": ("bdef ca", dict(eos="d"), ["b+d- cr", "c-a. dr"], "eos"),
    "a refusal before an eos": ("adef", dict(eos="d"), ["a-d. br", " cs", " ds"], "eos"),
    "an eos as a bonus": ("bc", dict(eos="d"), ["b+c+ db"], "eos"),
    "an eos after a refusal": ("ba", dict(eos="c"), ["b+a- cr"], "eos"),
    "an eos without a draft": ("", dict(eos="b"), [" bs"], "eos"),
    "a stop string in the draft": ("bcda", dict(stop="bc"), ["b+c+d.a-"], "stop"),
    "a stop string that a bonus completes": ("bcde", dict(stop="ef"), ["b+c+d+e+ fb"], "stop"),
    "a stop string that a replacement completes": ("ba", dict(stop="bc"), ["b+a- cr"], "stop"),
    "a stop token in the draft": ("bcda", dict(stop_ids="c"), ["b+c+d.a-"], "stop"),
    "a stop token as a bonus": ("bc", dict(stop_ids="d"), ["b+c+ db"], "stop"),
    "a stop token after a refusal": ("ba", dict(stop_ids="c"), ["b+a- cr"], "stop"),
    "all three": ("bc", dict(eos="d", stop="d", limit=3), ["b+c+ db"], "eos"),
    "a stop string at the limit": ("bc", dict(stop="d", limit=3), ["b+c+ db"], "stop"),
    "an eos at the limit": ("bc", dict(eos="d", limit=3), ["b+c+ db"], "eos"),
    "the limit": ("bcde", dict(limit=3), ["b+c+ db"], "length"),
    "a limit of one": ("bcde", dict(limit=1), [" bs"], "length"),
    "the context": ("bcde", dict(context=4), ["b+c+ db"], "length"),
    "a context without room for a draft": ("bcde", dict(context=2), [" bs"], "length"),
}


@pytest.mark.parametrize(("drafts", "ends", "expected", "finish"), ENDS.values(), ids=ENDS)
def test_what_ends_a_text_and_what_becomes_of_the_draft(drafts, ends, expected, finish):
    stop, limit = (ends["stop"],) if "stop" in ends else (), ends.get("limit", GREEDY.max_new_tokens)
    ids = {name: [LETTERS.index(letter) for letter in ends.get(name, "")] for name in ("eos", "stop_ids")}
    params = replace(GREEDY, stop=stop, max_new_tokens=limit)
    rounds, ended = play(*drafts.split(), params=params, context=ends.get("context", math.inf), **ids)
    assert ([fates(this_round) for this_round in rounds], ended) == (expected, finish)
    if finish == "stop":  # what stands after it keeps its numbers
        assert all(token.u is not None and token.accept_prob is not None for token in rounds[-1].draft)
    shown = "".join(expected[-1].split())
    last = shown[-2] if rounds[-1].next else {"eos": "d", "stop": "c"}[finish]
    assert spelled(rounds[-1].emitted).endswith(last)


EOS = 0  # where one is drafted
PROMPT = [2, 0, 1, 2, 0]
TARGET, DRAFTER = random_table(1, V, never=[4]), 0.6 * random_table(1, V) + random_table(2, V, never=[3])
SAMPLED = Params(temperature=0.7, top_p=1.0, gamma=3, max_new_tokens=30, alternatives=V, ngram=2, seed=5)


def random_decoding(params, prompt, **options):
    return decoding(
        TableLM(TARGET), TableLM(DRAFTER) if params.draft_with == "model" else None, params, prompt, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_target_forwards_are_prefill_and_rounds_and_no_committed_token_is_fed_twice(kind):
    """A round feeds the text's last token, which is new, and the draft, when it is asked for. Refused drafts
    may stand after it: the next round writes over them."""
    refused = 0
    for prompt in ([0], PROMPT):
        target, text = TableLM(TARGET), list(prompt)
        params = replace(SAMPLED, draft_with=kind)
        events = decoding(target, TableLM(DRAFTER) if kind == "model" else None, params, prompt)
        prefills, _ = next(events)
        assert prefills == target.forwards == (len(prompt) > 1)
        fed = list(enumerate(prompt[:-1]))
        for rounds, this_round in enumerate(events, 1):
            fed += enumerate([text[-1], *(token.id for token in this_round.draft)], len(text) - 1)
            assert target.fed == fed
            assert target.forwards == prefills + rounds
            text += this_round.emitted
            assert target.ids[: len(text) - 1] == text[:-1]
            refused += len(target.ids) > len(text) - 1
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled(), "no mode leaks out"
    assert refused or kind == "none"


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_events_and_another_seed_others(kind):
    def told(seed, **changes):
        params = replace(SAMPLED, draft_with=kind, seed=seed, **changes)
        (_, *rounds), finish = run(random_decoding(params, PROMPT))
        return [replace(this_round, draft_ms=0.0, verify_ms=0.0) for this_round in rounds], finish

    assert told(7) == told(7)
    assert told(7) != told(8)
    without = [this_round.emitted for this_round in told(7, alternatives=0)[0]]
    assert without == [this_round.emitted for this_round in told(7)[0]], "recording changes nothing"


CHECKED = [
    *((kind, SAMPLED) for kind in KINDS),
    ("model", replace(SAMPLED, temperature=1.7, top_k=3)),
    ("ngram", replace(SAMPLED, temperature=1.2, top_p=0.8)),
    ("model", replace(SAMPLED, temperature=1.2, min_p=0.2)),
    ("lookup", replace(SAMPLED, temperature=0.0)),
]


@pytest.mark.parametrize(("kind", "params"), CHECKED)
def test_the_record_decides_every_verdict_again(kind, params):
    """To the last bit: that is what full precision is for."""
    rounds = 0
    for seed in range(5):
        (_, *told), _ = run(random_decoding(replace(params, draft_with=kind, seed=seed), PROMPT))
        for this_round in told:
            check_round(this_round)
            rounds += 1
    assert rounds > 40


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("ngram", "block"), *(("model", rule) for rule in RULES if rule != "speculative")],
)
def test_the_record_of_every_other_rule_decides_again(kind, rule):
    """An eos ends a draft: h of the place before it must not know what was drafted after it."""
    of_rules = {"rule": rule, "lenience": 0.4}
    params = replace(SAMPLED, temperature=1.5, draft_with=kind, gamma=4, **of_rules)
    kept_less = ended = 0
    for seed in range(12):
        events, _ = run(random_decoding(replace(params, seed=seed), PROMPT, eos=[EOS]))
        for this_round in [one for one in events[1:] if one.draft]:
            draft = this_round.draft
            passed = [token.u is not None and token.u < token.accept_prob for token in draft]
            kept = draft_kept(rule, passed)
            fates = ["accepted"] * kept + ["rejected"] + ["discarded"] * len(draft)
            assert [token.fate for token in draft] == fates[: len(draft)]
            for place, token in enumerate(draft):
                was_judged = rule == "block" or place <= kept
                assert (token.u is not None) == (token.accept_prob is not None) == was_judged
                assert (token.distance is not None) == (was_judged and rule != "block")
            ratios, judged = [token.p / token.q for token in draft], draft[: kept + 1]
            if rule == "block":
                weight = reduce(lambda weight, ratio: min(1.0, weight * ratio), ratios, 1.0)
                assert draft[-1].accept_prob == weight, "h of the last place is w"
                by_token = draft_kept("speculative", [t.u < r for t, r in zip(draft, ratios, strict=True)])
                kept_less += by_token < kept
            elif rule == "lenient":
                expected = [min(1, ratio / 0.4) for ratio in ratios[: kept + 1]]
                assert [token.accept_prob for token in judged] == expected
            else:
                assert all(token.accept_prob in (0, 1) for token in judged)
            ended += len(draft) < this_round.gamma and draft[-1].id == EOS
    assert rule != "block" or kept_less, "else the two rules are not told apart here"
    assert ended >= 3, "else no draft goes on after an eos"


def draft_kept(rule, passed):
    if rule == "block":
        return max((i + 1 for i, one in enumerate(passed) if one), default=0)
    return [*passed, False].index(False)


def check_round(this_round):
    refused = False
    for token in this_round.draft:
        p, q = rows(token.top)
        assert (token.p, token.q) == (p[token.id], q[token.id]) and token.q > 0
        if refused:
            assert (token.fate, token.u, token.accept_prob) == ("discarded", None, None)
            continue
        assert token.accept_prob == min(1, token.p / token.q)
        assert token.fate == ("accepted" if token.u < token.accept_prob else "rejected")
        refused = token.fate == "rejected"
    accepted = tuple(token.id for token in this_round.draft if token.fate == "accepted")
    assert this_round.emitted == (*accepted, this_round.next.id)

    p, q = rows(this_round.next.top)
    assert this_round.next.p == p[this_round.next.id] > 0
    if refused:
        weights = (p - q).clamp(min=0).float()  # as the rule subtracts them
        assert this_round.next.source == "resampled" and this_round.next.q == q[this_round.next.id]
        assert (
            this_round.next.residual_mass
            == weights.sum(dtype=torch.float64)
            == pytest.approx(1 - torch.minimum(p, q).sum().item(), abs=1e-6)
        )
    else:
        weights = p
        assert this_round.next.source == ("bonus" if this_round.draft else "sampled")
        assert this_round.next.q is this_round.next.raw_q is this_round.next.residual_mass is q is None
    assert (
        this_round.next.id
        == draw(weights[None], torch.tensor([this_round.next.u], dtype=torch.float64)).item()
    )


def rows(top):
    """All alternatives of a place -> p and q [V]; q is None where nobody drafted."""
    assert sorted(row[0] for row in top) == list(range(V))
    by_id = torch.tensor(
        [[row[2], math.nan if row[3] is None else row[3]] for row in sorted(top)], dtype=torch.float64
    )
    assert by_id[:, 0].sum() == pytest.approx(1, abs=1e-6)
    return by_id[:, 0], None if by_id[:, 1].isnan().all() else by_id[:, 1]


def test_raw_numbers_are_unfiltered_without_penalties_and_at_temperature_1():
    params = replace(SAMPLED, temperature=0.0, repetition_penalty=1.5, logit_bias={1: 2.0})
    (_, *rounds), _ = run(random_decoding(params, [2, 0, 1]))
    text = [2, 0, 1]
    for this_round in rounds:
        for i, token in enumerate(this_round.draft):
            context = text + [t.id for t in this_round.draft[:i]]
            for raw, table in ((token.raw_p, TARGET), (token.raw_q, DRAFTER)):
                expected = TableLM(table).row(context).softmax(-1)[token.id].item()
                assert raw == pytest.approx(expected, rel=ROUNDING)
            assert token.p in (0.0, 1.0) and token.q == 1.0
        text += this_round.emitted


@pytest.mark.parametrize("alternatives", [0, 1, 3, 50])
def test_alternatives_are_the_likeliest_under_both(alternatives):
    (_, *rounds), _ = run(random_decoding(replace(SAMPLED, alternatives=alternatives), [2, 0, 1]))
    for place in [place for this_round in rounds for place in (*this_round.draft, this_round.next)]:
        assert len(place.top) == min(alternatives, V)
        weights = [p + (q or 0) for _, _, p, q, _, _ in place.top]
        assert weights == sorted(weights, reverse=True)
        if alternatives and (place.p + (place.q or 0)) > 1:
            assert place.top[0][0] == place.id, "no other can have more"


def broken_at(logits, last):
    """What a model with broken weights says after one token."""
    logits = logits.clone()
    logits[:, LETTERS.index(last)] = torch.nan
    return logits


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nan_from_the_target_is_an_error_at_whichever_place_and_never_enters_the_record(temperature):
    """Greedy takes NaN for the largest logit: the target's nonsense can agree with a draft, and stand after
    a refusal."""
    errors = []
    for last, draft in product("abcde", ["bcde", "aaaa", "eeee", "bacd"]):
        params = replace(GREEDY, temperature=temperature, alternatives=V)
        events = decoding(TableLM(broken_at(ALPHABET, last)), Script(draft), params, [0])
        next(events)
        try:
            this_round = next(events)
        except RuntimeError as error:
            assert str(error).startswith("the target's probabilities are not numbers"), error
            assert "\n" not in str(error)
            errors.append(draft)
            continue
        for place in (*this_round.draft, this_round.next):
            numbers = [place.p, place.raw_p, *(row[i] for row in place.top for i in (2, 4))]
            assert not any(map(math.isnan, numbers)), f"nothing is said of {last} with the draft {draft}"
    assert errors.count("bcde") == 5, "it is judged after a, b, c, d, and its bonus stands after e"


@pytest.mark.parametrize(("temperature", "last"), [(0.0, "a"), (0.8, "c")])
def test_nan_from_the_drafter_and_infinite_logits_are_errors(temperature, last):
    params = replace(GREEDY, temperature=temperature, top_p=1.0)
    drafter = TableLM(broken_at(ALPHABET, last))
    with pytest.raises(RuntimeError, match="^the drafter's probabilities are not numbers"):
        run(decoding(TableLM(ALPHABET), drafter, params, [0]))
    infinite = ALPHABET.clone()
    infinite[:, :, 3] = torch.inf
    with pytest.raises(RuntimeError, match="^the target's probabilities are not numbers"):
        run(decoding(TableLM(infinite), Script("bc"), params, [0]))


def test_a_store_learns_what_the_target_finds_likely_at_every_place():
    class Listener(Script):
        wants_top = 3
        learned = []

        def learn(self, ids, draft, likely):
            self.learned.append((list(ids), list(draft), likely))

    drafter = Listener("bca")
    run(decoding(TableLM(ALPHABET), drafter, replace(GREEDY, max_new_tokens=4), [0]))
    ids, draft, likely = drafter.learned[0]
    assert (spelled(ids), spelled(draft)) == ("a", "bca")
    assert [spelled([row[0][0]]) for row in likely] == ["b", "c", "d", "b"]
    assert all(len(row) == 3 and row[0][1] > row[1][1] for row in likely)
