"""What a text has to follow, over tables that play the models: the engine writes what a naive reference makes
of the same dice, and that is the target's own distribution under the mask. The mask of the reference comes
from a list of all texts that are allowed."""

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from llguidance import LLParserLimits
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from specdemo.engine import grammar_check
from specdemo.engine.draft import Drafter, GivenDrafter
from specdemo.engine.grammar import Grammars
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.events import Mark, Params, Round
from specdemo.events.thoughts import Opened, Thoughts
from tests import tiny
from tests.compiled import compiled_verdict
from tests.oracle import (
    CPU,
    SOUND,
    TableLM,
    decoding,
    exactness,
    make_drafter,
    naive,
    naive_block,
    naive_speculative,
    random_table,
    shaped,
)

PIECES = ["a", "b", "ab", "c", "<end>", "<think>", "</think>"]
V, END, THINK, ANSWER = len(PIECES), *map(PIECES.index, ("<end>", "<think>", "</think>"))
MARKS = {THINK: Mark(THINK, "<think>", "thinking"), ANSWER: Mark(ANSWER, "</think>", "end")}
# What comes before the text that the grammar binds: a thought that the prompt has opened, or one that the
# model may open.
THOUGHTS = {
    "none": None,
    "by the prompt": Thoughts(MARKS, Opened(thinking=True)),
    "by the model": Thoughts(MARKS, openers=frozenset([THINK])),
}
REGEX = "(ab|c)(a|b){1,3}c?"
LETTERS = ["".join(letters) for length in range(7) for letters in product("abc", repeat=length)]
WHOLE = {text for text in LETTERS if re.fullmatch(REGEX, text)}
BEGUN = {text[:length] for text in WHOLE for length in range(len(text) + 1)}

TARGET = random_table(1, V)
TARGET[..., ANSWER] += 1.0
DRAFTER = 0.6 * TARGET + random_table(4, V, never=[1])  # which never drafts "b"
PROMPT = [3, 0, 3, 0]
PLAIN = Params(gamma=3, temperature=1.0, top_p=1.0, max_new_tokens=12, ngram=2, alternatives=2, regex=REGEX)
JUDGES = {"speculative": naive_speculative, "block": naive_block}
VERDICTS = {"torch": lambda: None, "compiled": compiled_verdict}
TOKENS = 3  # whose joint distribution is compared


def tokenizer():
    words = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, []))
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")


@pytest.fixture(scope="module")
def grammars():
    return Grammars(tokenizer(), V, frozenset([END]))


THE = tiny.tokenizer().convert_tokens_to_ids("the")


def of_words(ends):
    """Of a tokenizer for English. 66 is "a", 67 is "b", and 1 is <end>, which is special."""
    return Grammars(tiny.tokenizer(), 300, frozenset(ends))


def fits(text, thoughts="none") -> list[int]:
    """The tokens that may follow a text, by the list of all texts."""
    written = text[len(PROMPT) :]
    if END in written:
        return []
    if thoughts == "by the prompt" or (thoughts == "by the model" and written[:1] == [THINK]):
        if ANSWER not in written:
            return [*range(V)]
        written, thoughts = written[written.index(ANSWER) + 1 :], "none"
    so_far = "".join(PIECES[one] for one in written)
    bound = [one for one in range(END) if so_far + PIECES[one] in BEGUN] + [END] * (so_far in WHOLE)
    return bound + [THINK] * (thoughts == "by the model" and not written)


def of_table(table, params, thoughts="none"):
    """The distribution of the next token by a table, of those that may follow."""

    def probs(text):
        row = torch.full([V], -torch.inf, dtype=torch.float64)
        fitting = fits(text, thoughts)
        row[fitting] = TableLM(table).row(text)[fitting]
        return shaped(row, params, text, len(PROMPT)) if row.isfinite().any() else np.zeros(V)

    return probs


def run_of(grammars, params, judge=None, drafter=None, thoughts="none"):
    """One run of the engine. drafter: in place of the one that params names."""
    grammar = grammars.compiled(params, len(PROMPT), THOUGHTS[thoughts])
    sampler = Sampler(params, len(PROMPT), grammar=grammar)
    if drafter is None and params.draft_with == "model":
        drafter = make_drafter("model", sampler, V, TableLM(DRAFTER), gamma=params.gamma)
    how = {"eos": (END,), "sampler": sampler, "compiled": judge}
    return decoding(TableLM(TARGET), drafter, params, PROMPT, **how)


class Guesser(Drafter):
    """Guesses by the text alone, often what is forbidden."""

    def propose(self, ids, k, u):
        return GivenDrafter([sum(ids) % V, ids[-1], 0, 1][:k], V, CPU).propose(ids, k, u)


SAMPLERS = {
    "multinomial": PLAIN,
    "in blocks": replace(PLAIN, rule="block"),
    "greedy": replace(PLAIN, temperature=0.0),
    "top-p": replace(PLAIN, temperature=1.3, top_p=0.8),
    "penalties": replace(PLAIN, frequency_penalty=0.8, logit_bias={0: -1.0, 1: 0.7}),
}


@pytest.mark.parametrize("judge", VERDICTS)
@pytest.mark.parametrize(
    ("name", "thoughts"),
    [*((name, "none") for name in SAMPLERS), *(("multinomial", name) for name in THOUGHTS if name != "none")],
)
def test_token_for_token_like_the_naive_reference(grammars, name, thoughts, judge):
    params, texts, answers = SAMPLERS[name], set(), 0
    p_of, q_of = (of_table(table, params, thoughts) for table in (TARGET, DRAFTER))
    for seed in range(20):
        run = run_of(grammars, replace(params, seed=seed), VERDICTS[judge](), thoughts=thoughts)
        ids = [token_id for one in run for token_id in getattr(one, "emitted", ())]
        assert ids == naive_until_the_end(p_of, q_of, params, seed)
        answer = ids[ids.index(ANSWER) + 1 :] if ANSWER in ids else ids
        answers += "".join(PIECES[one] for one in answer[:-1]) in WHOLE
        texts.add(tuple(ids))
    assert name == "greedy" or len(texts) >= 6
    assert answers == 20 or (thoughts != "none" and answers > 4), "a thought may end the text"


def naive_until_the_end(p_of, q_of, params, seed):
    """What the reference writes up to its end: after that any token may follow there."""

    def p_or_anything(text):
        return np.full(V, 1 / V) if END in text[len(PROMPT) :] else p_of(text)

    text = naive(
        p_or_anything,
        q_of,
        PROMPT,
        params.gamma,
        len(PROMPT) + params.max_new_tokens,
        lambda this_round, k: uniforms(seed, this_round, k),
        JUDGES[params.rule],
        lambda text: not q_of(text).any(),
    )[len(PROMPT) :]
    return text[: text.index(END) + 1] if END in text else text


EXACT = {"n-grams": replace(PLAIN, draft_with="ngram", top_p=0.9), "a guesser": replace(PLAIN, gamma=4)}


@pytest.mark.parametrize(
    ("name", "thoughts", "judge"),
    [("n-grams", "none", "torch"), ("a guesser", "none", "compiled"), ("a guesser", "by the model", "torch")],
)
def test_the_text_has_the_targets_distribution_under_the_mask(grammars, name, thoughts, judge):
    params, fates = EXACT[name], Counter()

    def run(_, seed):
        drafter = Guesser() if name == "a guesser" else None
        return run_of(grammars, replace(params, seed=seed), VERDICTS[judge](), drafter, thoughts)

    p_of, runs = of_table(TARGET, params, thoughts), 300 if thoughts == "none" else 500
    p = exactness(run, p_of, [PROMPT], TOKENS, runs, (END,), fates)
    assert p > SOUND, f"chi-square p = {p:.2g}"
    if name != "n-grams":  # such a store has little to say of so short texts
        for fate in ("accepted", "rejected", "resampled"):
            assert fates[fate] > 15, f"too few {fate}: the test shows little about them"


def test_rounds_tell_how_many_tokens_fit_and_what_was_forbidden(grammars):
    for name in ("a model", "a guesser"):
        drafter, forbidden = Guesser() if name == "a guesser" else None, 0
        for seed in range(20):
            text = list(PROMPT)
            for one in run_of(grammars, replace(PLAIN, seed=seed), drafter=drafter):
                for place, token in enumerate(getattr(one, "draft", ())):
                    may_follow = fits(text + [before.id for before in one.draft[:place]])
                    assert token.allowed == len(may_follow)
                    assert token.forbidden == (token.id not in may_follow)
                    if token.forbidden:
                        assert token.p == 0 and token.fate != "accepted" and one.ended_by == "grammar"
                        assert token is one.draft[-1], "a draft ends with it"
                        forbidden += 1
                text += getattr(one, "emitted", ())
                if getattr(one, "next", None):
                    assert one.next.allowed == len(fits(text[:-1]))
        assert (forbidden > 20) == (name == "a guesser")


def test_a_draft_ends_where_the_grammar_allows_nothing_that_the_drafter_has(grammars):
    """The drafter never drafts "b"."""
    ended = Counter()
    for seed in range(60):
        text = list(PROMPT)
        for one in run_of(grammars, replace(PLAIN, seed=seed)):
            if isinstance(one, Round):
                k = min(PLAIN.gamma, len(PROMPT) + PLAIN.max_new_tokens - len(text) - 1)
                is_stuck = fits(text + [token.id for token in one.draft]) == [1] and len(one.draft) < k
                assert (one.ended_by == "drafter") == is_stuck and one.ended_by != "grammar"
                ended[one.ended_by, bool(one.draft)] += 1
            text += getattr(one, "emitted", ())
    assert min(ended["drafter", True], ended["drafter", False], ended["eos", True]) > 2


def test_a_draft_is_taken_back_as_if_it_had_not_been_read():
    """In any order. llguidance 1.9.1 goes back to a wrong place over a token that has its number in it."""
    grammar = of_words([1]).compiled(Params(grammar="start: <[66]> <[67]> /[a-z]{9}/"))
    for draft in ([], [66], [66, 67], [66, 67, 68]):
        grammar.after(draft)
    grammar.go_to([66])
    assert grammar.after(()).nonzero()[:, 0].tolist() == [67]
    grammar.go_to([])
    assert grammar.after(()).nonzero()[:, 0].tolist() == [66]


@pytest.mark.parametrize(
    ("text", "before", "can_end"),
    [
        ("/[a-z]{4}/", "abc", False),  # the text of the end token would fit
        ("/[a-z]{4}/", "abcd", True),
        ('"a" <[60-70]> "c"', "a", False),
        ('"a" <end>', "a", True),  # it ends by the name of its end token
        ('"<end>c"', "", False),  # which only spells it
        ('"the cat"', "", False),
    ],
)
def test_a_text_ends_where_it_may_and_only_there(text, before, can_end):
    grammars = of_words([1, 67, THE])  # ordinary tokens end a text, too
    grammar = grammars.compiled(Params(grammar=f"start: {text}"))
    grammar.go_to(grammars.tokenizer.convert_tokens_to_ids([*before]))
    fitting = grammar.after(()).nonzero()[:, 0].tolist()
    assert fitting and (1 in fitting) == can_end
    assert (67 in fitting) == (THE in fitting) == (can_end and "<end>" not in text)


DEEP = '{"type":"array","items":' * 500 + "{}" + "}" * 500
REFUSED = [  # and what is said of it
    ({"regex": "("}, "unclosed group"),
    ({"regex": "a" * 400 + "("}, "unclosed group"),
    ({"regex": "x"}, "the target has no token that fits"),
    ({"grammar": "no grammar"}, ""),
    ({"grammar": "start: <tool>"}, 'unknown special token: "<tool>"'),
    ({"grammar": "start: <[300]>"}, "300"),
    ({"grammar": f'start: "a" <[{END}]> "b"'}, "the target has no token that fits"),  # it ends before "b"
    ({"json_schema": '{"enum": []}'}, "Unsatisfiable schema"),
    ({"json_schema": DEEP}, "recursion limit exceeded"),
]


def test_what_cannot_be_followed_is_refused_before_the_run(grammars):
    for how, why in REFUSED:
        with pytest.raises(ValueError, match=f"^{[*how][0]} cannot be followed: .*{re.escape(why)}"):
            grammars.compiled(Params(**how))
    for words, ends in ((None, [END]), (tokenizer(), [])):  # no fast tokenizer; nothing that ends a text
        with pytest.raises(ValueError, match="^regex "):
            Grammars(words, V, frozenset(ends)).compiled(PLAIN)


@pytest.mark.parametrize(
    "case",
    [
        {"regex": r"\w*" * 1300},
        {"json_schema": {"allOf": [{"pattern": r"(\w*\w*\w*)" * 40 + str(i)} for i in range(30)]}},
        {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(600)}}},
        {"grammar": 'start: "a" start'},
    ],
    ids=["many words", "many patterns", "many properties", "no end"],
)
def test_what_takes_too_much_is_refused_in_seconds_and_within_a_gigabyte(case):
    """Some of these take minutes and gigabytes: they are let try in a process of their own."""
    with pytest.raises(ValueError, match="cannot be followed: it takes too much time or memory$"):
        of_words([1]).compiled(Params(**case))


def test_a_run_has_limits_of_its_own(monkeypatch):
    """Copies of a matcher share the states of its lexer, which are limited."""
    monkeypatch.setattr(grammar_check, "LIMITS", LLParserLimits(max_lexer_states=300, verbose_errors=False))
    grammars, words = of_words([1]), Params(regex="((a|b|c| ){2,20}x?[a-m ]{0,30}){20}")

    def write(length, random):
        grammar, text = grammars.compiled(words), []
        for _ in range(length):
            grammar.go_to(text)
            text.append(random.choice(grammar.after(()).nonzero()[:, 0].tolist()))

    random = Random(0)
    for _ in range(20):
        write(12, random)
    with pytest.raises(RuntimeError, match="^regex cannot be followed any further"):
        write(300, random)


def test_how_sure_a_drafter_is_is_told_of_what_is_allowed(grammars):
    """So where one token is allowed the draft goes on."""
    only = replace(PLAIN, confidence=0.99, regex="cccc")
    (one,) = [each for each in run_of(grammars, only) if getattr(each, "index", None) == 0]
    assert len(one.draft) == 3 and one.ended_by == "gamma"
