"""Runs the doctor's sections, each in processes of its own, so that a crash or a hang ends no other one."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, Queue
from time import monotonic
from typing import BinaryIO

from specdemo.doctor.trials import Check, Table, public
from specdemo.loading.catalog import ROOT

LIMITS = {  # seconds for each section, in the order in which they run
    "versions": 120,
    "attention": 120,
    "capture": 120,
    "failed-capture": 120,
    "parity": 300,
    "quantised": 300,
    "threads": 180,
    "speed": 300,
}
GRACE = 30  # seconds that a process may take to end after its last check
LAST_LINES = 40  # of a crashed process's output that are kept
WHOLE, END = "the whole section", "the end of the section"  # what has failed when it was no single check

Command = Callable[[int], list[str]]  # the process that runs a section's trials from this index on


def check_sections(names: Sequence[str]) -> None:
    """ValueError for a name that no section has."""
    for name in names:
        if name not in LIMITS:
            known = f"{', '.join(LIMITS)}, separated by commas"
            raise ValueError(f"sections must be some of {known}, not {ascii(name)}")


def command_of(section: str) -> Command:
    return lambda start: [sys.executable, "-m", "specdemo.doctor", section, str(start)]


def run_section(section: str, command: Command, limit: float) -> Iterator[Check]:
    """The section's checks as they come, for at most `limit` seconds. If its process dies, what it was
    doing has failed, and another process does the rest."""
    deadline, done = monotonic() + limit, 0  # checks
    while True:
        with _Process(command(done), deadline) as process:
            doing, has_begun, is_complete = None, False, False
            for message in process.messages():
                has_begun = True
                doing = message.get("begin")  # None when its check has come
                is_complete = "done" in message
                if "check" in message:
                    done += 1
                    yield _check(message["check"])
            status = process.status(GRACE if is_complete else 0)
            if is_complete and status == 0:
                return
            is_over = is_complete or not has_begun or status is None
            if doing is not None or is_over:
                name = doing or (END if is_complete else WHOLE)
                yield Check(section, name, "FAIL", _ending(status, limit), process.last_lines())
        if is_over:
            return
        done += doing is not None


def _ending(status: int | None, limit: float) -> str:
    """How a process ended, in words. None: it did not end within the limit."""
    if status is None:
        return f"still running after {limit:g} s, so nothing more of the section was run"
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


class _Process:
    """A section's process."""

    def __init__(self, command: list[str], deadline: float):
        self.deadline = deadline
        self.output: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115, closed by __exit__
        self.lines: Queue[bytes | None] = Queue()  # None: there will be no more
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=quiet | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.output,
            start_new_session=True,  # so that compilers that it starts can be ended with it
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.output.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put(None)

    @property
    def _seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())

    def messages(self) -> Iterator[dict]:
        """Until the process closes its output, or the time is over."""
        with suppress(Empty):
            while (line := self.lines.get(timeout=self._seconds_left)) is not None:
                if (message := _message(line)) is not None:
                    yield message

    def status(self, grace: float) -> int | None:
        """The exit status, None if the process is still running at the deadline and after `grace` seconds."""
        try:
            return self.process.wait(max(grace, self._seconds_left))
        except subprocess.TimeoutExpired:
            return None

    def last_lines(self) -> str:
        """Of what the process has written. One that is still running writes where it is, and is ended."""
        if hasattr(signal, "SIGUSR1") and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self._kill()
        self.output.seek(0)
        lines = self.output.read().decode("utf-8", "replace").splitlines()
        return public("\n".join(lines[-LAST_LINES:]))

    def _kill(self) -> None:
        """Also ends what the process has started."""
        with suppress(OSError):  # there is none any more
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it; the doctor goes on
            self.process.wait(10)


def _message(line: bytes) -> dict | None:
    """None for a line that is no message: something was printed before the channel was opened."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    known = isinstance(message, dict) and message.keys() & {"begin", "check", "done"}
    return message if known else None


def _check(fields: dict) -> Check:
    return Check(**fields | {"tables": [Table(**table) for table in fields["tables"]]})
