"""Both steps of a round on a CUDA device that is not there: torch's CUDA build computes every operation's
shape, dtype and device without one. It shows what would fail on a GPU (a tensor left on the CPU, a look at
numbers) and how many kernels a round launches, which is most of what a round costs there."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specdemo.bench.by_count import LAUNCHES
from specdemo.bench.shapes import SHAPES, _default_dtype
from specdemo.engine.drafters.model import ModelDrafter
from specdemo.engine.sampling import Sampler, uniforms
from specdemo.events import Params
from specdemo.runtime.graphs import EagerSteps
from specdemo.runtime.linear import join_weights
from specdemo.runtime.lm import CachedLM
from tests.oracle import decoding
from tests.tiny import ARCHITECTURES, tiny

pytestmark = [
    pytest.mark.fakecuda,
    pytest.mark.skipif(
        torch.version.cuda is None,
        reason="needs torch's CUDA build: pip install torch==2.11.0 in an environment of its own (4.9 GB)",
    ),
]
CUDA = torch.device("cuda:0")
GAMMA = 4
TEXT = [3, 1, 4, 1, 5, 9, 3, 1]
SAMPLERS = {
    "greedy": dict(temperature=0.0),
    "all filters": dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
}
# Operations that only look at memory in another way.
VIEWS = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "detach",
    "device",
    "expand",
    "lift_fresh",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
}


class Launches(TorchDispatchMode):
    """Counts the kernels that would be launched on the device. Attention is one, which without a device is
    computed from its parts."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.attention = Attention(self)
        self.paused = False

    def __enter__(self):
        self.attention.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.attention.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name not in VIEWS and not self.paused:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


class Attention(TorchFunctionMode):
    def __init__(self, launches):
        super().__init__()
        self.launches = launches

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") != "scaled_dot_product_attention":
            return function(*args, **kwargs)
        self.launches.names.append("scaled_dot_product_attention")
        query, _, value = args[:3]
        self.launches.paused = True
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        self.launches.paused = False
        return output


class Judged(Exception):
    """The verdict is on the device; what follows would bring it home."""


class Counted(EagerSteps):
    """Runs the steps, with rows as a captured step has them, and counts their launches."""

    def __init__(self):
        self.names = {}

    def rows(self, k, gamma):
        return gamma if k else 0

    def __call__(self, key, step, value, expected=None):
        value = value.on_device()
        with Launches() as launches:
            output = step(value)
        self.names[key[0]] = launches.names
        if key[0] == "verify":
            raise Judged
        return value, output


@pytest.fixture(autouse=True)
def no_pinned_memory(monkeypatch):
    """Pinning memory needs a driver."""
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *args, pin_memory=False, **kwargs: tensor(*args, **kwargs))


def static(model):
    join_weights(model)
    lm = CachedLM(model)
    lm._check_fused = lambda: None  # numbers cannot be compared here
    lm.begin_run(static=True)
    return lm


def launches_of(models, sampler, dtype, alternatives=5):
    """The operations of one round's two steps, by name. models: makes target and drafter."""
    common = dict(gamma=GAMMA, max_new_tokens=40, seed=1)
    params = Params(alternatives=alternatives, **common, **SAMPLERS[sampler])
    run = Counted()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), CUDA, _default_dtype(dtype):
        target, drafter = (static(model) for model in models())
        shared = Sampler(params)
        drafting = ModelDrafter(drafter, 1000, shared, target.vocab_size, CUDA, run, GAMMA)
        verifier = decoding(target, drafting, params, TEXT, run_step=run, sampler=shared).decoder.verifier
        for lm in (target, drafter):  # the caches come into being
            lm.static = False
            lm.reserve(0, len(TEXT))
            lm._plain_forward(torch.tensor(TEXT, device=CUDA))
            lm.static = True
        u = uniforms(1, 0, GAMMA)
        draft = drafting.propose(TEXT, GAMMA, u.draft)
        with pytest.raises(Judged):
            verifier.verify(TEXT, draft, u)
    return run.names


# The most launches of a draft of 4 tokens and of its verification, for models of two layers, in a run without
# alternatives. Those of the trace, and what block verification would keep, take some more.
CEILINGS = {
    "llama": (232, 130),
    "qwen2": (232, 130),
    "qwen3": (256, 136),
    "mistral": (244, 133),
    "gemma2": (448, 184),
    "gemma3": (464, 188),
    "gpt2": (262, 136),
    "gpt_neox": (330, 153),
    "opt": (234, 129),
    "phi3": (244, 133),
    "smollm3": (220, 127),
    "olmo2": (272, 140),
}
FOR_THE_TRACE = 35


@pytest.mark.parametrize("alternatives", [0, 5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_round_launches_no_more_than_it_did(name, alternatives):
    launches = launches_of(lambda: (tiny(name), tiny(name, seed=1)), "greedy", torch.bfloat16, alternatives)
    of_draft, of_verification = CEILINGS[name]
    of_trace = FOR_THE_TRACE if alternatives else 0
    assert len(launches["draft"]) <= of_draft
    assert len(launches["verify"]) <= of_verification + of_trace


@pytest.mark.parametrize("shapes", LAUNCHES)
def test_a_round_of_real_shapes(shapes):
    """Other versions of transformers launch a few kernels more or less than those that were counted."""

    def models():
        return [shape.model().eval() for shape in SHAPES[shapes]]

    launches = launches_of(models, "greedy", torch.bfloat16, alternatives=0)
    for step, counted in vars(LAUNCHES[shapes]).items():
        assert abs(len(launches[step]) - counted) <= 5
    # Products of one row or of gamma + 1 are no batches of one, but for the angles of the rotation.
    assert launches["draft"].count("bmm") <= GAMMA and launches["verify"].count("bmm") <= 1


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_is_left_on_the_cpu(name, dtype, sampler):
    """An operation over tensors of two devices raises, and so does a look at numbers."""
    launches = launches_of(lambda: (tiny(name), tiny(name, seed=1)), sampler, dtype)
    assert launches["draft"] and launches["verify"]
