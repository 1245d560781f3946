"""What a measured acceptance would bring on other cards and for several texts at once, by count."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from specdemo.advise.elsewhere import (
    BATCHES,
    MeasuredWork,
    check_cards,
    counted_speed,
    elsewhere,
    picture,
)
from specdemo.bench.by_count import TEXTS, bytes_of_shape, count_rows
from specdemo.bench.cards import CARDS
from specdemo.bench.shapes import SHAPES
from specdemo.words.catalogue import speaking

SURVIVAL = tuple(0.75**place for place in range(1, 9))


def work_of(name: str, text: int = 512) -> MeasuredWork:
    target, drafter = map(bytes_of_shape, SHAPES[name])
    return MeasuredWork(target, drafter, at_once=False, survival=SURVIVAL, text=text)


def test_the_h200_has_the_speeds_of_by_counts_own_table():
    rows = count_rows("llama-3.2-3b-1b", CARDS["h200"].accelerator)[: len(TEXTS)]
    for text, row in zip(TEXTS, rows, strict=True):
        found = counted_speed(work_of("llama-3.2-3b-1b", text), "h200", gamma=4)
        assert [text, round(found.speculative), f"{found.speedup:.2f}"] == [row[1], *row[-2:]]


def test_checks_are_free_until_computing_takes_longer_than_reading():
    work = work_of("llama-3.1-8b-1b")
    found = elsewhere(replace(work, survival=(1.0,) * 8, drafter=None), ["h200"])
    gamma = found.by_batch[0].gamma
    # A parameter has two bytes and takes two operations a row.
    assert found.free_until == pytest.approx(989e12 / 3.78e12 / (gamma + 1)) and gamma == 8
    speedups = [one.speedup for one in found.by_batch]
    assert speedups[-1] < 0.7 * speedups[0]
    one, many = (counted_speed(work, "h200", 8, batch).speedup for batch in (1, BATCHES[-1]))
    assert many < one, "a model that drafts reads its weights once for all texts, too, and it is not enough"


def test_a_drafter_of_whole_blocks_reads_its_weights_once():
    work = work_of("llama-3.1-8b-1b")
    steps, block = (counted_speed(replace(work, at_once=at_once), "l4", 8) for at_once in (False, True))
    seven = 7 * work.drafter.weights / CARDS["l4"].accelerator.bandwidth  # seconds
    times = [work.tokens(8) / one.speculative for one in (steps, block)]
    assert times[0] - times[1] == pytest.approx(seven, rel=0.05)


def test_the_picture_says_that_it_is_counted_and_draws_no_bar_where_a_model_does_not_fit():
    target = replace(work_of("llama-3.1-8b-1b").target, weights=90_000_000_000)
    work = replace(work_of("llama-3.1-8b-1b"), target=target)
    found = elsewhere(work, ["l4", *(card for card in CARDS if card != "l4")])
    for tag, counted in (("en", "Counted"), ("de", "Gezählt")):
        with speaking(tag):
            elements = list(ET.fromstring(picture(found)).iter())
        texts = [one for one in elements if one.tag.endswith("}text")]
        assert counted in texts[0].text and min(float(one.get("font-size")) for one in texts) >= 11
        assert sum(one.tag.endswith("}rect") for one in elements) == 3, "H200, B200 and RTX PRO 6000"
    with pytest.raises(ValueError, match="on must be one of h100, .*, not 'tpu'"):
        check_cards(["tpu"])
