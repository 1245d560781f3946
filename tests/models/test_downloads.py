"""Downloads for visitors, from a hub on this machine that is slow, silent, broken or full of pickles."""

import copy
import errno
import json
import shutil
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants, file_download
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from specdemo import PairError
from specdemo.errors import LoadError, TookTooLong, load_errors
from specdemo.loading import fetch, load
from specdemo.loading.catalog import GATED
from specdemo.loading.load import load_pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from specdemo.ui.runs.queue import fulfil
from specdemo.words.message import message_of
from tests.checkpoints import change_adapter, change_config, change_tensors, saved_in
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.heads import save_head, tiny_head
from tests.hub import Hub
from tests.sentences import refusal, refused
from tests.tiny import shorter, tiny

pytestmark = pytest.mark.slow
SOON = 60  # seconds within which all must have happened, on a busy machine
SECRET = "hf_nobodys-token"


def in_several_files(folder, pattern: str):
    """Divides the weights in this folder among files that are named by this pattern. Gives the index."""
    index, names = folder / fetch.INDEX, {}
    tensors = load_file(folder / "model.safetensors")
    for number, part in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        name = pattern.format(number, 2)
        save_file({tensor: tensors[tensor] for tensor in part}, folder / name, metadata={"format": "pt"})
        names |= dict.fromkeys(part, name)
    (folder / "model.safetensors").unlink()
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return index


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """What the hub has: the names below, and the models in BAD."""
    folder = tmp_path_factory.mktemp("models")
    target = tiny(vocab_size=304)
    for name, model in (("target", target), ("drafter", shorter(target)), ("other", target)):
        saved_in(folder / name, model)
    for name in ("pickled", "modelopt", "target-refs-pr-1", "shards", "two-in-one"):
        shutil.copytree(folder / "target", folder / name)
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save(target.state_dict(), folder / "pickled" / "pytorch_model.bin")
    method = {"quant_method": "modelopt", "quant_algo": "FP8"}
    change_config(folder / "modelopt", quantization_config=method)
    change_tensors(folder / "target-refs-pr-1", lambda tensors: tensors["lm_head.weight"].add_(1))
    in_several_files(folder / "shards", "model.safetensors-{:05}-of-{:05}.safetensors")  # as of Qwen3.5
    save_file({"x": torch.zeros(10)}, folder / "shards" / "model-00009-of-00009.safetensors")
    save_head(tiny_head(target), folder / "head", "own/target")
    save_eagle_head(tiny_eagle_head(target), folder / "eagle", target)
    save_head(tiny_head(tiny(vocab_size=300)), folder / "misfit", "own/target")
    for name, file in (("gguf", "x-Q4.gguf"), ("notes", "notes.txt"), ("no-weights", "notes.txt")):
        (folder / name).mkdir()
        (folder / name / file).write_text("{}")
    trained = get_peft_model(copy.deepcopy(target), LoraConfig(init_lora_weights=False))
    trained.peft_config["default"].base_model_name_or_path = "own/target"
    for name in ("adapter", "adapter-in-bin", "adapter-of-gated", "adapter-of-two"):
        trained.save_pretrained(folder / name, save_embedding_layers=False)
    in_bin = folder / "adapter-in-bin"
    (in_bin / "adapter_model.safetensors").rename(in_bin / "adapter_model.bin")
    change_adapter(folder / "adapter-of-gated", base_model_name_or_path=next(iter(GATED)))
    change_adapter(folder / "adapter-of-two", base_model_name_or_path="own/two-in-one")
    shutil.copy(folder / "adapter" / "adapter_config.json", folder / "two-in-one")
    for name in ("gguf", "no-weights"):
        shutil.copy(folder / "target" / "config.json", folder / name)
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path, models):
    """The library's hub, with an empty cache."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # else a small file comes in one piece
    hub = Hub(models)
    with hub.used(monkeypatch, tmp_path / "cache"):
        yield hub
        # Downloads that go on would ask the next test's hub, and each failed connection closes the library's
        # only client, for all downloads.
        hub.silent, hub.before_file = False, lambda file, write: None
        hub.go_on.set()
        wait_until(lambda: not any(thread.name == "download" for thread in threading.enumerate()))


PAIR = {"target": "own/target", "drafter": "own/drafter"}


def said_of(pool: ModelPool, kind=LoadError, **request) -> str:
    return refusal(pool.get, resolve(**request or PAIR), kind=kind)


def no_weights_were_sent(hub: Hub) -> bool:
    return not any(file.endswith((".safetensors", ".bin")) for file in hub.sent)


def in_a_thread(call, *given) -> Future:
    """What it will have returned or raised."""
    future = Future()
    threading.Thread(target=fulfil, args=(future, call, *given), daemon=True).start()
    return future


def wait_until(happened):
    deadline = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# What works


ONCE = {  # what is asked for, and files that have to come
    "a pair": (PAIR, ["target/model.safetensors", "drafter/model.safetensors"]),
    "an adapter with its base": (
        {"target": "own/target", "drafter": "own/adapter"},
        ["target/model.safetensors", "adapter/adapter_model.safetensors"],
    ),
    "a head that only its tensors tell": (
        {"target": "own/target", "drafter": "own/eagle"},
        ["target/model.safetensors", "eagle/model.safetensors"],
    ),
    "the files that an index names": (
        {"target": "own/shards"},
        [f"shards/model.safetensors-0000{number}-of-00002.safetensors" for number in (1, 2)],
    ),
}


@pytest.mark.parametrize("what", ONCE)
def test_each_file_is_downloaded_once_and_then_loaded_without_the_hub(hub, what):
    (request, files), told = ONCE[what], []
    pair = ModelPool().get(resolve(**request), lambda *news: told.append(news))
    assert sorted(hub.sent) == sorted(set(hub.sent))
    assert {*files} == {name for name in hub.sent if name.endswith(".safetensors")}
    shares = [share for doing, share in told if doing.key == "downloading_target"]
    assert len(shares) > 1 and shares == sorted(shares) and shares[-1] == 1
    hub.silent = True
    assert ModelPool().get(resolve(**request)).info == load_pair(**request).info == pair.info


def test_a_head_alone_is_downloaded_with_the_target_that_it_names(hub):
    pair = load_pair(drafter="own/head")
    assert (pair.info.target, pair.info.drafter) == ("own/target", "own/head")
    hub.silent = True
    assert load_pair(drafter="own/head").info == pair.info


def test_a_revision_is_another_model(hub):
    pool, name = ModelPool(), "own/target@refs/pr/1"
    main, other = (pool.get(resolve(target=target)) for target in ("own/target", name))
    assert (main.info.target, other.info.target) == ("own/target", name)
    moved = other.target.lm_head.weight - main.target.lm_head.weight
    assert torch.allclose(moved, torch.ones_like(moved))
    assert "no model own/target@v3 " in said_of(pool, PairError, target="own/target@v3")
    hub.silent = True
    assert torch.equal(load_pair(target=name).target.lm_head.weight, other.target.lm_head.weight)
    assert torch.equal(load_pair(target="own/target").target.lm_head.weight, main.target.lm_head.weight)


def test_a_download_is_shared_and_other_pairs_do_not_wait_for_it(hub, models):
    gate, told = threading.Event(), ([], [])
    hub.before_file = lambda file, write: file == models / "target/model.safetensors" and gate.wait(SOON)
    pool = ModelPool()
    visitors = []
    for each in told:  # the second joins while nothing comes, and hears at once how far it is
        visitors.append(in_a_thread(pool.get, resolve(**PAIR), lambda *news, each=each: each.append(news)))
        wait_until(lambda each=each: each and "target/model.safetensors" in hub.sent)
    assert pool.get(resolve(target=str(models / "other"))) and pool.get(resolve(target="own/other"))
    assert not any(visitor.done() for visitor in visitors)
    gate.set()
    pairs = [visitor.result(SOON) for visitor in visitors]
    assert pairs[0] is pairs[1]
    assert all(any("Downloading" in words for words, _ in each) for each in told)
    assert sorted(hub.sent) == sorted(set(hub.sent))


# Weights in several files


WRONG_INDEXES = {  # what an index holds, or the name that it gives to a file of weights
    "../target/model.safetensors": "'../target/model.safetensors'",
    "/etc/model.safetensors": "'/etc/model.safetensors'",
    "pytorch_model.bin": "'pytorch_model.bin'",
    "model-3.safetensors": "model-3.safetensors, which is not there",
    5: "5",
    **dict.fromkeys((b"[]", b'{"weight_map": [1]}', b"[" * 100_000), "no files of weights"),
}


def test_an_index_that_names_other_things_or_nothing_is_refused(hub, models):
    folder = models / "indexed"
    shutil.copytree(models / "target", folder)
    index = in_several_files(folder, "model-{}-of-{}.safetensors")
    usual = json.loads(index.read_text())["weight_map"]
    for wrong, words in WRONG_INDEXES.items():
        named = {"weight_map": usual | {"lm_head.weight": wrong}} if not isinstance(wrong, bytes) else None
        index.write_bytes(json.dumps(named).encode() if named else wrong)
        for place in (str(folder), "own/indexed"):
            said = said_of(ModelPool(), target=place)
            assert said.startswith(f"target: {place} ") and fetch.INDEX in said and words in said
        shutil.rmtree(constants.HF_HUB_CACHE)
    index.unlink()
    for place in (str(folder), "own/indexed"):
        assert fetch.INDEX in said_of(ModelPool(), target=place)
    assert no_weights_were_sent(hub)


# A hub that stalls


def test_a_silent_hub_ends_the_wait_and_a_new_request_works(hub, models):
    hub.silent = True
    pool = ModelPool(seconds=1)
    assert "within 1 s" in said_of(pool, TookTooLong)
    with pytest.raises(LoadError, match="downloaded"):
        pool.get(resolve(**PAIR))  # the library's thread still waits
    assert pool.get(resolve(target=str(models / "other")))  # the page goes on
    hub.silent = False
    hub.go_on.set()  # the connections end without an answer
    wait_until(lambda: not pool.downloads)
    pool.seconds = SOON
    assert pool.get(resolve(**PAIR))


def test_two_downloads_go_on_at_once_and_one_that_nobody_wants_by_its_turn_never_begins(hub, models):
    gate, pool, other = threading.Event(), ModelPool(), resolve(target="own/other")
    hub.before_file = lambda file, write: file.name.endswith(".safetensors") and gate.wait(SOON)
    visitors = [in_a_thread(pool.get, resolve(target=f"own/{name}")) for name in ("target", "drafter")]
    wait_until(lambda: sum(file.endswith(".safetensors") for file in hub.sent) == 2)
    with pytest.raises(PairError, match="nobody waits"):
        pool.get(other, is_wanted=lambda: False)
    for download in pool.downloads.values():
        download.moved = download.moved and download.moved + SOON  # so none is stalled soon
    pool.seconds = 0.5
    with refused("loads_before", kind=TookTooLong):
        pool.get(other)
    pool.seconds = SOON
    gate.set()
    assert all(visitor.result(SOON) for visitor in visitors)
    wait_until(lambda: not pool.downloads)
    assert not any(file.startswith("other/") for file in hub.sent)


# What else fails


REFUSALS = {  # how the hub refuses, and the message's key or what is told of it
    (403, "GatedRepo"): "gated",
    (403, "", "Access to this resource is disabled."): "hub_denied",
    (401, "RepoNotFound"): None,
    (404, ""): None,
    (401, ""): "hub_denied",
    (429, ""): "hub_busy",
    (500, ""): "hub_failed",
}


@pytest.mark.parametrize(
    ("reason", "place"), [*((reason, "") for reason in REFUSALS), ((403, "GatedRepo"), "/resolve")]
)
def test_what_the_hub_does_not_give(hub, monkeypatch, reason, place):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the library's attempts
    hub.refused = {f"target{place}": reason[:2]}
    hub.asks = {"X-Error-Message": reason[2]} if reason[2:] else {}
    with pytest.raises(PairError) as error:
        ModelPool().get(resolve(target="own/target"))
    told = message_of(error.value)
    assert getattr(told, "key", None) == REFUSALS[reason] and "own/target" in told
    assert ("HF_TOKEN" in told) is (REFUSALS[reason] in ("gated", "hub_denied")) and SECRET not in told
    assert hub.shown == {f"Bearer {SECRET}"}, "it was really sent, so a message could have repeated it"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_no_hub_is_asked_offline(hub, monkeypatch, variable):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for request in ({"target": "some/model"}, {"name": "gpt2-xl"}):
        with refused("hub_offline", kind=LoadError, variable=variable):
            ModelPool().get(resolve(**request))
    said = said_of(ModelPool(), PairError, target="model")
    assert said.startswith("target: ") and said.endswith(f"{variable} is set")


def test_a_gated_model_without_a_token_is_refused_before_any_request(hub, monkeypatch):
    """And an adapter of one, whose config alone is read."""
    monkeypatch.setattr(fetch, "get_token", lambda: None)
    monkeypatch.setattr(constants, "_HF_DEFAULT_ENDPOINT", constants.ENDPOINT)
    with refused("gated", kind=LoadError):
        ModelPool().get(resolve(target="own/adapter-of-gated"))
    hub.silent = True  # a request would end no test
    for request in ({"name": "llama-3.2-3b"}, {"target": "google/gemma-3-4b-pt"}):
        with refused("gated", kind=LoadError):
            ModelPool().get(resolve(**request))


def test_a_download_that_breaks_off_and_a_disk_that_is_full(hub, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)  # between its attempts

    def break_off(file, write):
        if file.name.endswith(".safetensors"):
            raise ConnectionError

    hub.before_file = break_off
    pool = ModelPool()
    with refused("broke_off", kind=LoadError, reason="own/target"):
        pool.get(resolve(**PAIR))
    hub.before_file = lambda file, write: None
    assert pool.get(resolve(**PAIR))
    with refused("no_disk", kind=LoadError, reason="own/target"), load_errors("target", "own/target"):
        raise OSError(errno.ENOSPC, "full")


def test_too_small_a_disk_or_memory_is_told_before_the_download(hub, monkeypatch):
    hub.sizes = {"model.safetensors": 3 * 10**9}
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * 10**9))
    said = said_of(ModelPool())
    assert "target own/target and drafter own/drafter" in said and "6.0 GB" in said and "4.0 GB" in said
    monkeypatch.setattr(load, "free_memory", lambda device: 100_000)
    said = said_of(ModelPool())
    assert said.startswith("target own/target ") and "0.1 MB" in said and no_weights_were_sent(hub)


BAD = {  # the kind of error, what is said of it, and how it is given
    "misfit": (PairError, "vocabulary of 300", "drafter"),
    "modelopt": (LoadError, "'modelopt'", "target"),
    "pickled": (LoadError, "(pytorch_model.bin)", "target"),
    "adapter-in-bin": (LoadError, "(adapter_model.bin)", "attach"),
    "adapter-of-two": (PairError, "holds both a model and a PEFT adapter", "target"),
    "gguf": (LoadError, "(x-Q4.gguf)", "drafter"),
    "notes": (PairError, "config.json", "target"),
    "no-weights": (LoadError, "model.safetensors", "attach"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_loaded_is_refused_before_the_download(hub, name):
    kind, words, way = BAD[name]
    if way == "attach":
        said = refusal(load_pair(target=tiny(vocab_size=304)).attach, f"own/{name}", kind=kind)
    else:
        said = said_of(ModelPool(), kind, **{"target": "own/target", way: f"own/{name}"})
    assert said.startswith("target" if way == "target" else "drafter") and f"own/{name}" in said
    assert words in said and no_weights_were_sent(hub)
