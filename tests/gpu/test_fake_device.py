"""Both steps of a round on a CUDA device that is not there (see counting.py): what would fail on a GPU (a
tensor left on the CPU, a look at numbers), and how many kernels and copies a round takes, which is most of
what it costs there.

`python -m tests.gpu.test_fake_device` counts everything anew. It prints the tables of this file,
COUNTED_PAIRS of specdemo/bench/by_count.py and the rows of specdemo/runtime/README.md, to be copied there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from optimum.quanto import WeightQBytesTensor, qint8
from torch.nn import Module
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from specdemo.bench.by_count import COUNTED_GAMMA, COUNTED_PAIRS, CountedLaunches, CountedPair
from specdemo.events import DRAFTER_KINDS, METHODS, RULES, Params
from specdemo.runtime import cuda
from specdemo.runtime.dflash import Markov
from specdemo.runtime.mtp import CachedMtp, MtpModel, as_mtp_owner
from tests.block_heads import tiny_block_head
from tests.checkpoints import gemma4, gemma4_assistant
from tests.fake_cuda import Properties
from tests.gpu.counting import FROM_HOST, Counted, Models, count_round, operation_rows
from tests.gpu.published import PAIRS
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
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GREEDY = dict(temperature=0.0)
SAMPLERS = {
    "greedy": GREEDY,
    "all filters": dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "penalties, a bias and a least confidence": dict(
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={5: 1.0},
        confidence=0.3,
    ),
}

# The tables below are the most that was counted: by models of two layers in bfloat16, with COUNTED_GAMMA
# drafts, in a run without alternatives.

# Greedy. What the trace tells of alternatives, and what block verification would keep, takes some more.
ARCHITECTURE_LAUNCHES = {
    "llama": CountedLaunches(draft=216, verify=114),
    "qwen2": CountedLaunches(draft=216, verify=114),
    "qwen3": CountedLaunches(draft=240, verify=120),
    "mistral": CountedLaunches(draft=228, verify=117),
    "gemma2": CountedLaunches(draft=432, verify=168),
    "gemma3": CountedLaunches(draft=448, verify=172),
    "gpt2": CountedLaunches(draft=246, verify=120),
    "gpt_neox": CountedLaunches(draft=314, verify=137),
    "opt": CountedLaunches(draft=218, verify=113),
    "phi3": CountedLaunches(draft=228, verify=117),
    "smollm3": CountedLaunches(draft=204, verify=111),
    "olmo2": CountedLaunches(draft=256, verify=124),
}
FOR_THE_TRACE = 40

# Launches of the verification by "llama".
RULE_LAUNCHES = {
    "speculative": {"greedy": 114, "all filters": 146},
    "block": {"greedy": 142, "all filters": 174},
    "typical": {"greedy": 127, "all filters": 159},
    "lenient": {"greedy": 132, "all filters": 164},
}


@dataclass(frozen=True)
class Ceilings:
    """As of Counted."""

    draft: int
    verify: int
    from_host: int
    on_device: int
    others: int


# Greedy; of "llama" where the way of drafting allows it.
DRAFTER_CEILINGS = {
    "model": Ceilings(draft=216, verify=114, from_host=2, on_device=0, others=0),
    "eagle3": Ceilings(draft=206, verify=116, from_host=2, on_device=0, others=0),
    "eagle3, some tokens": Ceilings(draft=214, verify=116, from_host=2, on_device=0, others=0),
    "dflash": Ceilings(draft=120, verify=116, from_host=2, on_device=0, others=0),
    "dspark": Ceilings(draft=202, verify=116, from_host=2, on_device=0, others=0),
    "assistant": Ceilings(draft=646, verify=498, from_host=2, on_device=3, others=0),
    "mtp": Ceilings(draft=502, verify=219, from_host=2, on_device=3, others=0),
    "lookup": Ceilings(draft=0, verify=114, from_host=2, on_device=3, others=2),
    "ngram": Ceilings(draft=0, verify=115, from_host=2, on_device=3, others=2),
    "ngram-one-level": Ceilings(draft=0, verify=115, from_host=2, on_device=3, others=2),
    "early-exit": Ceilings(draft=156, verify=114, from_host=2, on_device=0, others=0),
    "none": Ceilings(draft=0, verify=88, from_host=1, on_device=0, others=0),
}


def params(**settings) -> Params:
    return Params(**dict(alternatives=0, gamma=COUNTED_GAMMA, max_new_tokens=40, ngram=2, seed=1) | settings)


def pair_of(name: str) -> Models:
    return lambda: (tiny(name), tiny(name, seed=1))


def llama_with(head: Callable[..., Module], **options) -> Models:
    def models():
        target = tiny()
        return target, head(target, **options)

    return models


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
    "model": (pair_of("llama"), {}),
    "eagle3": (llama_with(tiny_head), {}),
    "eagle3, some tokens": (llama_with(tiny_head, draft_ids=list(range(0, VOCAB, 3))), {}),
    "dflash": (llama_with(tiny_block_head), {}),
    "dspark": (llama_with(tiny_block_head, markov=Markov(6, "rnn"), has_confidence=True), {}),
    "assistant": (with_assistant, {}),
    "mtp": (with_mtp, dict(draft_with="mtp")),
    "lookup": (alone, dict(draft_with="lookup")),
    "ngram": (alone, dict(draft_with="ngram")),
    "ngram-one-level": (alone, dict(draft_with="ngram-one-level")),
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


def of_architecture(name: str, dtype: torch.dtype = torch.bfloat16, **settings) -> Counted:
    with hopper():
        return count_round(pair_of(name), params(**settings), dtype)


def of_rule(rule: str, sampler: str) -> Counted:
    return of_architecture("llama", rule=rule, **SAMPLERS[sampler])


def of_drafter(name: str, **settings) -> Counted:
    if name == "mtp" and MtpModel is None:
        pytest.skip("this version of transformers cannot run such layers")
    models, of_method = DRAFTERS[name]
    with hopper():
        return count_round(models, params(**of_method, **settings))


def of_pair(name: str, triton: bool) -> Counted:
    with hopper(triton):
        return count_round(PAIRS[name], params(**GREEDY))


def check_all_is_there(counted: Counted) -> None:
    """What a step finds on the CPU raises, or is copied there, for which the host would wait."""
    assert counted.verify and FROM_HOST not in [*counted.draft, *counted.verify]


@pytest.mark.parametrize("alternatives", [0, 5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_round_launches_no_more_than_it_did(name, alternatives):
    counted, most = of_architecture(name, **GREEDY, alternatives=alternatives), ARCHITECTURE_LAUNCHES[name]
    assert len(counted.draft) <= most.draft
    assert len(counted.verify) <= most.verify + (FOR_THE_TRACE if alternatives else 0)


@pytest.mark.parametrize("sampler", ["greedy", "all filters"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_launches_no_more_than_it_did(rule, sampler):
    counted = of_rule(rule, sampler)
    check_all_is_there(counted)
    assert len(counted.verify) <= RULE_LAUNCHES[rule][sampler]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_way_of_drafting_takes_no_more_than_it_did(name):
    counted, most = of_drafter(name, **GREEDY), DRAFTER_CEILINGS[name]
    check_all_is_there(counted)
    for what, count in vars(ceilings(counted)).items():
        assert count <= getattr(most, what), what


def test_no_way_of_drafting_is_left_out():
    assert METHODS.keys() | DRAFTER_KINDS.keys() == DRAFTERS.keys() - {"eagle3, some tokens"}
    assert DRAFTERS.keys() == DRAFTER_CEILINGS.keys()


@pytest.mark.parametrize("triton", [False, True], ids=["plain", "triton"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_round_of_real_shapes(name, triton):
    """Other versions of transformers launch a few kernels more or less than those that were counted."""
    counted, expected = of_pair(name, triton), COUNTED_PAIRS[name]
    check_all_is_there(counted)
    of_steps = expected.triton if triton else expected.plain
    assert abs(len(counted.draft) - of_steps.draft) <= 5
    assert abs(len(counted.verify) - of_steps.verify) <= 5
    assert (counted.from_host, counted.on_device) == (expected.from_host, expected.on_device)
    assert counted.others == 0
    # Products of one row or of gamma + 1 are no batches of one, but for the angles of the rotations.
    rotations = 2 if name.startswith("gemma-3") else 1
    assert counted.draft.count("bmm") <= COUNTED_GAMMA * rotations
    assert counted.verify.count("bmm") <= rotations


def test_the_pairs_are_those_that_are_shown():
    assert PAIRS.keys() == COUNTED_PAIRS.keys()


class Int8Linear(torch.nn.Linear):
    """optimum-quanto's own class takes no tensors without numbers; its weights do."""


def as_int8(model):
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not model.lm_head:
            module.__class__, given = Int8Linear, module.weight
            data = torch.empty(given.shape, dtype=torch.int8)
            scale = torch.empty(len(given), 1, dtype=given.dtype)
            weight = WeightQBytesTensor(qint8, 0, given.size(), given.stride(), data, scale, None)
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "phi3"])
def test_int8_weights_take_one_launch_a_product(name):
    """optimum-quanto's own take two: the weight in bfloat16, and the product."""

    def models():
        return [as_int8(tiny(name)), as_int8(tiny(name))]  # two layers

    with hopper():
        before = count_round(models, params(**GREEDY)).verify
    with hopper(triton=True):
        after = count_round(models, params(**GREEDY)).verify
    products = [name for name in after if name in ("few_rows_product", "add_few_rows_product")]
    assert len(products) == 2 * 4 and after.count("mm") == 1  # the output matrix, which is not quantised
    assert before.count("qbytes_mm") == 2 * 2 * (4 if name == "phi3" else 7) and "qbytes_mm" not in after


@pytest.mark.parametrize("sampler", ["greedy", "all filters"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_is_left_on_the_cpu(name, dtype, sampler):
    counted = of_architecture(name, DTYPES[dtype], alternatives=5, **SAMPLERS[sampler])
    check_all_is_there(counted)
    assert counted.draft


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "greedy"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_nothing_is_left_on_the_cpu_by_any_way_of_drafting(name, sampler):
    """Without a draft there are no alternatives: without a device torch cannot split a tensor of no rows."""
    alternatives = 0 if name == "none" else 5
    check_all_is_there(of_drafter(name, alternatives=alternatives, **SAMPLERS[sampler]))


def ceilings(counted: Counted) -> Ceilings:
    of_steps = len(counted.draft), len(counted.verify)
    return Ceilings(*of_steps, counted.from_host, counted.on_device, counted.others)


def launches(counted: Counted) -> CountedLaunches:
    return CountedLaunches(len(counted.draft), len(counted.verify))


def counted_pair(name: str) -> CountedPair:
    plain, triton = of_pair(name, triton=False), of_pair(name, triton=True)
    return CountedPair(launches(plain), launches(triton), plain.from_host, plain.on_device)


def print_table(name: str, rows: dict[str, object]) -> None:
    print(f"{name} = {{")
    for key, row in rows.items():
        print(f'    "{key}": {row},')
    print("}", flush=True)


def print_tables() -> None:
    of_each = {name: launches(of_architecture(name, **GREEDY)) for name in ARCHITECTURES}
    print_table("ARCHITECTURE_LAUNCHES", of_each)
    samplers = ("greedy", "all filters")
    of_rules = {rule: {one: len(of_rule(rule, one).verify) for one in samplers} for rule in RULES}
    print_table("RULE_LAUNCHES", of_rules)
    known = [name for name in DRAFTERS if name != "mtp" or MtpModel is not None]
    print_table("DRAFTER_CEILINGS", {name: ceilings(of_drafter(name, **GREEDY)) for name in known})
    pairs = {name: counted_pair(name) for name in PAIRS}
    print_table("COUNTED_PAIRS", pairs)
    print(*operation_rows(pairs), sep="\n")


if __name__ == "__main__":
    print_tables()
