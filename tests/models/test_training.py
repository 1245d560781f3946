"""assets/training makes pairs that this engine runs, and what its heads learn is what they do here."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import kl_div

from assets.training import card, train
from assets.training.data import EOS
from assets.training.dflash import block_losses
from assets.training.eagle3 import unrolled_losses
from specdemo import Params, generate, load_pair
from tests.block_heads import block_logits, tiny_block_head
from tests.heads import logits_without_cache, tiny_head
from tests.tiny import tiny

ROOT = Path(__file__).resolve().parents[2]
TINY = "--vocab 300 --layers 4 --hidden 32 --heads 2 --kv_heads 1 --ffn 64 --length 64 --max_steps"
STORY = "the cat sat on the mat and the dog ran to the cat . "


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stories.txt").write_text("\n\n".join(STORY * 4 + str(i) for i in range(80)))
    return tmp_path / "data"


def commands(**places: Path) -> list[list[str]]:
    """Those of the README."""
    block = (ROOT / "assets" / "training" / "README.md").read_text("utf-8").split("```")[1]
    lines = [shlex.split(line) for line in block.splitlines() if line.startswith("python")]
    return [[str(places.get(word, word)) for word in line] for line in lines]


@pytest.mark.slow
def test_the_commands_of_the_readme_train_a_pair_that_drafts(data, tmp_path):
    """Each with sizes of its own, and few steps."""
    pair, steps = tmp_path / "pair", ["10", "--files", "*.txt", "--output_dir", str(tmp_path / "work")]
    first, *others, last = commands(DIR=data, PAIR=pair)
    alone = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    subprocess.run([sys.executable, *first[1:], *TINY.split(), *steps], check=True, **alone)
    for command in others:
        sampled = [] if "poor" in command else ["--sampled", "1"]
        train.main([*command[3:], *TINY.split(), *steps, *sampled])
    names = {"drafter", "eagle3", "dflash", "poor"}
    made = {file.parent.name: json.loads(file.read_text()) for file in pair.glob("*/training.json")}
    assert made.keys() == {"target"} | names
    assert made["target"]["heldout_loss"] < 5.6, made  # at random 5.7
    loaded = load_pair(drafter=pair / "eagle3")  # its config.json names the target
    greedy, texts = Params(temperature=0, max_new_tokens=40), []
    for way in ("none", "model"):
        texts.append(generate(loaded, "the cat", replace(greedy, draft_with=way), measure=False).output_ids)
    assert loaded.info.target == str(pair / "target") and texts[0] == texts[1]
    card.main([*last[3:], "--prompts", "1"])
    written = (pair / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| (\w+) \| greedy \| \S+ ", written, re.MULTILINE)) == names


def test_an_eagle3_head_learns_the_target_s_distribution_at_each_place_that_it_drafts():
    target = tiny()
    head = tiny_head(target, own_embeddings=False)
    rows = torch.randint(3, 40, (1, 10), generator=torch.Generator().manual_seed(6))
    head.attach_verifier(target)
    with torch.no_grad():
        found = unrolled_losses(head, target, rows, 3)
        log_p = target(rows).logits[0].log_softmax(-1)  # [10, V]
    ids = rows[0].tolist()
    for step, loss in enumerate(found):
        each = [
            logits_without_cache(head, target, ids[: i + 2], ids[i + 2 : i + 2 + step])[-1]
            for i in range(10 - 1 - step)
        ]
        log_q = torch.stack(each).log_softmax(-1)  # [N, V]
        expected = kl_div(log_q, log_p[1 + step :], log_target=True, reduction="batchmean")
        torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


def test_a_dflash_head_learns_the_target_s_distribution_in_blocks_up_to_the_end_of_a_text():
    target = tiny()
    head = tiny_block_head(target)
    rows = torch.randint(3, 40, (2, 20), generator=torch.Generator().manual_seed(6))
    anchors = torch.tensor([[2, 7, 11], [4, 4, 12]])
    rows[0, 9] = EOS  # inside the second block: its places 3 and 4 come after it
    head.attach_verifier(target)
    with torch.no_grad():
        found = block_losses(head, target, rows, anchors)
        log_p = target(rows).logits.log_softmax(-1)  # [2, 20, V]
    blocks = [(row, anchor) for row, several in enumerate(anchors.tolist()) for anchor in several]
    for place in range(4):
        counted = []
        for row, anchor in blocks:
            ids = rows[row].tolist()
            if EOS not in ids[anchor : anchor + place + 1]:
                logits = block_logits(head, target, ids[: anchor + 1], [0] * 4)
                log_q, expected = logits[place].float().log_softmax(-1), log_p[row, anchor + place]
                counted.append(kl_div(log_q, expected, log_target=True, reduction="sum"))
        assert len(counted) == (6 if place < 2 else 5)
        torch.testing.assert_close(found[place], torch.stack(counted).mean(), atol=1e-4, rtol=1e-4)
