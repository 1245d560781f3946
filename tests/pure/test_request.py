"""Requests for pairs, resolved and planned without loading weights: names, places, options and dtypes."""

import json

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, LlamaConfig

from specdemo import PairError
from specdemo.errors import LoadError, failure, load_errors, redacted, without_directories
from specdemo.events import DRAFTER_KINDS
from specdemo.loading.catalog import CATALOGUE, ROOT
from specdemo.loading.load import LoadPlan, plan_from
from specdemo.loading.request import resolve
from tests.sentences import assert_one_sentence, messages_in

SECRET = "hf_nobodys-token"


def rejected(**request) -> str:
    with pytest.raises(PairError) as error:
        resolve(**request)
    assert type(error.value) is PairError
    message = str(error.value)
    assert_one_sentence(message)
    return message


OPTIONS = {
    "quantize": ("int3", "", 8, True, ["int8"], "INT8"),
    "dtype": ("float8", torch.float16, 16),
    "device": ("tpu", "cuda:x", "cuda:-1", 0, "cpu\n", f"cuda:{torch.cuda.device_count()}"),
}
# The field that the sentence begins with, and what is asked for.
REFUSED = [
    *[("pair", {"name": one}) for one in ("", "zzz", "embedded\n", 5, ["embedded"], b"embedded")],
    *[(name, {name: one}) for name, wrong in OPTIONS.items() for one in wrong],
    *[(name, {name: {"target": None, "drafter": wrong[0]}}) for name, wrong in OPTIONS.items()],
    *[(name, {name: {one: "cpu"}}) for name in OPTIONS for one in ("draft", 1)],
    ("target", {"drafter": "a/b"}),
    *[("target", {"target": one}) for one in (5, object(), ["x"])],
    *[("drafter", {"target": "a/b", "drafter": one}) for one in (5, object(), ["x"])],
    *[("target", {"target": f"own/other@{one}"}) for one in ("", "v 1", "../../x", "-x")],
]


@pytest.mark.parametrize(("field", "request_"), REFUSED)
def test_what_cannot_be_loaded_is_refused_in_a_sentence_about_its_field(field, request_):
    assert rejected(**request_).startswith(f"{field} ")


def test_a_revision_follows_the_id_and_a_directory_has_none(tmp_path, monkeypatch):
    [part] = resolve(target="own/target@v1.0").parts
    assert (part.id, part.place, part.revision) == ("own/target@v1.0", "own/target", "v1.0")
    keys = {resolve(target=name).key for name in ("own/target", "own/target@main", "own/target@v1.0")}
    assert len(keys) == 2, "main is what an id alone means"
    (tmp_path / "at@home").mkdir()
    [part] = resolve(target=tmp_path / "at@home").parts
    assert part.place == str(tmp_path / "at@home") and part.revision is None
    (tmp_path / "own" / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert rejected(target="own/target@v2").startswith("target must be given without @v2")


@pytest.mark.parametrize("name", ["HF_TOKEN", "own_key"])
def test_no_secret_of_the_environment_is_repeated(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert redacted(f"denied for {SECRET}, {SECRET}x") == "denied for ***, ***x"
    for message in (rejected(name=SECRET), *(rejected(**{option: SECRET}) for option in OPTIONS)):
        assert SECRET not in message
    assert SECRET not in str(failure(RuntimeError(f"with {SECRET}")))


def test_what_is_a_secret(monkeypatch, tmp_path):
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert SECRET not in rejected(name=SECRET), "the stored one"
    monkeypatch.setenv("USE_TOKEN", "true")
    monkeypatch.setenv("KEYBOARD", "a-long-name")
    assert redacted("true of a-long-name") == "true of a-long-name"
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-and-more")
    assert redacted("said abcdefgh-and-more") == "said ***", "one that holds another is removed as a whole"


def test_what_a_visitor_reads_names_no_directories():
    for text, left in (
        ("[Errno 2] none: '/home/me/models/a.json'", "[Errno 2] none: 'a.json'"),
        ("/mnt/x/model + ~/y/drafter", "model + drafter"),
        ("target own/model, see https://host.org/a/b", "target own/model, see https://host.org/a/b"),
        ("1/2 and p/q", "1/2 and p/q"),
    ):
        assert without_directories(text) == left


def test_too_little_memory_is_told_in_plain_words():
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"),
    ):
        said = "^target: .*memory for own/model"
        with pytest.raises(LoadError, match=said) as told, load_errors("target", "own/model"):
            raise error
        assert_one_sentence(str(told.value))
        assert "no_memory_left" in {one.key for one in messages_in(failure(error))}


def test_a_pair_is_loaded_in_its_own_kind_of_weights_unless_another_is_asked_for():
    def kinds(quantize, name="llama-3.2-3b-int8"):
        return [part.quantize for part in resolve(name, quantize=quantize).parts]

    for choice in (None, {"target": None}, {"drafter": "int8"}):
        assert kinds(choice) == ["int8", "int8"]
    assert (kinds("int4"), kinds("none")) == (["int4", "int4"], [None, None])
    assert kinds({"target": "none"}) == [None, "int8"]
    assert kinds(None, "llama-3.2-3b") == [None, None]


def test_an_entry_says_what_drafts():
    """Of what comes with the project, as its config has it; of published heads, as their names have it."""
    for entry in CATALOGUE.values():
        assert entry.drafter_kind in DRAFTER_KINDS and 0 < entry.drafter_gigabytes < entry.gigabytes
        directory = ROOT / entry.drafter
        if directory.is_dir():
            config = json.loads((directory / "config.json").read_text())
            assert entry.drafter_kind == config.get("speculators_model_type", "model")
        else:
            named = [kind for kind in DRAFTER_KINDS if kind != "model" and kind in entry.drafter.lower()]
            assert entry.drafter_kind == max(named, key=len, default="model")  # "eagle" is in "eagle3"
            assert entry.tried.startswith("not yet")


def test_a_request_is_the_same_however_it_is_put(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    ways = (here, f"{here}/", "here", "./here", f"../{tmp_path.name}/here", "~/here", "link")
    options = ({"dtype": "auto"}, {"quantize": "none"}, {"quantize": {"target": "none"}})
    requests = [resolve(target=way, device="cpu") for way in ways]
    requests += [resolve(target=here, device={"target": "cpu"}, **option) for option in options]
    requests += [] if torch.cuda.is_available() else [resolve(target=here)]
    assert len({request.key for request in requests}) == 1
    assert resolve(target="~/here").parts[0].place == str(here)


@pytest.mark.parametrize("place", ["", "./nowhere", "a\nb", "a/b/c/d", "/", "\0", "n" * 300 + "/b/c"])
def test_places_where_no_model_can_be(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PairError, match="^target: ") as error, load_errors("target", place):
        pytest.fail("tried to read it")
    assert_one_sentence(str(error.value))


# Plans: models on the meta device, which have shapes and no weights.


@pytest.fixture(scope="module")
def skeletons():
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 304}
    with torch.device("meta"):
        return [
            AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=layers, **sizes))
            for layers in (2, 1)
        ]


def planned(skeletons, **how) -> LoadPlan:
    return plan_from(resolve(target="own/target", drafter="own/drafter", **how), skeletons)


def test_a_dtype_for_both_or_for_one_and_otherwise_float32(skeletons):
    for name in ("bfloat16", "float16"):
        dtype = getattr(torch, name)
        both = planned(skeletons, dtype=name)
        assert (both.dtypes, str(both.reason)) == ((dtype, dtype), "as requested")
        one = planned(skeletons, device="cpu", dtype={"drafter": name})
        assert one.dtypes == (torch.float32, dtype)
        assert str(one.reason).startswith("drafter as requested, the other float32: ")
    for unasked in (None, "auto"):
        plan = planned(skeletons, device="cpu", dtype=unasked)
        assert plan.dtypes == (torch.float32,) * 2 and str(plan.reason).startswith("float32: ")


def test_weights_of_which_none_can_be_quantised_are_refused(skeletons):
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=0, vocab_size=304))
    said = "^quantize must be none for drafter own/drafter, not int8: "
    with pytest.raises(PairError, match=said) as error:
        planned([skeletons[0], empty], quantize="int8")
    assert_one_sentence(str(error.value))
    assert planned([skeletons[0], empty], quantize={"target": "int8"})
