"""What a measured acceptance would bring on other cards and for several texts at once: counted by
bench/by_count.py from published bandwidths and peaks, never measured. And the picture of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2
from textwrap import wrap

from specdemo.advise.pictures import LINE, WIDTH, line, svg, text
from specdemo.bench.by_count import (
    ForwardBytes,
    counted,
    forwards_of_round,
    usual_launches,
)
from specdemo.bench.cards import CARDS
from specdemo.events.speedup import Estimate, best_gamma
from specdemo.words.catalogue import number, say
from specdemo.words.message import refusal

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # texts at once


@dataclass(frozen=True)
class MeasuredWork:
    """What is taken from a measured run to other cards. target, drafter: what a forward of each reads and
    computes, for models without experts; no drafter where drafting runs no model. at_once: the drafter makes
    a whole draft in one forward. survival: at each place, the share of rounds in which that place's draft and
    all before it were accepted. text: tokens of each text, prompt included."""

    target: ForwardBytes
    drafter: ForwardBytes | None
    at_once: bool
    survival: tuple[float, ...]
    text: int

    def tokens(self, gamma: int) -> float:
        """The tokens of a round with gamma drafts."""
        return 1 + sum(self.survival[:gamma])


@dataclass(frozen=True)
class CountedSpeed:
    """A counted speed on a card. plain, speculative: tokens a second, of all texts together. fits: whether
    weights, keys and values fit into its memory."""

    card: str  # a key of CARDS
    batch: int
    gamma: int
    plain: float
    speculative: float
    speedup: float
    fits: bool


@dataclass(frozen=True)
class Elsewhere:
    """by_card: one text at a time, with the best draft length of each card. by_batch: on one card, with its
    best draft length for one text. free_until: for how many texts there the target's check of their drafts
    takes no longer than reading the weights."""

    by_card: tuple[CountedSpeed, ...]
    by_batch: tuple[CountedSpeed, ...]
    free_until: float


def check_cards(names: Sequence[str] | None) -> list[str]:
    """The names of the cards that are asked for; None: of all. ValueError for what is not in CARDS."""
    for name in names or ():
        if name not in CARDS:
            raise ValueError(refusal("on", "choice", name, names=", ".join(CARDS)))
    return list(CARDS if names is None else names)


def elsewhere(work: MeasuredWork, cards: Sequence[str]) -> Elsewhere:
    """The work counted on `cards`, and for BATCHES on the first of them."""
    chosen = cards[0]
    gamma = best_draft_length(work, chosen)
    return Elsewhere(
        tuple(counted_speed(work, card, best_draft_length(work, card)) for card in cards),
        tuple(counted_speed(work, chosen, gamma, batch) for batch in BATCHES),
        free_checks(work, chosen, gamma),
    )


def counted_speed(work: MeasuredWork, card: str, gamma: int, batch: int = 1) -> CountedSpeed:
    """The work on one of CARDS, `batch` texts at once. All of them wait for the round's slowest part: each
    text brings the tokens of an average round."""
    round_us, plain_us = (_round_us(work, card, length, batch) for length in (gamma, 0))
    plain, speculative = batch * 1e6 / plain_us, batch * work.tokens(gamma) * 1e6 / round_us
    models = [work.target, *([work.drafter] if work.drafter is not None else [])]
    held = sum(one.weights + one.position * work.text * batch for one in models)
    fits = held <= CARDS[card].memory
    return CountedSpeed(card, batch, gamma, plain, speculative, speculative / plain, fits)


def best_draft_length(work: MeasuredWork, card: str) -> int:
    """The shortest draft length whose counted speed-up is within 1 % of the largest, for one text; one of the
    lengths of which the acceptance is known. It may still be slower than the target alone."""
    lengths = range(1, len(work.survival) + 1)
    speedups = [counted_speed(work, card, gamma).speedup for gamma in lengths]
    found = [
        Estimate(gamma, None, None, work.tokens(gamma), speedup, None)
        for gamma, speedup in zip(lengths, speedups, strict=True)
    ]
    return best_gamma(found) or 1


def free_checks(work: MeasuredWork, card: str, gamma: int) -> float:
    """For how many texts at once the products of a check take no longer than reading the target's weights."""
    machine, target = CARDS[card].accelerator, work.target
    reading = target.weights / machine.bandwidth  # seconds
    computing = 2 * target.parameters * (gamma + 1) / machine.peak  # seconds a text
    return reading / computing if computing else inf


def _round_us(work: MeasuredWork, card: str, gamma: int, batch: int) -> float:
    forwards = forwards_of_round(work.target, work.drafter, gamma, batch, work.at_once)
    launches = usual_launches(forwards)
    return counted(forwards, launches, CARDS[card].accelerator, work.text, batch=batch).us


# The picture. Lengths are in px.

LEFT, TOP = 30, 24
LETTERS = 60  # of a line of notes
ROW, BAR, PLOT = 42, 12, 130


def picture(found: Elsewhere) -> str:
    """An SVG with two panels: speed-up by card, and by the number of texts at once. It draws in the text's
    colour on no ground, so it can stand on any page and on paper. In the language that is spoken."""
    title = say("elsewhere.title")
    cards, below = _by_card(found.by_card, TOP + 2 * LINE)
    batches, below = _by_batch(found, below + 2 * LINE)
    notes = wrap(say("elsewhere.counted"), LETTERS)
    told = [text(0, below + LINE * (2 + at), words, size=12) for at, words in enumerate(notes)]
    height = below + LINE * (1 + len(notes)) + 8
    parts = [text(0, TOP - 6, title, weight=600), *cards, *batches, *told]
    return svg(title, height, parts)


def _by_card(speeds: Sequence[CountedSpeed], top: float) -> tuple[list[str], float]:
    """The panel's elements, and where it ends."""
    longest = max(1.0, *(one.speedup for one in speeds if one.fits))
    parts = [text(0, top, say("elsewhere.by_card"))]
    for index, one in enumerate(speeds):
        y = top + 12 + ROW * index
        parts.append(text(0, y + LINE - 4, CARDS[one.card].name))
        if not one.fits:
            parts.append(text(WIDTH, y + LINE - 4, _no_room(one.card), anchor="end"))
            continue
        values = {"gamma": one.gamma, "tokens": number(one.speculative, ",.0f")}
        told = say("elsewhere.card", speedup=number(one.speedup, ".2f"), **values)
        parts.append(text(WIDTH, y + LINE - 4, told, anchor="end"))
        width, plain = (WIDTH * part / longest for part in (one.speedup, 1.0))
        parts.append(f'<rect x="0" y="{y + LINE + 2}" width="{width:.1f}" height="{BAR}" opacity="0.45"/>')
        parts.append(line(plain, y + LINE + 2, plain, y + LINE + BAR + 6, 2))
    end = top + 12 + ROW * len(speeds)
    return [*parts, text(0, end + LINE - 4, say("elsewhere.plain"), size=12)], end + LINE


def _by_batch(found: Elsewhere, top: float) -> tuple[list[str], float]:
    speeds, card = found.by_batch, CARDS[found.by_batch[0].card].name
    parts = [text(0, top, say("elsewhere.by_batch", card=card, gamma=speeds[0].gamma))]
    low, high = (end([1.0, *(one.speedup for one in speeds)]) for end in (min, max))
    floor = top + LINE + PLOT

    def x(batch: float) -> float:
        return LEFT + 20 + (WIDTH - LEFT - 40) * log2(batch) / log2(BATCHES[-1])

    def y(speedup: float) -> float:
        return floor - 22 - (PLOT - 44) * (speedup - low) / (high - low or 1.0)

    parts.append(line(LEFT, y(1.0), WIDTH, y(1.0), 1, 'stroke-dasharray="4 4" opacity="0.6"'))
    parts.append(text(0, y(1.0) + 4, "1×", size=12))
    points = " ".join(f"{x(one.batch):.1f},{y(one.speedup):.1f}" for one in speeds if one.fits)
    parts.append(f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/>')
    for one in speeds:
        at, above = y(one.speedup), one.speedup >= 1
        ground = "currentColor" if one.fits else "none"
        circle = f'cx="{x(one.batch):.1f}" cy="{at:.1f}" r="3.5" fill="{ground}" stroke="currentColor"'
        parts.append(f"<circle {circle}/>")
        told = number(one.speedup, ".2f")
        parts.append(text(x(one.batch), at - 8 if above else at + 18, told, anchor="middle", size=12))
        parts.append(text(x(one.batch), floor + LINE - 4, str(one.batch), anchor="middle", size=12))
    below = floor + LINE + 6
    if found.free_until >= 1:
        parts.append(line(x(1) - 8, below, x(min(found.free_until, BATCHES[-1])), below, 4))
    notes = [_free_in_words(found.free_until)]
    if not all(one.fits for one in speeds):
        notes.append(f"○ {_no_room(speeds[0].card)}")
    told = [text(0, below + LINE * (1 + at) + 2, words, size=12) for at, words in enumerate(notes)]
    return [*parts, *told], below + LINE * len(notes) + 2


def _no_room(card: str) -> str:
    return say("elsewhere.no_room", gigabytes=number(CARDS[card].memory / 1e9, ",.0f"))


def _free_in_words(free_until: float) -> str:
    if free_until >= BATCHES[-1]:
        return say("elsewhere.free")
    return say("elsewhere.free_until" if free_until >= 1 else "elsewhere.never_free", count=int(free_until))
