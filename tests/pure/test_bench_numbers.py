"""The benchmark without its models: its rows compare with transformers."""

import pytest

from specdemo.measure.bench import Differences, Ratio, Sample, differences, ratios, row


def sample(ids=(1, 2), seconds=1.0, processor_seconds=1.0) -> Sample:
    return Sample(1000 * seconds / len(ids), 1000 * processor_seconds / len(ids), list(ids), None)


def test_a_row_compares_with_transformers():
    samples = {
        "transformers plain": [sample(seconds=0.008), sample(seconds=0.016), sample(seconds=0.012)],
        "transformers assisted": [sample(seconds=0.006)] * 3,
        "specdemo plain": [
            sample(seconds=0.004, processor_seconds=0.008),
            sample(seconds=0.004, processor_seconds=0.001),
            sample([1, 3], seconds=0.002, processor_seconds=0.016),
        ],
        "specdemo speculative": [sample(seconds=0.002, processor_seconds=0.002)] * 3,
    }
    found = row("specdemo plain", samples, greedy=True)
    assert (found.ms_per_token, found.tokens_per_second) == (2, 500)
    assert found.ms_per_token_10_90 == pytest.approx((1.2, 2)) and found.tokens_per_processor_second == 250
    assert (found.x_plain, found.x_assisted) == (3, 1.5)
    assert (found.equal_to_plain, found.differs_at) == ("2 of 3", 1)
    sampled = row("specdemo plain", samples, greedy=False)
    assert sampled.equal_to_plain is sampled.differs_at is None
    del samples["transformers assisted"]
    rows = [row(name, samples, greedy=True) for name in samples]
    assert rows[1].x_assisted is None
    assert Ratio("specdemo speculative", "specdemo plain", 2, 4) in ratios(rows)
    other, same = [sample(ids=[7, 2])], [sample(ids=[1, 2])]
    assert differences(same + other, same * 2) == Differences(1, [None, 0])
