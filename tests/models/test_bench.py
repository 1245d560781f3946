"""The benchmark with its models: the contestants, and the command."""

import json
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.cli.main import main
from specdemo.measure.bench import RATIOS, bench, contestants
from specdemo.measure.prompts import story_prompts
from specdemo.runtime.weights import weight_bytes
from tests.tiny import noisy, tiny, tokenizer

GREEDY = Params(temperature=0, max_new_tokens=24, gamma=3, seed=0, ignore_eos=True)


@pytest.fixture(scope="module")
def pair():
    target = tiny(vocab_size=304)
    return load_pair(target=target, drafter=noisy(target), tokenizer=tokenizer())


# A Llama of two layers, counted by hand: 2 query heads and 1 of keys and values, each 64 wide.
SIZES = dict(
    vocab_size=100, hidden_size=128, intermediate_size=256, num_attention_heads=2, num_key_value_heads=1
)
LINEAR = 2 * (128 * 128 + 2 * 64 * 128 + 128 * 128 + 3 * 128 * 256)  # q, k and v, o, gate and up and down
NORMS = (2 * 2 + 1) * 128
TABLE = 100 * 128  # the embedding's, and the head's
ROPE = 2 * 4 * 32  # bytes of two buffers of frequencies, float32 in every dtype
DENSE = 2 * (LINEAR + NORMS + TABLE) + ROPE  # bytes of bfloat16, with one table: the head's


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tied", "quantize", "expected"),
    [
        (False, None, DENSE),
        (True, None, DENSE),
        # A byte for a weight, and for each row a scale in bfloat16. A layer has two more scales of 4 bytes.
        (False, "int8", DENSE - LINEAR + 2 * 2 * (128 + 2 * 64 + 128 + 2 * 256 + 128) + 2 * 7 * 2 * 4),
    ],
)
def test_a_forward_reads_the_bytes_that_are_counted_by_hand(tmp_path, tied, quantize, expected):
    tiny(**SIZES, tie_word_embeddings=tied).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    pair = load_pair(target=tmp_path, dtype="bfloat16", quantize=quantize, device="cpu")
    assert weight_bytes(pair.target) == expected


def test_transformers_accepts_the_same_drafts(pair):
    (prompt,) = story_prompts(pair, 1, 20)
    forwards = []
    handle = pair.target.register_forward_hook(lambda *_: forwards.append(1))
    ids, _ = contestants(pair, GREEDY)["transformers assisted"](prompt)
    handle.remove()
    trace = generate(pair, prompt, GREEDY)
    assert ids == trace.output_ids
    assert abs(len(forwards) - trace.stats.rounds) <= 1, "the last drafts can end at the limit"


def test_texts_that_do_not_fit_the_context_are_refused(pair):
    message = "max_new_tokens must leave the prompts room in the context of 256 tokens"
    with pytest.raises(ValueError, match=message):
        bench(pair, replace(GREEDY, max_new_tokens=250), 1, 1, prompt_tokens=10)


@pytest.mark.slow
def test_bench_prints_a_table_and_json_last(capsys):
    options = ["--prompts", "1", "--repeats", "1", "--max-new-tokens", "6", "--prompt-tokens", "40"]
    assert main(["bench", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    names = [row["name"] for row in result["rows"]]
    assert names[:2] == ["transformers plain", "transformers assisted"]
    assert names[2:] == ["specdemo plain", "specdemo speculative", "specdemo lookup"]
    for row in result["rows"]:
        low, high = row["ms_per_token_10_90"]
        assert low <= row["ms_per_token"] <= high and row["equal_to_plain"] == "1 of 1"
        assert any(line.startswith(row["name"]) for line in lines)
    assert (result["pair"], result["gamma"], result["prompt_tokens"]) == ("embedded", 4, 40)
    assert [(one["name"], one["other"]) for one in result["ratios"]] == list(RATIOS)
    assert result["differing_argmaxes"] == {"prompts": 0, "first_at": [None]}
