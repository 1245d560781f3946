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


@pytest.mark.parametrize(
    ("run", "missed"),
    [
        (with_stats(acceptance_rate=0.57), "accepted near 75 %"),
        (replace(RUN, finish="length"), "ended by the model"),
        (replace(RUN, text=RUN.text + " There, " + RUN.prompt), "without a phrase twice"),
        (replace(RUN, rounds=RUN.rounds[:1]), "with a rejection and a bonus in its beginning"),
        (with_stats(speedup_interval=(1.7, 2.4)), "undisturbed"),
    ],
)
def test_another_run_misses_one(run, missed):
    assert unmet(run, TEXT | TIMES) == [missed]


def test_it_is_what_the_page_runs_with_its_seed():
    assert (RUN.prompt, RUN.params) == first_example(RUN.params.seed)


def test_its_date_and_its_machine_are_shown():
    machine = f"{RUN.pair.device} ({RUN.pair.device_name})"
    assert RUN.date and whose(RUN, recorded=True).endswith(f" · {machine} · {RUN.date}")
