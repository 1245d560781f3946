"""The arithmetic from logits to a token: shaping against transformers' warpers and against plain numpy,
drawing to the last bit, and dice that depend on seed, round and place alone."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdemo.engine.sampling import Sampler, _in_nucleus, draw, most_likely, one_hot, probabilities, uniforms
from specdemo.events import Params
from tests.oracle import (
    ROUNDING,
    TableLM,
    decoding,
    nearly_equal,
    settings_of,
    shaped,
    shaped_by,
)

BELOW_ONE = 1 - 2**-53  # the largest number that dice show
ODD_NUMBERS = torch.tensor(
    [0.0, 5e-324, 2**-53, 0.25, 1 / 3, 0.5, 1 - 2**-52, BELOW_ONE], dtype=torch.float64
)

SHAPES = [
    {"temperature": 2.0, "top_k": 7},
    {"temperature": 1.5, "top_p": 0.3},
    {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 1_000_000},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.999},
]


@pytest.fixture(params=["in one sum", "in chunks"])
def small(request, monkeypatch):
    """Also makes small vocabularies go the way of large ones on a GPU."""
    if request.param == "in chunks":
        monkeypatch.setattr("specdemo.engine.sampling.SMALL_VOCABULARY", 0)
        monkeypatch.setattr("specdemo.engine.sampling._one_block_is_slow", lambda numbers: True)


def params(**shape):
    return Params(**{"top_p": 1.0, **shape})


def random_logits(seed, rows=40, width=50):
    """Float32 numbers, as float64, in which they can be shaped without much rounding."""
    logits = (3 * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))).double()
    logits[::3, 5:9] = -torch.inf  # a narrower drafter's padding
    return logits


def by_transformers(logits, p):
    """What `generate` composes for the same options, in its order."""
    warpers = [TemperatureLogitsWarper(p.temperature)] if p.temperature != 1 else []
    warpers += [TopKLogitsWarper(p.top_k)] if p.top_k else []
    warpers += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
    warpers += [MinPLogitsWarper(p.min_p)] if p.min_p else []
    for warp in warpers:
        logits = warp(None, logits)
    return logits.softmax(-1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_transformers_and_as_plain_numpy_shape(shape):
    for dtype in (torch.float64, torch.float32):
        logits = random_logits(1).to(dtype)
        before = logits.clone()
        got = shaped_by(Sampler(params(**shape)), logits)
        assert torch.equal(logits, before), "logits are left as they were"
        expected = by_transformers(logits, params(**shape))
        assert got.dtype == torch.float32
        assert torch.equal(got > 0, expected > 0), "the same tokens must survive"
        assert nearly_equal(got, expected)
        assert nearly_equal(got, np.stack([shaped(row, params(**shape)) for row in logits]))
        assert got.numpy().sum(-1, dtype=float) == pytest.approx(1, abs=ROUNDING)


@pytest.mark.parametrize("penalty", [0.5, 1.2])
def test_a_repetition_penalty_is_transformers_own(penalty):
    logits = random_logits(5, rows=20).float()
    texts = torch.randint(0, 50, (20, 12), generator=torch.Generator().manual_seed(2))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(texts, logits.clone()).softmax(-1)
    sampler = Sampler(params(temperature=1.0, repetition_penalty=penalty))
    seen = torch.stack([sampler.seen(text, 50, torch.device("cpu")) for text in texts.tolist()])
    assert nearly_equal(sampler.shape(logits, settings_of(sampler), seen), expected)
    greedy = Sampler(params(temperature=0.0, repetition_penalty=penalty))
    tokens, probs = greedy.sample(logits, torch.zeros(20), settings_of(greedy), seen)
    assert torch.equal(tokens, expected.argmax(-1)) and probs is None
    assert torch.equal(greedy.shape(logits, settings_of(greedy), seen), one_hot(tokens, 50))


def wide_logits(sharpness, seed=8, width=2000):
    """A vocabulary in which the nucleus is a few tokens (sharpness 4) or hundreds (0.1)."""
    logits = sharpness * torch.randn(24, width, generator=torch.Generator().manual_seed(seed))
    return logits.double()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [{"top_p": 0.5}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_ties_as_transformers_breaks_them(shape):
    """Logits in bfloat16 are coarse, so the edge of a nucleus often runs between equals. As many of them stay
    as with transformers, whose own sort leaves it to chance which; here that must not depend on the rows
    beside them."""
    logits = (wide_logits(3.0) + 20).to(torch.bfloat16)
    sampler, expected = (
        Sampler(params(temperature=1.0, **shape)),
        by_transformers(logits.double(), params(temperature=1.0, **shape)),
    )
    got = shaped_by(sampler, logits)
    assert torch.equal(got, torch.cat([shaped_by(sampler, row[None]) for row in logits]))
    assert torch.equal((got > 0).sum(-1), (expected > 0).sum(-1))
    assert nearly_equal(got.sort(-1).values, expected.sort(-1).values)


@pytest.mark.usefixtures("small")
def test_a_nucleus_is_transformers_own():
    mixed = torch.cat([wide_logits(sharpness, width=5000) for sharpness in (0.2, 1.5, 2.0, 4.0)])  # [96, V]
    mixed -= mixed.amax(-1, keepdim=True)
    assert torch.equal(_in_nucleus(mixed, torch.tensor(0.9)), TopPLogitsWarper(0.9)(None, mixed))


@pytest.mark.usefixtures("small")
def test_of_equally_likely_tokens_no_more_stay_than_are_needed():
    for count, top_p, dropped in ((2, 0.5, 1), (10, 0.9, 1), (10, 0.3, 7), (4, 1e-300, 3)):
        got = shaped_by(Sampler(params(temperature=1.0, top_p=top_p)), torch.zeros(1, count))
        assert (got[0] > 0).tolist() == [place >= dropped for place in range(count)]


@pytest.mark.usefixtures("small")
def test_a_row_of_nan_is_shaped_to_nan():
    logits = wide_logits(4.0)
    logits[3, 7] = torch.nan
    for got in (probabilities(logits), shaped_by(Sampler(params(temperature=1.0, top_p=0.9)), logits)):
        assert got.isnan().all(-1).nonzero()[:, 0].tolist() == [3]


@pytest.mark.parametrize("broken", ["target", "drafter"])
def test_a_broken_model_is_an_error_and_no_endless_round(broken):
    p, shape = Params(temperature=1.0, top_p=0.95, max_new_tokens=20, seed=1), (13, 12, 12)
    nothing = torch.full(shape, torch.nan)
    sound = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target, drafter = (TableLM(nothing if role == broken else sound) for role in ("target", "drafter"))
    with pytest.raises(RuntimeError, match=f"^the {broken}'s probabilities are not numbers"):
        list(decoding(target, drafter, p, [3, 1, 4]))


@pytest.mark.usefixtures("small")
def test_neither_small_types_nor_tiny_temperatures_overflow():
    """65,000 is close to the end of float16: there, dividing by a small temperature would overflow."""
    logits = torch.tensor([[65000.0, 64000.0, -65000.0]], dtype=torch.float16)
    assert shaped_by(Sampler(params(temperature=0.01)), logits).tolist() == [[1.0, 0.0, 0.0]]
    assert probabilities(logits).dtype == torch.float32
    logits = torch.tensor([[1.0, 3.0, -2.0], [-900.0, -1000.0, -1e30], [2.0, 2.0, 0.0]])
    for temperature in (5e-324, 1e-12):
        got = shaped_by(Sampler(params(temperature=temperature)), logits)
        assert got.tolist() == [[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("width", [1, 127, 128, 129, 700])
def test_the_likeliest_is_the_first_of_the_largest(width):
    """In rows of a few different numbers, which have many equal ones, and of NaN and -inf. Greedy is one-hot
    there."""
    logits = torch.randint(-3, 2, (60, width), generator=torch.Generator().manual_seed(width)).bfloat16()
    logits[10:20, ::3] = -torch.inf
    logits[20] = -torch.inf
    logits[30:40, width // 2 :: 5] = torch.nan
    expected = logits.float().nan_to_num(nan=10.0).numpy().argmax(-1)  # NaN counts as the largest
    assert most_likely(logits).tolist() == expected.tolist()
    greedy = Sampler(params(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5))  # filters change nothing
    assert torch.equal(shaped_by(greedy, logits[:10]), torch.eye(width)[expected[:10]])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "weights",
    [
        *([0, 0, 1, 0, 0], [0, 0.3, 0, 0.7, 0], [0, 1e-320, 0], [0, 5e-324, 5e-324, 0], [3e300, 0, 1e300]),
        [0, 1e-17, 1, 1e-17, 0],  # the last one's weight is lost in the sum
        *([0.1] * 10 + [0, 0], [0, 1 / 3, 1 / 3, 1 / 3, 0], [0, 0.7, 0.2, 0.1 + 1e-16, 0]),
    ],
    ids=str,
)
def test_a_token_of_weight_0_is_never_drawn(weights):
    rows = torch.tensor(weights, dtype=torch.float64).expand(len(ODD_NUMBERS), -1)
    assert (rows.gather(1, draw(rows, ODD_NUMBERS)[:, None]) > 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_no_weight_0_on_a_gpu_either():
    """A GPU sums in another order, in blocks: the cumulative weight can step where the weight is 0."""
    random = torch.Generator("cuda").manual_seed(7)
    for _ in range(50):
        weights = torch.rand(100_000, device="cuda", generator=random, dtype=torch.float64)
        weights *= torch.rand(100_000, device="cuda", generator=random) < 0.01
        steps = weights.cumsum(0) / weights.sum()
        at_zeros = steps[weights == 0][:20_000:40]
        numbers = torch.cat([at_zeros, at_zeros.nextafter(torch.zeros_like(at_zeros))]).clamp(0, BELOW_ONE)
        rows = weights.expand(len(numbers), -1)
        assert (rows.gather(1, draw(rows, numbers)[:, None]) > 0).all()


def test_drawing_inverts_the_cumulative_distribution():
    """Sixteenths are exact in binary, so every number of a fine grid has one right answer, ends included."""
    weights = [0, 3, 0, 5, 1, 0, 7, 0]  # sum 16
    expected = [1] * 3 + [3] * 5 + [4] + [6] * 7
    numbers = torch.tensor([*(i / (16 * 64) for i in range(16 * 64)), BELOW_ONE], dtype=torch.float64)
    for scale in (1, 1 / 16, 1024):  # need not be normalised
        rows = torch.tensor(weights, dtype=torch.float64).expand(len(numbers), -1) * scale
        assert draw(rows, numbers).tolist() == [*(expected[i // 64] for i in range(16 * 64)), 6]


def by_one_sum(weights, u):
    """Drawing as plainly as it can be said: one running sum in float64 over everything."""
    weights = weights.double()
    cumulative = weights.cumsum(-1)
    point = u[:, None] * cumulative[:, -1:]
    allowed = weights > 0
    last = cumulative.where(allowed, 0).amax(-1, keepdim=True)
    return (allowed & ((cumulative > point) | (cumulative == last))).int().argmax(-1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("width", [1, 127, 128, 129, 4096])
def test_drawing_in_chunks_is_drawing_in_one_sum(width):
    """Flat rows and peaked ones, most of their weights 0 or not, whole chunks of zeros at either end."""
    generator = torch.Generator().manual_seed(width)
    u = torch.cat([torch.rand(24, generator=generator, dtype=torch.float64), ODD_NUMBERS])
    shown = set()
    for sharpness, kept in ((0.1, 1.0), (1.0, 0.3), (5.0, 0.01), (20.0, 0.3)):
        logits = sharpness * torch.randn(len(u), width, generator=generator)
        logits[torch.rand(len(u), width, generator=generator) > kept] = -torch.inf
        logits[:, 0] = logits[:, 0].clamp(min=-50)
        for rows in (logits.softmax(-1), logits.roll(width // 2, -1).softmax(-1)):
            ids, expected = draw(rows, u), by_one_sum(rows, u)
            # The last two are so close to 1 that the order of summing decides between specks at the end.
            assert torch.equal(ids[:-2], expected[:-2])
            assert (rows.gather(-1, ids[:, None]) > 0).all()
            shown |= set(ids.tolist())
    assert len(shown) >= min(width, 80)


def test_dice_depend_on_seed_round_and_place_alone():
    long, short = uniforms(7, 3, 16), uniforms(7, 3, 2)
    assert long.next == short.next
    assert long.draft[:2] == short.draft and long.accept[:2] == short.accept
    assert long.draft == uniforms(7, 3, 16).draft
    assert uniforms(7, 3, 0).draft == uniforms(7, 3, 0).accept == []
    torch.manual_seed(0)
    before = torch.get_rng_state()
    uniforms(7, 3, 4)
    assert torch.equal(torch.get_rng_state(), before), "nobody else's dice are touched"


def test_dice_are_uniform_below_1_and_all_different():
    dice = [uniforms(seed, this_round, 2) for seed in range(60) for this_round in range(60)]
    pairs = np.array([[d.next, *d.draft, *d.accept] for d in dice])
    for numbers in (pairs[:, 0], pairs[:, 1:3].ravel(), pairs[:, 3:].ravel()):
        assert numbers.min() >= 0 and numbers.max() < 1
        assert kstest(numbers, "uniform").pvalue > 1e-3
    assert len(set(pairs.ravel().tolist())) == pairs.size
    correlation = np.corrcoef(pairs.T) - np.eye(5)
    assert abs(correlation).max() < 4 / len(dice) ** 0.5
