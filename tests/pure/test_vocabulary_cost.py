"""What a round does over the whole vocabulary besides the models' forwards, counted at the widths of real
models with tensors that have a shape but no numbers. Consumer GPUs compute float64 at a 64th of the speed, so
that a few such passes would take as long as reading the weights."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdemo.drafters.model.drafter import DraftInput, ModelDrafter
from specdemo.engine.rules import speculative
from specdemo.engine.sampling import Sampler
from specdemo.engine.step import Verifier, VerifyInput
from specdemo.events import Params
from specdemo.runtime.steps import EagerSteps, HostNumbers
from tests.oracle import CPU

GAMMA = 4
VOCAB_SIZE, WEIGHTS = 128_256, 16.3e9  # of a Llama; bytes of weights that a round reads in bfloat16

# An RTX 4090.
BYTES_PER_S, FLOAT64_PER_S = 1008e9, 1.29e12
LONGEST_FUNCTION = 40  # float64 operations that an element takes at most, as in exp
# An operation that goes over its input several times.
PASSES = {"_softmax": 3, "logsumexp": 6, "topk": 12, "sum": 3, "cumsum": 3}

SAMPLERS = {
    "greedy": dict(temperature=0.0),
    "top-k": dict(temperature=0.8, top_p=1.0, top_k=40),
    "all": dict(temperature=0.8, top_p=0.9, top_k=40, min_p=0.1),
    "adjusted": dict(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={5: 1}),
}


class Cost(TorchDispatchMode):
    """Adds up what operations read and write, and what they compute in float64."""

    def __init__(self):
        super().__init__()
        self.bytes = self.float64_operations = 0
        self.wide_float64 = []  # operations on float64 tensors as wide as the vocabulary

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view:
            self.count(name, [x for x in tree_leaves((args, kwargs, output)) if isinstance(x, torch.Tensor)])
        return output

    def count(self, name, tensors):
        wide = [tensor for tensor in tensors if tensor.numel() >= VOCAB_SIZE]
        self.bytes += PASSES.get(name, 1) * sum(tensor.nbytes for tensor in wide)
        if any(tensor.dtype == torch.float64 for tensor in tensors):
            self.float64_operations += LONGEST_FUNCTION * max(tensor.numel() for tensor in tensors)
        if any(tensor.dtype == torch.float64 for tensor in wide):
            self.wide_float64.append(name)

    @property
    def seconds(self):
        return self.bytes / BYTES_PER_S + self.float64_operations / FLOAT64_PER_S


class NoModel:
    """Logits from nowhere: what is counted is all but the models' forwards."""

    device, vocab_size, kv_length, buffer_epoch = CPU, VOCAB_SIZE, 64, 0
    drafts_itself, experts = False, None

    def forward(self, ids, start):
        return torch.empty(len(ids), VOCAB_SIZE, dtype=torch.bfloat16)


def cost_of_a_round(sampler) -> Cost:
    """Of both steps."""
    lm = NoModel()
    drafter = ModelDrafter(lm, 1000, sampler, VOCAB_SIZE, CPU, EagerSteps(), GAMMA)
    verifier = Verifier(lm, sampler, speculative, EagerSteps(), GAMMA, Params().alternatives, 0)
    with FakeTensorMode(), torch.no_grad():
        seen, u = sampler.seen([0], VOCAB_SIZE, CPU), [0.0] * GAMMA
        told = DraftInput.of(CPU, 0, [0, 0], sampler, u, seen)
        single = dict.fromkeys(("position", "last", "k", "confidence", "u_next", "eos"), [0])
        host = HostNumbers.of(CPU, **single, **sampler.numbers, u_accept=u)
        with Cost() as cost:
            draft = drafter.step(told)
            drawn = (draft.ids, draft.q, draft.raw_q, draft.exact, draft.raw_q[:0, 0])
            verifier.step(VerifyInput(host, *drawn, seen))
    return cost


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_as_wide_as_the_vocabulary_is_float64(sampler):
    cost = cost_of_a_round(Sampler(Params(**SAMPLERS[sampler])))
    assert not cost.wide_float64
    assert cost.bytes > 8 * VOCAB_SIZE * GAMMA, "the logits at least are read, and probabilities written"
    assert cost.seconds < 0.1 * WEIGHTS / BYTES_PER_S
