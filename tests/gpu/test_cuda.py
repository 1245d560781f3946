"""What only a CUDA device can show, but for what `python -m specdemo doctor` tries. Skipped without one."""

import gc

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.runtime import cuda
from specdemo.runtime.attention import masked_attention, parts_of
from specdemo.runtime.cuda import for_device
from tests.models.test_split_attention import SHAPES, errors, exact, inputs
from tests.tiny import WIDE, tiny, tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

PROMPT = "Once upon a time there was a little fox who"


def text_of(pair, **params):
    return generate(pair, PROMPT, Params(max_new_tokens=80, seed=1, **params))


def test_a_text_that_follows_a_regular_expression_is_the_same_as_on_the_cpu():
    """Verifying is captured with the mask as its input, and each drafted token is waited for."""
    gpu, cpu = load_pair(device="cuda", dtype="float32"), load_pair(device="cpu", dtype="float32")
    for regex in ("[a-z ]{30,80}[.]", "[A-Z][a-z ]{30,60}"):
        methods = ("model", "lookup", "none")
        texts = [
            text_of(one, temperature=0, regex=regex, draft_with=how) for one in (gpu, cpu) for how in methods
        ]
        assert len({tuple(one.output_ids) for one in texts}) == 1 and texts[0].stats.accepted
    assert gpu.runner.graphs is not None and not gpu.runner.graphs.blocker and not gpu.runner.graphs.refused


def test_a_seed_gives_the_same_tokens_again():
    pair = load_pair(device="cuda")
    assert pair.info.dtype.target == "bfloat16"
    trace = text_of(pair, temperature=0.8)
    assert trace.output_ids == text_of(pair, temperature=0.8).output_ids
    assert all(this_round.draft_ms > 0 and this_round.verify_ms > 0 for this_round in trace.rounds)


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")], ids=str)
def test_target_and_drafter_on_different_devices(devices):
    pair = load_pair(device=dict(zip(("target", "drafter"), devices, strict=True)), dtype="float32")
    texts = [text_of(pair, temperature=0, draft_with=how).output_ids for how in ("model", "none")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_attention_that_is_split_is_as_good_as_unsplit(name, dtype):
    """Most parts are wholly masked in the first and the last case."""
    for n, fill, window in ((1, 700, None), (5, 3000, None), (17, 4096, 600)):
        arguments = inputs(SHAPES[name], n, 4096, fill, window, dtype)
        rows, keys, values, mask = (tensor.cuda() for tensor in arguments)
        assert parts_of(keys) > 1
        unsplit = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        expected = exact(*arguments)
        ours = errors(masked_attention(rows, keys, values, mask).cpu(), expected)
        theirs = errors(unsplit.cpu(), expected)
        assert ours[1] <= 1.3 * theirs[1] and ours[0] <= 3 * theirs[0]


def test_int4_weights_compute_what_they_compute_on_a_cpu(tmp_path):
    tiny(**WIDE).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    how = {"target": tmp_path, "dtype": "bfloat16"}
    dense, cpu = load_pair(**how, device="cuda"), load_pair(**how, device="cpu", quantize="int4")
    gpu = load_pair(**how, device="cuda", quantize="int4")
    assert gpu.bytes_held.target < dense.bytes_held.target
    ids = torch.arange(5, 37)[None]  # [1, 32]
    theirs, ours = cpu.target(ids).logits.float(), gpu.target(ids.cuda()).logits.cpu().float()
    assert (ours - theirs).abs().max() < 0.1 * theirs.abs().max()


def test_memory_for_copies_is_pinned_and_torchs_allocator_notes_no_copy_of_it():
    """It would give the memory out again only after an event that it records when the memory is freed. That
    ends the process when the GPU has failed."""
    gpu = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=gpu)
    numbers = for_device([1, 2, 3], torch.long, gpu)
    assert numbers.is_pinned() and cuda.on_host(cuda.send(numbers, gpu)).tolist() == [1, 2, 3]
    first = numbers.data_ptr()
    cuda.synchronize(gpu)
    torch.cuda._sleep(10**9)  # about half a second, in which no event is reached
    cuda.send(numbers, gpu)
    cuda._copying.clear()
    del numbers
    assert for_device([1, 2, 3], torch.long, gpu).data_ptr() == first


def test_memory_is_given_back_when_a_pair_goes():
    pool = ModelPool(share=0.0)
    pool.get(resolve("embedded", device="cuda"))
    held = torch.cuda.memory_allocated()
    pool.get(resolve("embedded", device="cuda", dtype="float16"))
    gc.collect()
    assert torch.cuda.memory_allocated() < 1.5 * held
