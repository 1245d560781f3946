"""The benchmark: the contestants, the command, and rows that compare with transformers."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.cli.main import main
from specdemo.measure import bench
from tests.tiny import noisy, tiny, tokenizer

GREEDY = Params(temperature=0, max_new_tokens=24, gamma=3, seed=0, ignore_eos=True)


@pytest.fixture(scope="module")
def pair():
    target = tiny(vocab_size=304)
    return load_pair(target=target, drafter=noisy(target), tokenizer=tokenizer())


def test_transformers_accepts_the_same_drafts(pair):
    (prompt,) = bench.bench_prompts(pair, 1, 20)
    forwards = []
    handle = pair.target.register_forward_hook(lambda *_: forwards.append(1))
    ids, _ = bench.contestants(pair, GREEDY)["transformers assisted"](prompt)
    handle.remove()
    trace = generate(pair, prompt, GREEDY)
    assert ids == trace.output_ids
    assert abs(len(forwards) - trace.stats.rounds) <= 1, "the last drafts can end at the limit"


def test_texts_that_do_not_fit_the_context_are_refused(pair):
    message = "max_new_tokens must leave the prompts room in the context of 256 tokens"
    with pytest.raises(ValueError, match=message):
        bench.bench(pair, replace(GREEDY, max_new_tokens=250), 1, 1, prompt_tokens=10)


@pytest.mark.slow
def test_bench_prints_a_table_and_json_last(capsys):
    options = ["--prompts", "1", "--repeats", "1", "--max-new-tokens", "6", "--prompt-tokens", "40"]
    assert main(["bench", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    names = [row["name"] for row in result["rows"]]
    assert names[:2] == ["transformers plain", "transformers assisted"]
    assert names[2:] == ["specdemo plain", "specdemo speculative"]
    for row in result["rows"]:
        assert row["equal_to_plain"] == "1 of 1"
        assert any(line.startswith(row["name"]) for line in lines)
    assert (result["pair"], result["gamma"], result["prompt_tokens"]) == ("embedded", 4, 40)
    assert lines[0].startswith("embedded on ") and "of 40 tokens x 1, 6 tokens each" in lines[0]
    assert 0 < result["acceptance_rate"] < 1 < result["mean_tokens_per_round"]


def sample(ids=(1, 2), seconds=1.0, processor_seconds=1.0) -> bench.TimedRun:
    return bench.TimedRun(1000 * seconds / len(ids), 1000 * processor_seconds / len(ids), list(ids), None)


def test_a_row_compares_with_transformers():
    samples = {
        "transformers plain": [sample(seconds=0.008), sample(seconds=0.016), sample(seconds=0.012)],
        "transformers assisted": [sample(seconds=0.006)] * 3,
        "specdemo plain": [
            sample(seconds=0.004, processor_seconds=0.008),
            sample(seconds=0.004, processor_seconds=0.001),
            sample([1, 3], seconds=0.002, processor_seconds=0.016),
        ],
        "specdemo speculative": [sample(seconds=0.002, processor_seconds=0.002)] * 3,
    }
    found = bench.row("specdemo plain", samples, greedy=True)
    assert (found.ms_per_token, found.tokens_per_second) == (2, 500)
    assert found.tokens_per_processor_second == 250
    assert (found.x_plain, found.x_assisted) == (3, 1.5)
    assert (found.equal_to_plain, found.differs_at) == ("2 of 3", 1)
    assert bench.differences(samples["specdemo plain"], [sample()] * 3) == [None, None, 1]
    sampled = bench.row("specdemo plain", samples, greedy=False)
    assert sampled.equal_to_plain is sampled.differs_at is None
    del samples["transformers assisted"]
    assert bench.row("specdemo plain", samples, greedy=True).x_assisted is None
