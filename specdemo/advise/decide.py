"""What follows from the samples: what each draft length would bring, which settings are worth measuring,
which are out, and what to recommend. Without torch.

A setting's speed-up on some prompts is the time per token of the target alone over its own, over all rounds
of these prompts. Its interval is for other prompts of the same kind, too: a jackknife over the prompts, on
the logarithm, with Student's t (Tukey 1958)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

from specdemo.advise.results import (
    ALL,
    PLAIN,
    CheckTime,
    Contender,
    Measured,
    Recommendation,
    Sample,
    Setting,
    Sum,
    check_ms,
    summed,
)
from specdemo.events.speedup import SpeedUp, break_even, is_wide, student
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
ByPlace = dict[Place, Sample]


@dataclass(frozen=True)
class Estimate:
    """What a setting would bring: tokens a round, and how many times as fast as the target alone."""

    setting: Setting
    tokens: float
    speedup: float


def estimates(
    contender: Contender, probe: Sum, plain_ms: float, checks: Sequence[CheckTime]
) -> list[Estimate]:
    """The estimates for all draft lengths, from texts with drafts of up to PROBED tokens. probe: these texts.
    plain_ms: what a round of the target alone takes on them. checks: by their rows; the times of more rows
    count relative to that of one."""
    one_row = checks[0].ms
    found = []
    for gamma in lengths_of(contender):
        accepted, drafted = (_up_to(gamma, at, probe) for at in (probe.accepted_at, probe.drafted_at))
        tokens = 1 + sum(accepted)
        # drafted[i]: the share of rounds with more than i drafts; so these are the shares with exactly i.
        exactly = [above - below for above, below in zip([1.0, *drafted], [*drafted, 0.0], strict=True)]
        rows = sum(
            share * check_ms(checks, 1 + length) / one_row for length, share in enumerate(exactly) if share
        )
        draft_ms = probe.draft_ms / probe.rounds
        if not contender.at_once and probe.drafted_at:
            draft_ms *= sum(drafted) / probe.drafted_per_round
        found.append(
            Estimate(Setting(contender.name, gamma), tokens, tokens * plain_ms / (draft_ms + plain_ms * rows))
        )
    return found


def lengths_of(contender: Contender) -> list[int]:
    return sorted({min(length, contender.longest or length) for length in LENGTHS})


def _up_to(gamma: int, at: Sequence[int], probe: Sum) -> list[float]:
    """The share of rounds with more than i tokens, for i below gamma. Beyond what was probed each share is
    less than the one before by the same factor, as it was on average."""
    shares = [count / probe.rounds for count in at[:gamma]]
    if len(at) >= PROBED and gamma > len(shares):
        factor = shares[-1] ** (1 / len(shares))
        shares += [shares[-1] * factor**more for more in range(1, gamma - len(shares) + 1)]
    return shares + [0.0] * (gamma - len(shares))


def finalists(found: Iterable[Estimate]) -> list[Setting]:
    """The settings that are worth measuring, the most promising first."""
    ordered = sorted(found, key=lambda one: one.speedup, reverse=True)
    return [one.setting for one in ordered[:MOST_FINALISTS] if one.speedup >= WORTH * ordered[0].speedup]


def estimates_of(measured: Measured, works: Iterable[str]) -> list[Estimate]:
    """The estimates of all contenders, from what was probed in these kinds of work together."""
    wanted, checks = set(works), checks_at_hand(measured.checks)
    by_contender: dict[str, list[Sample]] = defaultdict(list)
    for one in measured.probes:
        if one.work in wanted:
            by_contender[one.setting.contender].append(one)
    plain = by_contender.pop(PLAIN.contender, [])
    if not plain or not checks:
        return []
    plain_ms = summed(plain).ms_per_token
    return [
        estimate
        for contender in measured.contenders
        if (own := by_contender.get(contender.name))
        for estimate in estimates(contender, summed(own), plain_ms, checks)
    ]


def checks_at_hand(checks: Sequence[CheckTime]) -> list[CheckTime]:
    """The times of the shortest context, by their rows."""
    shortest = min((one.context for one in checks), default=0)
    return sorted((one for one in checks if one.context == shortest), key=lambda one: one.rows)


def by_setting(samples: Sequence[Sample], work: str = ALL) -> dict[Setting, ByPlace]:
    """The samples of a kind of work, by what was set and on which prompt. ALL: as many prompts of each kind
    as were written of the one with the fewest, so that they weigh alike."""
    written: dict[str, int] = defaultdict(int)
    for one in samples:
        written[one.work] = max(written[one.work], one.prompt + 1)
    most = min(written.values(), default=0) if work == ALL else written[work]
    found: dict[Setting, ByPlace] = defaultdict(dict)
    for one in samples:
        if work in (ALL, one.work) and one.prompt < most:
            found[one.setting][one.work, one.prompt] = one
    return found


def times_as_fast(fast: ByPlace, slow: ByPlace) -> SpeedUp | None:
    """How many times as fast the one is as the other, on the prompts that both have. None for fewer than
    FEWEST_PROMPTS."""
    both = [place for place in fast if place in slow]
    if len(both) < FEWEST_PROMPTS:
        return None
    factors = [_factor(fast, slow, [place for place in both if place != left_out]) for left_out in both]
    whole, middle = _factor(fast, slow, both), fmean(factors)
    count = len(both)
    error = sqrt((count - 1) / count * sum((one - middle) ** 2 for one in factors))
    half = student(count) * error
    return SpeedUp(exp(whole), exp(whole - half), exp(whole + half))


def _factor(fast: ByPlace, slow: ByPlace, places: Sequence[Place]) -> float:
    """The logarithm of the ratio of the times per token."""
    mine, theirs = (summed(side[place] for place in places) for side in (fast, slow))
    return log(theirs.ms_per_token / mine.ms_per_token)


def still_in(found: Mapping[Setting, ByPlace], running: Sequence[Setting]) -> list[Setting]:
    """The settings that may still be the best of those in the running: all that the one that leads is not
    surely faster than."""
    leader = leader_of(found, running)
    if leader is None:
        return list(running)
    ahead = {one: times_as_fast(found[leader], found[one]) for one in running if one != leader}
    return [one for one in running if one == leader or (lead := ahead[one]) is None or lead.low <= 1]


def leader_of(found: Mapping[Setting, ByPlace], running: Iterable[Setting]) -> Setting | None:
    """The best setting so far, by `best_of`; None while nothing is known."""
    return best_of(
        {
            one: (len(found[one]), speedup.value)
            for one in running
            if one in found and (speedup := times_as_fast(found[one], found[PLAIN]))
        }
    )


def best_of(known: Mapping[Setting, tuple[int, float]]) -> Setting | None:
    """The setting with the largest speed-up; of those as good, the one with the shortest drafts. known: on
    how many prompts, and the speed-up. What was dropped before the last prompt is none of the best."""
    most = max((prompts for prompts, _ in known.values()), default=0)
    speedups = {one: speedup for one, (prompts, speedup) in known.items() if prompts == most}
    enough = max(speedups.values(), default=0.0) / SAME
    as_good = [one for one, speedup in speedups.items() if speedup >= enough]
    return min(as_good, key=lambda one: one.gamma, default=None)


def is_clear(found: Mapping[Setting, ByPlace], running: Sequence[Setting]) -> bool:
    """Whether it is known which of them is best, or that it hardly matters, and whether that one pays."""
    leader = leader_of(found, running)
    if leader is None or (speedup := times_as_fast(found[leader], found[PLAIN])) is None:
        return False
    pays = (speedup.low > 1 and not is_wide(speedup.interval)) or speedup.high < SAME
    others = (times_as_fast(found[one], found[leader]) for one in running if one != leader)
    return pays and all(lead is not None and lead.high < SAME for lead in others)


_speak = speaker_of("said.advice")


def recommendations(measured: Measured) -> list[Recommendation]:
    """One for each kind of work that was asked for, and the one for all of it where there are several."""
    several = [ALL] if len(measured.works) > 1 else []
    return [recommendation(measured, work) for work in (*measured.works, *several)]


@dataclass(frozen=True)
class SettingRow:
    """A setting on the prompts of a kind of work that the target alone wrote, too. cost: what a round takes,
    in rounds of the target alone."""

    setting: Setting
    speedup: float
    interval: tuple[float, float] | None
    drafted_per_round: float
    acceptance_rate: float | None
    tokens_per_round: float
    cost: float
    prompts: int


def rows_of(measured: Measured, work: str) -> list[SettingRow]:
    """The settings that were measured in a kind of work, the fastest first; in ALL those that were measured
    in each."""
    found = by_setting(measured.samples, work)
    plain = found.get(PLAIN, {})
    rows = []
    for setting, own in found.items():
        places = [place for place in own if place in plain]
        if setting == PLAIN or not places or not _is_for(work, own, plain):
            continue
        mine, alone = (summed(side[place] for place in places) for side in (own, plain))
        speedup = times_as_fast(own, plain)
        rows.append(
            SettingRow(
                setting,
                speedup=alone.ms_per_token / mine.ms_per_token,
                interval=speedup and speedup.interval,
                drafted_per_round=mine.drafted_per_round,
                acceptance_rate=mine.acceptance_rate,
                tokens_per_round=mine.tokens_per_round,
                cost=mine.ms / mine.rounds / alone.ms_per_token,
                prompts=len(places),
            )
        )
    return sorted(rows, key=lambda row: row.speedup, reverse=True)


def recommendation(measured: Measured, work: str) -> Recommendation:
    rows = {row.setting: row for row in rows_of(measured, work)}
    chosen = best_of({one: (row.prompts, row.speedup) for one, row in rows.items() if row.interval})
    if chosen is None:
        count = max((row.prompts for row in rows.values()), default=0)
        reason = _speak("too_few" if count else "none_measured", count=count, least=FEWEST_PROMPTS)
        return Recommendation(work, "none", None, None, None, None, None, reason, None, count)
    best = rows[chosen]
    assert best.interval is not None
    contender = contender_of(measured, best.setting)
    low, high = (round(end, 2) for end in best.interval)  # as they are said
    pays = low > 1
    said = {"who": called(best.setting), "speed": speedup_in_words(best.interval, best.speedup)}
    if pays:
        reason = _speak("pays", **said, **_per_round(best))
    else:
        reason = f"{_speak('slower' if high < 1 else 'unclear', **said)} {_why_not(best)}"
    return Recommendation(
        work,
        draft_with=contender.draft_with if pays else "none",
        drafter=contender.drafter if pays else None,
        drafter_kind=contender.drafter_kind if pays else None,
        gamma=best.setting.gamma if pays else None,
        speedup=best.speedup,
        interval=best.interval,
        reason=reason,
        best=best.setting,
        prompts=best.prompts,
    )


def _is_for(work: str, own: ByPlace, plain: ByPlace) -> bool:
    """Whether a setting was measured in all the kinds of work that the target alone was."""
    return work != ALL or {kind for kind, _ in own} >= {kind for kind, _ in plain}


def _why_not(row: SettingRow) -> str:
    """Why it does not pay: by the share of drafts that are accepted, where that tells it."""
    rate, drafted = row.acceptance_rate, row.drafted_per_round
    if not drafted:
        return _speak("drafts_nothing")
    if not rate:
        return _speak("accepts_nothing", drafted=numeral(drafted, ".2f"))
    needed = break_even(drafted, row.cost)
    if needed is None:
        return _speak("hopeless", rate=numeral(rate, ".0%"), **_per_round(row))
    if round(needed, 2) <= round(rate, 2):  # the formula takes drafts to be accepted independently
        return _speak("costs", **_per_round(row))
    return _speak("needs", rate=numeral(rate, ".0%"), needed=numeral(needed, ".0%"))


def _per_round(row: SettingRow) -> dict[str, str]:
    return {"tokens": numeral(row.tokens_per_round, ".2f"), "cost": numeral(row.cost, ".2f")}


def contender_of(measured: Measured, setting: Setting) -> Contender:
    return next(one for one in measured.contenders if one.name == setting.contender)


def called(setting: Setting) -> str:
    return f"{setting.contender}, γ {setting.gamma}"
