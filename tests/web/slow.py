"""The app with runs that take their time, for tests that look at one while it goes on.

python -m tests.web.slow SECONDS ...    the time between a run's events; the rest is for app.py
"""

import sys
import time

import app
from specdemo.session import Run


def slow_runs(seconds: float) -> None:
    """From here on, in this process. It is the reader's time: no clock of the engine counts it."""
    following = Run.__next__

    def wait_for_next(run: Run):
        time.sleep(seconds)
        return following(run)

    Run.__next__ = wait_for_next


if __name__ == "__main__":
    slow_runs(float(sys.argv[1]))
    app.end(app.main(sys.argv[2:]))
