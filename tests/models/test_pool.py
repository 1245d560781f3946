"""The pool: which pairs stay loaded, which go when memory is short, and what those who wait are told."""

import gc
import threading
import time
import weakref

import pytest
import torch

from specdemo import PairError, Params, stream
from specdemo.errors import LoadError
from specdemo.loading import load as load_module
from specdemo.loading import pool as pool_module
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.runtime.device import memory_of
from tests.checkpoints import saved_in
from tests.sentences import refusal
from tests.tiny import tiny

PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three requests of the same size."""
    folder, target = tmp_path_factory.mktemp("three"), tiny(vocab_size=304)
    return [dict(target=str(saved_in(folder / name, target))) for name in ("one", "two", "three")]


def room_for(pairs, request):
    [size] = load_module.plan(resolve(**request)).sizes
    return pairs * size * 1.1 / memory_of("cpu")


def test_the_least_recently_used_goes_first_and_gives_its_memory_back(three):
    """After a run, too."""
    pool = ModelPool(room_for(2, three[0]))
    pairs = [pool.get(resolve(**request)) for request in three[:2]]
    run = stream(pairs[1], PROMPT, Params(temperature=0, max_new_tokens=5, draft_with="lookup"))
    list(run)
    models, trace = [weakref.ref(pair.target) for pair in pairs], run.trace
    del pairs, run
    pool.get(resolve(**three[0]))  # now the second is the least recently used
    pool.get(resolve(**three[2]))
    assert models[0]() is not None and models[1]() is None and trace.finish
    assert pool.get(resolve(**three[0])).target is models[0]()
    refusal(pool.get, resolve(target=three[0]["target"] + "/missing"))
    assert len(pool.pairs) == 2, "a request that fails leaves them"
    assert pool.bytes_held() == sum(pair.bytes_held.target for pair in pool.pairs.values())


def test_a_pair_that_runs_stays_though_there_is_room_for_one_only(three):
    pool = ModelPool(room_for(1, three[0]))
    pair = pool.get(resolve(**three[0]))
    with stream(pair, PROMPT, Params(max_new_tokens=5, draft_with="none")):
        pool.get(resolve(**three[1]))
        assert pool.loaded(resolve(**three[0])) is pair


def test_a_pair_can_be_had_while_another_one_loads(three):
    """tests/pure/test_request.py shows which requests are the same."""
    pool, path = ModelPool(), three[0]["target"]
    pair = pool.get(resolve(target=path))
    with pool.loading:
        assert pool.get(resolve(target=f"{path}/", dtype="auto")) is pair
    assert pair.info.target == path
    for other in ({"dtype": "bfloat16"}, {"quantize": "int8"}, {"drafter": path}):
        assert pool.loaded(resolve(target=path, **other)) is None


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
    assert pairs[0] is pairs[1] and told[0] == told[1] and not pool.listeners
    keys = [doing.key for doing, _ in told[0]]
    assert keys == ["configs", "tokenizers", "loading_target", "caches", "warming_up"]


@pytest.fixture
def memory(monkeypatch):
    """`memory(n, request)`: only so many pairs like this one fit the free memory; those of a pool count."""

    def limit(pool: ModelPool, pairs: float, request: dict):
        [size] = load_module.plan(resolve(**request)).sizes
        free = lambda device: int(pairs * size) - pool.bytes_held()  # noqa: E731
        monkeypatch.setattr(load_module, "free_memory", free)
        monkeypatch.setattr(pool_module, "free_memory", free)

    return limit


def test_pairs_that_do_not_run_go_when_the_free_memory_is_too_small_for_another(three, memory):
    """None goes for one that would not fit even then."""
    pool = ModelPool(share=1)
    memory(pool, 1.5, three[0])
    pair = pool.get(resolve(**three[0]))
    with stream(pair, PROMPT, Params(max_new_tokens=5, draft_with="none")) as run:
        next(run)
        assert "MB" in refusal(pool.get, resolve(**three[1]), kind=LoadError)
    memory(pool, 0.5, three[0])
    refusal(pool.get, resolve(**three[1]), kind=LoadError)
    assert pool.get(resolve(**three[0])) is pair
    memory(pool, 1.5, three[0])
    model = weakref.ref(pair.target)
    del pair, run
    assert pool.get(resolve(**three[1])) and model() is None and len(pool.pairs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "error, where",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), "loading.read.join_weights"),
        (MemoryError(), "drafters.model.agrees_with_itself"),
    ],
)
def test_too_little_memory_while_loading_gives_back_what_was_loaded(three, monkeypatch, error, where):
    models = []

    def fail(model):
        models.append(weakref.ref(model))
        raise error

    pool = ModelPool()
    with monkeypatch.context() as patch:
        patch.setattr(f"specdemo.{where}", fail)
        assert "memory" in refusal(pool.get, resolve(**three[0]), kind=LoadError)
    error.__traceback__ = error.__context__ = None  # this test's own hold on the frames
    gc.collect()
    assert models and models[0]() is None and not pool.pairs
    assert pool.get(resolve(**three[0]))


def test_a_pair_that_nobody_waits_for_any_more_is_not_loaded():
    pool = ModelPool()
    with pytest.raises(PairError, match="nobody waits"):
        pool.get(resolve("embedded"), is_wanted=lambda: False)
    assert pool.loaded(resolve("embedded")) is None
