"""A forward on a CPU as one call says what the model says, notices weights that change, and is done without
where it cannot be had."""

import copy
import gc
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numba
import pytest
import torch
from filelock import FileLock
from numba import cfunc, types
from numba.core import caching
from torch.multiprocessing.reductions import StorageWeakRef

from specdemo import Params, generate, load_pair
from specdemo.engine import compiled as verdicts
from specdemo.engine.sampling import Sampler
from specdemo.runtime import intrinsics, kernels, native, records
from specdemo.runtime.cache import Features
from specdemo.runtime.fused import FusedForward
from specdemo.runtime.intrinsics import floats, shorts
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.native import NativeForward
from specdemo.runtime.weights import weight_bytes
from tests.models.test_fused import DYNAMIC, TEXT, assert_same, expected, native_lm, predicted
from tests.oracle import settings_of
from tests.tiny import VOCAB, noisy, tiny

PROMPT = "Once upon a time there was a little fox who"


class OtherLinear(torch.nn.Linear):
    """Stands in for one whose weights are kept in another way, in 4 bits for example."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "relu"}, "relu"),
        ({"intermediate_size": 40}, "40 numbers to 32"),
        ({}, "neither plain nor quantised to int8"),
    ],
    ids=str,
)
def test_what_it_cannot_do_runs_as_before_and_is_named(changes, reason, monkeypatch):
    model = tiny(**changes)
    if not changes:
        model.model.layers[1].mlp.up_proj.__class__ = OtherLinear
    lm = native_lm(model)
    assert lm.native is None and reason in str(lm.notes_as("target")[-1])
    assert_same(predicted(lm, 5), expected(model))


def raising(error):
    def call(*_):
        raise error

    return call


KEPT = {
    records.FLOAT32: torch.float32,
    records.BFLOAT16: torch.bfloat16,
    records.FLOAT16: torch.float16,
    records.INT8: torch.int8,
}


@pytest.mark.parametrize("kind", KEPT)
def test_products_against_float64(kind):
    product = intrinsics.compile_function(intrinsics.product_function, kind, *native.registers())
    for outputs, inputs, rows in [(8, 16, 1), (9, 48, 8), (23, 80, 5), (64, 112, 17), (101, 32, 10)]:
        torch.manual_seed(outputs)
        x = torch.randn(rows, inputs)
        weight = torch.randn(outputs, inputs)
        weight = (40 * weight).clamp(-128, 127).round() if kind == records.INT8 else weight
        weight = weight.to(KEPT[kind])
        y = torch.full((rows + 1, outputs), 7.0)
        places = (tensor.data_ptr() for tensor in (weight, x, y))
        product.ctypes(*places, outputs, inputs, outputs, rows)
        right = x.double() @ weight.double().t()
        size = x.double().abs() @ weight.double().abs().t()
        assert ((y[:-1].double() - right).abs() <= 1e-6 * size).all()
        assert (y[-1] == 7).all(), "nothing is written behind the last row"


def test_a_row_of_a_product_is_the_same_in_any_company():
    """As on older processors, with 4 lanes and 16 registers."""
    torch.manual_seed(0)
    x, weight = torch.randn(9, 80), torch.randn(23, 80)
    product = intrinsics.product_function(False, records.FLOAT32, 4, 16)
    found = []
    for rows in range(1, 10):
        y = torch.zeros(9, 23)
        for row in range(0, 9, rows):
            places = weight.data_ptr(), x[row:].data_ptr(), y[row:].data_ptr()
            product.ctypes(*places, 23, 80, 23, min(rows, 9 - row))
        found.append(y)
    assert all(torch.equal(y, found[0]) for y in found)
    assert_same(found[0], x @ weight.t())


def test_numbers_are_rounded_to_bfloat16_as_torch_rounds_them_and_read_as_they_are():
    def narrow(x, y, z, count):
        kernels.write_numbers(x, y, 0, count, 1)
        for i in range(count):
            floats(z)[i] = kernels.from_bfloat16(shorts(y)[i])

    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(0))
    ties = torch.arange(0, 2**16) * 2**16 + 0x8000 - 2**31
    x = torch.cat([bits, ties, ties + 1, ties - 1]).to(torch.int32).view(torch.float32)
    y, z = torch.empty(len(x), dtype=torch.bfloat16), torch.empty(len(x))
    compiled = cfunc(types.void(*[types.intp] * 4))(narrow)
    compiled.ctypes(*(tensor.data_ptr() for tensor in (x, y, z)), len(x))
    right, nan = x.bfloat16(), x.isnan()
    assert torch.equal(y.isnan(), nan) and nan.any() and y.isinf().any()
    assert torch.equal(y[~nan].view(torch.int16), right[~nan].view(torch.int16))
    assert torch.equal(z[~nan], y[~nan].float())


def kinds(lm):
    layers = lm.native._layers
    products = [
        lm.native._model["head"],
        *(layer[name] for layer in layers for name in layers.dtype.names[:7]),
    ]
    return {int(product["kind"]) for product in products}


@pytest.mark.parametrize("kind", [records.BFLOAT16, records.FLOAT16])
def test_weights_that_are_16_bits_are_read_as_such_and_give_the_same_numbers(monkeypatch, kind):
    model = tiny().to(KEPT[kind]).float()
    narrow = native_lm(model)
    assert kinds(narrow) == {kind}
    expected = predicted(narrow, 5)
    with monkeypatch.context() as patch:
        patch.setattr(native.Described, "_is_exact", lambda *_: False)
        wide = native_lm(model)
    assert kinds(wide) == {records.FLOAT32} and torch.equal(predicted(wide, 5), expected)
    model.lm_head.weight.data[3, 5] += 1e-6
    assert kinds(native_lm(model)) == {kind, records.FLOAT32}, "one that is not exact stays wide alone"


@pytest.mark.parametrize("exact", [True, False], ids=["bfloat16", "float32"])
def test_weights_that_changed_are_noticed(exact):
    model = tiny().bfloat16().float() if exact else tiny()
    lm, up = native_lm(model), model.model.layers[1].mlp.up_proj
    changes = {
        "in place": lambda: up.weight.data.mul_(1.5),
        "one number": lambda: up.weight.data[3, 5].add_(3.0),
        "moved": lambda: setattr(up.weight, "data", up.weight.data * 2),
        "replaced": lambda: setattr(up, "weight", torch.nn.Parameter(up.weight.detach() * 2)),
        "the norms": lambda: model.model.norm.weight.data.mul_(1.5),
    }
    for how, change in changes.items():
        before = predicted(lm, 5)
        change()
        lm.begin_run(static=True)
        assert lm.native is not None and not torch.allclose(predicted(lm, 5), before, atol=1e-3), how
        assert_same(predicted(lm, 5), expected(model))


def test_weights_that_memory_was_too_short_to_find_are_found_in_the_next_run(monkeypatch):
    """They have moved before it began, and do not move again."""
    model = tiny()
    lm, up = native_lm(model), model.model.layers[1].mlp.up_proj
    up.weight.data = up.weight.data * 2
    with monkeypatch.context() as memory:
        memory.setattr(native.Described, "_layer", raising(torch.OutOfMemoryError("out of memory")))
        with pytest.raises(torch.OutOfMemoryError):
            lm.begin_run(static=True)
    lm.begin_run(static=True)
    assert lm.native is not None
    assert_same(predicted(lm, 5), expected(model))


def test_a_norm_that_was_cast_is_read_by_the_model_alone():
    model = tiny()
    lm = native_lm(model)
    model.model.norm.bfloat16()
    lm.begin_run(static=True)
    assert lm.native is None and "float32 numbers of the layer's own shape" in str(lm.notes_as("target")[0])
    assert_same(predicted(lm, 5), expected(model))


@pytest.mark.parametrize("what", ["bias", "product", "shape", "device"])
def test_weights_that_the_model_cannot_read_are_refused_as_by_the_model(what):
    model = tiny(mlp_bias=True).bfloat16().float()
    lm, up = native_lm(model), model.model.layers[1].mlp.up_proj
    if what == "bias":
        up.bias.data = up.bias.data.bfloat16()
    elif what == "product":
        up.bfloat16()
    elif what == "shape":
        up.weight.data = up.weight.data[:, :16].contiguous()
    else:
        up.to("meta")
    with pytest.raises(RuntimeError):
        lm.begin_run(static=True)
        lm.forward(TEXT[:5], torch.tensor(0))
    assert lm.native is None


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.float32), ("gemma3", torch.bfloat16)], ids=str)
def test_features_are_kept_as_the_model_s_own(name, dtype):
    model = tiny(name).to(dtype)
    lm, own = native_lm(model), CachedLM(copy.deepcopy(model).float())
    for each in (lm, own):
        each.features = Features(each.model, (0, 1, 2))
        each.reserve(0, len(TEXT))
    predicted(lm, 5)
    with torch.no_grad():
        own.forward(TEXT, torch.tensor(0))
    rows = torch.arange(len(TEXT))
    kept, right = lm.features.at(rows), own.features.at(rows)
    assert kept.dtype == dtype
    least = 1e-5 if dtype == torch.float32 else 1e-2
    assert (kept - right).square().mean() <= least**2 * right.square().mean()


@torch.no_grad()
def test_rotations_are_the_model_s_own_after_a_longer_text_of_its_owner():
    found = []
    for owners in (10, 80):  # tokens; "dynamic" frequencies change beyond 64
        model = tiny(rope_parameters=DYNAMIC, max_position_embeddings=64)
        decoder = FusedForward(model, 63).decoder
        model(torch.arange(owners)[None])
        found.append(decoder.rotations_at(torch.arange(256), torch.float32)[None])
    assert all(map(torch.equal, *found))


def test_no_id_reads_memory_outside_of_the_embeddings_and_no_ids_give_no_logits():
    lm = native_lm(tiny())
    told = [
        lm.forward(torch.tensor([3, token_id]), torch.tensor(0)) for token_id in (-1, 0, VOCAB, VOCAB - 1)
    ]
    assert torch.equal(told[0], told[1]) and torch.equal(told[2], told[3])
    assert lm.forward(TEXT[:0], torch.tensor(0)).shape == (0, VOCAB) and lm.native is not None
    assert_same(predicted(lm, 5), expected(lm.model))


def test_a_forward_that_lies_is_not_used_nor_one_that_lies_for_other_rows(monkeypatch):
    model, own = tiny(), NativeForward.__call__
    for rows in (1, 3, 8):

        def lies(*given, wrong=rows, **more):
            return own(*given, **more) * (1 + 0.01 * (len(given[2]) == wrong))

        monkeypatch.setattr(NativeForward, "__call__", lies)
        lm = native_lm(model)
        (note,) = map(str, lm.notes_as("target"))
        assert lm.native is None and f"of {rows} differs" in note
        assert_same(predicted(lm, rows), expected(model))


@pytest.mark.parametrize(
    "filters", [dict(top_k=5), dict(top_p=0.9), dict(top_k=50, top_p=0.9, min_p=0.05)], ids=str
)
def test_equally_likely_tokens_are_shaped_as_by_torch(filters):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.tensor([0.0, 1.0, 30.0])[:, None] * torch.randn(3, 96, generator=generator)).round()
    logits[1, ::2] = -torch.inf
    for temperature in (0.01, 0.8, 2.0):
        params, u = Params(temperature=temperature, **{"top_p": 1.0} | filters), torch.rand(3).double()
        right, ours = (
            sampler.sample(logits, u, settings_of(sampler))[1]
            for sampler in (Sampler(params), Sampler(params, 0, verdicts.Compiled().draw))
        )
        assert torch.equal(ours > 0, right > 0)
        torch.testing.assert_close(ours, right, rtol=2e-5, atol=1e-9)


@pytest.fixture(scope="module")
def pair():
    return load_pair(device="cpu")


def text_of(pair, prompt=PROMPT, **params):
    return generate(pair, prompt, Params(max_new_tokens=40, seed=5, **params), measure=False).text


PENALTIES = dict(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3)
ADJUSTED = PENALTIES | dict(logit_bias={5: 2.0, 300: -4.0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "filters"),
    [
        *((0.0, {}), (1.0, dict(top_p=0.8, top_k=20, min_p=0.05)), (0.8, ADJUSTED)),
        (0.8, dict(confidence=0.5)),
    ],
    ids=str,
)
def test_a_draft_in_one_call_is_that_of_one_token_after_another(pair, monkeypatch, temperature, filters):
    shaping = {"top_p": 1.0, "top_k": 0, **filters}
    params = Params(max_new_tokens=40, temperature=temperature, seed=3, **shaping)
    at_once = generate(pair, PROMPT, params, measure=False)
    assert pair.runner.lms[1].drafts_itself
    monkeypatch.setattr(CachedLM, "drafts_itself", False)
    in_turn = generate(pair, PROMPT, params, measure=False)
    assert at_once.output_ids == in_turn.output_ids
    for one, other in zip(at_once.rounds, in_turn.rounds, strict=True):
        assert [token.id for token in one.draft] == [token.id for token in other.draft]
        assert [token.q for token in one.draft] == pytest.approx([token.q for token in other.draft], abs=1e-5)


def test_first_layers_read_the_copies_of_their_owner(pair):
    text_of(pair, temperature=0)
    copies = dict(pair.runner.lms[0].native.copies)
    copied = sum(narrow.nbytes for narrow, _ in copies.values())
    assert 0.9 < 2 * copied / weight_bytes(pair.target) <= 1
    generate(pair, "Once", Params(max_new_tokens=8, draft_with="early-exit", exit_layer=2))
    first = pair.runner._own["early-exit", 2]
    assert first.native is not None and first.native.copies == copies


def patched(module, heard):
    own = module.forward
    module.forward = lambda *args, **kwargs: (heard(), own(*args, **kwargs))[1]
    return lambda: vars(module).pop("forward")


LISTENS = {  # each gives what ends it
    "hook": lambda module, heard: module.register_forward_hook(heard).remove,
    "pre-hook": lambda module, heard: module.register_forward_pre_hook(heard).remove,
    "patched": patched,
}


@pytest.mark.parametrize("how", LISTENS)
def test_who_listens_hears_every_forward(pair, how):
    params, calls = Params(max_new_tokens=12, temperature=0.0), []
    expected = generate(pair, PROMPT, params, measure=False)
    ends = LISTENS[how](pair.target.get_output_embeddings(), lambda *_: calls.append(1))
    heard = generate(pair, PROMPT, params, measure=False)
    ends()
    assert heard.output_ids == expected.output_ids
    assert len(calls) == len(heard.rounds) + 1, "and the prefill"
    assert generate(pair, PROMPT, params, measure=False).output_ids == expected.output_ids
    assert len(calls) == len(heard.rounds) + 1 and pair.runner.lms[0].native is not None


def test_a_pair_that_goes_leaves_no_weights_behind():
    target = tiny()
    pair = load_pair(target=target, drafter=noisy(target)).with_capture("auto")
    generate(pair, [5, 17, 3], Params(max_new_tokens=40, ignore_eos=True))
    assert all(lm.native is not None for lm in pair.runner.lms)
    held = [tensor for lm in pair.runner.lms for tensor in lm.model.parameters()]
    held += [tensor for lm in pair.runner.lms for one in lm.layers for tensor in (one.keys, one.values)]
    held = [StorageWeakRef(tensor.untyped_storage()) for tensor in held]
    assert len(held) > 30 and not any(storage.expired() for storage in held)
    del pair, target
    gc.collect()
    assert all(storage.expired() for storage in held)


# What a machine may lack.


def noted(pair):
    return [str(note) for note in pair.notes if note not in pair.limits]


@pytest.mark.slow
def test_without_numba(pair, monkeypatch):
    for name in ("kernels", "verdict", "shaping"):
        monkeypatch.delitem(sys.modules, f"specdemo.runtime.{name}")
        monkeypatch.delattr(f"specdemo.runtime.{name}")
    monkeypatch.setattr(verdicts, "_fault", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    without = load_pair(device="cpu")
    notes = noted(without)
    assert [note.split(" runs ")[0] for note in notes] == ["the target", "the drafter", "the verdict"]
    assert all("which is slower" in note and "numba" in note for note in notes)
    assert text_of(without, temperature=0.0) == text_of(pair, temperature=0.0)


def is_kept():
    """Whether compiled code comes from the cache in a process that has compiled nothing yet. It does so the
    first time, too: a process that compiles rounds differently from those that load."""
    functions = [intrinsics.compile_function.__wrapped__(kernels.are_upcast_function) for _ in range(2)]
    assert all(function.address for function in functions)
    (hits,) = {bool(function.cache_hits) for function in functions}
    return hits


def test_without_a_place_for_compiled_code(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert not is_kept()


def test_what_other_sources_were_compiled_to_is_not_used(tmp_path, monkeypatch):
    """numba compares the file of a function with what it has kept, not those of the functions that it
    calls."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for _ in range(2):  # what the same sources were compiled to stays
        assert is_kept()
        (index,) = tmp_path.rglob("*are_upcast*.nbi")
        index.with_name("of_other_sources.nbi").touch()
    monkeypatch.setattr(intrinsics, "SOURCES", "others")
    assert is_kept()
    assert [path.name for path in tmp_path.rglob("*.nbi")] == [index.name]


def test_a_broken_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert is_kept()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.nb?") if path.is_file()}
    assert files
    for path, content in files.items():
        path.write_bytes(content[: len(content) // 2])
    assert is_kept() and all(len(path.read_bytes()) == len(content) for path, content in files.items())


def test_one_process_compiles_at_a_time(tmp_path, monkeypatch):
    """numba reads, changes and writes an index of what is on disk: two processes that do so at once can give
    one file to two functions."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    made, folder = [], Path(caching.FunctionCache(intrinsics.exp.py_func).cache_path)
    other = threading.Thread(target=intrinsics.compile_function, args=(made.append,))
    with FileLock(folder / intrinsics.COMPILE_LOCK):  # as another process holds it
        other.start()
        other.join(0.3)
        assert other.is_alive() and not made
    other.join(30)
    assert made == [None], "kept on disk"


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_in_several_threads_the_same_numbers():
    lm, sampler = native_lm(tiny("gemma2")), Sampler(Params(temperature=0.0))
    greedily = sampler.drawing(settings_of(sampler), torch.zeros(5), None, 0.0)
    for rows in (1, 5):
        found = []
        for each in (1, 3, 7):
            with threads(each):
                drafted = lm.draft(TEXT[:2], torch.tensor(0), greedily)[0]
                found.append((predicted(lm, rows), drafted))
        assert all(torch.equal(*of_two) for each in found[1:] for of_two in zip(found[0], each, strict=True))


def test_where_no_thread_can_be_started(monkeypatch):
    model = tiny()
    lm = native_lm(model)
    submit = raising(RuntimeError("can't start new thread"))
    monkeypatch.setattr(native.ThreadPoolExecutor, "submit", submit)
    with threads(3):
        assert_same(predicted(lm, 5), expected(model))


@pytest.mark.parametrize("drafts", [False, True])
def test_an_interrupt_between_threads_leaves_none_that_waits(monkeypatch, drafts):
    lm, sampler = native_lm(tiny()), Sampler(Params(temperature=0.0))
    greedily = sampler.drawing(settings_of(sampler), torch.zeros(5), None, 0.0)
    submit, calls = native.ThreadPoolExecutor.submit, []

    def interrupted(self, *arguments):
        calls.append(submit(self, *arguments) if not calls else None)
        if calls[-1] is None:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(native.ThreadPoolExecutor, "submit", interrupted)
    with threads(3):
        with pytest.raises(KeyboardInterrupt):
            if drafts:
                lm.draft(TEXT[:2], torch.tensor(0), greedily)
            else:
                lm.forward(TEXT[:5], torch.tensor(0))
        assert calls[0].done()


@pytest.mark.slow
def test_torchs_default_dtype_is_another_one(monkeypatch):
    """It is one for all threads, and transformers changes it while it builds a model: a page may do so for
    another visitor at any moment. Not bfloat16, with which memory would be written beyond its end."""

    def text(params):
        pair = load_pair(dtype="float32")
        pair.runner.warm_up(4)
        assert not any(lm.faults for lm in pair.runner.lms)
        return [generate(pair, PROMPT, one, measure=False).output_ids for one in params]

    sampled = dict(seed=1, temperature=0.8, top_p=0.9)
    options = (sampled, sampled | {"repetition_penalty": 1.2}, {"temperature": 0.0})
    params = [Params(max_new_tokens=20, **each) for each in options]
    expected, begin_run = text(params), NativeForward.begin_run

    def elsewhere(self):
        torch.set_default_dtype(torch.float64)
        begin_run(self)

    monkeypatch.setattr(NativeForward, "begin_run", elsewhere)
    try:
        assert text(params) == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
