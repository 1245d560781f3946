"""What is decided from a GPU's compute capability, with GPUs that are not there."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specdemo import PairError
from specdemo.loading.catalog import DTYPES, QUANTIZE
from specdemo.loading.load import automatic_dtype, plan_from
from specdemo.loading.pair import emulates_bfloat16
from specdemo.loading.request import resolve
from tests.sentences import refused

# Compute capabilities as NVIDIA publishes them. Those of 8.0 and more compute in bfloat16.
CARDS = {"T4": (7, 5), "A100": (8, 0), "L4": (8, 9), "H100": (9, 0)}


@pytest.fixture
def cards(monkeypatch):
    """Makes the machine have these cards, cuda:0 first. Even old ones emulate bfloat16."""

    def install(*names: str) -> None:
        def capability(device) -> tuple[int, int]:
            return CARDS[names[torch.device(device).index or 0]]

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)

    return install


def test_bfloat16_where_the_card_that_is_asked_for_has_it_and_else_float16(cards):
    cards(*CARDS)
    for i, card in enumerate(CARDS):
        dtype, why = automatic_dtype(f"cuda:{i}", 10**9)
        assert dtype == (torch.float16 if card == "T4" else torch.bfloat16)
        assert why.key == ("no_bfloat16" if card == "T4" else "half")
    assert automatic_dtype("cuda", 10**9)[0] == torch.float16, "as the first"


def test_bfloat16_on_a_card_without_it_is_allowed_with_a_note(cards):
    cards("H100", "T4")
    new, old = (SimpleNamespace(device=torch.device("cuda", i), dtype=torch.bfloat16) for i in (0, 1))
    half = SimpleNamespace(device=old.device, dtype=torch.float16)
    cpu = SimpleNamespace(device=torch.device("cpu"), dtype=torch.bfloat16)
    assert emulates_bfloat16(old) and not any(map(emulates_bfloat16, (new, half, cpu)))


def skeleton(width: int = 256, rows: int = 512):
    with torch.device("meta"):
        sizes = {"hidden_size": width, "intermediate_size": rows, "num_attention_heads": 4}
        return AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=1, vocab_size=300, **sizes))


def is_allowed(kind: str, dtype: str, model, device: str) -> bool:
    try:
        plan_from(resolve(target="own/target", device=device, dtype=dtype, quantize=kind), [model])
    except PairError:
        return False
    return True


def allowed(dtype: str, model, device: str = "cuda") -> set[str]:
    return {kind for kind in QUANTIZE if is_allowed(kind, dtype, model, device)}


@pytest.mark.parametrize("card", ["T4", "A100"])
def test_quantised_weights_that_need_no_compiled_kernels_are_allowed(cards, card):
    cards(card)
    model = skeleton()
    old = {dtype: {"int8", "float8"} for dtype in DTYPES}
    new = {"float32": {"int8", "float8"}, "bfloat16": {"int8", "int4"}, "float16": {"int8"}}
    assert {dtype: allowed(dtype, model) for dtype in DTYPES} == (old if card == "T4" else new)
    assert {dtype: allowed(dtype, model, "cpu") for dtype in DTYPES} == dict.fromkeys(DTYPES, set(QUANTIZE))


def test_a_refusal_names_the_field_the_model_the_device_and_what_is_allowed(cards):
    cards("H100", "T4")
    how = {"target": "a", "drafter": "b", "device": "cuda"}
    models = [skeleton(), skeleton(192)]
    assert plan_from(resolve(**how, quantize={"target": "int4", "drafter": "int8"}), models)
    named = dict(model="drafter b", device="cuda", names="none, int8", dtype="bfloat16")
    with refused("needs_kernels", field="quantize", kind=PairError, **named):
        plan_from(resolve(**how, quantize="int4"), models)
    assert is_allowed("float8", "auto", skeleton(), "cuda:1"), "the card that is asked for decides"


@pytest.mark.parametrize(("width", "rows", "fits"), [(192, 512, False), (896, 4864, True), (256, 260, False)])
def test_int4_needs_widths_in_whole_groups_of_128(cards, width, rows, fits):
    """Other layers have other groups, or none, for which torch has no kernel."""
    cards("H100")
    assert ("int4" in allowed("bfloat16", skeleton(width, rows))) == fits
