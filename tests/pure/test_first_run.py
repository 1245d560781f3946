"""The run that the page plays first: it meets the criteria that it was chosen by, and they find what misses
them."""

from dataclasses import replace

import pytest

from specdemo.events.trace import Trace
from specdemo.ui.page.page import RECORDED
from specdemo.ui.view.texts import whose
from tests.first_run import TEXT, TIMES, first_example, unmet

RUN = Trace.load(RECORDED)


def test_it_meets_each_criterion():
    assert unmet(RUN, TEXT | TIMES) == []


def with_stats(**changed) -> Trace:
    return replace(RUN, stats=replace(RUN.stats, **changed))


def of_one_token(count: int) -> Trace:
    """Some rounds have brought one token each."""
    short = [replace(one, emitted=one.emitted[-1:]) for one in RUN.rounds[-count:]]
    return replace(RUN, rounds=[*RUN.rounds[:-count], *short])


@pytest.mark.parametrize(
    ("run", "missed"),
    [
        (with_stats(acceptance_rate=0.57), "accepted near 75 %"),
        (with_stats(tokens=200), "of 90 to 150 tokens"),
        (replace(RUN, finish="length"), "ended by the model"),
        (replace(RUN, text=RUN.text + " And"), "ended with a sentence"),
        (replace(RUN, text=RUN.text + " There, " + RUN.prompt), "without a phrase twice"),
        (replace(RUN, text="\N{REPLACEMENT CHARACTER}\0" + RUN.text), "of printable characters"),
        (replace(RUN, text='"' + RUN.text), "with quotation marks in pairs"),
        (replace(RUN, rounds=RUN.rounds[:1]), "with a rejection and a bonus in its beginning"),
        (of_one_token(3), "without three rounds in a row of one token each"),
        (with_stats(speedup=1.7), "about twice as fast"),
        (with_stats(speedup_interval=(0.99, 1.2)), "faster for sure"),
        (with_stats(speedup_interval=(1.7, 2.4)), "undisturbed"),
        (with_stats(target_step_spread=(7.0, 12.0)), "undisturbed"),
    ],
)
def test_another_run_misses_one(run, missed):
    assert unmet(run, TEXT | TIMES) == [missed]


def test_it_is_what_the_page_runs_with_its_seed():
    assert (RUN.prompt, RUN.params) == first_example(RUN.params.seed)


def test_its_date_and_its_machine_are_shown():
    machine = f"{RUN.pair.device} ({RUN.pair.device_name})"
    assert RUN.date and whose(RUN, recorded=True).endswith(f" · {machine} · {RUN.date}")
