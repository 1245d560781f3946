"""What an EAGLE-3 head is trained on is what it does when it drafts; how much of a target it holds."""

import gc
import weakref

import pytest
import torch
from torch.nn.functional import kl_div

from specdemo.drafters.speculators import read_head, read_speculator
from specdemo.training.eagle3 import UnrolledAttention, save_head, target_states, unrolled_losses
from tests.heads import logits_without_cache, tiny_head
from tests.tiny import tiny

OPTIONS = [
    dict(layer_ids=(0, 1), own_embeddings=False),
    dict(layer_ids=(1, 2), norm_before_residual=True, fc_norm=True, norm_output=True),
    dict(layer_ids=(0, 1), layer="qwen3", norm_before_fc=True),
]


@torch.no_grad()
def unrolled(head, hidden, rows, steps):
    """The logits [B, N, Vd] of each step, in float32."""
    g, attention, found = head.features(hidden[:, :-1]), [UnrolledAttention(head)], []
    for step in range(steps):
        tokens = rows[:, 1 + step :]
        g, logits = head.predict(head(tokens, g[:, : tokens.shape[1]].clone(), attention))
        found.append(logits)
    return found


@pytest.mark.parametrize("options", OPTIONS[::2])
def test_each_step_of_training_drafts_as_the_engine_does(options):
    target = tiny()
    head = tiny_head(target, **options)
    rows = torch.randint(3, 40, (2, 14), generator=torch.Generator().manual_seed(5))
    head.attach_verifier(target)
    with torch.no_grad():
        output = target(rows, output_hidden_states=True)
    hidden = torch.cat([output.hidden_states[i] for i in head.config.layer_ids], -1)
    steps = unrolled(head, hidden, rows, 4)
    for row in range(2):
        for place in (0, 3, 8):
            text, draft = rows[row, : place + 2].tolist(), rows[row, place + 2 : place + 5].tolist()
            expected = logits_without_cache(head, target, text, draft)  # [4, V]
            found = torch.stack([logits[row, place] for logits in steps])
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    mutual = unrolled(head, hidden, rows.flip(1), 2)  # other texts, other drafts
    assert not torch.allclose(mutual[1], steps[1], atol=1e-2)


def test_the_loss_is_the_divergence_from_the_target_at_each_step():
    target = tiny()
    head = tiny_head(target, **OPTIONS[0])
    head.attach_verifier(target, "train_only")
    rows = torch.randint(3, 40, (1, 10), generator=torch.Generator().manual_seed(6))
    hidden, last = target_states(target, rows, head.config.layer_ids)
    with torch.no_grad():
        found = unrolled_losses(head, hidden.float(), last.float(), rows, 3)
        log_p = target(rows).logits[0].log_softmax(-1)  # [10, V]
    for step, loss in enumerate(found):
        places = range(10 - 1 - step)
        each = [
            logits_without_cache(
                head, target, rows[0, : i + 2].tolist(), rows[0, i + 2 : i + 2 + step].tolist()
            )[-1]
            for i in places
        ]
        log_q = torch.stack(each).log_softmax(-1)  # [N, V]
        expected = kl_div(log_q, log_p[1 + step :], log_target=True, reduction="batchmean")
        assert loss.item() == pytest.approx(expected.item(), rel=0.05, abs=0.01)  # bf16


@torch.no_grad()
def test_what_training_reads_of_the_target_is_what_its_layers_are_given():
    target = tiny()
    depth = target.config.num_hidden_layers
    rows = torch.randint(3, 40, (1, 9), generator=torch.Generator().manual_seed(7))
    hidden, last = target_states(target, rows, (0, depth))
    output = target(rows, output_hidden_states=True)
    size = target.config.hidden_size
    torch.testing.assert_close(hidden[..., :size], output.hidden_states[0])
    stream = hidden[..., size:].float()  # after the last layer, not normed yet
    for found, is_it in ((last.float(), True), (target.model.norm(stream), True), (stream, False)):
        difference = (found - output.hidden_states[-1]).norm() / output.hidden_states[-1].norm()
        assert bool(difference < 0.03) is is_it  # bf16


@pytest.mark.slow
def test_a_head_holds_all_of_its_target_what_training_needs_or_nothing():
    target = tiny()
    head = tiny_head(target, **OPTIONS[0])
    tokens, g = torch.tensor([5]), torch.randn(1, head.config.hidden_size)

    def y():
        values = lambda layer, qkv: layer.by_head(qkv, None)[2].repeat_interleave(2, 1).flatten(1)  # noqa: E731
        with torch.no_grad():
            return head(tokens, g.clone(), [values])

    assert head.attachment == "detached" and not head.verifier
    with pytest.raises(ValueError, match="has no embeddings of its own"):
        y()

    head.attach_verifier(target, "full")
    assert head.attachment == "full" and head.verifier == (target,)
    assert not [name for name in head.state_dict() if "verifier" in name or "embed" in name]
    full = y()

    head.attach_verifier(target, "train_only")
    assert head.attachment == "train_only" and not head.verifier
    torch.testing.assert_close(y(), full)
    last = torch.randn(3, target.config.hidden_size)
    torch.testing.assert_close(head.verifier_logits(last), target.lm_head(last))
    inside = weakref.ref(target.model.layers[0])
    del target
    gc.collect()
    assert inside() is None  # the layers' memory is given back
    torch.testing.assert_close(y(), full)

    with pytest.raises(ValueError, match="mode must be full, train_only or detached, not 'typo'"):
        head.attach_verifier(tiny(), "typo")
    assert head.attachment == "train_only"
    head.attach_verifier(tiny(), "detached")
    assert head.attachment == "detached" and not head.verifier_head and not head.shared_embedding


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_saved_is_what_is_read(options, tmp_path):
    target = tiny()
    head = tiny_head(target, draft_ids=[*range(3, 30, 2)], **options)
    head.attach_verifier(target, "train_only")
    save_head(head, tmp_path, "some/target", 5, {"target": "1234"})
    speculator = read_speculator(tmp_path)
    assert (speculator.verifier, speculator.speculative_tokens) == ("some/target", 5)
    for name in ("draft_vocab_size", "layer_ids", "norm_before_residual", "norm_before_fc", "fc_norm"):
        assert getattr(speculator.config, name) == getattr(head.config, name)
    assert speculator.config.norm_output == head.config.norm_output
    again = read_head(tmp_path, speculator, torch.float32)
    for name, value in head.state_dict().items():
        expected = value.bfloat16().float() if value.is_floating_point() else value
        assert torch.equal(again.state_dict()[name], expected)
    assert torch.equal(again.target_ids, torch.arange(3, 30, 2))
    if not head.config.own_embeddings:
        assert torch.equal(again.embed_tokens.weight, target.get_input_embeddings().weight.bfloat16().float())
