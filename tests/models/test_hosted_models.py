"""What a public server lets its visitors choose, and what it tells them of itself."""

import asyncio
import json

import gradio as gr
import pytest
import torch

from specdemo import Params, zero
from specdemo.errors import LoadError, PairError
from specdemo.loading.catalog import CATALOGUE, DFLASH, EAGLE3, FOR_GPUS, POOR
from specdemo.session import generate
from specdemo.ui.page import links
from specdemo.ui.page.hints import hints
from specdemo.ui.page.page import controls
from specdemo.ui.page.requests import PageRequests
from specdemo.ui.runs import models
from specdemo.ui.runs.limits import HOSTED, LOCAL, Visitor
from specdemo.ui.runs.models import Choice, Models
from specdemo.ui.view.settings import AS_STARTED, CONTROL_NAMES, FIRST, UNCHOSEN, WEIGHT_CHOICES, names_of
from tests.checkpoints import saved_in
from tests.sentences import refusal, refused
from tests.tiny import tiny

GATED = "llama-3.2-3b"
GIGABYTE = 10**9
ALWAYS = ["embedded", POOR, EAGLE3, DFLASH]


@pytest.fixture
def own(tmp_path):
    """The arguments for a pair of the server's owner."""
    folder, model = tmp_path / "secret-user", tiny(vocab_size=304)
    return {role: str(saved_in(folder / f"my-{role}", model)) for role in ("target", "drafter")}


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A server on a GPU with so much free memory, in gigabytes, and a token of its owner or none."""

    def start(free: float, allowed=(), token=None, **default) -> Models:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(models, "free_memory", lambda device: int(free * GIGABYTE))
        monkeypatch.setattr(models, "get_token", lambda: token)
        return Models(default, HOSTED, allowed)

    return start


def held_by(server: Models) -> dict:
    """What the page's controls hold at first."""
    return FIRST | dict.fromkeys(WEIGHT_CHOICES, AS_STARTED) | {"pair": server.default}


# Pairs


def test_on_a_cpu_only_the_embedded_pairs_can_be_chosen_and_on_ones_own_machine_all():
    server = Models({"device": "cpu"}, HOSTED)
    assert list(server.arguments) == [entry["name"] for entry in server.listed()] == ALWAYS
    for name in (*(set(CATALOGUE) - {*ALWAYS}), "own/model", "/etc", "../..", "", 5):
        said = refusal(server.request, Choice(pair=name))
        assert said.startswith(f"pair must be one of {', '.join(ALWAYS)}, not ")
    assert set(Models({"device": "cpu"}, LOCAL).arguments) == set(CATALOGUE)


def test_the_owner_can_list_more_if_there_is_room_for_them_now(monkeypatch):
    for free, more in ((9, ["smollm2-1.7b"]), (1, [])):
        monkeypatch.setattr(models, "free_memory", lambda device, free=free: free * GIGABYTE)
        listed = Models({"device": "cpu"}, HOSTED, ("smollm2-1.7b", "qwen3-8b")).arguments
        assert list(listed) == [*ALWAYS, *more]
    said = refusal(Models, {"device": "cpu"}, HOSTED, ("own/model",))
    assert said.startswith("allow ") and said.endswith(" not 'own/model'")


def test_on_a_gpu_what_fits_its_free_memory_can_be_chosen_and_a_gated_pair_by_the_owners_word_and_token(
    on_a_gpu,
):
    for free, more in ((80, FOR_GPUS), (5, ["smollm2-1.7b", "qwen2.5-1.5b"]), (0, [])):
        assert list(on_a_gpu(free).arguments) == [*ALWAYS, *more]
    for allowed, token in (((), "hf_of-the-owner"), ((GATED,), None), ((GATED,), "hf_of-the-owner")):
        assert (GATED in on_a_gpu(80, allowed, token).arguments) == bool(allowed and token)


def test_on_zerogpu_only_what_is_loaded_before_the_page_can_be_chosen(on_a_gpu, monkeypatch):
    monkeypatch.setattr(zero, "GPU", lambda task, duration: task)
    assert list(on_a_gpu(80).arguments) == ALWAYS
    chosen = on_a_gpu(80, allowed=("qwen3-8b",), name="smollm2-1.7b")
    assert list(chosen.arguments) == [*ALWAYS, "smollm2-1.7b", "qwen3-8b"]
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert Models({"device": "cpu"}, HOSTED).needs(Choice()).why.key == "lent_gpu"


def test_the_pair_that_it_was_started_with_can_always_be_chosen(own):
    assert "gpt2-xl" in Models({"name": "gpt2-xl", "device": "cpu"}, HOSTED).arguments
    server = Models(own, HOSTED)
    assert list(server.arguments) == ["my-target + my-drafter", *ALWAYS]
    assert server.request(Choice()).key == server.request(Choice("my-target + my-drafter")).key


# Weights


def test_the_weights_cannot_be_chosen_and_have_no_controls():
    server = Models({"device": "cpu"}, HOSTED)
    for field, (_, choice, *_) in WEIGHT_CHOICES.items():
        for value in (choice, "x", 5):
            with refused("fixed", field=field, kind=PairError):
                server.request(Choice(**{field: value}))
        with refused("fixed", field=field):
            links.read_link(f"?{field}={choice}", server.arguments, HOSTED)
        assert links.read_link(f"?{field}={choice}", server.arguments).values[field] == choice
    with gr.Blocks():
        public, local = (controls(Models({"device": "cpu"}, limits)) for limits in (HOSTED, LOCAL))
    assert tuple(local) == CONTROL_NAMES and tuple(public) == names_of(hosted=True)
    assert set(local) - set(public) == {*WEIGHT_CHOICES}
    assert {*public, *UNCHOSEN} == {*CONTROL_NAMES} and {UNCHOSEN[name] for name in WEIGHT_CHOICES} == {
        AS_STARTED
    }


@pytest.mark.parametrize("limits", [LOCAL, HOSTED])
def test_a_link_loads_nothing_before_the_visitor_agrees(limits, monkeypatch):
    """Any web site can lead a visitor to one."""
    server = Models({"device": "cpu"}, limits)
    page = PageRequests(server, None, None, limits)
    assert EAGLE3 in server.names and server.loaded(Choice(EAGLE3)) is None
    monkeypatch.setattr(page, "_run", lambda *_, **__: {"follow": "it"})

    def opened(query: str) -> dict:
        return asyncio.run(page._link(Visitor("page", "a"), query, held_by(server) | {"prompt": ""}))

    asked = f"?prompt=Once&pair={EAGLE3}&run=1"
    answer = opened(asked)
    assert EAGLE3 in answer["notice"]["text"] and "follow" not in answer
    assert (answer["controls"]["prompt"], answer["controls"]["pair"]) == ("Once", EAGLE3)
    assert server.loaded(Choice(EAGLE3)) is None
    assert opened("?prompt=Once&run=1")["follow"], "the server loads its own pair by itself"
    if limits is LOCAL:
        assert "embedded" in opened("?prompt=Once&pair=embedded&dtype=bfloat16&run=1")["notice"]["text"]
    monkeypatch.setattr(Models, "loaded", lambda server, choice: "a pair")
    assert opened(asked)["follow"]


# What it tells of itself


def test_nothing_names_the_directories_of_the_server(own, tmp_path):
    """Once the pair is loaded, it is said why it has its dtype."""
    server = Models({**own, "device": "cpu"}, HOSTED)
    before = hints(held_by(server), "x", server.needs(Choice()), None)
    pair = server.get()
    after = hints(held_by(server), "x", server.needs(Choice()), pair)
    trace = generate(pair, "the cat sat", Params(max_new_tokens=5), measure=False)
    seen = [trace.to_json(), json.dumps(server.listed()), *server.arguments]
    seen += [*before.values(), *after.values()]
    assert trace.pair.target == "my-target" and trace.pair.name == "my-target + my-drafter"
    assert not any("secret-user" in text or str(tmp_path) in text for text in seen)
    assert (after["pair"], after["dtype"]) == ("", str(pair.dtype_reason))


@pytest.mark.slow
def test_no_error_names_the_directories_of_the_server(own, tmp_path):
    server = Models(own, HOSTED)
    for broken in ("model.safetensors", "tokenizer.json", "config.json"):
        (tmp_path / "secret-user" / "my-drafter" / broken).write_bytes(b"{")
        told = refusal(server.get, kind=LoadError)
        assert "my-drafter" in told and "secret-user" not in told and str(tmp_path) not in told


def test_a_directory_named_like_a_pair_is_not_taken_for_it(own, tmp_path):
    (tmp_path / "secret-user" / "my-target").rename(tmp_path / "embedded")
    server = Models({"target": str(tmp_path / "embedded")}, HOSTED)
    assert server.default == "own embedded" and list(server.arguments) == ["own embedded", *ALWAYS]
    assert server.request(Choice()).parts[0].place == str(tmp_path / "embedded")
    assert server.request(Choice("embedded")).parts[0].place != str(tmp_path / "embedded")
