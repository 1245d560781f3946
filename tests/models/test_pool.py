"""The pool: which pairs stay loaded, which go when memory is short, and what those who wait are told."""

import gc
import threading
import time
import weakref

import pytest
import torch

from specdemo import PairError, Params, generate, load_pair, stream
from specdemo.errors import LoadError
from specdemo.loading import load as load_module
from specdemo.loading import plan as plan_module
from specdemo.loading import pool as pool_module
from specdemo.loading.catalog import EMBEDDED
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.runtime.device import memory_of
from specdemo.ui.runs.run import sentence
from tests.sentences import assert_one_sentence
from tests.tiny import tiny, tokenizer

PROMPT = "the cat sat"


@pytest.fixture
def three(tmp_path):
    """Three requests of the same size."""
    target = tiny(vocab_size=304)
    for name in ("one", "two", "three"):
        target.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    return [dict(target=str(tmp_path / name)) for name in ("one", "two", "three")]


def room_for(pairs, request):
    return pairs * load_pair(**request).bytes_held.target * 1.1 / memory_of("cpu")


def test_a_loaded_pair_is_not_loaded_again(three):
    pool = ModelPool(room_for(3, three[0]))
    first = pool.get(resolve(**three[0]))
    assert pool.get(resolve(**three[1])) is not first
    assert pool.get(resolve(**three[0])) is first
    assert pool.get(resolve(**three[0], dtype="bfloat16")) is not first
    assert pool.bytes_held() == sum(pair.bytes_held.target for pair in pool.pairs.values())


def test_the_least_recently_used_goes_first_and_gives_its_memory_back(three):
    pool = ModelPool(room_for(2, three[0]))
    models = [weakref.ref(pool.get(resolve(**request)).target) for request in three[:2]]
    pool.get(resolve(**three[0]))  # now the second is the least recently used
    pool.get(resolve(**three[2]))
    assert models[0]() is not None and models[1]() is None
    assert pool.get(resolve(**three[0])).target is models[0]()
    assert len(pool.pairs) == 2


@pytest.mark.slow
def test_after_a_run_a_pair_still_gives_its_memory_back(three):
    pool = ModelPool(0)
    for _ in range(2):
        pair = pool.get(resolve(**three[0]))
        run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=5, draft_with="lookup"))
        list(run)
        model, trace = weakref.ref(pair.target), run.trace
        del pair, run
        pool.get(resolve(**three[1]))
        assert model() is None and trace.finish


@pytest.mark.slow
def test_a_running_pair_is_not_evicted(three):
    pool = ModelPool(0)
    pair = pool.get(resolve(**three[0]))
    run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=5, draft_with="none"))
    next(run)
    pool.get(resolve(**three[1]))
    assert pool.get(resolve(**three[0])) is pair
    run.close()
    pool.get(resolve(**three[2]))
    assert list(pool.pairs.values())[0] is not pair and len(pool.pairs) == 1


def test_a_request_that_fails_leaves_the_pool_as_it_is(three, tmp_path):
    pool = ModelPool(room_for(1, three[0]))
    pair = pool.get(resolve(**three[0]))
    for request in (
        dict(target=str(tmp_path / "missing")),
        dict(**three[1], quantize="int3"),
        dict(name="nobody"),
        dict(**three[1], dtype="x"),
    ):
        with pytest.raises(PairError):
            pool.get(resolve(**request))
    assert pool.get(resolve(**three[0])) is pair


def test_a_pair_is_the_same_however_its_request_is_put(three, tmp_path, monkeypatch):
    pool, path = ModelPool(), three[0]["target"]
    pair = pool.get(resolve(target=path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(path)
    ways = [
        dict(target=other)
        for other in (f"{path}/", "one", "./one/", tmp_path / "one", f"{path}/../one", "link")
    ]
    ways += [
        dict(target=path, **more)
        for more in (dict(dtype="auto"), dict(quantize="none"), dict(quantize={"target": "none"}))
    ]
    ways += (
        [dict(target=path, device=device) for device in (None, "cpu", {"target": "cpu"})]
        if pair.info.device == "cpu"
        else []
    )
    assert all(pool.get(resolve(**way)) is pair for way in ways) and pair.info.target == path
    for other in (
        dict(target=path, dtype="bfloat16"),
        dict(target=path, quantize="int8"),
        dict(target=path, drafter=path),
    ):
        assert pool.get(resolve(**other)) is not pair


@pytest.mark.slow
def test_a_name_and_its_directory_are_named_as_asked():
    if not EMBEDDED.is_dir():
        pytest.skip("the embedded pair is not there")
    pool, places = ModelPool(), dict(target=EMBEDDED / "target", drafter=EMBEDDED / "drafter")
    assert pool.get(resolve()) is pool.get(resolve("embedded")) is not pool.get(resolve(**places))
    assert pool.get(resolve(**places)).info.target == str(EMBEDDED / "target")


def test_a_pair_that_is_there_can_be_had_while_another_loads(three):
    pool = ModelPool()
    pair = pool.get(resolve(**three[0]))
    with pool.loading:
        assert pool.get(resolve(**three[0])) is pair


def test_two_who_ask_at_once_get_one_pair_and_both_are_told(three):
    pool, pairs, told = ModelPool(), [], ([], [])

    def ask(k: int):
        pairs.append(pool.get(resolve(**three[0]), lambda *news: told[k].append(news)))

    with pool.loading:
        threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        while len(pool.listeners) < 2:
            time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert pairs[0] is pairs[1] and told[0] == told[1] and len(told[0]) > 3 and not pool.listeners
    assert told[0][0] == ("Reading the models' configs", None) and told[0][-1] == (
        "Warming up",
        None,
    )


@pytest.fixture
def memory(monkeypatch):
    """`memory(n, request)`: only so many pairs like this one fit the free memory; those of a pool count."""

    def limit(pool: ModelPool, pairs: float, request: dict):
        [size] = load_module.plan(resolve(**request)).sizes
        free = lambda device: int(pairs * size) - pool.bytes_held()  # noqa: E731
        monkeypatch.setattr(plan_module, "free_memory", free)
        monkeypatch.setattr(pool_module, "free_memory", free)

    return limit


def test_pairs_go_when_the_free_memory_is_too_small_for_another(three, memory):
    pool = ModelPool(share=1)
    memory(pool, 1.5, three[0])
    model = weakref.ref(pool.get(resolve(**three[0])).target)
    assert pool.get(resolve(**three[1])) and model() is None and len(pool.pairs) == 1


def test_no_pair_goes_for_one_that_would_not_fit_even_then(three, memory):
    pool = ModelPool(share=1)
    memory(pool, 1.5, three[0])
    pair = pool.get(resolve(**three[0]))
    memory(pool, 0.5, three[0])
    with pytest.raises(LoadError, match=r"about 0\.\d MB of memory, but 0\.\d MB of .* free on cpu") as error:
        pool.get(resolve(**three[1]))
    assert_one_sentence(str(error.value))
    assert pool.get(resolve(**three[0])) is pair


def test_a_running_pair_counts_as_memory_that_cannot_be_freed(three, memory):
    pool = ModelPool(share=1)
    memory(pool, 1.5, three[0])
    pair = pool.get(resolve(**three[0]))
    with stream(pair, PROMPT, Params(max_new_tokens=5, draft_with="none")) as run:
        next(run)
        with pytest.raises(LoadError, match="are free on cpu"):
            pool.get(resolve(**three[1]))
    assert pool.get(resolve(**three[1]))


@pytest.mark.slow
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried ..."), MemoryError()])
@pytest.mark.parametrize("where", ["load.join_weights", "assemble.agrees_with_itself"])
def test_too_little_memory_while_loading_gives_back_what_was_loaded(three, monkeypatch, error, where):
    models = []

    def fail(model):
        models.append(weakref.ref(model))
        raise error

    pool = ModelPool()
    with monkeypatch.context() as patch:
        patch.setattr(f"specdemo.loading.{where}", fail)
        with pytest.raises(LoadError, match="there is not enough memory for ") as told:
            pool.get(resolve(**three[0]))
    assert_one_sentence(str(told.value))
    error.__traceback__ = error.__context__ = None  # this test's own hold on the frames
    gc.collect()
    assert models and models[0]() is None and not pool.pairs
    assert pool.get(resolve(**three[0]))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 ..."), MemoryError()]
)
def test_too_little_memory_in_a_run_is_a_sentence_and_the_next_run_works(three, error):
    pool, calls = ModelPool(), []
    pair = pool.get(resolve(**three[0]))
    params = Params(temperature=0, max_new_tokens=20, draft_with="none", ignore_eos=True)

    def fail(module, inputs):
        calls.append(module)
        if len(calls) == 3:
            raise error

    hook = pair.target.register_forward_pre_hook(fail)
    run = stream(pair, PROMPT, params)
    with pytest.raises(type(error)) as told:
        list(run)
    hook.remove()
    said = sentence(told.value)
    assert_one_sentence(said)
    assert said.startswith("The run failed: ") and "there was not enough memory for it" in said
    assert run.trace.finish == "error" and run.trace.error in said
    assert generate(pool.get(resolve(**three[0])), PROMPT, params).stats.tokens == 20


def test_a_pair_that_nobody_waits_for_any_more_is_not_loaded():
    pool = ModelPool()
    with pytest.raises(PairError, match="nobody waits"):
        pool.get(resolve("embedded"), is_wanted=lambda: False)
    assert pool.loaded(resolve("embedded")) is None
