"""Which kinds of quantised weights run here."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter

from specdemo.doctor.sections.cuda import device
from specdemo.doctor.sections.runs import SAMPLERS, TOKENS, embedded, text
from specdemo.doctor.trials import Failed, NotRun, Trial
from specdemo.errors import LoadError, PairError
from specdemo.loading.catalog import QUANTIZE
from specdemo.loading.load import load_pair


def trials() -> Iterator[Trial]:
    for kind in QUANTIZE:
        yield Trial(kind, partial(run, kind))


def run(kind: str) -> str:
    """A kind that is refused on this device is no failure."""
    if device() == "cpu" and kind != "int8":
        raise NotRun("without a GPU only int8 is tried: the others take minutes to set up")
    params = replace(SAMPLERS["greedy"], max_new_tokens=TOKENS, ignore_eos=True, seed=5)
    try:
        pair = load_pair(device=device(), quantize=kind)
    except LoadError:
        raise
    except PairError as error:
        raise NotRun(str(error)) from None
    captured = text(pair, params)  # sets itself up
    start = perf_counter()
    text(pair, params)
    ms = 1000 * (perf_counter() - start) / TOKENS
    uncaptured = text(pair.with_capture("off"), params)
    same = sum(one == other for one, other in zip(captured, uncaptured, strict=True))
    if captured[0] != uncaptured[0]:
        raise Failed("captured and uncaptured steps begin with different tokens")
    dense = embedded(device(), pair.info.dtype.target)
    share = pair.bytes_held.target / dense.bytes_held.target
    state = "; not captured" if pair.runner.notes else "; captured"
    equal = f"{same} of {len(captured)} tokens are the same uncaptured"
    return (
        f"{share:.0%} of the target's memory in {pair.info.dtype.target}, {ms:.1f} ms a token{state}; {equal}"
    )
