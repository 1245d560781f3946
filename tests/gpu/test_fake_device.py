"""Both steps of a round on a CUDA device that is not there (see counting.py): what would fail on a GPU (a
tensor left on the CPU, a look at numbers), and how many kernels and copies a round takes, which is most of
what it costs there.

`python -m tests.gpu.test_fake_device` counts everything anew, and prints the table of this file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.nn import Module
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from specdemo.drafters.dflash.head import Markov
from specdemo.drafters.mtp.layers import CachedMtp, MtpModel, as_mtp_owner
from specdemo.events import DRAFTER_KINDS, METHODS, RULES, Params
from specdemo.runtime import cuda
from tests.block_heads import DFLASH2, tiny_block_head
from tests.checkpoints import gemma4, gemma4_assistant
from tests.eagle_heads import tiny_eagle_head
from tests.fake_cuda import Properties
from tests.gpu.counting import FROM_HOST, Counted, Models, count_round
from tests.heads import tiny_head
from tests.small import small_config
from tests.tiny import ARCHITECTURES, VOCAB, tiny

pytestmark = [
    pytest.mark.fakecuda,
    pytest.mark.skipif(
        torch.version.cuda is None,
        reason="needs torch's CUDA build: pip install torch==2.11.0 in an environment of its own (4.9 GB)",
    ),
]
GAMMA = 4
GREEDY = dict(temperature=0.0)
FILTERS = dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05)
PENALTIES = dict(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={5: 1.0})

# What drafts on the host, from the text alone.
COPYING = [name for name, one in METHODS.items() if one.manner == "copy" and "+" not in name]
# What was counted: launches of the two steps, copies to the device and on it, and other launches, as of
# Counted. By models of two layers in bfloat16, with GAMMA drafts. A tenth more launches may be made.
MOST = dict.fromkeys(COPYING, dict(draft=0, verify=114, on_device=3, others=2)) | {
    # Architectures, greedy, without alternatives
    "llama": dict(draft=213, verify=114),
    "qwen2": dict(draft=213, verify=114),
    "qwen3": dict(draft=237, verify=120),
    "mistral": dict(draft=225, verify=117),
    "gemma2": dict(draft=433, verify=169),
    "gemma3": dict(draft=449, verify=173),
    "gpt2": dict(draft=243, verify=120),
    "gpt_neox": dict(draft=311, verify=137),
    "opt": dict(draft=215, verify=113),
    "phi3": dict(draft=225, verify=117),
    "smollm3": dict(draft=201, verify=111),
    "olmo2": dict(draft=253, verify=124),
    # What the trace tells of alternatives, and what block verification would keep
    "llama, alternatives": dict(draft=213, verify=147),
    # Rules, by "llama", with all filters
    "speculative": dict(verify=146),
    "block": dict(verify=174),
    "typical": dict(verify=159),
    "lenient": dict(verify=164),
    # Ways of drafting, greedy; of "llama" where they allow it
    "model": dict(draft=213, verify=114),
    "pard": dict(draft=60, verify=114),
    "eagle": dict(draft=118, verify=115),
    "eagle3": dict(draft=119, verify=116),
    "peagle": dict(draft=41, verify=116),
    "eagle3, some tokens": dict(draft=127, verify=116),
    "dflash": dict(draft=76, verify=116),
    "dflash2": dict(draft=149, verify=116),
    "dspark": dict(draft=158, verify=116),
    "eagle3, Triton": dict(draft=77, verify=86),
    "dflash, Triton": dict(draft=40, verify=86),
    "model, tree": dict(draft=382, verify=224),
    "eagle3, tree": dict(draft=285, verify=226),
    "dflash, tree": dict(draft=202, verify=226),
    "dspark, tree": dict(draft=264, verify=226),
    "model, tree, Triton": dict(draft=229, verify=183),
    "eagle3, tree, Triton": dict(draft=204, verify=185),
    "assistant": dict(draft=646, verify=498, on_device=3),
    "mtp": dict(draft=502, verify=219, on_device=3),
    "lookup+model": dict(draft=0, verify=114, on_device=3, others=2),
    "ngram": dict(draft=0, verify=115, on_device=3, others=2),
    "ngram-one-level": dict(draft=0, verify=115, on_device=3, others=2),
    "early-exit": dict(draft=152, verify=114),
    "none": dict(draft=0, verify=87, from_host=1),
}
COPIES = dict(from_host=2, on_device=0, others=0)  # and other launches, where no row says otherwise


def params(**settings) -> Params:
    return Params(**dict(alternatives=0, gamma=GAMMA, max_new_tokens=40, ngram=2, seed=1) | settings)


def pair_of(name: str) -> Models:
    return lambda: (tiny(name), tiny(name, seed=1))


def llama_with(head: Callable[..., Module], **options) -> Models:
    def models():
        target = tiny()
        return target, head(target, **options)

    return models


def with_mask():
    target, drafter = pair_of("llama")()
    drafter.config.pard_token = 7
    return target, drafter


def with_assistant():
    target = gemma4()
    return target, gemma4_assistant(target)


def with_mtp():
    target = AutoModelForCausalLM.from_config(small_config(Glm4MoeConfig, 2)).eval()
    return target, CachedMtp(MtpModel(as_mtp_owner(target, 1), 1).eval(), target)


def alone():
    return tiny(), None


# A row of METHODS, or of DRAFTER_KINDS: the models, and what Params say.
DRAFTERS: dict[str, tuple[Models, dict]] = {
    **{name: (alone, dict(draft_with=name)) for name in COPYING},
    "model": (pair_of("llama"), {}),
    "pard": (with_mask, {}),
    "eagle": (llama_with(tiny_eagle_head), {}),
    "eagle3": (llama_with(tiny_head), {}),
    "eagle3, some tokens": (llama_with(tiny_head, draft_ids=list(range(0, VOCAB, 3))), {}),
    "peagle": (llama_with(tiny_head, mask_token_id=7), {}),
    "dflash": (llama_with(tiny_block_head), {}),
    "dflash2": (llama_with(tiny_block_head, **DFLASH2), {}),
    "dspark": (llama_with(tiny_block_head, markov=Markov(6, "rnn"), has_confidence=True), {}),
    "assistant": (with_assistant, {}),
    "mtp": (with_mtp, dict(draft_with="mtp")),
    "lookup+model": (pair_of("llama"), dict(draft_with="lookup+model")),
    "early-exit": (alone, dict(draft_with="early-exit", exit_layer=1)),
    "none": (alone, dict(draft_with="none")),
}


@contextmanager
def hopper(triton: bool = False) -> Iterator[None]:
    """What the device can do, which a driver would tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(torch.cuda, "get_device_properties", lambda device=None: Properties())
        patch.setattr(cuda, "has_triton", lambda device: triton)
        yield


def of_architecture(name: str, **settings) -> Counted:
    with hopper():
        return count_round(pair_of(name), params(**settings))


def of_drafter(name: str, triton: bool = False, **settings) -> Counted:
    if name == "mtp" and MtpModel is None:
        pytest.skip("this version of transformers cannot run such layers")
    models, of_method = DRAFTERS[name]
    with hopper(triton):
        return count_round(models, params(**of_method, **settings))


def check_all_is_there(counted: Counted) -> None:
    """What a step finds on the CPU raises, or is copied there, for which the host would wait."""
    assert counted.verify and FROM_HOST not in [*counted.draft, *counted.verify]


TREES = ("model", "eagle3", "dflash", "dspark")  # of these a tree as deep as a chain is counted
# What is counted for each row of MOST.
CASES: dict[str, Callable[[], Counted]] = {
    **{name: partial(of_architecture, name, **GREEDY) for name in ARCHITECTURES},
    "llama, alternatives": partial(of_architecture, "llama", **GREEDY, alternatives=5),
    **{rule: partial(of_architecture, "llama", rule=rule, **FILTERS) for rule in RULES},
    **{name: partial(of_drafter, name, **GREEDY) for name in DRAFTERS},
    **{f"{name}, Triton": partial(of_drafter, name, True, **GREEDY) for name in ("eagle3", "dflash")},
    **{f"{name}, tree": partial(of_drafter, name, tree=(2, 1, 1, 1), **GREEDY) for name in TREES},
    **{
        f"{name}, tree, Triton": partial(of_drafter, name, True, tree=(2, 1, 1, 1), **GREEDY)
        for name in ("model", "eagle3")
    },
}


@pytest.mark.parametrize("name", MOST)
def test_a_round_takes_no_more_than_it_did(name):
    counted = CASES[name]()
    check_all_is_there(counted)
    for what, most in (COPIES | MOST[name]).items():
        assert numbers(counted)[what] <= 1.1 * most, what


def test_nothing_is_left_out():
    assert METHODS.keys() | DRAFTER_KINDS.keys() == DRAFTERS.keys() - {"eagle3, some tokens"}
    assert CASES.keys() == MOST.keys()


@pytest.mark.parametrize("sampler", [FILTERS, PENALTIES | dict(confidence=0.3)], ids=["filters", "penalties"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_nothing_is_left_on_the_cpu_by_any_way_of_drafting(name, sampler):
    """Without a draft there are no alternatives: without a device torch cannot split a tensor of no rows."""
    alternatives = 0 if name == "none" else 5
    check_all_is_there(of_drafter(name, alternatives=alternatives, **sampler))


def numbers(counted: Counted) -> dict[str, int]:
    """As in MOST."""
    copies = {what: getattr(counted, what) for what in COPIES}
    return {"draft": len(counted.draft), "verify": len(counted.verify), **copies}


def print_table() -> None:
    known = [name for name in CASES if name != "mtp" or MtpModel is not None]
    print("MOST = {")
    for name in known:
        print(f'    "{name}": {numbers(CASES[name]())},')
    print("}", flush=True)


if __name__ == "__main__":
    print_table()
