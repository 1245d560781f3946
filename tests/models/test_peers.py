"""The format is the real one: the package `speculators`, which is installed from the package index into an
environment of its own, reads the shipped head and does with it what this project does; so does this project
with heads that it writes. (vLLM runs the shipped head in test_vllm_server.py.)"""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from assets.training.eagle3 import UnrolledAttention
from specdemo.drafters.dflash import CachedDFlash, DFlash2Head
from specdemo.drafters.eagle import CachedEagle
from tests.heads import read_head, rows_of
from tests.tiny import tiny
from tests.vllm_server import PAIR, ROOT, environment, install

HEADS = ROOT / "tests" / "peers" / "speculators_heads.py"
# What importing the package needs of what it asks for.
SPECULATORS = ["transformers==5.19.0", "pydantic-settings", "loguru", "typer", "rich", "datasets>=4,<=5.1.0"]
SPECULATORS += ["openai", "aiohttp", "protobuf", "psutil", "hs-connectors==0.9.0"]
STEP_MODES = {  # of heads that the package makes
    "llama": {"layers": 1, "layer": "llama", "reduced": True, "norm_before_residual": True, "fc_norm": True},
    "qwen3": {"layers": 1, "layer": "qwen3", "norm_before_fc": True, "norm_output": True},
    "three layers": {"layers": 3, "layer": "llama", "reduced": True},
    "a window": {"layers": 2, "layer": "qwen3", "window": 5},
}
PARALLEL_MODES = {
    "llama": {"layers": 2, "layer": "llama", "reduced": True, "fc_norm": True},
    "qwen3": {"layers": 1, "layer": "qwen3", "norm_before_fc": True, "norm_before_residual": True},
}
DFLASH = {"kind": "dflash", "layers": 2, "block_size": 5}
DFLASH2 = DFLASH | {"kind": "dflash2", "conv_group_size": 8, "selector_rank": 8, "selector_top_k": 6}
DSPARK = {"kind": "dspark", "layers": 2, "block_size": 4, "markov_rank": 8}
BLOCK_MODES = {
    "dflash, windows": DFLASH | {"window": 6, "reduced": True},
    "dflash, windows that see later": DFLASH | {"window": 6, "sliding_window_non_causal": True},
    "dflash2, windows": DFLASH2 | {"window": 6, "conv_kernel_size": 3},
    "dspark": DSPARK,
    "dspark from the first mask": DSPARK | {"sample_from_anchor": False},
    "dspark without a Markov head": DSPARK | {"markov_rank": 0, "confidence_head_with_markov": False},
}
pytestmark = [pytest.mark.peers, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def with_speculators(tmp_path_factory):
    python = environment(tmp_path_factory.mktemp("speculators") / "venv", *SPECULATORS)
    install(python, "--no-deps", "speculators==0.9.0")
    return python


@torch.no_grad()
def logits_of_ours(folder: Path, tokens, hidden, steps: int, target=None) -> list[torch.Tensor]:
    """The logits [N, Vd] of each step, in float32. Of a head with windows, of the first step only: in the
    later ones of its training a window reaches as many tokens further back as there were steps."""
    head = read_head(folder)
    if target is not None:
        head.attach_verifier(target)
    if any(mask.window for mask in head.masks):
        y = rows_of(head, tokens, head.features(hidden))
        return [head.predict(y)[1]]
    g, found = head.features(hidden)[None], []
    attention = [UnrolledAttention(head) for _ in head.layers]
    for step in range(steps):
        rest = tokens[None, step:]
        g, logits = head.predict(head(rest, g[:, : rest.shape[1]], attention))
        found.append(logits[0])
    return found


def said_by_theirs(python: Path, folder: Path, *command: str) -> dict[str, torch.Tensor]:
    output = folder.with_name("logits.safetensors")
    subprocess.run([python, HEADS, command[0], folder, output, *command[1:]], check=True, cwd=ROOT)
    return load_file(output)


def making(mode: dict, folder: Path):
    """A target, and the command that makes a head for it."""
    target = tiny(hidden_size=32, vocab_size=96, num_hidden_layers=4)
    target.save_pretrained(folder / "target")
    return target, ("make", json.dumps(mode), str(folder / "target"))


def compare_steps(theirs: dict, folder: Path, target=None) -> None:
    steps = len(theirs["logits"])
    ours = logits_of_ours(folder, theirs["tokens"], theirs["hidden"], steps, target)
    for step, logits in enumerate(ours):
        torch.testing.assert_close(logits, theirs["logits"][step][: len(logits)], atol=1e-4, rtol=1e-4)
    assert ours[-1].std() > 0.1


def test_speculators_reads_the_shipped_head_and_says_the_same(with_speculators, tmp_path):
    target = AutoModelForCausalLM.from_pretrained(ROOT / PAIR / "target", dtype=torch.float32)
    head = tmp_path / "head"
    head.symlink_to(ROOT / PAIR / "eagle3")
    compare_steps(said_by_theirs(with_speculators, head, "read"), head, target)


@pytest.mark.parametrize("mode", STEP_MODES.values(), ids=STEP_MODES)
def test_heads_that_speculators_writes_are_read(with_speculators, mode, tmp_path):
    _, command = making({"kind": "eagle3"} | mode, tmp_path)
    compare_steps(said_by_theirs(with_speculators, tmp_path / "head", *command), tmp_path / "head")


@pytest.mark.parametrize("mode", PARALLEL_MODES.values(), ids=PARALLEL_MODES)
@torch.no_grad()
def test_masks_of_heads_that_speculators_writes(with_speculators, mode, tmp_path):
    """The largest difference is printed."""
    target, command = making({"kind": "peagle"} | mode, tmp_path)
    theirs = said_by_theirs(with_speculators, tmp_path / "head", *command)
    head = read_head(tmp_path / "head")
    cached, count = CachedEagle(head, target), len(theirs["logits"])
    cached.reads.states = theirs["hidden"]
    cached.grow(len(theirs["tokens"]) + count)
    y = cached.true_rows(theirs["tokens"], torch.tensor(0), count - 1)
    ours = cached.predict(y[-count:])[1].index_select(1, head.target_ids)
    print(f"largest difference of the logits: {(ours - theirs['logits']).abs().max().item():.2g}")
    torch.testing.assert_close(ours, theirs["logits"], atol=1e-4, rtol=1e-4)
    assert ours.std() > 0.1


@torch.no_grad()
def blocks_of_ours(cached: CachedDFlash, theirs: dict) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The logits [B, Vd] of the rows of each block, given the text's own tokens before each place, 0 of those
    that are no candidates, and how sure the head is of them."""
    head, tokens = cached.model, theirs["tokens"]
    config, logits, sure = head.config, [], []
    cached.reads.states = theirs["hidden"]
    cached.grow(len(tokens) + config.block_size)
    cached.read(torch.tensor(0), len(tokens))
    anchors = theirs["places"][:: config.block_size].tolist()
    for anchor in sorted(set(anchors), reverse=True):  # whose block overwrites what is behind it
        hidden, _ = cached.block(tokens[anchor : anchor + 1], torch.tensor(anchor), config.block_size)
        said = head.logits(hidden)
        places = torch.arange(anchor, anchor + config.block_size) - int(not config.samples_from_anchor)
        before = tokens[places.clamp(min=anchor)]
        if head.markov_head is not None:
            embedded, said = head.markov_head.markov_w1(before), said + head.markov_head(before)
        if isinstance(head, DFlash2Head):
            selector = head.candidate_selector
            said = selector(before, *selector.candidates(hidden, said)).nan_to_num(neginf=0.0)
        if head.confidence_head is not None:
            sure.append(head.confidence_head(hidden, None if head.markov_head is None else embedded))
        logits.append(said)
    return logits[::-1], sure[::-1]


@pytest.mark.parametrize("mode", BLOCK_MODES.values(), ids=BLOCK_MODES)
def test_blocks_of_heads_that_speculators_writes(with_speculators, mode, tmp_path):
    """The largest difference is printed."""
    folder = tmp_path / "head"
    target, command = making(mode, tmp_path)
    theirs = said_by_theirs(with_speculators, folder, *command)
    head = read_head(folder)
    logits, sure = blocks_of_ours(CachedDFlash(head, target), theirs)
    size = head.config.block_size
    blocks = theirs["logits"].split(size)[-len(logits) :]  # those before are copies, where there is no room
    first = 0 if head.config.samples_from_anchor else 1
    worst = max((ours - block)[first:].abs().max().item() for ours, block in zip(logits, blocks, strict=True))
    print(f"largest difference of the logits: {worst:.2g}")
    assert worst < 1e-4 and torch.cat(logits).std() > 0.1
    for ours, block in zip(sure, theirs["sure"].split(size)[-len(sure) :] if sure else (), strict=True):
        torch.testing.assert_close(ours[first:], block[first:], atol=1e-5, rtol=1e-4)
