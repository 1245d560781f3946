"""Loading a pair, everything that can be wrong with one, and who may run it."""

import functools
import gc
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdemo import PairError, Params, load_pair, stream
from specdemo.loading.catalog import EMBEDDED
from specdemo.loading.errors import LoadError
from specdemo.loading.load import WARM_UP, _measure_steps, load, plan
from specdemo.loading.request import resolve
from tests.tiny import greedy, noisy, random_weights, shorter, tiny, tokenizer

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hf_nobodys-token"
SHAPE = dict(
    vocab_size=304, hidden_size=64, intermediate_size=256
)  # 4 ids of padding; large enough for int4's groups of weights
PROMPT = "the cat sat"
GREEDY = Params(temperature=0, max_new_tokens=20)
ROLES = ("target", "drafter")


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Directories of a target, a drafter of half its layers, and another that must never be written to."""
    root = tmp_path_factory.mktemp("pairs")
    target = tiny(**SHAPE)
    for name, model in (("target", target), ("drafter", shorter(target))):
        model.save_pretrained(root / name)
        tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture
def broken(saved, tmp_path):
    """Makes a copy of the target's directory and lets a function break it."""

    def make(change, name="broken"):
        shutil.copytree(saved / "target", tmp_path / name)
        change(tmp_path / name)
        return tmp_path / name

    return make


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)


def refused(*args, kind=PairError, **request) -> str:
    """The message of the refusal, which must be one sentence that a person can read."""
    with pytest.raises(PairError) as error:
        load_pair(*args, **request)
    message = str(error.value)
    assert type(error.value) in (kind if isinstance(kind, tuple) else (kind,)), message
    assert_one_sentence(message)
    return message


def assert_one_sentence(message):
    assert SECRET not in message
    assert message and message == " ".join(message.split()), f"more than one line: {message!r}"
    assert not re.search(r"[.!?] +[A-Z]", message), f"more than one sentence: {message}"
    assert not re.search(r"<class|Traceback|\braise\b|:$", message), f"for programmers, or cut off: {message}"
    paths = re.findall(r"\S*/\S+", message)
    assert len(message) - sum(map(len, paths)) < 240, f"too long: {message}"


def text_of(pair, **params):
    run = stream(pair, PROMPT, Params(temperature=0, max_new_tokens=20, **params))
    list(run)
    return run.trace


# What works


def test_a_pair_from_two_directories(saved):
    pair = load_pair(target=saved / "target", drafter=str(saved / "drafter"))
    assert pair.info.target == str(saved / "target") and pair.info.drafter == str(saved / "drafter")
    assert pair.info.device == "cpu" and pair.info.dtype.target == pair.info.dtype.drafter == "float32"
    assert pair.info.quantize.target is None and pair.info.quantize.drafter is None
    assert pair.dtype_reason.startswith("float32: ")
    assert pair.target_step_ms > 0 and pair.drafter_step_ms > 0
    assert pair.bytes_held.target == 4 * sum(
        weights.numel() for weights in pair.target.parameters()
    ) + buffers(pair.target)
    assert pair.bytes_held.drafter < pair.bytes_held.target

    trace = text_of(pair)
    ids = tokenizer()(PROMPT).input_ids
    assert trace.output_ids == greedy(pair.target, ids, 20)[: len(trace.output_ids)]
    assert trace.finish in ("length", "eos") and trace.stats.drafted


def buffers(model):
    return sum(
        4 * buffer.numel() for buffer in {buffer.data_ptr(): buffer for buffer in model.buffers()}.values()
    )


def test_a_target_alone(saved):
    pair = load_pair(target=saved / "target")
    assert pair.drafter is None and pair.info.drafter is None and pair.bytes_held.drafter is None
    assert text_of(pair, draft_with="lookup").output_ids == text_of(pair, draft_with="none").output_ids
    with pytest.raises(ValueError, match="^draft_with must be one of lookup") as error:
        stream(pair, PROMPT, GREEDY)
    assert_one_sentence(str(error.value))


def test_paths_relative_and_from_home(saved, monkeypatch):
    monkeypatch.chdir(saved)
    monkeypatch.setenv("HOME", str(saved))
    for target in ("target", "./target", "../" + saved.name + "/target", "~/target"):
        assert load_pair(target=target).target.config.vocab_size == 304


def test_models_in_memory_are_left_as_they_are():
    target = tiny().to(torch.bfloat16)
    before = {name: weights.clone() for name, weights in target.state_dict().items()}
    target.train()
    pair = load_pair(target=target, drafter=target)
    assert (
        pair.target is target
        and pair.info.target == "LlamaForCausalLM"
        and pair.info.dtype.target == "bfloat16"
    )
    assert pair.dtype_reason == "as given" and pair.target_step_ms is None
    list(stream(pair, [1, 2, 3], GREEDY))
    assert target.training and target.dtype == torch.bfloat16
    assert all(torch.equal(weights, before[name]) for name, weights in target.state_dict().items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "auto"])
def test_dtypes(saved, dtype):
    pair = load_pair(target=saved / "target", drafter=saved / "drafter", dtype=dtype)
    expected = "float32" if dtype == "auto" else dtype
    assert {
        pair.info.dtype.target,
        pair.info.dtype.drafter,
        str(pair.target.dtype)[6:],
        str(pair.drafter.dtype)[6:],
    } == {expected}
    assert len(text_of(pair).output_ids) > 3


def test_a_choice_for_each_model(saved):
    request = dict(target=saved / "target", drafter=saved / "drafter")
    plain = load_pair(**request).bytes_held
    pair = load_pair(
        **request,
        dtype={"target": "float32", "drafter": "bfloat16"},
        quantize={"target": "int8"},
        device={"target": "cpu", "drafter": None},
    )
    assert (pair.info.dtype.target, pair.info.dtype.drafter) == ("float32", "bfloat16")
    assert (pair.info.quantize.target, pair.info.quantize.drafter) == ("int8", None)
    assert pair.bytes_held.target < 0.6 * plain.target
    assert 0.45 * plain.drafter < pair.bytes_held.drafter < 0.55 * plain.drafter
    assert text_of(pair).stats.tokens > 3
    assert load_pair(**request, quantize={"target": "none", "drafter": "none"}).bytes_held == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantize", "share"), [("int8", 0.27), ("float8", 0.27), ("int4", 0.2), ("int2", 0.15)]
)
def test_quantised_weights_are_smaller_and_still_write(saved, quantize, share):
    request = dict(target=saved / "target", drafter=saved / "drafter")
    pair, plain = load_pair(**request, quantize=quantize), load_pair(**request)
    assert pair.info.quantize.target == pair.info.quantize.drafter == quantize
    linear = 4 * sum(weights.numel() for name, weights in plain.target.named_parameters() if "_proj" in name)
    rest = plain.bytes_held.target - linear  # embeddings, norms and the head stay as they are
    assert rest < pair.bytes_held.target < rest + share * linear
    trace = text_of(pair)
    assert trace.stats.tokens > 3 and trace.stats.drafted
    assert trace.output_ids == text_of(pair, draft_with="none").output_ids


def test_tokenizers_that_differ_by_ids_at_the_end_only(saved, broken):
    longer = broken(lambda path: tokenizer(extra=4).save_pretrained(path))
    for target, drafter in ((saved / "target", longer), (longer, saved / "drafter")):
        assert text_of(load_pair(target=target, drafter=drafter)).stats.tokens > 3


# What a request can get wrong


@pytest.mark.parametrize("name", ["smollm2-1.7", "SmolLM2-1.7B", "embeded"])
def test_an_unknown_name_with_a_suggestion(name):
    message = refused(name)
    assert (
        message.startswith("pair must be one of embedded, embedded-poor, smollm2-1.7b, ")
        and ascii(name) in message
    )
    if name != "SmolLM2-1.7B":
        assert "did you mean " + {"smollm2-1.7": "smollm2-1.7b", "embeded": "embedded"}[name] in message


@pytest.mark.parametrize(
    "name", ["", "zzz", "embedded\n", 5, ["embedded"], {"target": "embedded"}, b"embedded"]
)
def test_names_that_are_none(name):
    assert refused(name).startswith("pair must be one of embedded, ")


WRONG = [
    ("quantize", "int3"), ("quantize", ""), ("quantize", 8), ("quantize", True), ("quantize", ["int8"]), ("quantize", "INT8"),
    ("dtype", "float8"), ("dtype", "fp16"), ("dtype", torch.float16), ("dtype", 16), ("dtype", ["float32"]),
    ("device", "tpu"), ("device", "cuda:x"), ("device", "cuda:-1"), ("device", 0), ("device", ["cpu"]), ("device", "cpu\n"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), WRONG)
@pytest.mark.parametrize("form", ["both", "drafter"])
def test_unknown_options(saved, option, value, form):
    value = value if form == "both" else {"target": None, "drafter": value}
    message = refused(target=saved / "target", drafter=saved / "drafter", **{option: value})
    allowed = {
        "quantize": "one of none, int8, int4",
        "dtype": "one of auto, float32, bfloat16",
        "device": "cpu, cuda or cuda:N",
    }
    assert message.startswith(f"{option} must be {allowed[option]}")


@pytest.mark.parametrize("option", ["device", "dtype", "quantize"])
@pytest.mark.parametrize("key", ["draft", "p", 1])
def test_unknown_keys(saved, option, key):
    message = refused(target=saved / "target", **{option: {key: "cpu"}})
    assert message == f"{option} must have the keys target and drafter, not {ascii(key)}"


def test_a_cuda_device_that_is_not_there(saved):
    device = f"cuda:{torch.cuda.device_count()}"
    assert device in refused(target=saved / "target", device=device)
    if not torch.cuda.is_available():
        assert "cuda" in refused(target=saved / "target", device="cuda")


def test_names_and_models_do_not_mix(saved):
    model = tiny()
    for request in (
        dict(target=saved / "target"),
        dict(drafter=saved / "drafter"),
        dict(target=model),
        dict(drafter=model),
    ):
        assert "name" in refused("embedded", **request)
    for drafter in (saved / "drafter", model):
        assert refused(drafter=drafter).startswith("target must be given")


@pytest.mark.parametrize(
    ("option", "value"), [("device", "cpu"), ("dtype", "float32"), ("quantize", "int8"), ("quantize", "none")]
)
def test_models_in_memory_take_no_options(option, value):
    assert refused(target=tiny(), **{option: value}).startswith(f"{option} must be left out")


def test_models_that_are_loaded_bring_their_tokenizer(saved):
    assert refused(target=saved / "target", tokenizer=tokenizer()).startswith("tokenizer must be left out")


def test_things_that_are_no_models(saved):
    model, directory = tiny(), saved / "target"
    wrong = [dict(target=model, drafter=drafter) for drafter in (directory, str(directory), 5, object())]
    wrong += [dict(target=directory, drafter=drafter) for drafter in (model, 5, object(), ["x"])]
    for request in wrong:
        assert refused(**request).startswith("drafter must be ")
    for target in (5, object(), torch.nn.Linear(2, 2), ["x"]):
        assert refused(target=target).startswith("target must be ")
    assert refused(target=model, tokenizer="gpt2").startswith("tokenizer must be ")


# What a directory can get wrong


@pytest.mark.parametrize("role", ROLES)
def test_directories_without_a_model(saved, tmp_path, role):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for path in ("missing", "empty", "file", "a/b/c"):
        message = refused(**{"target": saved / "target", role: tmp_path / path})
        assert role in message and str(tmp_path / path) in message
    assert "config.json" in refused(target=tmp_path / "empty")


@pytest.mark.parametrize(
    "target", ["", ".", "./nowhere", "no such", "a\nb", "a/b/c/d", "/", "\0", "~nobody-of-this-name/x"]
)
def test_directories_that_nobody_can_mean(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    assert refused(target=target).startswith("target")


@pytest.mark.parametrize("what", [".", "config.json", "model.safetensors", "tokenizer.json"])
def test_no_permission(broken, what):
    path = broken(lambda path: (path / what).chmod(0))
    if os.access(path / what, os.R_OK):
        pytest.skip("this user may read everything")
    try:
        message = refused(target=path, kind=PairError if what == "." else LoadError)
        assert str(path) in message and "permission" in message.lower()
    finally:
        (path / what).chmod(0o755)


def config_with(**changes):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def cut_in_half(name):
    def change(path):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[: len(whole) // 2])

    return change


def without(pattern):
    def change(path):
        for file in path.glob(pattern):
            file.unlink()

    return change


def written(name, content):
    return lambda path: (path / name).write_bytes(content)


# What was done to it, and words that the message must hold.
BROKEN = {
    "a config that is cut off": (cut_in_half("config.json"), "config"),
    "a config that is a list": (written("config.json", b"[]"), "config"),
    "a config that is no text": (written("config.json", b"\xff\xfe\x00"), "config"),
    "a config that says nothing": (written("config.json", b"{}"), "model_type"),
    "a config of wrong types": (config_with(hidden_size="many"), "hidden_size"),
    "a config of other shapes": (config_with(intermediate_size=128), "shape"),
    "a config of more layers": (config_with(num_hidden_layers=3), "lacks 9 weights"),
    "a config beyond all memory": (config_with(vocab_size=10**10), "GB"),
    "weights that are cut off": (cut_in_half("model.safetensors"), "model.safetensors"),
    "weights that are no weights": (written("model.safetensors", b"x" * 1000), "model.safetensors"),
    "weights that are empty": (written("model.safetensors", b""), "model.safetensors"),
    "no weights": (without("*.safetensors"), "model.safetensors"),
    "no tokenizer": (without("tok*"), "tokenizer"),
    "a tokenizer that is cut off": (cut_in_half("tokenizer.json"), "tokenizer"),
    "a tokenizer that says nothing": (written("tokenizer.json", b"{}"), "tokenizer"),
    "a tokenizer config that is cut off": (cut_in_half("tokenizer_config.json"), "tokenizer"),
}
UNFIT = {
    "an unknown architecture": (config_with(model_type="nonsense"), "nonsense"),
    "a model that writes no text": (written("config.json", b'{"model_type": "vit"}'), "vit"),
    "a program of its own": (
        config_with(model_type="own", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}),
        "code",
    ),
    "an encoder-decoder": (written("config.json", b'{"model_type": "t5"}'), "t5"),
}


@pytest.mark.parametrize("what", [*BROKEN, *UNFIT])
def test_broken_directories(saved, broken, what):
    change, words = (BROKEN | UNFIT)[what]
    kind = LoadError if what in BROKEN else (LoadError, PairError)
    path = broken(change)
    for request in (
        dict(target=path, drafter=saved / "drafter"),
        dict(target=saved / "target", drafter=path),
    ):
        role = "target" if request["target"] == path else "drafter"
        message = refused(**request, kind=kind)
        assert message.startswith(role) and str(path) in message
        assert words in message.replace(str(path), "")


def test_weights_that_are_not_whole(broken):
    from safetensors.torch import load_file, save_file

    def change(path):
        weights = load_file(path / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    message = refused(target=broken(change), kind=LoadError)
    assert "lacks 1 weight" in message and "model.layers.1.mlp.up_proj.weight" in message


def test_models_that_cannot_be_rewound(saved, broken):
    shape = dict(vocab_size=304, hidden_size=32, state_size=4, num_hidden_layers=2)
    mamba = broken(
        AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **shape)).save_pretrained, "mamba"
    )
    for request in (dict(target=mamba), dict(target=saved / "target", drafter=mamba)):
        message = refused(**request)
        assert str(mamba) in message and "MambaForCausalLM" in message and "rewound" in message


@pytest.mark.parametrize("model_type", ["bert", "gemma3_text"])
def test_models_that_look_ahead(saved, broken, model_type):
    """A BERT that is no decoder, a Gemma that embeds texts: they would run, and judge drafts by what stands behind them."""
    shape = dict(
        vocab_size=304, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    more = (
        dict(num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True)
        if model_type == "gemma3_text"
        else {}
    )
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **shape, **more))
    path = broken(random_weights(model).save_pretrained)
    for request in (dict(target=path), dict(target=saved / "target", drafter=path)):
        message = refused(**request)
        assert str(path) in message and type(model).__name__ in message


def test_tokenizers_that_differ(saved, broken):
    other = tokenizer(sentences=["zebra quagga unicorn"] * 9)
    path = broken(other.save_pretrained)
    ours, theirs = tokenizer().convert_ids_to_tokens(range(300)), other.convert_ids_to_tokens(range(280))
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    message = refused(target=saved / "target", drafter=path)
    assert (
        str(path) in message
        and f"id {first} is {ascii(theirs[first])}" in message
        and ascii(ours[first]) in message
    )


def test_tokenizers_of_the_same_words_that_split_differently(saved, broken):
    def change(path):
        content = json.loads((path / "tokenizer.json").read_text())
        content["model"]["merges"] = content["model"]["merges"][:10]
        (path / "tokenizer.json").write_text(json.dumps(content))

    assert "split" in refused(target=saved / "target", drafter=broken(change))


# The hub


def hub_messages(targets, **environment):
    """What `load_pair` says of hub ids, in a process of its own: the hub's library reads these settings once."""
    code = """
import sys
from specdemo import PairError, load_pair
for target in sys.argv[1:]:
    try:
        load_pair(target) if target == "gpt2-xl" else load_pair(target=target)
    except PairError as error:
        print(type(error).__name__, error)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *targets],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == len(targets), done.stdout
    for message in messages:
        assert_one_sentence(message)
    return messages


@pytest.mark.slow
def test_the_hub_out_of_reach(tmp_path):
    targets = ["some/model", "model", "gpt2-xl"]  # the second could be a directory that is not there
    messages = hub_messages(targets, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    for target, message in zip(targets, messages, strict=True):
        kind = "PairError" if target == "model" else "LoadError"
        assert message.startswith(f"{kind} target: ") and target in message and "hub" in message


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the model hub does for ids that one may not read, and keeps the token that it was shown."""

    ANSWERS = {"gated": (403, "GatedRepo"), "missing": (401, "RepoNotFound"), "refused": (401, "")}
    shown = set()

    def do_HEAD(self):
        self.shown.add(self.headers.get("Authorization"))
        status, code = self.ANSWERS[next((word for word in self.ANSWERS if word in self.path), "missing")]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"no access with {self.headers.get('Authorization')}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_what_the_hub_will_not_hand_out(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        gated, missing, refusal = hub_messages(
            ["own/gated", "own/missing", "own/refused"], HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path)
        )
        server.shutdown()
    assert f"Bearer {SECRET}" in Hub.shown  # it was really sent, so it could have come back in a message
    assert gated.startswith("LoadError target: own/gated is gated") and "HF_TOKEN" in gated
    assert missing.startswith("PairError target: ") and "own/missing" in missing
    assert refusal.startswith("LoadError target: ") and "own/refused" in refusal and "HF_TOKEN" in refusal


class Files(http.server.SimpleHTTPRequestHandler):
    """Hands out the files of a directory as the model hub does: slowly where they are weights."""

    def respond(self, send: bool):
        found = re.fullmatch(r"/own/(\w+)/resolve/\w+/([\w.]+)", self.path)
        file = Path(self.directory, *(found.groups() if found else ["nothing"]))
        size = file.stat().st_size if file.is_file() else 0
        self.send_response(200 if size else 404)
        headers = {
            "X-Repo-Commit": "a" * 40,
            "ETag": f'"{file.parent.name}-{file.name}"',
            "Content-Length": str(size),
        }
        for header, value in (
            headers if size else {"X-Error-Code": "EntryNotFound", "Content-Length": "0"}
        ).items():
            self.send_header(header, value)
        self.end_headers()
        if send and size:
            whole, pieces = file.read_bytes(), 20 if file.suffix == ".safetensors" else 1
            for at in range(0, size, size // pieces + 1):
                self.wfile.write(whole[at : at + size // pieces + 1])
                time.sleep(0.05 if pieces > 1 else 0)

    def do_HEAD(self):
        self.respond(send=False)

    def do_GET(self):
        self.respond(send=True)

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_download_is_reported_and_can_be_left(saved, tmp_path):
    code = """
import asyncio, json, time
from huggingface_hub import constants
from specdemo import Params
from specdemo.ui.queue import Choice, Line, Models, Wait, running

constants.DOWNLOAD_CHUNK_SIZE = 10_000  # else a file this small comes in one piece

async def main():
    models, line = Models({"target": "own/target", "drafter": "own/drafter"}), Line()
    visit = lambda: running(models, line, Choice(), "the cat sat", Params(temperature=0, max_new_tokens=5, ignore_eos=True))
    impatient = visit()
    async for wait in impatient:
        if wait.share:
            break
    start = time.monotonic()
    await impatient.aclose()
    left = time.monotonic() - start
    steps = [step async for step in visit()]
    waits = [step for step in steps if isinstance(step, Wait)]
    print(json.dumps({"left": left, "waits": waits, "finish": steps[-1].run.trace.finish, "needs": models.needs(Choice()).total}))

asyncio.run(main())
"""
    handler = functools.partial(Files, directory=saved)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(tmp_path),
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["left"] < 0.1 and said["finish"] == "length"
    shares = {
        role: [share for sentence, share in said["waits"] if sentence.startswith(f"Downloading {role}")]
        for role in ROLES
    }
    for role in ROLES:
        assert len(shares[role]) > 1 and shares[role] == sorted(shares[role]) and shares[role][-1] < 1
    size = (saved / "target" / "model.safetensors").stat().st_size / 1e6
    assert any(
        re.fullmatch(rf"Downloading target own/target: \d\.\d of {size:.1f} MB … \d s", said)
        for said, _ in said["waits"]
    )
    assert load_pair(target=saved / "target", drafter=saved / "drafter").bytes_held.target < said["needs"]


def test_a_load_says_its_steps_in_order(saved):
    told = []
    load(plan(resolve(target=saved / "target", drafter=saved / "drafter")), lambda *step: told.append(step))
    assert [sentence.split(" of ")[0] for sentence, _ in told] == [
        "Reading the tokenizers", "Loading the weights", "Loading the weights", "Trying whether the caches can be rewound",
        "Timing a step",
    ]  # fmt: skip
    assert all(share is None for _, share in told)


def test_what_disturbs_the_timing_of_a_step_is_not_taken_for_the_step(saved, monkeypatch):
    """A page that is being served holds Python's lock now and then: a drafter's step was once thought to take as long as a target's."""
    pair = load_pair(target=saved / "target", drafter=saved / "drafter")
    target, drafter, run = pair.steps()
    calls, clock = Counter(), [0.0]

    def disturbed(key, *step):
        calls[key] += 1
        clock[0] += 0.025 if calls[key] <= WARM_UP + 9 else 0.001
        return run(key, *step)

    monkeypatch.setattr(pair, "steps", lambda: (target, drafter, disturbed))
    monkeypatch.setattr("specdemo.loading.load.perf_counter", lambda: clock[0])
    _measure_steps(pair)
    assert pair.drafter_step_ms == pytest.approx(1) and pair.target_step_ms == pytest.approx(1)


def test_the_pair_that_comes_with_the_project_is_named_from_its_root(tmp_path, monkeypatch):
    if not EMBEDDED.is_dir():
        pytest.skip("the embedded pair is not there")
    monkeypatch.chdir(tmp_path)
    info = load_pair().info
    assert (info.name, info.target, info.drafter) == (
        "embedded",
        "assets/pairs/embedded/target",
        "assets/pairs/embedded/drafter",
    )
    assert load_pair(target=EMBEDDED / "target").info.target == str(EMBEDDED / "target")


def test_a_token_that_was_put_into_a_wrong_field_is_not_repeated(saved):
    assert refused(target=f"./{SECRET}").startswith("target")
    assert refused(target=SECRET + "/a/b").startswith("target")
    assert refused(SECRET).startswith("pair")
    for option in ("device", "dtype", "quantize"):
        assert refused(target=saved / "target", **{option: SECRET}).startswith(option)


# One run at a time


@pytest.fixture
def pair():
    target = tiny()
    return load_pair(target=target, drafter=noisy(target))


def assert_free(pair):
    events = list(stream(pair, [1, 2, 3], GREEDY))
    assert events[-1].finish == "length" and len(events[-1].output_ids) == 20


def assert_busy(pair):
    with pytest.raises(PairError, match="busy") as error:
        stream(pair, [1, 2, 3], GREEDY)
    assert_one_sentence(str(error.value))


def test_busy_until_it_has_finished(pair):
    run = stream(pair, [1, 2, 3], GREEDY)
    assert_busy(pair)
    for event in run:
        if not hasattr(event, "finish"):
            assert_busy(pair)
    assert_free(pair)
    assert run.trace.finish == "length" and list(run) == []


@pytest.mark.parametrize("events", [0, 1, 2, 4])
def test_busy_until_it_is_closed(pair, events):
    run = stream(pair, [1, 2, 3], GREEDY)
    for _ in range(events):
        next(run)
    assert_busy(pair)
    run.close()
    assert_free(pair)
    assert run.trace.finish == "cancelled" and len(run.trace.rounds) == max(0, events - 1)
    assert run.trace.output_ids == [id for round in run.trace.rounds for id in round.emitted]
    assert list(run) == []
    run.close()  # once more does no harm, nor does it free somebody else's run
    other = stream(pair, [1, 2, 3], GREEDY)
    run.close()
    assert_busy(pair)
    other.close()


@pytest.mark.parametrize("events", [0, 1, 3])
def test_busy_until_it_is_collected(pair, events):
    run = stream(pair, [1, 2, 3], GREEDY)
    for _ in range(events):
        next(run)
    trace = run.trace
    assert_busy(pair)
    del run
    gc.collect()
    assert trace.finish == "cancelled"
    assert_free(pair)


def test_a_loop_that_is_left_frees_the_pair(pair):
    with stream(pair, [1, 2, 3], GREEDY) as run:
        for event in run:
            if hasattr(event, "index"):
                break
    assert run.trace.finish == "cancelled"
    assert_free(pair)


def test_other_pairs_run_meanwhile(pair):
    other = load_pair(target=tiny())
    one, two = (
        stream(pair, [1, 2, 3], GREEDY),
        stream(other, [1, 2, 3], Params(draft_with="none", max_new_tokens=5)),
    )
    next(one), next(two)
    assert len(list(two)) == 6 and len(list(one)) > 2


def test_closed_by_another_thread_while_a_round_is_computed(pair):
    inside, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    calls = []

    def hold(module, args):
        calls.append(1)
        if len(calls) == 3:
            inside.set()
            assert go_on.wait(60)

    handle = pair.target.register_forward_pre_hook(hold)
    run = stream(pair, [1, 2, 3], GREEDY)
    seen = []
    consumer = threading.Thread(target=lambda: seen.extend(run))
    consumer.start()
    assert inside.wait(60)

    def close():
        run.close()
        assert pair.lock.acquire(blocking=False)  # free at the moment when close returns
        pair.lock.release()
        closed.set()

    closer = threading.Thread(target=close)
    closer.start()
    assert not closed.wait(0.2) and run.trace.finish is None  # the round is still being computed
    go_on.set()
    assert closed.wait(60)
    closer.join(60), consumer.join(60)
    handle.remove()
    assert run.trace.finish == "cancelled" and len(run.trace.rounds) == 2 and len(calls) == 3
    assert not any(hasattr(event, "finish") for event in seen)
    assert_free(pair)


def test_one_of_two_threads_that_start_at_once_is_refused(pair):
    gate, outcomes = threading.Barrier(4), []

    def start():
        gate.wait(60)
        try:
            outcomes.append(stream(pair, [1, 2, 3], GREEDY))
        except PairError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 3
    next(outcome for outcome in outcomes if not isinstance(outcome, str)).close()
    assert_free(pair)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("failure", [RuntimeError("the third is too many"), MemoryError(), KeyError("x")])
def test_a_failure_inside_a_run(pair, role, failure):
    calls = []

    def fail(module, args):
        calls.append(1)
        if len(calls) == 3:
            raise failure

    handle = getattr(pair, role).register_forward_pre_hook(fail)
    run = stream(pair, [1, 2, 3], GREEDY)
    with pytest.raises(type(failure)):
        list(run)
    handle.remove()
    assert run.trace.finish == "error"
    assert type(failure).__name__ in run.trace.error and str(failure) in run.trace.error
    assert len(run.trace.rounds) == (1 if role == "target" else 0)  # the prefill is a forward, too
    assert list(run) == []
    run.close()
    assert run.trace.finish == "error"
    assert_free(pair)


def test_weights_that_are_not_numbers(pair):
    pair.target.lm_head.weight.data.fill_(float("nan"))
    run = stream(pair, [1, 2, 3], GREEDY)
    with pytest.raises(RuntimeError, match="NaN"):
        list(run)
    assert run.trace.finish == "error" and "target" in run.trace.error and not run.trace.output_ids


def test_a_refused_prompt_leaves_the_pair_free(pair):
    for prompt in ("text", [], [10_000], [1.5], None, [1] * 256):
        with pytest.raises(ValueError, match="^prompt") as error:
            stream(pair, prompt, GREEDY)
        assert_one_sentence(str(error.value))
    assert_free(pair)
