"""Trees of drafts through the engine's loop over tables: token for token what a naive reference writes with
the same dice, the target's own distribution, and a record from which every verdict follows."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from specdemo.engine.sampling import uniforms
from specdemo.events import ByModel, JudgedInTree, PairInfo, Params, Round, Started
from specdemo.events.trace import NotATrace, Trace
from tests import oracle
from tests.oracle import TableLM, decoding, naive_tree, random_table, shaped

V, EOS = 5, 2
TARGET = random_table(1, never=[4])
DRAFTER = 0.6 * random_table(1) + random_table(2, never=[3])  # agrees with the target now and then
PROMPT, TOKENS = [0, 1], 3
PLAIN = Params(temperature=0.7, top_p=1.0, max_new_tokens=10, alternatives=0, tree=(2, 2, 1))
ADJUSTED = dict(repetition_penalty=1.5, presence_penalty=-0.8, frequency_penalty=0.9, logit_bias={0: -1.0})
CASES = {
    "multinomial": PLAIN,
    "wide": replace(PLAIN, tree=(4, 1)),
    "greedy": replace(PLAIN, temperature=0.0),
    "narrow nuclei": replace(PLAIN, temperature=1.3, top_k=3, top_p=0.6, tree=(3, 2, 1)),
    "min-p": replace(PLAIN, temperature=1.3, min_p=0.25),
    "penalties and biases": replace(PLAIN, temperature=1.2, top_p=0.9, **ADJUSTED),
    "auto": replace(PLAIN, tree="auto"),
    "auto when greedy": replace(PLAIN, tree="auto", temperature=0.0),
    "auto with penalties": replace(PLAIN, tree="auto", temperature=1.2, top_p=0.9, **ADJUSTED),
}
DEEPLY = ("multinomial", "wide", "narrow nuclei", "penalties and biases", "auto")
# p-values: a right engine falls below the first once in 10^9 choices of seeds, and a broken one far below.
SOUND = 1e-9


def places_of(draft):
    """How many tokens of the draft stand before each of them in a text: in a tree, those on its path."""
    places: list[int] = []
    for index, token in enumerate(draft):
        before = index - 1 if not isinstance(token, JudgedInTree) else token.parent
        places.append(0 if before is None or before < 0 else places[before] + 1)
    return places


def dist_of(table, params):
    """text -> p; with raw=True unfiltered, which tells which tokens a drafter prefers."""
    unfiltered = replace(params, temperature=params.temperature or 1.0, top_k=0, top_p=1.0, min_p=0.0)

    def dist(text, raw=False):
        return shaped(TableLM(table).row(text), unfiltered if raw else params, text, len(PROMPT))

    return dist


def run_of(params, seed, eos=()):
    return decoding(TableLM(TARGET), TableLM(DRAFTER), replace(params, seed=seed), PROMPT, eos=eos)


def rounds_of(params, seed, eos=()):
    return [one for one in run_of(params, seed, eos) if isinstance(one, Round)]


@pytest.mark.parametrize(("name", "eos"), [*((name, ()) for name in CASES), ("wide", (EOS,))], ids=str)
def test_token_for_token_like_the_naive_reference(name, eos):
    params, texts = CASES[name], set()
    p_of, q_of = dist_of(TARGET, params), dist_of(DRAFTER, params)
    for seed in range(15):
        ids = [token_id for one in rounds_of(params, seed, eos) for token_id in one.emitted]

        def dice(this_round, k, seed=seed):
            return uniforms(seed, this_round, k)

        expected = naive_tree(p_of, q_of, PROMPT, params.tree, len(PROMPT) + params.max_new_tokens, dice)
        expected = expected[len(PROMPT) :]
        if set(eos) & set(expected):
            expected = expected[: expected.index(EOS) + 1]
        assert ids == expected
        texts.add(tuple(ids))
    assert len(texts) >= 6 or params.temperature == 0


@pytest.mark.parametrize(
    ("name", "runs"),
    [("auto", 400), *(pytest.param(name, 5_000, marks=pytest.mark.long) for name in DEEPLY)],
)
def test_the_text_has_the_targets_distribution(name, runs):
    params, fates = CASES[name], Counter()
    p_of = dist_of(TARGET, params)
    p = oracle.exactness(lambda prompt, seed: run_of(params, seed), p_of, [PROMPT], TOKENS, runs, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "discarded", "resampled", "bonus"):
        assert fates[fate] > runs / 40, f"too few {fate}: the test shows little about them"


def test_the_text_of_what_is_looked_up_has_the_targets_distribution():
    params, fates, prompt = replace(PLAIN, draft_with="ngram", ngram=1), Counter(), [0, 1, 0, 1, 3, 0, 3, 1]

    def run(prompt, seed):
        return decoding(TableLM(TARGET), None, replace(params, seed=seed), prompt)

    p = oracle.exactness(run, dist_of(TARGET, params), [prompt], TOKENS, 400, fates=fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    for fate in ("accepted", "rejected", "resampled"):
        assert fates[fate] > 20, f"too few {fate}: the test shows little about them"


@pytest.mark.parametrize("temperature", [0.02, 1e-38])
def test_a_tree_grows_by_the_likeliest_tokens_at_any_temperature(temperature):
    """Where all probabilities but one are 0 to float32, the others still have an order."""

    def drafted(temperature):
        return rounds_of(replace(PLAIN, tree="auto", temperature=temperature), 0)[0].draft

    found, greedy = ([one.id for one in drafted(t) if one.parent is None] for t in (temperature, 0.0))
    assert set(found) <= set(greedy) and found[0] == greedy[0]
    assert min(token.raw_q for token in drafted(temperature)) > 0


def test_the_naive_reference_has_the_targets_distribution():
    p_of, q_of, seen = dist_of(TARGET, PLAIN), dist_of(DRAFTER, PLAIN), Counter()
    for seed in range(1000):

        def dice(this_round, k, seed=seed):
            return uniforms(seed, this_round, k)

        text = naive_tree(p_of, q_of, PROMPT, (2, 2, 1), len(PROMPT) + TOKENS + 1, dice)
        seen[tuple(text[len(PROMPT) :][:TOKENS])] += 1
    assert oracle.p_value(seen, oracle.enumerated(p_of, PROMPT, TOKENS)) > SOUND


@pytest.mark.parametrize("name", ["wide", "narrow nuclei", "auto"])
def test_every_verdict_follows_from_the_record(name):
    """What is left of p after each refused child is computed again from the record of all tokens."""
    params, several = replace(CASES[name], alternatives=V), 0
    for seed in range(30):
        for one in rounds_of(params, seed):
            families = {}
            for index, token in enumerate(one.draft):
                assert token.parent is None or token.parent < index
                families.setdefault(token.parent, []).append(token)
            at = None
            while at in families:
                left = None
                for token in families[at]:
                    p, q = ({row[0]: row[column] for row in token.top} for column in (2, 3))
                    assert (
                        token.p == p[token.id]
                        and token.q == q[token.id]
                        and sum(q.values()) == pytest.approx(1)
                    )
                    if left is not None:
                        assert p == pytest.approx(left, abs=1e-6)
                    assert token.accept_prob == min(1.0, token.p / token.q)
                    assert token.fate == ("accepted" if token.u < token.accept_prob else "rejected")
                    if token.fate == "accepted":
                        break
                    residual = {one: max(p[one] - q[one], 0.0) for one in p}
                    left = {one: part / sum(residual.values()) for one, part in residual.items()}
                    assert token.residual_mass == pytest.approx(sum(residual.values()))
                several += families[at].index(token) > 1
                for unreached in families[at][families[at].index(token) + 1 :]:
                    assert (unreached.fate, unreached.u, unreached.accept_prob) == ("discarded", None, None)
                if token.fate == "rejected":
                    break
                at = one.draft.index(token)
            if one.next.source == "resampled":
                assert one.next.residual_mass == pytest.approx(sum(residual.values()))
                assert one.next.p == p[one.next.id] and one.next.q == q[one.next.id]
            else:
                assert one.next.residual_mass is one.next.q is None and at not in families
            path = [token.id for token in one.draft if token.fate == "accepted"]
            assert (*path, one.next.id) == one.emitted
            assert len(one.draft) <= one.gamma
    assert several > 3


@pytest.mark.parametrize("name", ["multinomial", "auto"])
def test_a_tree_goes_as_deep_as_the_text_has_room(name):
    depths, params = set(), CASES[name]
    for seed in range(20):
        left = params.max_new_tokens
        for one in rounds_of(params, seed):
            depth = max(places_of(one.draft), default=-1) + 1
            if name == "multinomial":
                assert depth == min(3, left - 1) and len(one.draft) == sum((2, 4, 4)[:depth])
                assert one.gamma == 10 and one.ended_by == ("gamma" if depth == 3 else "length")
            else:
                assert depth <= min(5, left - 1) and (left == 1 or one.gamma == 16)
                assert len(one.draft) == 16 or (one.ended_by, depth) == ("length", left - 1)
            depths.add(depth)
            left -= len(one.emitted)
        assert left == 0
    assert depths >= {0, 1, 2, 3}


def test_nothing_follows_a_drafted_end_of_the_text():
    ended = 0
    for seed in range(60):
        for one in rounds_of(PLAIN, seed, eos=(EOS,)):
            for token in one.draft:
                assert token.parent is None or one.draft[token.parent].id != EOS
            if len(one.draft) < 10 and one.ended_by == "eos":
                ended += 1
    assert ended > 10


def test_nothing_is_rejected_after_the_end_of_the_text():
    """A stop string is found only when the text is written: the verdict has gone on."""
    after = 0
    for seed in range(60):
        tables = TableLM(TARGET), TableLM(DRAFTER), replace(PLAIN, tree=(2, 2, 2), seed=seed)
        for one in decoding(*tables, PROMPT, stop_ids=(EOS,)):
            if not isinstance(one, Round) or one.next is not None:
                continue
            path = [index for index, token in enumerate(one.draft) if token.fate == "accepted"]
            behind = {path[-1]}
            for index, token in enumerate(one.draft):
                if token.parent in behind:
                    behind.add(index)
                    assert token.fate == "discarded"
                    after += token.residual_mass is not None
    assert after > 5


def trace_of(params, seed):
    """A trace of a run over tables."""
    nothing = ByModel(None, None)
    pair = PairInfo("tables", "t", "d", "cpu", "a CPU", nothing, nothing)
    trace = Trace.begin(Started(pair, {}, replace(params, seed=seed), "", tuple(PROMPT)))
    for one in rounds_of(params, seed):
        trace.add(one)
    trace.end("length")
    return trace


def test_a_trace_keeps_the_tree_and_that_of_a_chain_does_not_change():
    trace = trace_of(replace(PLAIN, alternatives=2), 1)
    text = trace.to_json()
    again = Trace.from_json(text)
    assert again == trace and again.to_json() == text
    first = json.loads(text)["rounds"][0]["draft"]
    assert [token["parent"] for token in first] == [None, None, 0, 0, 1, 1, 2, 3, 4, 5]
    assert all(isinstance(token, JudgedInTree) for token in again.rounds[0].draft)
    chain = trace_of(replace(PLAIN, tree=()), 1)
    assert "parent" not in chain.to_json() and Trace.from_json(chain.to_json()) == chain


def too_many(draft):
    draft += [draft[-1] | {"fate": "discarded", "u": None, "accept_prob": None}] * 32


SPOILT = {
    "its own parent": lambda draft: draft[3].update(parent=3),
    "no parent": lambda draft: draft[3].pop("parent"),
    "too many": too_many,
}


def test_a_tree_that_is_none_is_no_trace():
    text = trace_of(PLAIN, 1).to_json()
    for spoil in SPOILT.values():
        data = json.loads(text)
        spoil(data["rounds"][0]["draft"])
        with pytest.raises(NotATrace, match=r"rounds\.0\.draft"):
            Trace.from_json(json.dumps(data))


def test_what_folds_rounds_counts_all_judged_tokens():
    trace = trace_of(PLAIN, 3)
    tokens = [token for one in trace.rounds for token in one.draft]
    judged = [token for token in tokens if token.u is not None]
    stats = trace.stats
    assert stats.drafted == len(tokens) and stats.tokens == PLAIN.max_new_tokens
    assert stats.accepted + stats.rejected == len(judged)
    assert stats.rejected > sum(one.next.source == "resampled" for one in trace.rounds)
