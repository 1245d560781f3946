"""What a text has to follow, with real models and every kind of drafter: the text follows it, greedily it is
that of the target alone, and nothing that it forbids is drafted by a drafter with a distribution."""

import json
import re
from dataclasses import replace

import pytest

from specdemo import Params, Trace, generate, load_pair
from specdemo.drafters import mtp
from specdemo.events import kept_tokens
from tests.block_heads import DFLASH2, save_block_head, tiny_block_head
from tests.checkpoints import gemma4, gemma4_assistant, model_with_mtp, saved_in, with_tokenizer
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.heads import save_head, tiny_head
from tests.tiny import noisy, tiny, tokenizer

WIDTH = 304  # of the targets: a few tokens more than the tokenizer has
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["cat", "dog", "hen"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LARK = 'start: (NOUN " ")+ "."\nNOUN: "cat" | "dog" | "small " NOUN2\nNOUN2: "hen"'
PARAMS = Params(gamma=3, temperature=0, max_new_tokens=60, ngram=2)
SOME = list(range(0, 300, 2))


def a_parallel_model(folder, target):
    model = noisy(target)
    model.config.pard_token = 303
    return saved_in(folder, model)


def another_tokenizer(folder, target):
    return saved_in(folder, tiny("llama", vocab_size=WIDTH, seed=5), tokenizer(sentences=["the cat ran"] * 9))


DRAFTERS = {
    "pard": a_parallel_model,
    "another tokenizer": another_tokenizer,
    "peagle": lambda folder, target: save_head(tiny_head(target, mask_token_id=7), folder),
    "eagle3 of some tokens": lambda folder, target: save_head(tiny_head(target, draft_ids=SOME), folder),
    "eagle": lambda folder, target: save_eagle_head(tiny_eagle_head(target), folder, target),
    "dflash2 of four candidates": lambda folder, target: save_block_head(
        tiny_block_head(target, **DFLASH2), folder
    ),
    "dspark": lambda folder, target: save_block_head(
        tiny_block_head(target, markov_rank=6, has_confidence=True), folder
    ),
    "assistant": lambda folder, target: with_tokenizer(saved_in(folder, gemma4_assistant(target))),
}


def pair_with(tmp_path, kind):
    target = (gemma4 if kind == "assistant" else lambda **how: tiny("llama", **how))(vocab_size=WIDTH)
    own, theirs = tmp_path / "target", tmp_path / "drafter"
    own.mkdir(), theirs.mkdir()
    return load_pair(target=saved_in(own, target), drafter=DRAFTERS[kind](theirs, target))


def traces_of(pair, method):
    """Runs by the method, greedy and sampled ones, whose texts follow what they have to."""
    for case in ({"json_schema": SCHEMA}, {"grammar": LARK}):
        params = replace(PARAMS, **case)
        alone = generate(pair, "the dog", replace(params, draft_with="none"), measure=False)
        for temperature in (0, 1):
            how = replace(params, draft_with=method, temperature=temperature, seed=4)
            trace = generate(pair, "the dog", how, measure=False)
            assert temperature or trace.output_ids == alone.output_ids
            if trace.finish == "eos":
                assert_follows(trace)
            else:
                assert trace.finish == "length" and "grammar" in case
            yield trace


def drafted_in(trace):
    return [token for one in trace.rounds for token in one.draft]


def assert_follows(trace):
    params = trace.params
    if params.json_schema:
        said = json.loads(trace.text)
        assert said["name"] in SCHEMA["properties"]["name"]["enum"] and said["age"] <= 30 and len(said) == 2
    else:
        assert re.fullmatch("((cat|dog|small hen) )+[.]", trace.text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
def test_every_kind_of_drafter(tmp_path, kind):
    for trace in traces_of(pair_with(tmp_path, kind), "model"):
        drafted, ended_by = drafted_in(trace), {one.ended_by for one in trace.rounds}
        assert drafted or (kind == "dflash2 of four candidates" and "drafter" in ended_by), "none is allowed"
        if kind != "another tokenizer" or trace.params.temperature:  # greedily it drafts text
            assert not any(token.forbidden for token in drafted)
            assert all(token.allowed >= 1 for token in drafted)


@pytest.mark.parametrize("method", ["lookup", "early-exit", "lookup+model"])
def test_the_methods_that_need_no_drafter(method):
    drafted = [token for trace in traces_of(load_pair(), method) for token in drafted_in(trace)]
    assert any(token.fate == "accepted" for token in drafted)
    assert any(token.forbidden for token in drafted) == (method != "early-exit"), "copies are not masked"


@pytest.mark.slow
@pytest.mark.skipif(mtp.MtpModel is None, reason="this version of transformers cannot run such layers")
def test_multi_token_prediction(tmp_path):
    model_with_mtp(tmp_path, "deepseek_v3", 2, seed=2, vocab_size=WIDTH)
    assert all(map(drafted_in, traces_of(load_pair(target=with_tokenizer(tmp_path)), "mtp")))


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}"
    "{{ '<think>' if thought }}{{ '</think>' if thought == 'closed' }}{% endif %}"
)


@pytest.fixture(scope="module")
def thinking():
    """A pair whose target likes to begin and to end a thought."""
    words = tokenizer()
    words.add_tokens(["<think>", "</think>"])
    words.chat_template = TEMPLATE
    target = tiny(vocab_size=WIDTH)
    target.generation_config.eos_token_id = 1
    return load_pair(target=target, drafter=noisy(target), tokenizer=words)


@pytest.mark.parametrize("method", ["model", "lookup"])
@pytest.mark.parametrize(("thought", "by_prompt"), [("open", True), ("", False), ("closed", None)])
def test_a_grammar_begins_after_what_is_thought(thinking, thought, by_prompt, method):
    """The prompt opens a thought, or the model does; where the prompt has closed one, no other is opened."""
    think, answer = thinking.tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    likely = {think: 20.0, answer: 24.0, 1: -20.0} if by_prompt is False else {answer: 6.0, 1: -20.0}
    params = Params(
        draft_with=method, json_schema=SCHEMA, logit_bias=likely, max_new_tokens=80, top_p=1, ngram=2
    )
    params, thoughts = replace(params, chat=True, chat_template_kwargs={"thought": thought}), 0
    for temperature, seed in ((0, 0), (1, 1), (1, 2)):
        how = replace(params, temperature=temperature, seed=seed)
        trace = generate(thinking, "the dog", how, measure=False)
        ids = trace.output_ids
        assert (answer in ids) == (by_prompt is not None)
        begun = ids.index(answer) + 1 if answer in ids else 0
        bound = [token.allowed is not None for one in trace.rounds for token in kept_tokens(one)]
        assert bound == [by_prompt is False and at == 0 or at >= begun for at in range(len(ids))]
        thoughts += begun - (by_prompt is False)
        assert (ids[0] == think) == (by_prompt is False)
        rest = thinking.tokenizer.decode(ids[begun:], skip_special_tokens=True)
        assert json.loads(rest)["age"] <= 30 and trace.text.endswith(rest)
        again = Trace.from_json(trace.to_json())
        assert again.params == trace.params and again.rounds == trace.rounds
        alone = generate(thinking, "the dog", replace(how, draft_with="none"), measure=False)
        assert temperature or alone.output_ids == ids
    assert thoughts > 2 or by_prompt is None
