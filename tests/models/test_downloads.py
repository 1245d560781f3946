"""Downloads for visitors, from a hub on this machine that is slow, silent, broken or full of pickles."""

import copy
import json
import os
import re
import shutil
import threading
import time
import uuid
from concurrent.futures import Future
from email.utils import formatdate
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants, file_download
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from specdemo import PairError
from specdemo.errors import LoadError, TookTooLong
from specdemo.loading import fetch, load, plan
from specdemo.loading.catalog import GATED
from specdemo.loading.downloads import Downloads
from specdemo.loading.load import load_pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from tests.checkpoints import change_config, change_tensors, saved_in
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.heads import save_head, tiny_head
from tests.hub import Hub
from tests.sentences import assert_one_sentence, refusal
from tests.tiny import shorter, tiny

pytestmark = pytest.mark.slow
SOON = 60  # seconds within which all must have happened, on a busy machine
SECRET = "hf_nobodys-token"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """What the hub has: the names below, and the models in BAD."""
    folder = tmp_path_factory.mktemp("models")
    target = tiny(vocab_size=304)
    for name, model in (("target", target), ("drafter", shorter(target)), ("other", target)):
        saved_in(folder / name, model)
    for name in ("pickled", "modelopt", "target-refs-pr-1"):
        shutil.copytree(folder / "target", folder / name)
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save(target.state_dict(), folder / "pickled" / "pytorch_model.bin")
    method = {"quant_method": "modelopt", "quant_algo": "FP8"}
    change_config(folder / "modelopt", quantization_config=method)
    change_tensors(folder / "target-refs-pr-1", lambda tensors: tensors["lm_head.weight"].add_(1))
    save_head(tiny_head(target), folder / "head", "own/target")
    save_eagle_head(tiny_eagle_head(target), folder / "eagle", target)
    save_head(tiny_head(tiny(vocab_size=300)), folder / "misfit", "own/target")
    for name, file in (("gguf", "x-Q4.gguf"), ("notes", "notes.txt")):
        (folder / name).mkdir()
        (folder / name / file).write_text("{}")
    trained = get_peft_model(copy.deepcopy(target), LoraConfig(init_lora_weights=False))
    trained.peft_config["default"].base_model_name_or_path = "own/target"
    for name in ("adapter", "adapter-in-bin", "adapter-of-gated"):
        trained.save_pretrained(folder / name, save_embedding_layers=False)
    in_bin = folder / "adapter-in-bin"
    (in_bin / "adapter_model.safetensors").rename(in_bin / "adapter_model.bin")
    file = folder / "adapter-of-gated" / "adapter_config.json"
    file.write_text(file.read_text().replace("own/target", next(iter(GATED))))
    shutil.copy(folder / "target" / "config.json", folder / "gguf")
    shutil.copytree(folder / "notes", folder / "no-weights")
    shutil.copy(folder / "target" / "config.json", folder / "no-weights")
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


def refused(pool: ModelPool, kind=LoadError, **request) -> str:
    return refusal(pool.get, resolve(**request or PAIR), kind=kind)


def no_weights_were_sent(hub: Hub) -> bool:
    return not any(file.endswith((".safetensors", ".bin")) for file in hub.sent)


def in_a_thread(call, *given) -> Future:
    """What it will have returned or raised."""
    future = Future()

    def work():
        try:
            future.set_result(call(*given))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def wait_until(happened):
    deadline = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stay_stalled(downloads, download):
    """From now on others have time, and this one is still stalled."""
    download.moved -= SOON
    downloads.seconds = SOON


# What works


def test_a_pair_is_downloaded_once_and_then_loaded_without_the_hub(hub):
    pool = ModelPool()
    told = []
    pair = pool.get(resolve(**PAIR), lambda *news: told.append(news))
    assert sorted(hub.sent) == sorted(set(hub.sent))
    assert {"target/model.safetensors", "drafter/model.safetensors"} <= set(hub.sent)
    shares = [share for words, share in told if words.startswith("Downloading target")]
    assert len(shares) > 1 and shares == sorted(shares) and shares[-1] == 1
    hub.silent = True
    again = ModelPool().get(resolve(**PAIR))
    assert again is not pair and again.info == pair.info
    assert load_pair(**PAIR).info == pair.info


def test_an_adapter_is_downloaded_with_its_base(hub):
    pool = ModelPool()
    pair = pool.get(resolve(target="own/target", drafter="own/adapter"))
    assert {"target/model.safetensors", "adapter/adapter_model.safetensors"} <= set(hub.sent)
    assert sorted(hub.sent) == sorted(set(hub.sent))
    assert [*map(str, pair.limits)] == ["the drafter is own/target with the adapter own/adapter merged in"]
    hub.silent = True
    assert ModelPool().get(resolve(target="own/target", drafter="own/adapter")).info == pair.info
    pair.attach("own/adapter")
    assert pair.limits


def test_an_adapter_of_a_gated_base_needs_a_token(hub, monkeypatch):
    monkeypatch.setattr(constants, "_HF_DEFAULT_ENDPOINT", constants.ENDPOINT)
    monkeypatch.setattr(load, "get_token", lambda: None)
    said = refused(ModelPool(), target="own/adapter-of-gated")
    assert f"{next(iter(GATED))} (base of own/adapter-of-gated) is gated" in said


def test_a_speculator_is_downloaded_with_the_target_that_it_names(hub):
    """It has no tokenizer, and needs none to be complete."""
    pair = load_pair(drafter="own/head")
    assert (pair.info.target, pair.info.drafter) == ("own/target", "own/head")
    assert {"target/model.safetensors", "head/model.safetensors"} <= set(hub.sent)
    hub.silent = True
    assert load_pair(drafter="own/head").info == pair.info
    other = load_pair(target="own/target")
    other.attach("own/head@main")
    assert other.info.drafter == "own/head@main"


def test_a_head_that_only_its_tensors_tell_is_downloaded(hub):
    """Before that it counts as a model of one layer."""
    pair = load_pair(target="own/target", drafter="own/eagle")
    assert pair.info.drafter_kind == "eagle"
    hub.silent = True
    assert load_pair(target="own/target", drafter="own/eagle").info == pair.info
    hub.silent = False


def test_a_revision_is_another_model(hub):
    pool, name = ModelPool(), "own/target@refs/pr/1"
    main, other = (pool.get(resolve(target=target)) for target in ("own/target", name))
    assert (main.info.target, other.info.target) == ("own/target", name) and main is not other
    moved = other.target.lm_head.weight - main.target.lm_head.weight
    assert torch.allclose(moved, torch.ones_like(moved))
    said = refused(pool, PairError, target="own/target@v3")
    assert said == "target: the hub has no such branch, tag or commit of own/target@v3"
    hub.silent, sent = True, len(hub.sent)
    assert torch.equal(load_pair(target=name).target.lm_head.weight, other.target.lm_head.weight)
    assert torch.equal(load_pair(target="own/target").target.lm_head.weight, main.target.lm_head.weight)
    assert len(hub.sent) == sent


def test_one_download_at_a_time_is_shared_and_a_local_pair_does_not_wait_for_it(hub, models):
    gate, told = threading.Event(), ([], [], [])
    hub.before_file = lambda file, write: file.name.endswith(".safetensors") and gate.wait(SOON)
    pool = ModelPool()

    def asks(visitor: int, **request):
        return in_a_thread(pool.get, resolve(**request), lambda *news: told[visitor].append(news))

    visitors = [asks(0, **PAIR), asks(1, **PAIR)]
    wait_until(lambda: "target/model.safetensors" in hub.sent)
    visitors.append(asks(2, target="own/other"))
    wait_until(lambda: len(pool.downloads.alive) == 2)
    assert pool.get(resolve(target=str(models / "other"))) and not visitors[0].done()
    assert not any(file.startswith("other/") for file in hub.sent)
    gate.set()
    pairs = [visitor.result(SOON) for visitor in visitors]
    assert pairs[0] is pairs[1] is not pairs[2]
    assert all(any("Downloading" in words for words, _ in each) for each in told)
    assert sorted(hub.sent) == sorted(set(hub.sent))


# Weights in several files


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


def test_the_files_that_the_index_names_are_downloaded(hub, models):
    """Named as those of Qwen3.5 are."""
    folder, target, told = models / "shards", "own/shards", []
    shutil.copytree(models / "target", folder)
    in_several_files(folder, "model.safetensors-{:05}-of-{:05}.safetensors")
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    save_file({"x": torch.zeros(10)}, folder / "model-00009-of-00009.safetensors")  # not in the index
    pair = ModelPool().get(resolve(target=target), lambda *news: told.append(news))
    sent = [path.partition("/")[2] for path in hub.sent]
    assert sorted(sent) == sorted(set(sent)) and {*sizes} == {name for name in sent if "of-" in name}
    downloading = [news for news in told if news[0].startswith("Downloading")]
    assert downloading[-1][1] == 1 and len(downloading) > 2
    assert float(downloading[-1][0].split()[-2]) == pytest.approx(sum(sizes.values()) / 1e6, abs=0.06)
    assert torch.equal(pair.target.lm_head.weight, load_pair(target=models / "target").target.lm_head.weight)
    hub.silent = True
    assert load_pair(target=target).info == pair.info


NOTHING = "it names no files of weights"
WRONG_INDEXES = {  # what an index holds, or the name that it gives to a file of weights
    "../target/model.safetensors": "it names '../target/model.safetensors'",
    "/etc/model.safetensors": "it names '/etc/model.safetensors'",
    "pytorch_model.bin": "it names 'pytorch_model.bin'",
    ".safetensors": "it names '.safetensors'",
    "model-3.safetensors": "it names model-3.safetensors, which is not there",
    5: "it names 5",
    **dict.fromkeys((b"", b"[]", b'{"weight_map": {}}', b'{"weight_map": [1]}', b"[" * 100_000), NOTHING),
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
            said = refused(ModelPool(), target=place)
            assert f"target: {place} cannot be loaded, because of its {fetch.INDEX}: {words}" in said
        shutil.rmtree(constants.HF_HUB_CACHE)
    index.unlink()
    for place in (str(folder), "own/indexed"):
        assert f"has neither model.safetensors nor {fetch.INDEX}" in refused(ModelPool(), target=place)
    assert no_weights_were_sent(hub)


# A hub that stalls


def test_a_silent_hub_ends_the_wait_and_a_new_request_works(hub, models):
    hub.silent = True
    pool = ModelPool(seconds=1)
    said = refused(pool, TookTooLong)
    assert "could not be downloaded within 1 s: the hub is slow or does not answer" in said
    with pytest.raises(LoadError, match="downloaded") as again:
        pool.get(resolve(**PAIR))  # the library's thread still waits
    assert_one_sentence(str(again.value))
    assert pool.get(resolve(target=str(models / "other")))  # the page goes on
    hub.silent = False
    hub.go_on.set()  # the connections end without an answer
    wait_until(lambda: not pool.downloads.alive)
    pool.seconds = pool.downloads.seconds = SOON
    assert pool.get(resolve(**PAIR))


def test_a_download_that_stalls_in_the_middle_holds_up_no_other_one(hub):
    def stall(file, write):
        if file.parent.name == "target" and file.name.endswith(".safetensors"):
            write(file.read_bytes()[:50_000])
            hub.go_on.wait(SOON)

    hub.before_file = stall
    pool = ModelPool(seconds=1)
    refused(pool, TookTooLong, target="own/target")
    wait_until(
        lambda: "target/model.safetensors" in hub.sent and pool.downloads.turn.step[-1] > 15
    )  # percent
    stay_stalled(pool.downloads, pool.downloads.turn)
    pool.seconds = SOON
    assert in_a_thread(pool.get, resolve(target="own/other")).result(SOON)


def waiting(downloads, key, work, is_wanted=lambda: True):
    return in_a_thread(downloads.wait_for, key, key, work, lambda *_: None, is_wanted)


def test_whoever_waits_behind_another_download_is_told_so(monkeypatch):
    downloads, gate = Downloads(0.5), threading.Event()
    monkeypatch.setattr(downloads, "_is_stalled", lambda _: False)
    waiting(downloads, "first", lambda report: gate.wait(SOON))
    wait_until(lambda: downloads.turn is not None)
    with pytest.raises(LoadError, match="others are downloaded first, so try again later$"):
        waiting(downloads, "second", lambda report: None).result(SOON)
    gate.set()


def test_a_download_that_nobody_waits_for_any_more_never_begins():
    downloads, gate, begun = Downloads(SOON), threading.Event(), []
    waiting(downloads, "first", lambda report: gate.wait(SOON))
    wait_until(lambda: downloads.turn is not None)
    with pytest.raises(PairError, match="nobody waits"):
        waiting(downloads, "x", begun.append, is_wanted=lambda: False).result(SOON)
    gate.set()
    wait_until(lambda: not downloads.alive)
    assert not begun


def test_a_download_that_lost_its_turn_ends_at_its_next_byte():
    downloads, wake, release = Downloads(1), threading.Event(), threading.Event()

    def stalls(report):
        wake.wait(SOON)
        report("Downloading x: 1 of 2", 0.5)

    with pytest.raises(LoadError):
        waiting(downloads, "slow", stalls).result(SOON)
    slow = downloads.alive["slow"]
    stay_stalled(downloads, slow)
    waiting(downloads, "other", lambda report: release.wait(SOON))
    wait_until(lambda: downloads.turn not in (None, slow))
    wake.set()
    assert_one_sentence(str(slow.done.exception(SOON)))
    assert isinstance(slow.done.exception(), LoadError)
    release.set()


# What else fails


# The status and the word for its reason that the hub refuses with: the kind of error, what the sentence says,
# and whether it is about the token.
REFUSALS = {
    (403, "GatedRepo"): (LoadError, "own/target is gated", True),
    (401, "RepoNotFound"): (PairError, "has no model own/target that this account", False),
    (401, ""): (LoadError, "denied access to own/target", True),
    (403, ""): (LoadError, "denied access to own/target", True),
    (404, ""): (PairError, "has no model own/target", False),
    (429, ""): (LoadError, "has had too many requests", False),
    (500, ""): (LoadError, "(HTTP 500)", False),
    (503, ""): (LoadError, "(HTTP 503)", False),
}


@pytest.mark.parametrize("place", ["", "/resolve"])
@pytest.mark.parametrize("reason", REFUSALS)
def test_what_the_hub_does_not_give(hub, monkeypatch, reason, place):
    kind, words, is_of_token = REFUSALS[reason]
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the library's attempts
    hub.refused = {f"target{place}": reason}
    said = refused(ModelPool(), kind, target="own/target")
    assert words in said and ("HF_TOKEN" in said) is is_of_token and SECRET not in said
    assert hub.shown == {f"Bearer {SECRET}"}, "it was really sent, so a message could have repeated it"


def test_a_model_that_the_hub_has_disabled(hub):
    hub.refused, hub.asks = {"target": (403, "")}, {"X-Error-Message": "Access to this resource is disabled."}
    assert "has disabled own/target" in refused(ModelPool(), target="own/target")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_no_hub_is_asked_offline(hub, monkeypatch, variable):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for request in ({"target": "some/model"}, {"name": "gpt2-xl"}):
        assert f"{variable} is set" in refused(ModelPool(), **request)
    said = refused(ModelPool(), PairError, target="model")
    assert said.startswith("target: there is no directory model, and no model")
    assert said.endswith(f"{variable} is set")


def in_seconds(seconds: int) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


WAITS = {  # how the hub asks to wait 7 s
    "seconds": (429, {"Retry-After": "7"}),
    "date": (429, {"Retry-After": in_seconds}),
    "limit": (429, {"RateLimit": '"api";r=0;t=7'}),
    "fault": (503, {"Retry-After": "7"}),
}


@pytest.mark.parametrize(
    ("way", "place"),
    [*((way, "") for way in WAITS), ("seconds", "/resolve"), ("date", "/resolve/main/model.safetensors")],
)
def test_a_hub_that_asks_to_wait_is_asked_again_then(hub, monkeypatch, way, place):
    (status, asks), waited, told = WAITS[way], [], []

    def sleep(seconds):
        waited.append(seconds)
        hub.refused = {}

    monkeypatch.setattr(time, "sleep", sleep)
    hub.refused = {f"target{place}": (status, "")}
    hub.asks = {name: text if isinstance(text, str) else text(7) for name, text in asks.items()}
    assert ModelPool(seconds=SOON).get(resolve(target="own/target"), lambda *news: told.append(news[0]))
    assert sum(waited) == pytest.approx(7, abs=1) and any(words.key == "hub_asks_time" for words in told)


@pytest.mark.parametrize("place", ["", "/resolve", "/resolve/main/model.safetensors"])
def test_a_hub_that_asks_to_wait_too_long_is_not_waited_for(hub, monkeypatch, place):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    hub.refused, hub.asks = {f"target{place}": (429, "")}, {"Retry-After": "3600"}
    said = refused(ModelPool(seconds=SOON), target="own/target")
    assert "to wait 3,600 s" in said and f"at most {SOON} s" in said
    said = refusal(load_pair, target="own/target", kind=LoadError)
    assert "to wait 3,600 s" in said and not waited


@pytest.mark.parametrize("request_", [{"name": "llama-3.2-3b"}, {"target": "google/gemma-3-4b-pt"}])
def test_a_gated_model_without_a_token_is_refused_before_any_request(hub, monkeypatch, request_):
    hub.silent = True  # a request would end no test
    monkeypatch.setattr(load, "get_token", lambda: None)
    monkeypatch.setattr(constants, "_HF_DEFAULT_ENDPOINT", constants.ENDPOINT)
    said = refused(ModelPool(), **request_)
    assert "is gated: accept its terms" in said and "HF_TOKEN" in said


def test_a_download_that_breaks_off(hub, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)  # between its attempts

    def break_off(file, write):
        if file.name.endswith(".safetensors"):
            raise ConnectionError

    hub.before_file = break_off
    pool = ModelPool()
    assert refused(pool) == "target: the download of own/target broke off: try again later"
    hub.before_file = lambda file, write: None
    assert pool.get(resolve(**PAIR))


def test_too_small_a_disk_or_memory_is_told_before_the_download(hub, monkeypatch):
    hub.sizes = {"model.safetensors": 3 * 10**9}
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * 10**9))
    said = refused(ModelPool())
    assert "target own/target and drafter own/drafter cannot be downloaded" in said
    assert "takes 6.0 GB on the disk, and 4.0 GB are free" in said
    monkeypatch.setattr(plan, "free_memory", lambda device: 100_000)
    said = refused(ModelPool())
    assert re.match(r"target own/target needs about 0\.\d MB of memory, but 0\.1 MB of [\d.]+ GB ", said)
    assert said.endswith("are free on cpu") and no_weights_were_sent(hub)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_disk_that_is_full_in_the_middle(hub, monkeypatch, tmp_path):
    """The file that the weights are written to is the device that is always full."""
    pool = ModelPool()
    ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="0" * 32))

    full = tmp_path / "cache" / "models--own--target" / "blobs"
    full.mkdir(parents=True)
    (full / "target-model.safetensors.00000000.incomplete").symlink_to("/dev/full")
    monkeypatch.setattr(file_download, "uuid", ids)
    assert refused(pool) == "target: there is no room left on the disk for own/target"
    monkeypatch.setattr(file_download, "uuid", uuid)
    assert pool.get(resolve(**PAIR))


BAD = {  # the kind of error, what is said of it, and how it is given
    "misfit": (PairError, "vocabulary of 300 tokens", ["drafter"]),
    "modelopt": (LoadError, "knows, not 'modelopt'", ["target", "drafter", "attach"]),
    "pickled": (
        LoadError,
        "has only pickled weights (pytorch_model.bin), which can hold program",
        ["target"],
    ),
    "adapter-in-bin": (
        LoadError,
        "has only pickled weights (adapter_model.bin), which can hold program",
        ["target", "drafter", "attach"],
    ),
    "gguf": (
        LoadError,
        "has weights in the format GGUF (x-Q4.gguf), which is not loaded",
        ["drafter", "attach"],
    ),
    "notes": (PairError, "has no config.json, so there is no model", ["target"]),
    "no-weights": (LoadError, "has neither model.safetensors", ["drafter"]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_loaded_is_refused_before_the_download(hub, name):
    kind, words, ways = BAD[name]
    for way in ways:
        if way == "attach":
            said = refusal(load_pair(target=tiny(vocab_size=304)).attach, f"own/{name}", kind=kind)
        else:
            said = refused(ModelPool(), kind, **{"target": "own/target", way: f"own/{name}"})
        assert said.startswith("target" if way == "target" else "drafter") and f"own/{name}" in said
        assert words in said
    assert no_weights_were_sent(hub)
