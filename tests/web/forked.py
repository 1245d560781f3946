"""The app in a process that is forked from one that has imported the whole app.

The imports take twelve seconds of processor time, and the tests start some twenty servers. Tests of the
README's line and of ZeroGPU's package start `python app.py`."""

import importlib
import os
import subprocess
import time
from collections.abc import Callable
from multiprocessing import get_context
from unittest.mock import patch

import huggingface_hub.constants
import transformers.models.llama.modeling_llama  # noqa: F401  (of every pair that the tests serve)

import app
import specdemo.loading.load
import specdemo.ui.page.page
import specdemo.ui.page.serve  # noqa: F401  (which app.py imports within its functions, with the two above)
from specdemo.session import Event, Run

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
CONTEXT = get_context("forkserver")


class Forked(CONTEXT.Process):
    """app.py with these arguments. It has the methods of a Popen.

    log: the file for its output. change: called in the process first, for what no argument sets."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        log: str,
        environment: dict[str, str],
        change: Callable[[], None] | None = None,
    ):
        environment = {**os.environ, **QUIET, **environment}
        super().__init__(target=_serve, args=(arguments, log, environment, change), daemon=True)
        CONTEXT.set_forkserver_preload([__name__])
        with patch.dict(os.environ, QUIET):  # the process that forks is started with the first one
            self.start()

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("app.py", timeout)
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _serve(
    arguments: tuple[str, ...],
    log: str,
    environment: dict[str, str],
    change: Callable[[], None] | None,
) -> None:
    os.environ.clear()  # those of the first server's start
    os.environ.update(environment)
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    importlib.reload(huggingface_hub.constants)  # they are read from the environment
    if change is not None:
        change()
    app.end(app.main(["--port", "0", *arguments]))


def slow_runs(pause: float) -> None:
    """pause: seconds between two events of a run. It is their reader's time: no clock of the engine counts
    it."""
    following = Run.__next__

    def wait_for_next(run: Run) -> Event:
        time.sleep(pause)
        return following(run)

    Run.__next__ = wait_for_next
