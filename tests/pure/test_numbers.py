"""Numbers of messages, when the clock is put back."""

import time

from specdemo.ui.numbers import later_number


def test_numbers_grow_also_when_the_clock_goes_back(monkeypatch):
    now = time.time_ns()
    first = later_number()
    assert abs(first - now // 1_000_000) < 60_000
    monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
    assert first < later_number() < later_number() < first + 100
