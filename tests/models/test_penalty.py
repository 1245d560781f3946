"""Penalties and a logit bias are a part of the target's distribution, those of its generation config too; and
what else a generation config asks for is applied, or a user is told that it is not."""

from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.events.trace import Trace
from tests.oracle import shaped
from tests.pure.test_detokenize import byte_level
from tests.sentences import refused
from tests.tiny import greedy, noisy, tiny, tokenizer

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
NEW = 50
CPU = torch.device("cpu")


def penalised(penalty=1.3, **shape):
    target = tiny("llama", **shape)
    target.generation_config.repetition_penalty = penalty
    return target


@pytest.mark.slow
def test_greedy_text_is_that_of_generate():
    """With the penalty, the bias and the end that the generation config asks for, when the run begins."""
    target = penalised()
    config = target.generation_config
    config.sequence_bias = [[[9], 4.0], [[17], 2.5]]
    pair, expected = load_pair(target=target, drafter=noisy(target)), greedy(target, PROMPT, NEW)
    greedily = Params(temperature=0, seed=1, max_new_tokens=NEW, exit_layer=1, gamma=3)
    for draft_with in ("model", "early-exit"):
        trace = generate(pair, PROMPT, replace(greedily, draft_with=draft_with), measure=False)
        assert trace.output_ids == expected and trace.params.repetition_penalty == 1.3
        assert trace.params.logit_bias == {9: 4.0, 17: 2.5}
        assert Trace.from_json(trace.to_json()).params == trace.params
    assert not pair.limits
    without = replace(greedily, repetition_penalty=1, logit_bias={})
    trace = generate(pair, PROMPT, without, measure=False)
    assert trace.output_ids != expected and trace.params == without
    config.eos_token_id = [expected[20]]
    ended = generate(pair, PROMPT, greedily, measure=False)
    assert ended.finish == "eos" and ended.output_ids == expected[: expected.index(expected[20]) + 1]


OTHERS = {
    "bias": {"logit_bias": {9: 4.0, 17: 2.5, 30: -100.0}},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.5,
        "logit_bias": {9: 3.0, 42: -2.0},
    },
}


def plain_greedy(model, prompt, new, params):
    """Without a cache and without the engine."""
    text = list(prompt)
    for _ in range(new):
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, -1]
        text.append(int(shaped(logits, params, text, len(prompt)).argmax()))
    return text[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_greedy_text_is_that_of_a_plain_loop(case):
    target = tiny("llama")
    pair = load_pair(target=target, drafter=noisy(target))
    params = Params(temperature=0, max_new_tokens=NEW, gamma=3, **OTHERS[case])
    expected = plain_greedy(target, PROMPT, NEW, params)
    without = plain_greedy(target, PROMPT, NEW, Params(temperature=0))
    assert expected != without and len(set(expected)) > 5
    for draft_with in ("model", "lookup", "early-exit", "none"):
        trace = generate(pair, PROMPT, replace(params, draft_with=draft_with, exit_layer=1), measure=False)
        assert trace.output_ids == expected and trace.params.logit_bias == params.logit_bias
    # The same pair without: nothing is left of it in a step that was captured.
    plain = replace(params, **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0) | NEITHER)
    assert generate(pair, PROMPT, plain, measure=False).output_ids == without


NEITHER = {"repetition_penalty": None, "logit_bias": None}


def test_a_drafter_has_them_as_the_target_has():
    """So with the target as its own drafter all drafts are accepted, greedily and sampled."""
    target = penalised(2.0)
    pair = load_pair(target=target, drafter=target)
    for temperature, case in ((0, {}), (1, {}), (1, OTHERS["all"])):
        params = Params(temperature=temperature, top_p=1, seed=2, max_new_tokens=NEW, gamma=4, **case)
        stats = generate(pair, PROMPT, params, measure=False).stats
        assert stats.drafted and stats.accepted == stats.drafted


# Of each option, values that change nothing for transformers, and those that ask for what is not applied.
OPTIONS = {
    "guidance_scale": ([1.0, 1], [1.5]),
    "encoder_repetition_penalty": ([1.0], [1.2]),
    "no_repeat_ngram_size": ([0, -1], [3]),
    "encoder_no_repeat_ngram_size": ([0, -1], [3]),
    "bad_words_ids": ([[]], [[[5]]]),
    "min_length": ([0, -1], [5]),
    "min_new_tokens": ([0, -1], [5]),
    "forced_bos_token_id": ([], [0]),
    "forced_eos_token_id": ([], [0]),
    "exponential_decay_length_penalty": ([(3, 1.0), (3, 1, 2)], [(3, 1.2), 3]),
    "suppress_tokens": ([[], ()], [[5], torch.tensor([5, 6])]),
    "begin_suppress_tokens": ([[]], [[5]]),
    "sequence_bias": ([[], {}], [[[[9, 17], 4.0]], {(9,): 400.0}, [[[9], "much"]], {(9,): 4.0, (96,): 1.0}]),
    "repetition_penalty": ([1, 1.0], [0, 12.0, "much"]),
    "top_h": ([], [0.4]),
    "typical_p": ([1.0, 2.0], [0.9]),
    "epsilon_cutoff": ([0.0, 1.0, 2.0, -1], [0.1]),
    "eta_cutoff": ([0, 1.0], [0.1]),
    "watermarking_config": ([], [{"greenlist_ratio": 0.25}]),
    "stop_strings": ([[]], [[""], ["x"] * 3 + ["y" * 1001]]),
}


def test_a_user_is_told_of_every_option_that_is_not_applied_and_of_no_other():
    """Whenever it is set: a model in memory belongs to its owner. None fails a run."""
    target = tiny("llama")
    pair, config = load_pair(target=target, tokenizer=tokenizer()), target.generation_config
    plain = Params(draft_with="none", max_new_tokens=1, seed=1)
    for option, (off, on) in OPTIONS.items():
        for value in (None, *off):
            setattr(config, option, value)
            assert not pair.limits, (option, value)
        for value in on:
            setattr(config, option, value)
            (told,) = pair.limits
            assert str(told).endswith(f": {option}") and told in pair.notes, (option, value)
        assert generate(pair, PROMPT, plain, measure=False).params == plain
        setattr(config, option, None)


@pytest.mark.slow
def test_its_stop_strings_are_those_of_a_run():
    target, words = tiny("llama", vocab_size=300), tokenizer()
    pair, config = load_pair(target=target, drafter=noisy(target), tokenizer=words), target.generation_config
    greedily = Params(temperature=0, max_new_tokens=NEW)
    whole = generate(pair, PROMPT, greedily, measure=False)
    stop, earlier = "ecat", "~"
    config.stop_strings = [stop, stop]
    trace = generate(pair, PROMPT, greedily, measure=False)
    assert trace.finish == "stop" and trace.text == whole.text[: whole.text.index(stop)]
    assert trace.params.stop == (stop,)
    # Beside those that are asked for; and not where the model's own ends are ignored.
    both = generate(pair, PROMPT, replace(greedily, stop=(earlier,)), measure=False)
    assert both.params.stop == (earlier, stop) and both.text == whole.text[: whole.text.index(earlier)]
    on = generate(pair, PROMPT, replace(greedily, ignore_eos=True), measure=False)
    assert on.output_ids == whole.output_ids and on.params.stop == ()
    with refused("stops_of_pair", field="stop", most=63):
        pair.check(Params(stop=tuple(f"s{i}" for i in range(64))))
    (told,) = load_pair(target=target, drafter=None).limits  # without a tokenizer there is no text
    assert str(told).endswith(": stop_strings")


def test_a_bias_on_a_token_that_the_target_lacks_is_refused():
    pair = load_pair(target=tiny("llama"), drafter=None)
    width = pair.target.config.vocab_size
    with pytest.raises(ValueError, match=f"^logit_bias .*{width}"):
        generate(pair, PROMPT, Params(draft_with="none", logit_bias={width - 1: 1, width: 1}))


def test_a_drafter_with_another_tokenizer_drafts_with_them():
    target, drafter = penalised(vocab_size=300), tiny("gpt2", vocab_size=400)
    tokenizers = {"target": tokenizer(), "drafter": byte_level(400)}
    pair = load_pair(target=target, drafter=drafter, tokenizer=tokenizers)
    for temperature, case in ((0, {}), (0, OTHERS["all"]), (0.8, OTHERS["all"])):
        params = Params(temperature=temperature, seed=1, max_new_tokens=20, **case)
        trace = generate(pair, "the cat sat on the mat", params, measure=False)
        assert trace.stats.drafted
        if temperature == 0:
            expected = plain_greedy(target, trace.prompt_ids, 20, trace.params)
            assert trace.output_ids == expected[: len(trace.output_ids)]
