"""Downloads for visitors, from a hub on this machine that is slow, silent, broken or full of pickles."""

import json
import os
import re
import shutil
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants, file_download
from safetensors.torch import load_file, save_file

from specdemo import PairError
from specdemo.errors import LoadError, TookTooLong
from specdemo.loading import fetch, plan
from specdemo.loading.downloads import Downloads
from specdemo.loading.load import load_pair
from specdemo.loading.pool import ModelPool
from specdemo.loading.request import resolve
from tests.heads import save_head, tiny_head
from tests.hub import Hub
from tests.sentences import assert_one_sentence
from tests.tiny import shorter, tiny, tokenizer

pytestmark = pytest.mark.slow
SOON = 60  # seconds within which all must have happened, on a busy machine


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = tiny(vocab_size=304)
    for name, model in (("target", target), ("drafter", shorter(target)), ("other", target)):
        model.save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
    (folder / "pickled").mkdir()
    shutil.copytree(folder / "target", folder / "pickled", dirs_exist_ok=True)
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save(target.state_dict(), folder / "pickled" / "pytorch_model.bin")
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path, models):
    """The library's hub, with an empty cache. It reads its settings once, on import."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # else a small file comes in one piece
    hub = Hub(models)
    with hub.serving() as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub
        # Downloads that go on would ask the next test's hub, and each failed connection closes the library's
        # only client, for all downloads.
        hub.silent, hub.before_file = False, lambda file, write: None
        hub.go_on.set()
        wait_until(lambda: not any(thread.name == "download" for thread in threading.enumerate()))


PAIR = {"target": "own/target", "drafter": "own/drafter"}


def refused(pool: ModelPool, kind=LoadError, **request) -> str:
    with pytest.raises(PairError) as error:
        pool.get(resolve(**request or PAIR))
    assert type(error.value) is kind
    assert_one_sentence(str(error.value))
    return str(error.value)


class Asking(threading.Thread):
    """A visitor who waits for a pair."""

    def __init__(self, pool: ModelPool, **request):
        super().__init__(daemon=True)
        self.pool, self.request, self.told = pool, request, []
        self.pair, self.error = None, None
        self.start()

    def run(self):
        try:
            self.pair = self.pool.get(resolve(**self.request), lambda *news: self.told.append(news))
        except PairError as error:
            self.error = str(error)


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


def test_a_speculator_is_downloaded_with_the_target_that_it_names(hub, models):
    """It has no tokenizer, and needs none to be complete."""
    save_head(tiny_head(tiny(vocab_size=304)), models / "head", "own/target")
    pair = load_pair(drafter="own/head")
    assert (pair.info.target, pair.info.drafter) == ("own/target", "own/head")
    assert {"target/model.safetensors", "head/model.safetensors"} <= set(hub.sent)
    hub.silent = True
    assert load_pair(drafter="own/head").info == pair.info
    other = load_pair(target="own/target")
    other.attach("own/head@main")
    assert other.info.drafter == "own/head@main"


def test_a_head_of_eagle_2_is_refused_before_the_download(hub, models):
    """It has the config of a Llama with one layer, and no tokenizer."""
    shorter(tiny(vocab_size=304)).save_pretrained(models / "eagle2")
    said = refused(ModelPool(), target="own/target", drafter="own/eagle2")
    assert "as heads of EAGLE, EAGLE-2 and HASS have: such heads cannot be run here" in said
    assert not any("eagle2" in path and "safetensors" in path for path in hub.sent)


def test_a_speculator_that_does_not_fit_is_refused_before_the_download(hub, models):
    save_head(tiny_head(tiny(vocab_size=300)), models / "misfit", "own/target")
    with pytest.raises(PairError, match="vocabulary of 300 tokens"):
        load_pair(drafter="own/misfit")
    assert not any(name.endswith("safetensors") for name in hub.sent)


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", "b" * 40])
def test_a_revision_is_another_model(hub, models, monkeypatch, revision):
    folder = models / f"target-{revision.replace('/', '-')}"
    shutil.copytree(models / "other", folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    pool, name = ModelPool(), f"own/target@{revision}"
    main, other = (pool.get(resolve(target=target)) for target in ("own/target", name))
    assert (main.info.target, other.info.target) == ("own/target", name) and main is not other
    moved = other.target.lm_head.weight - main.target.lm_head.weight
    assert torch.allclose(moved, torch.ones_like(moved))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    sent = len(hub.sent)
    assert torch.equal(load_pair(target=name).target.lm_head.weight, other.target.lm_head.weight)
    assert torch.equal(load_pair(target="own/target").target.lm_head.weight, main.target.lm_head.weight)
    assert "the model hub cannot be reached" in refused(ModelPool(), target="own/target@another")
    assert len(hub.sent) == sent


def test_a_revision_that_is_not_there(hub):
    said = refused(ModelPool(), PairError, target="own/target@v3")
    assert said == "target: the hub has no such branch, tag or commit of own/target@v3"


def test_two_who_want_the_same_share_a_download(hub):
    gate = threading.Event()
    hub.before_file = lambda file, write: file.name.endswith(".safetensors") and gate.wait(SOON)
    pool = ModelPool()
    asking = [Asking(pool, **PAIR) for _ in range(2)]
    wait_until(lambda: "target/model.safetensors" in hub.sent)
    gate.set()
    for visitor in asking:
        visitor.join(SOON)
    assert asking[0].pair is asking[1].pair is not None
    assert sorted(hub.sent) == sorted(set(hub.sent))
    assert all(any("Downloading" in words for words, _ in visitor.told) for visitor in asking)


def test_a_local_pair_does_not_wait_for_a_download(hub, models):
    gate = threading.Event()
    hub.before_file = lambda file, write: file.name.endswith(".safetensors") and gate.wait(SOON)
    pool = ModelPool()
    slow = Asking(pool, **PAIR)
    wait_until(lambda: "target/model.safetensors" in hub.sent)
    assert pool.get(resolve(target=str(models / "other"))) and slow.is_alive()
    gate.set()
    slow.join(SOON)
    assert slow.pair


def test_one_download_at_a_time(hub):
    gate = threading.Event()
    hub.before_file = lambda file, write: file.name.endswith(".safetensors") and gate.wait(SOON)
    pool = ModelPool()
    first = Asking(pool, **PAIR)
    wait_until(lambda: "target/model.safetensors" in hub.sent)
    second = Asking(pool, target="own/other")
    wait_until(lambda: len(pool.downloads.alive) == 2)
    time.sleep(0.3)
    assert not any(file.startswith("other/") for file in hub.sent)
    gate.set()
    for visitor in (first, second):
        visitor.join(SOON)
        assert visitor.pair


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


# As transformers, Qwen3.5 and LongCat name them.
@pytest.mark.parametrize(
    "pattern",
    [
        "model-{:05}-of-{:05}.safetensors",
        "model.safetensors-{:05}-of-{:05}.safetensors",
        "model_{:05}-of-{:05}.safetensors",
    ],
)
def test_the_files_that_the_index_names_are_downloaded(hub, models, monkeypatch, pattern):
    folder = models / re.sub(r"\W", "", pattern)
    shutil.copytree(models / "target", folder)
    in_several_files(folder, pattern)
    save_file({"x": torch.zeros(10)}, folder / "model-00009-of-00009.safetensors")  # not in the index
    sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix == ".safetensors"}
    del sizes["model-00009-of-00009.safetensors"]
    target, told = f"own/{folder.name}", []
    pair = ModelPool().get(resolve(target=target), lambda *news: told.append(news))
    sent = [path.partition("/")[2] for path in hub.sent]
    assert sorted(sent) == sorted(set(sent)) and {*sizes} == {name for name in sent if "of-" in name}
    downloading = [news for news in told if news[0].startswith("Downloading")]
    assert downloading[-1][1] == 1 and len(downloading) > 2
    assert float(downloading[-1][0].split()[-2]) == pytest.approx(sum(sizes.values()) / 1e6, abs=0.06)
    assert torch.equal(pair.target.lm_head.weight, load_pair(target=models / "target").target.lm_head.weight)
    hub.silent = True
    assert load_pair(target=target).info == pair.info
    monkeypatch.setattr(constants, "HF_HUB_CACHE", constants.HF_HUB_CACHE + "-2")
    hub.silent, hub.sizes = False, dict.fromkeys(sizes, 3 * 10**9)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * 10**9))
    assert "takes 6.0 GB on the disk, and 4.0 GB are free" in refused(ModelPool(), target=target)


ODD_FILES = {
    "../target/model.safetensors": "names '../target/model.safetensors'",
    "/etc/model.safetensors": "names '/etc/model.safetensors'",
    "pytorch_model.bin": "names 'pytorch_model.bin'",
    ".safetensors": "names '.safetensors'",
    "model-3.safetensors": "names model-3.safetensors, which is not there",
    5: "names 5",
}


@pytest.mark.parametrize("odd", ODD_FILES)
def test_an_index_that_names_other_things_is_refused(hub, models, tmp_path, odd):
    name = f"odd-{list(ODD_FILES).index(odd)}"
    shutil.copytree(models / "target", models / name)
    index = in_several_files(models / name, "model-{}-of-{}.safetensors")
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = odd
    index.write_text(json.dumps(content))
    for place in (f"own/{name}", str(models / name)):
        said = refused(ModelPool(), target=place)
        assert f"target: {place} cannot be loaded, because of its {fetch.INDEX}: it" in said
        assert ODD_FILES[odd] in said
    assert not any(file.endswith((".safetensors", ".bin")) for file in hub.sent)


BROKEN_INDEXES = (b"", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": [1]}', b"[" * 100_000)


def test_an_index_that_names_nothing_is_refused(hub, models):
    shutil.copytree(models / "target", models / "unnamed")
    index = in_several_files(models / "unnamed", "model-{}-of-{}.safetensors")
    for content in BROKEN_INDEXES:
        index.write_bytes(content)
        for place in ("own/unnamed", str(models / "unnamed")):
            said = refused(ModelPool(), target=place)
            assert said.endswith(f"because of its {fetch.INDEX}: it names no files of weights"), content
        shutil.rmtree(constants.HF_HUB_CACHE)
    index.unlink()
    for place in ("own/unnamed", str(models / "unnamed")):
        assert f"has neither model.safetensors nor {fetch.INDEX}" in refused(ModelPool(), target=place)


# A hub that stalls


@pytest.mark.parametrize("when", ["at first", "in the middle"])
def test_a_stalled_download_ends_for_its_visitors(hub, models, when):
    def stall(file, write):
        if file.name.endswith(".safetensors"):
            write(file.read_bytes()[:50_000])
            hub.go_on.wait(SOON)

    hub.silent, hub.before_file = when == "at first", stall
    pool = ModelPool(seconds=2)
    start = time.monotonic()
    said = refused(pool, TookTooLong)
    took = time.monotonic() - start
    assert "could not be downloaded within 2 s: the hub is slow or does not answer" in said
    assert 2 <= took < SOON / 2
    start = time.monotonic()
    with pytest.raises(LoadError, match="downloaded") as again:
        pool.get(resolve(**PAIR))  # the library's thread still waits
    assert_one_sentence(str(again.value))
    assert time.monotonic() - start < SOON / 2
    assert pool.get(resolve(target=str(models / "other")))  # the page goes on


def test_a_stalled_download_holds_up_no_other_one(hub):
    hub.before_file = lambda file, write: file.parent.name == "target" and hub.go_on.wait(SOON)
    pool = ModelPool(seconds=2)
    refused(pool, TookTooLong, target="own/target")
    stay_stalled(pool.downloads, pool.downloads.turn)
    pool.seconds = SOON
    other = Asking(pool, target="own/other")
    other.join(SOON)
    assert other.pair, other.error


def test_after_a_stall_a_new_request_works(hub):
    hub.silent = True
    pool = ModelPool(seconds=2)
    refused(pool, TookTooLong)
    hub.silent = False
    hub.go_on.set()  # the connections end without an answer
    wait_until(lambda: not pool.downloads.alive)
    pool.seconds = pool.downloads.seconds = SOON
    assert pool.get(resolve(**PAIR))


def test_whoever_waits_behind_another_download_is_told_so(monkeypatch):
    downloads, gate = Downloads(0.5), threading.Event()
    monkeypatch.setattr(downloads, "_is_stalled", lambda _: False)

    def moves(report):
        for percent in range(100):
            report("Downloading x: 1 of 2", percent / 100)
            if gate.wait(0.1):
                return

    def ask(key, work):
        with pytest.raises(LoadError) as error:
            downloads.wait_for(key, key, work, lambda *_: None, lambda: True)
        return str(error.value)

    first = threading.Thread(target=ask, args=("first", moves), daemon=True)
    first.start()
    wait_until(lambda: downloads.turn is not None)
    assert ask("second", lambda report: None).endswith("others are downloaded first, so try again later")
    gate.set()
    first.join(SOON)


def test_a_download_that_nobody_waits_for_any_more_never_begins():
    downloads, gate, begun = Downloads(SOON), threading.Event(), []
    patient = threading.Thread(
        target=downloads.wait_for,
        args=("first", "first", lambda report: gate.wait(SOON), lambda *_: None, lambda: True),
        daemon=True,
    )
    patient.start()
    wait_until(lambda: downloads.turn is not None)
    left = []

    def leave():
        with pytest.raises(PairError, match="nobody waits"):
            downloads.wait_for("x", "x", begun.append, lambda *_: None, lambda: False)
        left.append(True)

    second = threading.Thread(target=leave, daemon=True)
    second.start()
    wait_until(lambda: len(downloads.alive) == 2)
    gate.set()
    second.join(SOON)
    patient.join(SOON)
    wait_until(lambda: not downloads.alive)
    assert left and not begun


def test_a_download_that_lost_its_turn_ends_at_its_next_byte():
    downloads, wake, ended = Downloads(2), threading.Event(), []

    def stalls(report):
        wake.wait(SOON)
        try:
            report("Downloading x: 1 of 2", 0.5)
        except PairError as error:
            ended.append(str(error))
            raise

    with pytest.raises(LoadError):
        downloads.wait_for("slow", "slow", stalls, lambda *_: None, lambda: True)
    stay_stalled(downloads, downloads.alive["slow"])
    release = threading.Event()
    other = threading.Thread(
        target=downloads.wait_for,
        args=("other", "other", lambda report: release.wait(SOON), lambda *_: None, lambda: True),
        daemon=True,
    )
    other.start()
    slow = downloads.alive["slow"]
    wait_until(lambda: downloads.turn not in (None, slow))
    wake.set()
    wait_until(lambda: ended)
    assert_one_sentence(ended[0])
    release.set()
    other.join(SOON)


# What else fails


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


def test_a_disk_that_is_too_small_is_told_before_the_download(hub, monkeypatch):
    hub.sizes = {"model.safetensors": 3 * 10**9}
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * 10**9))
    pool = ModelPool()
    said = refused(pool)
    assert "target own/target and drafter own/drafter cannot be downloaded" in said
    assert "takes 6.0 GB on the disk, and 4.0 GB are free" in said
    assert not any(file.endswith(".safetensors") for file in hub.sent)


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


def test_only_pickled_weights(hub, models):
    sentence = "own/pickled has only pickled weights (pytorch_model.bin), which can hold program code"
    assert sentence in refused(ModelPool(), target="own/pickled")
    assert not any(file.endswith(".bin") for file in hub.sent)
    directory = str(models / "pickled")
    said = refused(ModelPool(), target=directory)
    assert f"{directory} has only pickled weights" in said and "only safetensors are loaded" in said


@pytest.mark.parametrize("file", ["adapter_config.json", "small-Q4_K_M.gguf", "notes.txt"])
@pytest.mark.parametrize("config", [False, True])
def test_a_repository_that_is_no_checkpoint_is_named_for_what_it_is(hub, models, file, config):
    folder = models / f"other-{config}-{file[:5]}"
    folder.mkdir()
    (folder / file).write_text("{}")
    if file == "adapter_config.json":
        (folder / "adapter_model.bin").write_bytes(b"x")
    if config:
        shutil.copy(models / "target" / "config.json", folder)
    words = {
        "adapter_config.json": "is a PEFT adapter (adapter_config.json), and adapters cannot be run yet",
        "small-Q4_K_M.gguf": "has weights in the format GGUF (small-Q4_K_M.gguf), which is not loaded",
        "notes.txt": "has neither model.safetensors"
        if config
        else "has no config.json, so there is no model",
    }
    for role in ("target", "drafter"):
        with pytest.raises(PairError) as error:
            ModelPool().get(resolve(**{"target": "own/target", role: f"own/{folder.name}"}))
        assert str(error.value).startswith(f"{role}: own/{folder.name} {words[file]}")
        assert_one_sentence(str(error.value))
    with pytest.raises(PairError, match=re.escape(words[file])):
        load_pair(target=tiny(vocab_size=304)).attach(f"own/{folder.name}")


def test_weights_of_a_method_that_is_not_known_are_refused_before_the_download(hub, models):
    shutil.copytree(models / "target", models / "modelopt")
    config = json.loads((models / "modelopt" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8"}
    (models / "modelopt" / "config.json").write_text(json.dumps(config))
    for request in (dict(target="own/modelopt"), dict(target="own/target", drafter="own/modelopt")):
        assert "knows, not 'modelopt'" in refused(ModelPool(), **request)
    with pytest.raises(LoadError, match="knows, not 'modelopt'"):
        load_pair(target=tiny(vocab_size=304)).attach("own/modelopt")
    assert not any(file.endswith(".safetensors") for file in hub.sent)


def test_too_little_free_memory_is_told_before_the_download(hub, monkeypatch):
    monkeypatch.setattr(plan, "free_memory", lambda device: 100_000)
    said = refused(ModelPool())
    assert re.match(r"target own/target needs about 0\.\d MB of memory, but 0\.1 MB of [\d.]+ GB ", said)
    assert said.endswith("are free on cpu") and not any(file.endswith(".safetensors") for file in hub.sent)
