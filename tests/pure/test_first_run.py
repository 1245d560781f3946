"""The run that the page plays first meets the criteria that it was chosen by."""

from specdemo.events.trace import Trace
from specdemo.ui.page.page import RECORDED
from tests.first_run import TEXT, TIMES, first_example, unmet

RUN = Trace.load(RECORDED)


def test_it_meets_each_criterion():
    assert unmet(RUN, TEXT | TIMES) == []


def test_it_is_what_the_page_runs_with_its_seed():
    assert (RUN.prompt, RUN.params) == first_example(RUN.params.seed)
