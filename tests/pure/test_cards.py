"""Shares of a memory's bandwidth, by both denominators, and the cards that they are known for."""

import pytest

from specdemo.bench.cards import CARDS, Reached, bandwidth_in_words, reached, specified_bandwidth


def test_each_share_has_its_own_denominator():
    assert reached(2e12, 4e12, 5e12) == Reached(of_copy=0.5, of_specification=0.4)
    assert reached(2e12, 4e12, None) == Reached(0.5, None)
    assert reached(None, 4e12, 5e12) == Reached(None, None)


@pytest.mark.parametrize(
    "share, words",
    [
        (Reached(0.671, 0.53), "67% of the copy bandwidth, 53% of the specification"),
        (Reached(0.671, None), "67% of the copy bandwidth, specification not known"),
        (Reached(None, 0.53), "53% of the specification"),
        (Reached(None, None), ""),
    ],
)
def test_words_say_which_share_is_which(share, words):
    assert share.in_words() == words


def test_a_copy_is_told_beside_the_specification():
    assert bandwidth_in_words(3.78e12, 4.8e12) == "3,780.0 GB/s, read and written (79% of the specification)"
    assert bandwidth_in_words(14e9, None) == "14.0 GB/s, read and written (its specification is not known)"


def test_a_device_is_known_by_its_whole_name():
    assert specified_bandwidth("NVIDIA H200") == 4.8e12
    for other in ("NVIDIA H200 MIG 3g.71gb", "NVIDIA H100 PCIe", "AMD EPYC 9R14"):
        assert specified_bandwidth(other) is None


def test_a_card_copies_as_measured_or_like_the_h200():
    assert CARDS["h100"].accelerator.bandwidth == 2.75e12
    b200 = CARDS["b200"].accelerator
    assert (b200.bandwidth, b200.specified) == (pytest.approx(8e12 * 3.78 / 4.8), 8e12)
