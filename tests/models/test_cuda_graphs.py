"""Whole runs over the real capturing code, without a GPU (tests/fake_cuda.py)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdemo import Params, Round, load_pair, stream
from specdemo.loading import read
from specdemo.loading.request import resolve
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from tests.block_heads import DFLASH2, tiny_block_head
from tests.fake_cuda import FakeCuda, install
from tests.heads import tiny_head
from tests.models.test_capture import PROMPT, timeless
from tests.models.test_dflash_drafter import HEADS
from tests.pure.test_cuda_calls import inputs, new_graphs, step
from tests.runners import run_by
from tests.tiny import VOCAB, noisy, tiny

pytestmark = pytest.mark.slow
llama = tiny("llama")
near = noisy(llama)
STORED, OTHER = torch.bfloat16, torch.float32  # of the embedded pair


def rounds_of(pair, prompt=PROMPT, **params):
    params = Params(**{"seed": 3, "max_new_tokens": 30} | params)
    return timeless(
        [event for event in stream(pair, prompt, params, measure=False) if isinstance(event, Round)]
    )


def test_graphs_that_do_not_write_the_cache_are_not_used(monkeypatch):
    fake = install(monkeypatch, FakeCuda())
    fake.skipped = {"index_copy_"}
    graphs = Graphs(Clock())
    pair = run_by(llama, near, graphs)
    rounds = rounds_of(pair, temperature=0.0)
    assert {key[0] for key in graphs.refused} == {"draft", "verify"}
    assert not graphs.graphs and graphs.blocker is None
    notes = [note for note in map(str, pair.notes) if "(logits differ by" in note]
    assert len(notes) >= 2 and all("is not captured" in note for note in notes)
    plain = rounds_of(load_pair(target=llama, drafter=near), temperature=0.0)
    assert [this_round.emitted for this_round in rounds] == [this_round.emitted for this_round in plain]


# A graph's logits may be rounded otherwise than the step's.


class Rounding:
    """Moves a share of the logits that replays compute by one unit of bfloat16."""

    def __init__(self, share):
        self.share, self.moved = share, 0
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, operation, output):
        name = operation.overloadpacket.__name__
        if name not in ("mm", "addmm", "linear") or output.shape[-1] != VOCAB:
            return output
        draw = torch.rand(output.shape, generator=self.generator)
        towards = torch.where(draw < self.share / 2, torch.inf, -torch.inf).to(output.dtype)
        self.moved += int((draw < self.share).sum())
        return torch.where(draw < self.share, torch.nextafter(output, towards), output)


def captured_with(monkeypatch, drafter, changed, params, target=None, prompt=PROMPT):
    """The graphs after runs with drafts of 1 and 4, whose replays are changed. target: None is the tiny one,
    and another one drafts 4 only."""
    graphs = Graphs(Clock())
    with monkeypatch.context() as patch:
        fake = install(patch, FakeCuda())
        patch.setattr(Clock, "ms_between", lambda *_: 0.0)
        fake.changed = changed
        pair = run_by(target or target_16, drafter, graphs)
        for gamma in (1, 4) if target is None else (4,):
            rounds_of(pair, prompt, gamma=gamma, max_new_tokens=8, **params)
    assert graphs.blocker is None
    return graphs


target_16 = tiny("llama").bfloat16()
DRAFTERS_16 = {
    "model": lambda: noisy(llama).bfloat16(),
    "EAGLE-3": lambda: tiny_head(target_16).bfloat16(),
    "DFlash 2": lambda: tiny_block_head(target_16, **DFLASH2).bfloat16(),
    "DSpark": lambda: tiny_block_head(target_16, **HEADS["dspark"]).bfloat16(),
}
SAMPLED_16 = dict(temperature=0.8, top_p=0.9, alternatives=5)
GREEDY_16 = dict(temperature=0.0, alternatives=0)


@pytest.mark.parametrize(
    ("drafter", "params", "share"),
    [("model", GREEDY_16, 0.02), ("DFlash 2", SAMPLED_16, 0.2), ("DSpark", SAMPLED_16, 0.2)],
    ids=str,
)
def test_logits_that_are_rounded_otherwise_leave_every_step_captured(monkeypatch, drafter, params, share):
    rounding = Rounding(share)
    graphs = captured_with(monkeypatch, DRAFTERS_16[drafter](), rounding, params)
    assert not graphs.blocker and not graphs.refused and rounding.moved > 50
    steps = {(step, gamma) for step in ("draft", "verify") for gamma in (1, 4)}
    assert {key[:2] for key in graphs.graphs} >= steps


def wrong_logits(operation, output):
    if operation.overloadpacket.__name__ in ("mm", "addmm", "linear") and output.shape[-1] == VOCAB:
        output[-1, 7] += output.abs().max() / 4
    return output


def wrong_tokens(operation, output):
    if operation.overloadpacket.__name__ != "max":
        return output
    largest, places = output
    return largest, (places + 1) % VOCAB


def all_accepted(operation, output):
    return torch.ones_like(output) if operation.overloadpacket.__name__ == "cumprod" else output


@pytest.mark.parametrize(
    ("drafter", "changed", "steps", "told"),
    [
        ("model", wrong_logits, {"draft", "verify"}, "logits differ by"),
        ("EAGLE-3", wrong_tokens, {"draft", "verify"}, "ids differ in"),
        ("DSpark", all_accepted, {"verify"}, "accepted differ in 1 of 1 places"),
    ],
)
def test_wrong_logits_and_wrong_verdicts_are_found(monkeypatch, drafter, changed, steps, told):
    graphs = captured_with(monkeypatch, DRAFTERS_16[drafter](), changed, SAMPLED_16)
    assert {key[0] for key in graphs.refused} == steps
    assert all(key[0] not in steps or key[1] == 0 for key in graphs.graphs)
    assert any(told in why for why in graphs.refused.values()), graphs.refused


def stale_mask(operation, output):
    """Hides one token of the prompt. A forward on a CPU attends to 64 keys of so short a text."""
    if operation.overloadpacket.__name__ == "gt" and output.shape[1:] == (64,):
        output[:, 5] = True
    return output


@pytest.fixture(scope="module")
def embedded_16():
    parts = resolve("embedded", device="cpu").parts
    models = [AutoModelForCausalLM.from_pretrained(part.place, dtype=STORED).eval() for part in parts]
    return models, load_pair("embedded", device="cpu").tokenizer(STORY).input_ids


STORY = "Once upon a time there was a little fox who lived in the forest"


def test_a_trained_pair_s_graph_that_reads_something_wrong_is_found(monkeypatch, embedded_16):
    (target, drafter), prompt = embedded_16
    refused = captured_with(monkeypatch, drafter, stale_mask, GREEDY_16, target, prompt).refused
    assert {key[:2] for key in refused} >= {("draft", 4), ("verify", 4)}


@pytest.mark.parametrize("dtype", [STORED, OTHER], ids=str)
def test_a_step_is_captured_while_another_thread_reads_a_model(monkeypatch, dtype):
    """The meta device stands for the GPU that the model goes to."""
    part = replace(resolve("embedded", device="cpu").parts[1], device="meta")
    fake = install(monkeypatch, FakeCuda())
    reading, captured = threading.Event(), threading.Event()

    def waiting(own):
        def wait(*args, **options):
            reading.set()
            assert captured.wait(60), "the capture waits for the files"
            return own(*args, **options)

        return wait

    if dtype == STORED:  # the files are read when the weights move
        monkeypatch.setattr(PreTrainedModel, "to", waiting(PreTrainedModel.to))
    else:
        by_transformers = waiting(AutoModelForCausalLM.from_pretrained)
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", by_transformers)
    graphs = new_graphs()
    with ThreadPoolExecutor(1) as loader:
        loading = loader.submit(read.read_model, part, dtype)
        assert reading.wait(60)
        graphs(("step",), step, inputs())
        captured.set()
        assert loading.result().device.type == "meta"
    assert graphs.graphs and not graphs.blocker and not graphs.refused and not fake.violations
