"""What follows from the samples: what each draft length would bring, which settings are worth measuring,
which are out, and what to recommend. Without torch.

A setting's speed-up is the tokens a round that it brings over what its rounds take, in rounds of the target
alone. The first is counted, and its interval is for other prompts of the same kind: a jackknife over the
prompts, on the logarithm (Tukey 1958). The second is timed in turns (events/speedup.py). The squares of both
intervals add up."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import fmean
from typing import Literal

from specdemo.advise.results import (
    ALL,
    CheckTime,
    Contender,
    Measured,
    Recommendation,
    Sample,
    Setting,
    Together,
    check_ratio,
)
from specdemo.events.speedup import SpeedUp, break_even, is_wide, speed_up_in_turns, student
from specdemo.events.verdict import speedup_in_words
from specdemo.words.catalogue import numeral, speaker_of

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # of drafts, that are compared
PROBED = 8  # tokens of a draft of the first texts, from which all lengths are estimated
FEWEST_PROMPTS = 3  # of which an interval is told
MOST_FINALISTS = 6  # settings of a kind of work that are measured
WORTH = 0.9  # of the best estimate, from which on a setting is measured
SAME = 1.03  # settings that differ by less are as good

# A prompt, by its work and its number there.
Place = tuple[str, int]
ByPlace = Mapping[Place, Sample]


@dataclass(frozen=True)
class Estimate:
    """What a setting would bring: tokens a round, and how many times as fast as the target alone."""

    setting: Setting
    tokens: float
    speedup: float


def estimates(contender: Contender, probe: Together, checks: Sequence[CheckTime]) -> list[Estimate]:
    """The estimates for all draft lengths, from texts with drafts of up to PROBED tokens. checks: of one
    context, by their rows."""
    found = []
    for gamma in lengths_of(contender):
        accepted, drafted = _up_to(gamma, probe, "accepted"), _up_to(gamma, probe, "drafted")
        # drafted[i]: the share of rounds with more than i drafts; so these are the shares with exactly i.
        exactly = [above - below for above, below in zip([1.0, *drafted], [*drafted, 0.0], strict=True)]
        cost = sum(share * check_ratio(checks, 1 + length) for length, share in enumerate(exactly))
        made = probe.drafted_per_round
        cost += probe.draft_cost * (sum(drafted) / made if made and not contender.at_once else 1.0)
        tokens = 1 + sum(accepted)
        found.append(Estimate(Setting(contender.name, gamma), tokens, tokens / cost))
    return found


def lengths_of(contender: Contender) -> list[int]:
    return sorted({min(length, contender.longest or length) for length in LENGTHS})


def _up_to(gamma: int, probe: Together, what: Literal["drafted", "accepted"]) -> list[float]:
    """The share of rounds with more than i tokens, for i below gamma. Beyond what was probed each share is
    less than the one before by the same factor, as it was on average."""
    shares = probe.share_above(what, min(gamma, PROBED))
    factor = shares[-1] ** (1 / len(shares))
    return shares + [shares[-1] * factor**more for more in range(1, gamma - len(shares) + 1)]


def finalists(found: Iterable[Estimate]) -> list[Setting]:
    """The settings that are worth measuring, the most promising first."""
    ordered = sorted(found, key=lambda one: one.speedup, reverse=True)
    return [one.setting for one in ordered[:MOST_FINALISTS] if one.speedup >= WORTH * ordered[0].speedup]


def estimates_of(measured: Measured, works: Iterable[str]) -> list[Estimate]:
    """The estimates of all contenders, from what was probed in these kinds of work together."""
    wanted, checks = set(works), shortest_context(measured.checks)
    found = []
    for contender in measured.contenders:
        own = [one for one in measured.probes if one.setting.contender == contender.name]
        if probe := tuple(one for one in own if one.work in wanted and one.turns):
            found += estimates(contender, Together(probe), checks)
    return found


def shortest_context(checks: Sequence[CheckTime]) -> list[CheckTime]:
    """The times after the shortest text, by their rows."""
    shortest = min((one.context for one in checks), default=0)
    return sorted((one for one in checks if one.context == shortest), key=lambda one: one.rows)


def by_setting(samples: Sequence[Sample], work: str = ALL) -> dict[Setting, ByPlace]:
    """The samples of a kind of work, by what was set and on which prompt. ALL: as many prompts of each kind
    as were written of the one with the fewest, so that they weigh alike; and only what was set in each."""
    written: dict[str, int] = defaultdict(int)
    for one in samples:
        written[one.work] = max(written[one.work], one.prompt + 1)
    most = min(written.values(), default=0) if work == ALL else written[work]
    found: dict[Setting, dict[Place, Sample]] = defaultdict(dict)
    for one in samples:
        if work in (ALL, one.work) and one.prompt < most:
            found[one.setting][one.work, one.prompt] = one
    kinds = set(written) if work == ALL else {work}
    return {one: own for one, own in found.items() if {kind for kind, _ in own} == kinds}


def speed_up_of(own: ByPlace) -> SpeedUp | None:
    """How many times as fast as the target alone. None for fewer than FEWEST_PROMPTS prompts, and where too
    few turns were timed."""
    together = Together(tuple(own.values()))
    timing = speed_up_in_turns(together.turns, together.rounds)
    if timing is None or len(own) < FEWEST_PROMPTS:
        return None
    counting = _half_width(list(own), lambda places: log(_tokens(own, places)))
    return _interval(timing.value, hypot(counting, log(timing.high / timing.value)))


def times_as_fast(one: ByPlace, other: ByPlace) -> SpeedUp | None:
    """How many times as fast the one setting is as the other, on the prompts of both."""
    both = [place for place in one if place in other]
    if len(both) < FEWEST_PROMPTS:
        return None
    own, others = (speed_up_of({place: side[place] for place in both}) for side in (one, other))
    timed = [
        speed_up_in_turns(together.turns, together.rounds)
        for together in (Together(tuple(side[place] for place in both)) for side in (one, other))
    ]
    if own is None or others is None or None in timed:
        return None
    counting = _half_width(both, lambda places: log(_tokens(one, places) / _tokens(other, places)))
    timing = hypot(*(log(found.high / found.value) for found in timed if found))
    return _interval(own.value / others.value, hypot(counting, timing))


def _tokens(side: ByPlace, places: Sequence[Place]) -> float:
    return Together(tuple(side[place] for place in places)).tokens_per_round


def _half_width(places: Sequence[Place], of: Callable[[Sequence[Place]], float]) -> float:
    """Half the width of the 90% interval of a function of the prompts, by the jackknife."""
    count = len(places)
    without = [of([*places[:at], *places[at + 1 :]]) for at in range(count)]
    middle = fmean(without)
    return student(count) * sqrt((count - 1) / count * sum((one - middle) ** 2 for one in without))


def _interval(value: float, half: float) -> SpeedUp:
    return SpeedUp(value, value * exp(-half), value * exp(half))


def still_in(found: Mapping[Setting, ByPlace], running: Sequence[Setting]) -> list[Setting]:
    """The settings that may still be the best of those in the running: all that the one that leads is not
    surely faster than."""
    leader = leader_of(found, running)
    if leader is None:
        return list(running)
    ahead = {one: times_as_fast(found[leader], found.get(one, {})) for one in running if one != leader}
    return [one for one in running if one == leader or (lead := ahead[one]) is None or lead.low <= 1]


def leader_of(found: Mapping[Setting, ByPlace], running: Iterable[Setting]) -> Setting | None:
    """The best setting so far, by `best_of`; None while nothing is known."""
    return best_of(
        {
            one: (len(found[one]), speedup)
            for one in running
            if one in found and (speedup := speed_up_of(found[one]))
        }
    )


def best_of(known: Mapping[Setting, tuple[int, SpeedUp]]) -> Setting | None:
    """The setting with the largest speed-up; of those as good, the surest. known: on how many prompts, and
    the speed-up. What was dropped before the last prompt is none of the best."""
    most = max((prompts for prompts, _ in known.values()), default=0)
    speedups = {one: speedup for one, (prompts, speedup) in known.items() if prompts == most}
    enough = max((one.value for one in speedups.values()), default=0.0) / SAME
    as_good = [one for one, speedup in speedups.items() if speedup.value >= enough]
    return max(as_good, key=lambda one: speedups[one].low, default=None)


def is_clear(found: Mapping[Setting, ByPlace], running: Sequence[Setting]) -> bool:
    """Whether it is known which of them is best, or that it hardly matters, and whether that one pays."""
    leader = leader_of(found, running)
    if leader is None or (speedup := speed_up_of(found[leader])) is None:
        return False
    pays = (speedup.low > 1 and not is_wide(speedup.interval)) or speedup.high < SAME
    others = (times_as_fast(found.get(one, {}), found[leader]) for one in running if one != leader)
    return pays and all(lead is not None and lead.high < SAME for lead in others)


_speak = speaker_of("said.advice")


def recommendations(measured: Measured) -> list[Recommendation]:
    """One for each kind of work that was asked for, and the one for all of it where there are several."""
    several = [ALL] if len(measured.works) > 1 else []
    return [recommendation(measured, work) for work in (*measured.works, *several)]


@dataclass(frozen=True)
class SettingRow:
    """A setting on the prompts of a kind of work. cost: what a round takes, in rounds of the target alone. A
    speed-up is tokens_per_round / cost; both are None where too little was measured."""

    setting: Setting
    speedup: SpeedUp | None
    cost: float | None
    drafted_per_round: float
    acceptance_rate: float | None
    tokens_per_round: float
    prompts: int


def rows_of(measured: Measured, work: str) -> list[SettingRow]:
    """The settings that were measured in a kind of work, the fastest first; in ALL those that were measured
    in each."""
    rows = []
    for setting, own in by_setting(measured.samples, work).items():
        together, speedup = Together(tuple(own.values())), speed_up_of(own)
        row = SettingRow(
            setting,
            speedup=speedup,
            cost=speedup and together.tokens_per_round / speedup.value,
            drafted_per_round=together.drafted_per_round,
            acceptance_rate=together.acceptance_rate,
            tokens_per_round=together.tokens_per_round,
            prompts=len(own),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row.speedup.value if row.speedup else 0.0, reverse=True)


def recommendation(measured: Measured, work: str) -> Recommendation:
    rows = {row.setting: row for row in rows_of(measured, work)}
    chosen = best_of({one: (row.prompts, row.speedup) for one, row in rows.items() if row.speedup})
    if chosen is None:
        count = max((row.prompts for row in rows.values()), default=0)
        reason = _speak("too_few" if count else "none_measured", count=count, least=FEWEST_PROMPTS)
        return Recommendation(work, "none", None, None, None, None, None, reason, None, count)
    best = rows[chosen]
    assert best.speedup is not None
    contender = contender_of(measured, best.setting)
    low, high = (round(end, 2) for end in best.speedup.interval)  # as they are said
    pays = low > 1
    said = {"who": called(best.setting), "speed": speedup_in_words(best.speedup.interval, best.speedup.value)}
    if pays:
        reason = _speak("pays", **said, **_per_round(best))
        reason = f"{reason[0].upper()}{reason[1:]}"
    else:
        reason = f"{_speak('slower' if high < 1 else 'unclear', **said)} {_why_not(best)}"
    return Recommendation(
        work,
        draft_with=contender.draft_with if pays else "none",
        drafter=contender.drafter if pays else None,
        drafter_kind=contender.drafter_kind if pays else None,
        gamma=best.setting.gamma if pays else None,
        speedup=best.speedup.value,
        interval=best.speedup.interval,
        reason=reason,
        best=best.setting,
        prompts=best.prompts,
    )


def _why_not(row: SettingRow) -> str:
    """Why it does not pay: by the share of drafts that are accepted, where that tells it."""
    rate, drafted = row.acceptance_rate, row.drafted_per_round
    if not drafted:
        return _speak("drafts_nothing")
    if not rate:
        return _speak("accepts_nothing", drafted=numeral(drafted, ".2f"))
    assert row.cost is not None
    needed = break_even(drafted, row.cost)
    if needed is None:
        return _speak("hopeless", rate=numeral(rate, ".0%"), **_per_round(row))
    if round(needed, 2) <= round(rate, 2):  # the formula takes drafts to be accepted independently
        return _speak("costs", **_per_round(row))
    return _speak("needs", rate=numeral(rate, ".0%"), needed=numeral(needed, ".0%"))


def _per_round(row: SettingRow) -> dict[str, str]:
    assert row.cost is not None
    return {"tokens": numeral(row.tokens_per_round, ".2f"), "cost": numeral(row.cost, ".2f")}


def contender_of(measured: Measured, setting: Setting) -> Contender:
    return next(one for one in measured.contenders if one.name == setting.contender)


def called(setting: Setting) -> str:
    return f"{setting.contender}, γ {setting.gamma}"
