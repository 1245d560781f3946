"""What a DFlash head is trained on is what it does when it drafts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from specdemo import Params, generate, load_pair
from specdemo.drafters.speculators import read_head, read_speculator
from specdemo.training.__main__ import main
from specdemo.training.data import EOS
from specdemo.training.dflash import block_losses, drafted, first_place_loss, random_anchors, save_block_head
from specdemo.training.options import DFlashOptions
from tests.block_heads import block_logits, tiny_block_head
from tests.tiny import tiny, tokenizer


def texts(seed=5, count=2, length=20):
    return torch.randint(3, 40, (count, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def target():
    return tiny()


@pytest.fixture
def head(target):
    head = tiny_block_head(target)
    head.attach_verifier(target, "train_only")
    return head


def test_blocks_are_drafted_in_training_as_in_the_engine(target, head):
    """Many of one text at once, none of which sees another or the text behind its anchor."""
    rows, anchors = texts(), torch.tensor([[1, 9, 15], [4, 4, 12]])
    with torch.no_grad():
        hidden = torch.cat(
            [target(rows, output_hidden_states=True).hidden_states[i] for i in head.config.layer_ids], -1
        )
        positions = anchors[..., None] + torch.arange(head.config.block_size)
        logits = head.logits(head.drafting_rows(drafted(head, hidden, rows, positions)))  # [2, 3, B - 1, V]
    for row in range(2):
        for block, anchor in enumerate(anchors[row].tolist()):
            expected = block_logits(head, target, rows[row, : anchor + 1].tolist(), [0] * 4)
            torch.testing.assert_close(logits[row, block], expected.float(), atol=2e-5, rtol=1e-4)


def test_the_loss_is_the_divergence_from_the_target_up_to_the_end_of_a_text(target, head):
    rows, anchors = texts(6, 1), torch.tensor([[2, 7, 11]])
    rows[0, 9] = EOS  # inside the second block: its places 3 and 4 come after it
    with torch.no_grad():
        found = block_losses(head, target, rows, anchors)
        log_p = target(rows).logits[0].log_softmax(-1)  # [20, V]
    for place in range(4):
        counted = []
        for anchor in anchors[0].tolist():
            before = rows[0, anchor : anchor + place + 1].tolist()
            if EOS not in before:
                logits = block_logits(head, target, rows[0, : anchor + 1].tolist(), [0] * 4)
                log_q = logits[place].log_softmax(-1)
                counted.append(kl_div(log_q.float(), log_p[anchor + place], log_target=True, reduction="sum"))
        assert len(counted) == (3 if place < 2 else 2)
        assert found[place].item() == pytest.approx(torch.stack(counted).mean().item(), rel=0.05, abs=0.01)


def test_anchors_leave_room_for_their_block_and_follow_from_the_step():
    options = DFlashOptions(data=Path(), out=Path(), length=64, block=8, anchor_every=4)
    rows = texts(count=3, length=64)
    anchors = random_anchors(options, 5, rows)
    assert anchors.shape == (3, 16) and anchors.min() >= 1 and anchors.max() <= 64 - 8
    assert torch.equal(anchors, random_anchors(options, 5, rows))
    assert not torch.equal(anchors, random_anchors(options, 6, rows))


def test_what_is_saved_is_what_is_read(target, head, tmp_path):
    save_block_head(head, tmp_path, "some/target", {"target": "1234"})
    speculator = read_speculator(tmp_path)
    assert (speculator.verifier, speculator.speculative_tokens) == ("some/target", 4)
    again = read_head(tmp_path, speculator, torch.float32)
    for name, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.bfloat16().float())
    again.attach_verifier(target, "train_only")
    heldout = [np.array(row, dtype=np.int32) for row in (texts(7, 2, 30).tolist() + [[3, 4]])]
    assert 0 < first_place_loss(again, target, heldout) < 20


@pytest.mark.slow
def test_a_head_is_trained_from_text_files_and_drafts_for_its_target(tmp_path, capsys):
    """The same command makes the same weights again."""
    story = "the cat sat on the mat and the dog ran to the cat . "
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stories.txt").write_text("\n\n".join(story * 4 + str(i) for i in range(60)))
    common = f"--data {tmp_path / 'data'} --threads 1 --heads 2 --kv-heads 1 --ffn 16 --length 64"
    of_target = f"target {common} --out {tmp_path / 'pair'} --work {tmp_path / 'w'} --vocab 300 --hidden 16"
    assert main(f"{of_target} --layers 4 --tokens 3000".split()) == 0
    of_head = f"dflash {common} --out {tmp_path / 'pair'} --layers 1 --block 4 --sampled 0"
    weights = []
    for name in ("once", "again"):
        given = f"{of_head} --tokens 4000 --name {name} --work {tmp_path / name}"
        assert main(given.split()) == 0
        weights.append((tmp_path / "pair" / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    pair = load_pair(drafter=tmp_path / "pair" / "once")
    greedy = Params(temperature=0, max_new_tokens=20, gamma=3)
    trace, plain = (generate(pair, "the cat", replace(greedy, draft_with=way)) for way in ("model", "none"))
    assert trace.output_ids == plain.output_ids
    sampled = generate(pair, "the cat", replace(greedy, temperature=1.0, seed=1))
    assert sampled.stats.acceptance_rate > 0.6


def test_options_that_do_not_fit(tmp_path, capsys):
    target = tmp_path / "pair" / "target"
    tiny().save_pretrained(target)
    tokenizer().save_pretrained(target)
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree")
    for options, words in (
        ("--block 1", "--block must be at least 2"),
        ("--heads 3", "hidden size must be a multiple of --heads"),
        ("--length 40", "--length must be a multiple of 4 from 48"),
    ):
        assert main(f"dflash --data {tmp_path} --out {tmp_path / 'pair'} {options}".split()) == 2
        assert words in capsys.readouterr().err
