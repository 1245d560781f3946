"""What follows from the samples: what each draft length would bring, which settings are worth measuring,
which are out, and what to recommend. Without torch.

What is looked at several times is decided by wider intervals, so that chance does not end it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specdemo.events.speedup import SpeedUp, is_wide
from specdemo.events.verdict import speedup_in_words
from specdemo.measure.results import (
    ALL,
    ALONE,
    PROBED,
    Candidate,
    Contender,
    Measured,
    Recommendation,
    Sample,
    Together,
    work_in_words,
)
from specdemo.measure.samples import FEWEST_PROMPTS, Costs, speed_up_on_prompts
from specdemo.words.catalogue import numeral, speaker_of

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # of drafts, that are compared
MOST_FINALISTS = 8  # settings of a kind of work that are measured
# Parts of the best estimate from which on a setting is measured: each contender's best one, and all others.
WORTH, WORTH_MORE = 0.7, 0.9
SAME = 1.03  # settings that differ by less are as good
STRICT = 1.75  # times as wide as what is told is the interval that decides before the last prompt: about 99%

NOTHING = Together(())
Beside = Literal["recommended", "alike", "slower"]


def estimates(contender: Contender, probe: Together, row: float) -> dict[Candidate, float]:
    """The estimated speed-ups of all draft lengths, from texts with drafts of up to PROBED tokens. row: see
    `row_cost`."""
    found = {}
    for gamma in sorted({min(length, contender.longest or length) for length in LENGTHS}):
        accepted, drafted = (sum(_up_to(gamma, probe, what)) for what in ("accepted", "drafted"))
        made = probe.drafted_per_round
        drafting = probe.draft_cost * (drafted / made if made and not contender.at_once else 1.0)
        found[Candidate(contender.name, gamma)] = (1 + accepted) / (1 + row * drafted + drafting)
    return found


def row_cost(measured: Measured) -> float:
    """What another row adds to a forward of the target, verdict included, as a part of a plain round: by what
    the rounds of all texts took beyond that and beyond drafting, over the rows that were drafted."""
    longer, drafted = 0.0, 0
    texts: dict[Candidate, list[Sample]] = defaultdict(list)
    for one in (*measured.probes, *measured.samples):
        if one.turns:
            texts[one.setting].append(one)
    for own in texts.values():
        timed = dict(enumerate(one.timed for one in own))
        rounds = sum(one.rounds for one in timed.values())
        longer += Costs(timed).cost - rounds * (1 + Together(tuple(own)).draft_cost)
        drafted += sum(one.drafted for one in timed.values())
    return max(0.0, longer / drafted) if drafted else 0.0


def _up_to(gamma: int, probe: Together, what: Literal["drafted", "accepted"]) -> list[float]:
    """The share of rounds with more than i tokens, for i below gamma. Beyond what was probed each share is
    less than the one before by the same factor, as it was on average."""
    shares = probe.share_above(what, min(gamma, PROBED))
    factor = shares[-1] ** (1 / len(shares))
    return shares + [shares[-1] * factor**more for more in range(1, gamma - len(shares) + 1)]


def finalists(found: Mapping[Candidate, float]) -> list[Candidate]:
    """The settings that are worth measuring, the most promising first: the best one of each contender, and
    then others that are nearly as good as the best of all. found: the estimates."""
    ordered = sorted(found, key=lambda one: found[one], reverse=True)
    best_of_each = {one.contender: one for one in reversed(ordered)}.values()
    enough = found[ordered[0]] if ordered else 0.0
    chosen = [one for one in ordered if found[one] >= (WORTH if one in best_of_each else WORTH_MORE) * enough]
    return sorted(chosen, key=lambda one: one not in best_of_each)[:MOST_FINALISTS]


def estimates_of(measured: Measured, works: Iterable[str]) -> dict[Candidate, float]:
    """The estimates of all contenders, from their texts with long drafts in these kinds of work together."""
    wanted, longest = set(works), {one.name: one.probed for one in measured.contenders}
    texts = [one for one in (*measured.probes, *measured.samples) if one.work in wanted and one.turns]
    probes = [one for one in texts if one.setting.gamma >= longest[one.setting.contender]]
    found, row = dict[Candidate, float](), row_cost(measured)
    for contender in measured.contenders:
        if own := tuple(one for one in probes if one.setting.contender == contender.name):
            found |= estimates(contender, Together(own), row)
    return found


def by_setting(samples: Sequence[Sample], works: Sequence[str]) -> dict[Candidate, Together]:
    """The samples of these kinds of work, by what was set: as many prompts of each kind as were written of
    the one with the fewest, so that they weigh alike; only what was set in each kind."""
    written = dict.fromkeys(works, 0)
    for one in samples:
        if one.work in written:
            written[one.work] = max(written[one.work], one.prompt + 1)
    most = min(written.values(), default=0)
    found: dict[Candidate, list[Sample]] = defaultdict(list)
    for one in samples:
        if one.work in written and one.prompt < most:
            found[one.setting].append(one)
    return {
        one: Together(tuple(own)) for one, own in found.items() if {each.work for each in own} == set(works)
    }


def is_told(speedup: SpeedUp) -> bool:
    """Whether its interval says something: it is narrow, or all of it is above 1."""
    return round(speedup.low, 2) > 1 or not is_wide(speedup.interval)


def _strictly(own: Together, other: Together | None = None) -> SpeedUp | None:
    """How many times as fast a setting is as the target alone, or as another setting, with the wider interval
    that decides before the last prompt."""
    speedup = own.speedup if other is None else speed_up_on_prompts(own.by_place, other.by_place)
    if speedup is None:
        return None
    low, high = (speedup.value * (end / speedup.value) ** STRICT for end in speedup.interval)
    return SpeedUp(speedup.value, low, high)


def still_in(found: Mapping[Candidate, Together], running: Sequence[Candidate]) -> list[Candidate]:
    """The settings that may still be the best: the one that leads, and those in the running that it is not
    surely faster than."""
    leader = leader_of(found)
    if leader is None:
        return list(running)
    ahead = {one: _strictly(found[leader], found.get(one, NOTHING)) for one in running if one != leader}
    return [leader, *(one for one, lead in ahead.items() if lead is None or lead.low <= 1)]


def leader_of(found: Mapping[Candidate, Together]) -> Candidate | None:
    """The setting with the largest speed-up so far; of those as good, the surest. None while nothing is
    known. What was dropped before the last prompt is none of the best, nor what is too uncertain to be told,
    while another one can be."""
    known = {one: own.speedup for one, own in found.items() if own.speedup is not None}
    most = max((len(found[one].samples) for one in known), default=0)
    left = {one: speedup for one, speedup in known.items() if len(found[one].samples) == most}
    speedups = {one: speedup for one, speedup in left.items() if is_told(speedup)} or left
    enough = max((one.value for one in speedups.values()), default=0.0) / SAME
    as_good = [one for one, speedup in speedups.items() if speedup.value >= enough]
    return max(as_good, key=lambda one: speedups[one].low, default=None)


def is_clear(found: Mapping[Candidate, Together], running: Sequence[Candidate]) -> bool:
    """Whether it is known which of them is best, or that it hardly matters, and whether that one pays."""
    leader = leader_of(found)
    if leader is None or (speedup := _strictly(found[leader])) is None:
        return False
    pays = speedup.low > 1 or (speedup.high < SAME and is_told(speedup))
    others = (_strictly(found.get(one, NOTHING), found[leader]) for one in running if one != leader)
    return pays and all(lead is not None and lead.high < SAME for lead in others)


_speak = speaker_of("said.advice")


def recommendations(measured: Measured) -> list[Recommendation]:
    return [recommendation(measured, work) for work in measured.answered]


def works_of(measured: Measured, work: str) -> Sequence[str]:
    """The kinds of work that one stands for; ALL for those that are measured, once there are two."""
    if work != ALL:
        return [work]
    done = {one.work for one in measured.samples}
    return [one for one in measured.works if one in done] if len(done) > 1 else []


@dataclass(frozen=True)
class SettingRow:
    """A setting on the prompts of a kind of work. cost: what a round takes, in rounds of the target alone. A
    speed-up is tokens_per_round / cost; both are None where too little was measured. is_best: of
    those that are known. beside: it is the recommended one, not surely slower than that one, or slower; None
    where none is recommended."""

    work: str
    setting: Candidate
    speedup: SpeedUp | None
    cost: float | None
    drafted_per_round: float
    acceptance_rate: float | None
    tokens_per_round: float
    prompts: int
    is_best: bool
    beside: Beside | None


def rows_of(measured: Measured, work: str) -> list[SettingRow]:
    """The settings that were measured in a kind of work, the fastest first; before those that were dropped,
    which have fewer prompts. In ALL those that were measured in each kind."""
    found = by_setting(measured.samples, works_of(measured, work))
    best, left = leader_of(found), still_in(found, list(found))
    is_recommended = best is not None and _pays(found[best].speedup)

    def beside(setting: Candidate) -> Beside | None:
        if not is_recommended:
            return None
        return "recommended" if setting == best else "alike" if setting in left else "slower"

    rows = [
        SettingRow(
            work,
            setting,
            speedup=own.speedup,
            cost=own.speedup and own.tokens_per_round / own.speedup.value,
            drafted_per_round=own.drafted_per_round,
            acceptance_rate=own.acceptance_rate,
            tokens_per_round=own.tokens_per_round,
            prompts=len(own.samples),
            is_best=setting == best,
            beside=beside(setting),
        )
        for setting, own in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.prompts, -row.speedup.value if row.speedup else 0.0))


def _pays(speedup: SpeedUp | None) -> bool:
    """Surely, by its interval as it is told."""
    return speedup is not None and round(speedup.low, 2) > 1


def recommendation(measured: Measured, work: str) -> Recommendation:
    rows, works = rows_of(measured, work), works_of(measured, work)
    best = next((row for row in rows if row.is_best), None)
    most = max((row.prompts for row in rows), default=0)
    is_settled = work in measured.settled or measured.finalists.get(work) == ()
    unknown = Recommendation(
        work=work,
        reason=_not_known(measured, works, most),
        prompts=most,
        is_provisional=not is_settled and measured.ended not in ("clear", "all"),
    )
    if best is None:
        return unknown
    assert best.speedup is not None
    if not is_told(best.speedup):
        return replace(unknown, reason=_speak("too_wide", **_figures(best)))
    contender, gamma = ALONE, None
    if _pays(best.speedup):
        reason = _speak("pays", **_figures(best))
        reason = f"{reason[0].upper()}{reason[1:]}"
        contender, gamma = contender_of(measured, best.setting), best.setting.gamma
    else:
        key = "slower" if round(best.speedup.high, 2) < 1 else "unclear"
        reason = f"{_speak(key, **_figures(best))} {_speak('costs', **_figures(best))}"
        if key == "unclear" and unknown.is_provisional:  # more prompts may show that it pays
            return replace(unknown, reason=reason, prompts=best.prompts)
    if work == ALL and len(works) < len(measured.works):
        reason += f" {_speak('of_some', works=', '.join(map(work_in_words, works)))}"
    named = ("draft_with", "drafter", "drafter_kind")
    return replace(
        unknown,
        **{name: getattr(contender, name) for name in named},
        gamma=gamma,
        speedup=best.speedup.value,
        interval=best.speedup.interval,
        reason=reason,
        best=best.setting,
        prompts=best.prompts,
    )


def _not_known(measured: Measured, works: Sequence[str], prompts: int) -> str:
    """Why it is not known what pays. prompts: of the setting with most of them."""
    count = prompts // (len(works) or 1)
    chosen = [measured.finalists[one] for one in works or measured.works if one in measured.finalists]
    if (chosen and not any(chosen)) or count >= FEWEST_PROMPTS:
        return _speak("too_short")
    if not count:
        return _speak("none_measured" if works else "few_kinds")
    return _speak("too_few", count=count, least=FEWEST_PROMPTS)


def _figures(row: SettingRow) -> dict[str, str]:
    """What sentences on a setting that was timed have of it."""
    assert row.speedup is not None and row.cost is not None
    return {
        "who": called(row.setting),
        "speed": speedup_in_words(row.speedup.interval, row.speedup.value),
        "tokens": numeral(row.tokens_per_round, ".2f"),
        "cost": numeral(row.cost, ".2f"),
    }


@dataclass(frozen=True)
class Concurrent:
    """So many requests at once. rows: of a forward of the target that checks all their drafts, on average.
    speedup: over as many requests without drafts; of several requests it follows from that of one."""

    requests: int
    rows: float
    speedup: float


REQUESTS = (1, 4, 16, 64)
NOTICED = 0.05  # of a forward over one row: what the rows of the longest draft must add


def concurrent(measured: Measured, best: Recommendation) -> tuple[list[Concurrent], float | None]:
    """What the best setting brings with several requests at once: the gain with one, times how much less a
    round costs there, in rounds of as many requests without drafts. And the break-even: the rows that take as
    long in a forward as everything that all of them share, as reading the weights; at least one. Nothing
    where no setting is known or it drafts nothing, and where more rows hardly take longer. Drafting is taken
    to grow as the target's forward does."""
    row = row_cost(measured)
    if best.best is None or best.speedup is None or row * LENGTHS[-1] < NOTICED:
        return [], None
    even = max(1.0, 1 / row - 1)
    own = by_setting(measured.samples, works_of(measured, best.work))[best.best]
    drafted = own.drafted_per_round

    def cost(requests: int) -> float:
        """Of a round, in such rounds without drafts. even + rows: what a forward takes."""
        return (even + requests * (1 + drafted)) / (even + requests) + own.draft_cost

    gain = best.speedup * cost(1)
    found = [Concurrent(count, count * (1 + drafted), gain / cost(count)) for count in REQUESTS]
    return (found if drafted else []), even


def contender_of(measured: Measured, setting: Candidate) -> Contender:
    return next(one for one in measured.contenders if one.name == setting.contender)


def called(setting: Candidate) -> str:
    return f"{setting.contender}, γ {setting.gamma}"
