"""Penalties and a logit bias are a part of the target's distribution, those of its generation config too; and
what else a generation config asks for is applied, or a user is told that it is not."""

from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.drafters.model.other_tokenizer import SharedTokensDrafter
from specdemo.engine.sampling import Sampler
from specdemo.events.trace import Trace
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.steps import EagerSteps
from specdemo.ui.page.links import read_link, write
from specdemo.ui.view.settings import FIRST, adjusting_in_words, params_from_controls, values_of
from tests.heads import save_head, tiny_head
from tests.oracle import shaped
from tests.pure.test_detokenize import byte_level
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
    target = penalised()
    pair, expected = load_pair(target=target, drafter=noisy(target)), greedy(target, PROMPT, NEW)
    for draft_with in ("model", "ngram", "early-exit"):
        params = Params(temperature=0, max_new_tokens=NEW, draft_with=draft_with, exit_layer=1, gamma=3)
        trace = generate(pair, PROMPT, params, measure=False)
        assert trace.output_ids == expected and trace.params.repetition_penalty == 1.3
    assert not any("repetition_penalty" in str(limit) for limit in pair.limits)
    without = generate(
        pair, PROMPT, Params(temperature=0, max_new_tokens=NEW, repetition_penalty=1), measure=False
    )
    assert without.output_ids != expected and without.params.repetition_penalty == 1


@pytest.mark.slow
def test_a_head_drafts_with_it(tmp_path):
    target = penalised()
    head = tiny_head(target, draft_ids=list(range(0, target.config.vocab_size, 2)))
    pair = load_pair(target=target, drafter=save_head(head, tmp_path))
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW), measure=False)
    assert trace.stats.drafted and trace.output_ids == greedy(target, PROMPT, NEW)


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


def test_a_bias_of_the_models_generation_config_is_applied():
    target = tiny("llama")
    target.generation_config.sequence_bias = [[[9], 4.0], [[17], 2.5]]
    pair = load_pair(target=target, drafter=noisy(target))
    trace = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW), measure=False)
    assert trace.output_ids == greedy(target, PROMPT, NEW) and trace.params.logit_bias == {9: 4.0, 17: 2.5}
    assert Trace.from_json(trace.to_json()).params == trace.params
    assert not any("sequence_bias" in str(limit) for limit in pair.limits)
    without = generate(pair, PROMPT, Params(temperature=0, max_new_tokens=NEW, logit_bias={}), measure=False)
    assert without.output_ids != trace.output_ids and without.params.logit_bias == {}


# Of each option, values that change nothing for transformers, and one that does.
OPTIONS = {
    "guidance_scale": ([1.0, 1], 1.5),
    "encoder_repetition_penalty": ([1.0], 1.2),
    "no_repeat_ngram_size": ([0], 3),
    "encoder_no_repeat_ngram_size": ([0], 3),
    "bad_words_ids": ([[]], [[5]]),
    "min_length": ([0], 5),
    "min_new_tokens": ([0], 5),
    "forced_bos_token_id": ([], 0),
    "forced_eos_token_id": ([], 0),
    "exponential_decay_length_penalty": ([(3, 1.0)], (3, 1.2)),
    "suppress_tokens": ([[]], [5]),
    "begin_suppress_tokens": ([[]], [5]),
    "sequence_bias": ([[], {}], [[[9, 17], 4.0]]),
    "repetition_penalty": ([1, 1.0], 0),
    "top_h": ([], 0.4),
    "typical_p": ([1.0], 0.9),
    "epsilon_cutoff": ([0.0, 1.0], 0.1),
    "eta_cutoff": ([0, 1.0], 0.1),
    "watermarking_config": ([], {"greenlist_ratio": 0.25}),
    "stop_strings": ([[]], [""]),
}


def test_a_user_is_told_of_every_option_that_is_not_applied_and_of_no_other():
    """Whenever it is set: a model in memory belongs to its owner."""
    target = tiny("llama")
    pair, config = load_pair(target=target, tokenizer=tokenizer()), target.generation_config
    for option, (off, on) in OPTIONS.items():
        for value in (None, *off):
            setattr(config, option, value)
            assert not pair.limits, (option, value)
        setattr(config, option, on)
        (told,) = pair.limits
        assert str(told) == f"not applied, though the target's generation config asks for it: {option}"
        assert told in pair.notes
        setattr(config, option, None)


def test_what_cannot_be_applied_is_warned_of_and_fails_no_run():
    """A bias on several tokens, and what Params would refuse."""
    target = tiny("llama")
    pair, config = load_pair(target=target, tokenizer=tokenizer()), target.generation_config
    plain = Params(draft_with="none", max_new_tokens=3, seed=1)
    for option, value in (
        ("sequence_bias", [[[9, 17], 4.0]]),
        ("sequence_bias", {(9,): 400.0}),
        ("sequence_bias", [[[9], "much"]]),
        ("sequence_bias", {(9,): 4.0, (96,): 1.0}),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 12.0),
        ("repetition_penalty", "much"),
        ("stop_strings", ["x"] * 3 + ["y" * 1001]),
    ):
        setattr(config, option, value)
        assert f": {option}" in " ".join(map(str, pair.limits)), (option, value)
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
    expected = target.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=NEW, tokenizer=words)
    assert trace.output_ids == expected[0, len(PROMPT) :].tolist() != whole.output_ids
    assert trace.finish == "stop" and trace.text == whole.text[: whole.text.index(stop)]
    assert trace.params.stop == (stop,) and generate(pair, PROMPT, trace.params).text == trace.text
    # Beside those that are asked for; and not where the model's own ends are ignored.
    both = generate(pair, PROMPT, replace(greedily, stop=(earlier,)), measure=False)
    assert both.params.stop == (earlier, stop) and both.text == whole.text[: whole.text.index(earlier)]
    on = generate(pair, PROMPT, replace(greedily, ignore_eos=True), measure=False)
    assert on.output_ids == whole.output_ids and on.params.stop == ()
    with pytest.raises(ValueError, match="^stop must be at most 63 strings for this pair, whose .*, not 64$"):
        pair.check(Params(stop=tuple(f"s{i}" for i in range(64))))
    config.stop_strings = earlier
    assert pair.check(Params(stop=(stop,))).stop == (stop, earlier)
    (told,) = load_pair(target=target, drafter=None).limits  # without a tokenizer there is no text
    assert str(told).endswith(": stop_strings")


def test_an_eos_that_is_set_after_a_run_ends_the_next_one():
    target = tiny("llama")
    pair = load_pair(target=target, drafter=noisy(target))
    greedily = Params(temperature=0, max_new_tokens=NEW)
    whole = generate(pair, PROMPT, greedily, measure=False).output_ids
    eos = whole[20]
    target.generation_config.eos_token_id = [eos]
    trace = generate(pair, PROMPT, greedily, measure=False)
    assert trace.finish == "eos" and trace.output_ids == whole[: whole.index(eos) + 1]


def test_a_bias_on_a_token_that_the_target_lacks_is_refused():
    pair = load_pair(target=tiny("llama"), drafter=None)
    width = pair.target.config.vocab_size
    with pytest.raises(ValueError, match=f"^logit_bias must be of token ids below {width} for this pair"):
        generate(pair, PROMPT, Params(draft_with="none", logit_bias={width - 1: 1, width: 1}))


def test_the_page_holds_the_penalties_and_a_link_has_no_bias():
    assert params_from_controls(FIRST).repetition_penalty is None
    for given in (None, 1.0, 1.25):
        assert params_from_controls(values_of(Params(repetition_penalty=given))).repetition_penalty == given
    with pytest.raises(ValueError, match="^repetition_penalty must be a number above 0 to 10"):
        params_from_controls(FIRST | {"repetition_penalty": "much"})
    params = Params(presence_penalty=0.5, frequency_penalty=-0.25)
    assert params_from_controls(values_of(params)) == params
    weights = dict.fromkeys(("dtype", "quantize", "quantize_drafter"))
    link = read_link(write("Once", "embedded", weights, params), ("embedded",))
    assert params_from_controls(link.values) == params and link.runs
    biased = read_link(write("Once", "embedded", weights, replace(params, logit_bias={3: 1})), ("embedded",))
    assert params_from_controls(biased.values) == params and not biased.runs
    assert adjusting_in_words(replace(params, logit_bias={3: 1, 4: 2}, repetition_penalty=1.5)) == [
        "repetition penalty 1.5",
        "presence penalty 0.5",
        "frequency penalty -0.25",
        "a logit bias on 2 tokens",
    ]
    assert adjusting_in_words(Params(repetition_penalty=1, logit_bias={})) == []


def test_a_drafter_with_another_tokenizer_drafts_with_it():
    target, drafter = penalised(vocab_size=300), tiny("gpt2", vocab_size=400)
    pair = load_pair(
        target=target, drafter=drafter, tokenizer={"target": tokenizer(), "drafter": byte_level(400)}
    )
    assert pair.other_tokenizer is not None
    trace = generate(pair, "the cat sat on the mat", Params(temperature=0, max_new_tokens=20))
    assert trace.stats.drafted
    assert trace.output_ids == greedy(target, list(trace.prompt_ids), 20)[: len(trace.output_ids)]
    # Sampled, it drafts by the target's ids: those that its text has, too.
    shared = pair.other_tokenizer.shared
    text = [own for _, own in shared[3:9]]
    lm, sampler = CachedLM(drafter), Sampler(Params(repetition_penalty=1.3))
    drafts = SharedTokensDrafter(
        pair.other_tokenizer.own_ids(300, CPU), lm, 100, sampler, 300, CPU, EagerSteps(), 3
    )
    seen = drafts.seen(text).nonzero()[:, 0].tolist()
    assert seen == sorted(ours for ours, own in shared if own in text) and len(seen) >= 6
    sampled = Params(temperature=0.8, seed=1, max_new_tokens=20)
    assert generate(pair, "the cat sat on the mat", sampled, measure=False).stats.drafted
    # What was generated counts by its own tokens, and a bias is of the drafter's own ids where it drafts
    # through text.
    for temperature in (0, 0.8):
        others = replace(sampled, temperature=temperature, **OTHERS["all"])
        trace = generate(pair, "the cat sat on the mat", others, measure=False)
        assert trace.stats.drafted
        if temperature == 0:
            expected = plain_greedy(target, trace.prompt_ids, 20, trace.params)
            assert trace.output_ids == expected[: len(trace.output_ids)]
