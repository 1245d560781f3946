"""The benchmark: its arithmetic, the models of known acceptance, and each option of the command line on tiny things."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from specdemo import Params, load_pair, stream
from specdemo.bench.contestants import Contestant, changed, contestants, ours
from specdemo.bench.measure import (
    Sample,
    acceptance_rate,
    cost_ratio,
    expected,
    first_differences,
    in_turns,
    round_ms,
    spread,
    tokens_per_round,
)
from specdemo.bench.overhead import by_round, engine_share, host_gap_ms, idle, round_gaps
from specdemo.bench.picture import draw
from specdemo.bench.prompts import stories
from specdemo.bench.report import quantized_table, table
from specdemo.bench.roofline import copy_bandwidth, roofline, weight_bytes
from specdemo.bench.run import bench
from specdemo.bench.shapes import SHAPES, _bare, bigrams, shaped_pair
from specdemo.bench.sweeps import context_sweep, gamma_sweep
from specdemo.cli.main import main
from specdemo.events.metrics import fresh
from specdemo.loading.errors import LoadError
from specdemo.loading.pair import held_bytes
from tests.tiny import noisy, tiny, tokenizer

ROOT = Path(__file__).resolve().parents[2]
GREEDY = Params(temperature=0, max_new_tokens=24, gamma=3, seed=0, ignore_eos=True)


@pytest.fixture(scope="module")
def shaped():
    return shaped_pair("tiny", "cpu", torch.float32, accept=0.7)


def trace_of(pair, prompt, params):
    run = stream(pair, prompt, params)
    for _ in run:
        pass
    return run.trace


def sample(ids=(1, 2), times=(), **stats) -> Sample:
    return Sample(1.0, list(ids), replace(fresh(), **stats), list(times))


# Arithmetic


def test_spread_is_the_tenth_the_middle_and_the_ninetieth_percentile():
    assert spread(range(101)) == (10, 50, 90)
    assert spread([3, 1, 2]) == pytest.approx((1.2, 2, 2.8))
    assert spread([5.0]) == (5, 5, 5)


def test_a_full_round_has_gamma_drafts_and_only_those_count():
    plain = [sample(times=[(0, 0.0, 10.0), (0, 0.0, 12.0)]), sample(times=[(0, 0.0, 50.0)])]
    drafting = [
        sample(times=[(4, 8.0, 12.0), (4, 4.0, 16.0), (1, 99.0, 99.0)]),
        sample(times=[(4, 6.0, 30.0)]),
    ]
    assert round_ms(plain, 0) == 12
    assert round_ms(drafting, 4) == 20
    assert cost_ratio(plain, drafting, 4) == 6 / 4 / 12
    assert round_ms(drafting, 5) is None and cost_ratio(plain, drafting, 5) is None


def test_rates_are_those_of_all_runs_together():
    some = [
        sample(accepted=3, rejected=1, tokens=6, rounds=2),
        sample(accepted=1, rejected=3, tokens=4, rounds=3),
    ]
    assert acceptance_rate(some) == 4 / 8 and tokens_per_round(some) == 10 / 5
    assert acceptance_rate([sample()]) is None and tokens_per_round([sample()]) is None


def test_the_formula_needs_both_its_numbers():
    assert expected(0.8, 4, 0.05) == pytest.approx((1 - 0.8**5) / (0.2 * 1.2))
    assert expected(None, 4, 0.05) is None and expected(0.8, 4, None) is None


def test_where_texts_first_differ():
    texts = [sample(ids=[1, 2, 3]), sample(ids=[1, 9, 9]), sample(ids=[7, 2, 3])]
    assert first_differences(texts, [sample(ids=[1, 2, 3])] * 3) == [None, 1, 0]


def test_gaps_are_what_no_interval_covers():
    assert idle([(0, 2), (5, 6), (7, 9)]) == 3 + 1
    assert idle([(5, 6), (0, 4), (1, 2), (3, 5)]) == 0, "in any order, overlapping, nested and touching"
    assert idle([(4, 8)]) == idle([]) == 0


def test_gaps_of_rounds_between_and_in_all():
    starts = [10.0, 100.0, 200.0, 300.0]
    work = [
        (1.0, 2.0),
        (12.0, 20.0),
        (30.0, 95.0),
        (40.0, 50.0),
        (103.0, 190.0),
        (204.0, 298.0),
        (301.0, 302.0),
    ]
    rounds = by_round(work, starts)
    assert rounds == [[(12, 20), (30, 95), (40, 50)], [(103, 190)], [(204, 298)], [(301, 302)]], (
        "what ran before the first round is out"
    )
    assert round_gaps(rounds) == {"between": median([8, 14, 3]), "all": median([18, 14, 3])}
    assert round_gaps(rounds, scale=1e-3)["between"] == pytest.approx(0.008)
    assert round_gaps(rounds[:1]) is None and round_gaps([]) is None


def test_contestants_take_turns_after_warm_ups_on_the_longest_and_the_shortest_prompt():
    calls = []

    def contestant(name, fails=False):
        def run(ids):
            calls.append((name, len(ids)))
            if fails:
                raise RuntimeError("no compiler\nand pages more")
            return [1, 2, 3], None

        return Contestant(name, run, may_fail=fails)

    samples, failures = in_turns(
        [contestant("a"), contestant("b", fails=True), contestant("c")], [[0], [0] * 3, [0] * 2], 2
    )
    assert calls[:5] == [("a", 3), ("a", 1), ("b", 3), ("c", 3), ("c", 1)]
    assert calls[5:] == [(name, length) for _ in range(2) for length in (1, 3, 2) for name in "ac"]
    assert {name: len(some) for name, some in samples.items()} == {"a": 6, "c": 6}
    assert failures == {"b": "RuntimeError: no compiler"}
    with pytest.raises(ZeroDivisionError):  # what needs nothing special may not fail
        in_turns([Contestant("a", lambda ids: 1 / 0)], [[0]], 1)


# Roofline


def test_an_embedding_table_counts_only_where_it_is_the_output_matrix():
    tied, untied = tiny(tie_word_embeddings=True), tiny()
    table = 4 * untied.get_input_embeddings().weight.numel()
    assert weight_bytes(tied) == held_bytes(tied)
    assert weight_bytes(untied) == held_bytes(untied) - table == weight_bytes(tied)
    positions = tiny("gpt2", tie_word_embeddings=True)
    assert weight_bytes(positions) == held_bytes(positions) - 4 * positions.transformer.wpe.weight.numel()


@pytest.mark.slow
def test_quantised_weights_count_as_they_lie_in_memory():
    dense, small = load_pair(), load_pair(quantize="int8")
    linear = sum(
        module.weight.numel()
        for module in dense.target.modules()
        if isinstance(module, torch.nn.Linear) and module is not dense.target.get_output_embeddings()
    )
    saved = weight_bytes(dense.target) - weight_bytes(small.target)
    assert 0.98 * 3 * linear < saved < 3 * linear, "a byte instead of four, and scales"


def test_the_roofline_divides_bytes_by_bandwidth(shaped):
    pair, _ = shaped
    target, drafter = weight_bytes(pair.target), weight_bytes(pair.drafter)
    line = roofline(pair, gamma=3, bandwidth=1e9, round_ms=50.0, plain_ms=10.0)
    assert line["bytes"] == {"target": target, "drafter": drafter, "round": target + 3 * drafter}
    assert line["shortest_round_ms"] == pytest.approx(1000 * (target + 3 * drafter) / 1e9)
    assert line["reached"] == pytest.approx(line["shortest_round_ms"] / 50)
    assert line["plain"]["reached"] == pytest.approx(1000 * target / 1e9 / 10)
    assert roofline(pair, 3, 1e9, None, 10.0)["reached"] is None


def test_the_bandwidth_is_one_that_a_memory_can_have():
    assert 1e8 < copy_bandwidth("cpu", size=2**24, times=3) < 1e13


# Shapes


def test_the_cycle_goes_through_all_tokens_and_the_drafter_is_wrong_for_its_share():
    follows = bigrams(1000, 0.8, seed=3)
    x, seen = int(follows.order[0]), set()
    while x not in seen:
        seen.add(x)
        x = int(follows.target[x])
    assert len(seen) == 1000 and x == follows.order[0]
    assert sorted(follows.drafter.tolist()) == list(range(1000)), "a permutation, too"
    right = (follows.drafter == follows.target).float().mean()
    assert right == pytest.approx(0.8, abs=0.04)
    assert (bigrams(100, 1.0, 0).drafter == bigrams(100, 1.0, 0).target).all()
    assert (bigrams(100, 0.0, 0).drafter != bigrams(100, 0.0, 0).target).all()
    assert (bigrams(1000, 0.8, seed=4).order != follows.order).any()


def test_prompts_are_stretches_of_the_cycle():
    follows = bigrams(50, 0.8, seed=0)
    for prompts, length in ((follows.prompts(3), 16), (follows.prompts(2, 70), 70)):
        for prompt in prompts:
            assert len(prompt) == length
            assert all(follows.target[a] == b for a, b in zip(prompt, prompt[1:], strict=False))
    assert len({prompt[0] for prompt in follows.prompts(3)}) == 3


def by_hand(follows, x: int, gamma: int, new: int) -> tuple[list[int], int, int]:
    """What speculative decoding makes of the two tables: the text, and how many drafts were accepted and rejected."""
    ids, accepted, rejected = [], 0, 0
    while len(ids) < new:
        k = min(gamma, new - len(ids) - 1)
        for _ in range(k):
            right = int(follows.target[x])
            if follows.drafter[x] != right:
                rejected += 1
                break
            accepted += 1
            ids.append(right)
            x = right
        x = int(follows.target[x])
        ids.append(x)
    return ids, accepted, rejected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_text_and_acceptance_are_what_the_construction_says(dtype):
    pair, follows = shaped_pair("tiny", "cpu", dtype, accept=0.7)
    assert pair.info.dtype.target == pair.info.dtype.drafter == str(dtype).removeprefix("torch.")
    accepted = rejected = 0
    for prompt in follows.prompts(3):
        trace = trace_of(pair, prompt, replace(GREEDY, max_new_tokens=120))
        ids, yes, no = by_hand(follows, prompt[-1], 3, 120)
        place = (follows.order == prompt[-1]).nonzero().item()
        assert trace.output_ids == ids == [int(follows.order[(place + 1 + i) % 512]) for i in range(120)]
        assert (trace.stats.accepted, trace.stats.rejected) == (yes, no)
        accepted, rejected = accepted + yes, rejected + no
    assert rejected and accepted / (accepted + rejected) == pytest.approx(0.7, abs=0.1)


def test_transformers_accepts_the_same_drafts(shaped):
    pair, follows = shaped
    prompt = follows.prompts(1)[0]
    by_name = {one.name: one for one in contestants(pair, GREEDY, peers=False)}
    forwards = []
    handle = pair.target.register_forward_hook(lambda *_: forwards.append(1))
    ids, _ = by_name["transformers assisted"].run(prompt)
    handle.remove()
    trace = trace_of(pair, prompt, GREEDY)
    assert ids == trace.output_ids
    assert abs(len(forwards) - trace.stats.rounds) <= 1, (
        "a round each, and at most one more where the last drafts end at the limit"
    )


def test_layers_are_computed_and_add_nothing(shaped):
    pair, _ = shaped
    for layer in pair.target.model.layers:
        assert not layer.self_attn.o_proj.weight.any() and not layer.mlp.down_proj.weight.any()
        assert layer.self_attn.q_proj.weight.std() > 0 and layer.mlp.up_proj.weight.std() > 0
    ids = torch.tensor([[5, 6, 7]])
    seen = []
    handle = pair.target.model.layers[1].mlp.down_proj.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].abs().sum().item())
    )
    logits = pair.target(ids).logits[0]
    handle.remove()
    assert seen[0] > 0, "the layer was run on real numbers"
    top = logits.topk(2).values
    assert (top[:, 0] - top[:, 1] > 20).all(), "no rounding turns this over"


def test_making_a_pair_leaves_dtype_and_dice_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    shaped_pair("tiny", "cpu", torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


# Billions of parameters as their publishers count them (embeddings once where the real model is tied).
PUBLISHED = {
    "llama-3.2-3b-1b": (3.213, 1.236),
    "qwen3-8b-0.6b": (8.191, 0.596),
    "llama-3.1-8b-1b": (8.030, 1.236),
}
TIED = {3.213, 1.236, 0.596}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shapes_have_as_many_parameters_as_the_real_models(name):
    for shape, billions in zip(SHAPES[name], PUBLISHED[name], strict=True):
        with torch.device("meta"):
            parameters = _bare(shape).num_parameters()
        parameters -= shape.vocab * shape.hidden if billions in TIED else 0
        assert parameters / 1e9 == pytest.approx(billions, abs=0.0006)


def test_a_shape_that_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr("specdemo.bench.shapes.memory_of", lambda device: 10**9)
    with pytest.raises(LoadError, match=r"shapes llama-3.1-8b-1b need about 19\.\d GB, but cpu has 1.0 GB"):
        shaped_pair("llama-3.1-8b-1b", "cpu", torch.bfloat16)


# What is measured


def test_settings_are_restored_even_after_a_failure(shaped):
    pair, _ = shaped
    with changed(pair, record=False):
        assert pair.record is False
    with pytest.raises(KeyError), changed(pair, record=False):
        raise KeyError
    assert pair.record is True


def test_peers_are_everybody(shaped):
    pair, follows = shaped
    everybody = contestants(pair, GREEDY, peers=True)
    assert [one.name for one in everybody] == [
        "transformers plain", "transformers compiled", "transformers assisted", "specdemo plain", "specdemo speculative", "specdemo lookup",
        "specdemo plain, unrecorded", "specdemo speculative, unrecorded",
    ]  # fmt: skip
    assert [one.name for one in everybody if one.may_fail] == ["transformers compiled"]
    prompt = follows.prompts(1)[0]
    assert len({tuple(one.run(prompt)[0]) for one in everybody if not one.may_fail}) == 1


def test_unrecorded_contestants_run_unrecorded_and_write_the_same(shaped):
    pair, follows = shaped
    modes = []
    handle = pair.target.register_forward_pre_hook(lambda *_: modes.append(pair.record))
    prompt = follows.prompts(1)[0]
    texts = [ours(pair, "x", GREEDY, recorded).run(prompt)[0] for recorded in (True, False)]
    handle.remove()
    assert (
        texts[0] == texts[1]
        and modes == sorted(modes, reverse=True)
        and set(modes) == {True, False}
        and pair.record is True
    )


def test_the_engines_share_is_a_share(shaped):
    pair, follows = shaped
    hooks = len(pair.target._forward_hooks)
    assert 0 < engine_share(pair, follows.prompts(2), GREEDY) < 1
    assert len(pair.target._forward_hooks) == hooks and pair.record is True
    assert engine_share(pair, follows.prompts(1), replace(GREEDY, max_new_tokens=1)) is None, (
        "one round, which comes with the prefill"
    )
    assert host_gap_ms(pair, follows.prompts(1)[0], GREEDY) is None


def test_stories_go_on_with_each_other_to_any_length():
    pair = load_pair()
    prompts = stories(pair)
    assert prompts(12)[:2] == prompts(12)[10:] and len({tuple(ids) for ids in prompts(10)}) == 10
    one, two = prompts(2, 300)
    assert len(one) == len(two) == 300 and one != two
    assert one[: len(prompts(1)[0])] == prompts(1)[0]


def test_sweeps_report_what_was_run(shaped):
    pair, follows = shaped
    rows = gamma_sweep(pair, GREEDY, follows.prompts(1), 1, [1, 5])
    assert [row["gamma"] for row in rows] == [1, 5]
    for row in rows:
        _, accepted, rejected = by_hand(follows, follows.prompts(1)[0][-1], row["gamma"], 24)
        assert row["acceptance_rate"] == accepted / (accepted + rejected)
        assert row["expected_x_plain"] == pytest.approx(
            expected(row["acceptance_rate"], row["gamma"], row["cost_ratio"])
        )
        assert row["tokens_per_second"] == pytest.approx(1000 / row["ms_per_token"])
    assert rows[1]["mean_tokens_per_round"] > rows[0]["mean_tokens_per_round"]

    rows = context_sweep(pair, GREEDY, follows.prompts, 1, [20, 600])
    assert [row["context"] for row in rows] == [20, 600] and rows[1]["prefill_ms"] > 0
    for row in rows:
        assert row["x_plain"] == pytest.approx(
            row["plain"]["ms_per_token"] / row["speculative"]["ms_per_token"]
        )
        assert all(
            row[way][kind] > 0 for way in ("plain", "speculative") for kind in ("round_ms", "ms_per_token")
        )


def test_a_pair_without_a_drafter_is_measured_with_lookup():
    target = tiny()
    pair = load_pair(target=target)
    prompts = [[5, 9, 5, 9, 5, 9]]
    result = bench(
        pair, replace(GREEDY, ignore_eos=False), 1, 1, prompts_of=lambda count, length=None: prompts
    )
    assert [row["name"] for row in result["rows"]] == [
        "transformers plain",
        "specdemo plain",
        "specdemo lookup",
    ]
    assert result["roofline"]["bytes"]["drafter"] == 0 and "x assisted" in table(result)


def test_sampled_texts_are_not_compared():
    pair = load_pair(target=tiny(), drafter=noisy(tiny()))
    result = bench(
        pair,
        replace(GREEDY, temperature=0.8),
        1,
        1,
        prompts_of=lambda count, length=None: [[5, 6, 7]] * count,
    )
    assert result["differing_argmaxes"] is None and all(
        row["equal_to_plain"] is None for row in result["rows"]
    )
    assert "differing" not in table(result)


def test_the_table_names_what_differs_and_calls_it_a_fault_in_float32(shaped):
    pair, follows = shaped
    result = bench(pair, GREEDY, 2, 1, prompts_of=follows.prompts)
    assert result["differing_argmaxes"] == {"prompts": 0, "first_at": [None, None]}
    assert "with drafts 0 of 2 texts part from plain\n" in table(result)
    parted = result | {"differing_argmaxes": {"prompts": 1, "first_at": [None, 37]}}
    assert "1 of 2 texts part from plain, first at token 37; in float32 there must be none" in table(parted)
    assert "first at token 37\n" in table(parted | {"dtype": "bfloat16"})
    waits = table(result | {"host_ms": {"between": 0.25, "all": 1.5}})
    assert "the device waits 0.250 ms for the host between rounds, 1.500 ms a round in all" in waits


# The command line


def run(capsys, options: str) -> tuple[int, str, str]:
    try:
        status = main(["bench", "--prompts", "1", "--repeats", "1", *options.split()])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def test_bench_prints_a_table_and_json_last(capsys):
    status, out, _ = run(capsys, "--max-new-tokens 8 --gamma 2")
    result = json.loads(out.splitlines()[-1])
    assert status == 0
    names = [
        "transformers plain",
        "transformers assisted",
        "specdemo plain",
        "specdemo speculative",
        "specdemo lookup",
    ]
    assert [row["name"] for row in result["rows"]] == names
    for row in result["rows"]:
        low, high = row["ms_per_token_10_90"]
        assert low <= row["ms_per_token"] <= high and row["equal_to_plain"] == "1 of 1"
        assert row["x_plain"] == pytest.approx(result["rows"][0]["ms_per_token"] / row["ms_per_token"])
        assert row["x_assisted"] == pytest.approx(result["rows"][1]["ms_per_token"] / row["ms_per_token"])
        assert any(line.startswith(row["name"]) for line in out.splitlines())
    assert (
        result["pair"] == "embedded"
        and result["gamma"] == 2
        and 0 < result["engine_share"] < 1
        and result["host_ms"] is None
    )
    assert result["differing_argmaxes"]["prompts"] == 0
    line = result["roofline"]
    assert line["bytes"]["round"] == line["bytes"]["target"] + 2 * line["bytes"]["drafter"]
    assert line["reached"] == pytest.approx(
        1000 * line["bytes"]["round"] / line["bandwidth"] / line["round_ms"]
    )
    assert "roofline: memory is copied at" in out and "of it reached" in out


@pytest.mark.slow
def test_bench_with_peers_where_nothing_can_be_compiled():
    # In a process of its own: the compiler's failure would stay with this one.
    options = "--shapes tiny --prompts 1 --repeats 1 --max-new-tokens 6 --peers"
    command = [sys.executable, "-m", "specdemo", "bench", *options.split()]
    without = {**os.environ, "CXX": "/no/such/compiler", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=without, check=True).stdout
    rows = {row["name"]: row for row in json.loads(out.splitlines()[-1])["rows"]}
    compiled = rows.pop("transformers compiled")
    assert (
        compiled["ms_per_token"] is None and "compiler" in compiled["why_not"] and compiled["why_not"] in out
    )
    assert all(row["equal_to_plain"] == "1 of 1" for row in rows.values())


@pytest.mark.slow
def test_bench_with_peers_compiles(capsys):
    status, out, _ = run(capsys, "--shapes tiny --max-new-tokens 6 --peers")
    compiled = json.loads(out.splitlines()[-1])["rows"][1]
    assert status == 0 and compiled["name"] == "transformers compiled"
    assert compiled["ms_per_token"] > 0 and compiled["equal_to_plain"] == "1 of 1"


@pytest.mark.slow
def test_bench_of_shapes_with_sweeps_and_a_plot(capsys, tmp_path):
    file = tmp_path / "bench.png"
    options = f"--shapes tiny --accept 0.5 --max-new-tokens 12 --gammas 4,2,2 --contexts 300,30 --seed 5 --plot {file}"
    status, out, _ = run(capsys, options)
    result = json.loads(out.splitlines()[-1])
    assert (
        status == 0
        and result["pair"] == "shapes tiny"
        and result["shapes"] == {"name": "tiny", "accept": 0.5, "cycle": 512}
    )
    assert [row["gamma"] for row in result["gammas"]] == [2, 4] and [
        row["context"] for row in result["contexts"]
    ] == [30, 300]
    assert (
        result["dtype"] == "float32"
        and "the drafter is right behind 50% of the tokens" in out
        and "not tied" in out
    )
    assert file.read_bytes().startswith(b"\x89PNG")


def test_shapes_in_bfloat16(capsys):
    status, out, _ = run(capsys, "--shapes tiny --max-new-tokens 6 --dtype bfloat16 --device cpu")
    result = json.loads(out.splitlines()[-1])
    assert (
        status == 0 and result["dtype"] == "bfloat16" and result["differing_argmaxes"]["first_at"] == [None]
    )


@pytest.fixture
def saved(tmp_path):
    """Options for a tiny pair on disk."""
    for role, seed in (("target", 0), ("drafter", 1)):
        tiny(seed=seed, vocab_size=300, hidden_size=64, intermediate_size=256).save_pretrained(
            tmp_path / role
        )
        tokenizer().save_pretrained(tmp_path / role)
    return f"--target {tmp_path / 'target'} --drafter {tmp_path / 'drafter'}"


@pytest.mark.slow
def test_bench_of_quantised_variants(capsys, tmp_path, saved):
    file = tmp_path / "bench.svg"
    status, out, _ = run(capsys, f"{saved} --max-new-tokens 4 --quantize-sweep none,int8,none --plot {file}")
    none, int8 = json.loads(out.splitlines()[-1])["quantized"]
    assert status == 0 and (none["quantize"], int8["quantize"]) == ("none", "int8")
    assert none["x_none"] == {"plain_ms_per_token": 1, "ms_per_token": 1}
    assert int8["x_none"]["ms_per_token"] == pytest.approx(none["ms_per_token"] / int8["ms_per_token"])
    whole = load_pair(target=str(tmp_path / "target"), drafter=str(tmp_path / "drafter")).bytes_held
    assert none["bytes_held"] == whole.target + whole.drafter > 1.5 * int8["bytes_held"]
    assert any(line.startswith("int8") for line in out.splitlines())
    assert "<svg" in file.read_text()


def test_without_the_unquantised_there_is_nothing_to_compare_with():
    row = {
        "quantize": "int8", "plain_ms_per_token": 3.0, "ms_per_token": 2.0, "ms_per_token_10_90": [1.0, 4.0], "acceptance_rate": None,
        "bytes_held": 5_000_000, "notes": ["a note"], "x_none": None,
    }  # fmt: skip
    assert quantized_table([row]).splitlines()[1].split() == [
        "int8",
        "3.00",
        "–",
        "2.00",
        "1.00-4.00",
        "–",
        "–",
        "5.0",
    ]


WRONG = {
    "--gammas 1,x": "argument --gammas: must be whole numbers from 1 to 16, separated by commas, not '1,x'",
    "--gammas 0,4": "argument --gammas: must be whole numbers from 1 to 16",
    "--gammas 4,17": "argument --gammas: must be whole numbers from 1 to 16",
    "--gammas=": "argument --gammas: must be whole numbers from 1 to 16, separated by commas, not ''",
    "--gammas ²": "argument --gammas: must be whole numbers from 1 to 16",
    "--contexts 1": "argument --contexts: must be whole numbers from 2 to 1,000,000",
    "--contexts 256;512": "argument --contexts: must be whole numbers from 2 to 1,000,000, separated by commas, not '256;512'",
    "--contexts 64,1000": "contexts must leave room for 128 new tokens in the context of 1,024 tokens, but 1,000 does not",
    "--max-new-tokens 1020": "max_new_tokens must leave the prompts room in the context of 1,024 tokens",
    "--shapes giant": "shapes must be one of llama-3.2-3b-1b, qwen3-8b-0.6b, llama-3.1-8b-1b, tiny, not 'giant'",
    "--shapes tiny --pair embedded": "shapes: give --shapes or --pair, not both",
    "--shapes tiny --quantize int8": "shapes: give --shapes or --quantize, not both",
    "--shapes tiny --quantize-sweep none": "shapes: give --shapes or --quantize-sweep, not both",
    "--shapes tiny --temperature 0.5": "temperature must be 0 with --shapes, whose acceptance rate is known for greedy decoding only, not 0.5",
    "--shapes tiny --device tpu": "device must be cpu, cuda or cuda:N, not 'tpu'",
    "--shapes tiny --dtype int3": "dtype must be one of auto, float32, bfloat16, float16, not 'int3'",
    "--shapes tiny --accept 1.5": "argument --accept: must be a number from 0 to 1, not '1.5'",
    "--shapes tiny --accept nan": "argument --accept: must be a number from 0 to 1, not 'nan'",
    "--accept 0.5": "accept is the acceptance rate of --shapes, so it needs --shapes",
    "--quantize-sweep none,int3": "quantize must be one of none, int8, int4, int2, float8, not 'int3'",
    "--quantize-sweep=": "quantize must be one of none, int8, int4, int2, float8, not ''",
    "--quantize-sweep none --quantize int8": "quantize: give --quantize and --quantize-drafter or --quantize-sweep, not both",
    "--plot x.jpg": "plot must be a file that ends in .png or .svg, not x.jpg",
    "--plot /no/such/place/x.png": "plot cannot be saved: there is no directory /no/such/place",
    "--prompts 0": "argument --prompts: must be a whole number from 1 to 1000",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_request_is_one_sentence_and_exit_status_2(capsys, options):
    status, out, err = run(capsys, options)
    assert status == 2 and out == ""
    assert WRONG[options] in err.splitlines()[-1] and "Traceback" not in err


def test_a_plot_is_refused_before_anything_loads(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("specdemo.cli.main._load", lambda arguments: pytest.fail("loaded"))
    folder = tmp_path / "x.png"
    folder.mkdir()
    assert "plot must be a file, but" in run(capsys, f"--plot {folder}")[2]
    monkeypatch.setattr("specdemo.cli.main.find_spec", lambda name: None)
    status, _, err = run(capsys, f"--plot {tmp_path / 'y.png'}")
    assert status == 1 and "plot needs matplotlib, which is not installed" in err


# The picture


def drawn() -> dict:
    def row(name, ms, x):
        return {
            "name": name,
            "ms_per_token": ms,
            "ms_per_token_10_90": [ms * 0.8, ms * 1.25],
            "tokens_per_second": 1000 / ms,
            "x_plain": x,
        }

    failed = {"name": "transformers compiled", "ms_per_token": None, "why_not": "no compiler"}
    return {
        "pair": "small + smaller", "device": "cuda", "device_name": "Some GPU", "dtype": "bfloat16", "gamma": 4, "date": "2026-01-02",
        "rows": [row("transformers plain", 10.0, 1.0), failed, row("specdemo speculative", 4.0, 2.5)],
        "gammas": [{"gamma": g, "x_plain": x, "expected_x_plain": e} for g, x, e in ((1, 1.2, 1.5), (4, 2.0, None))],
        "contexts": [
            {"context": n, "plain": {"ms_per_token": p}, "speculative": {"ms_per_token": s}, "expected_x_plain": 2.0}
            for n, p, s in ((256, 8.0, 5.0), (1024, 9.0, 6.0))
        ],
        "quantized": [{"quantize": "int8", "plain_ms_per_token": 7.0, "ms_per_token": 3.0, "bytes_held": 5_000_000}],
    }  # fmt: skip


def test_the_pictures_axes_hold_the_numbers():
    figure = draw(drawn())
    speeds, gammas, contexts, quantized = figure.axes
    assert figure.get_suptitle() == "small + smaller\ncuda (Some GPU), bfloat16, gamma 4, 2026-01-02"
    assert [label.get_text() for label in speeds.get_yticklabels()] == [
        "transformers plain",
        "transformers compiled",
        "specdemo speculative",
    ]
    assert [bar.get_width() for bar in speeds.patches] == [100, 250]
    assert speeds.yaxis_inverted() and "tokens/s" in speeds.get_xlabel() and speeds.get_xlim()[1] > 250 / 0.8
    texts = [text.get_text() for text in speeds.texts]
    assert "250.0  (2.50 x)" in texts and any("did not run: no compiler" in text for text in texts)

    lines = {line.get_label(): line.get_xydata().tolist() for line in gammas.lines}
    assert (
        lines["measured"] == [[1, 1.2], [4, 2.0]]
        and lines["formula"][0] == [1, 1.5]
        and lines["formula"][1][1] != lines["formula"][1][1]
    )
    assert gammas.get_xlabel() == "gamma" and gammas.get_ylim()[0] == 0

    lines = {line.get_label(): line.get_xydata().tolist() for line in contexts.lines}
    assert lines == {
        "plain": [[256, 8], [1024, 9]], "speculative": [[256, 5], [1024, 6]], "formula": [[256, 4.0], [1024, 4.5]],
    }  # fmt: skip
    assert (
        contexts.get_xscale() == "log"
        and contexts.get_xlabel() == "tokens of prompt"
        and "ms/token" in contexts.get_ylabel()
    )
    assert [bar.get_height() for bar in quantized.patches] == [7, 3]


def test_nothing_stands_outside_of_the_picture():
    figure = draw(drawn())
    figure.draw_without_rendering()
    width, height = figure.canvas.get_width_height()
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width + 1 and box.y1 <= height + 1


def test_without_sweeps_there_is_one_panel():
    assert len(draw(drawn() | {"gammas": [], "contexts": [], "quantized": []}).axes) == 1
