"""Runs the doctor's sections, each in processes of its own, so that a crash or a hang costs one check, and
reports what they found: a line for each check, and all of it as JSON, in one fenced block that can be pasted
into an issue."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from time import monotonic
from typing import IO, Literal

from specdemo.errors import redacted
from specdemo.loading.catalog import ROOT

SECTIONS = {  # in the order in which they run, with seconds for each
    "versions": 120,
    "capture": 120,
    "failed-capture": 120,
    "parity": 300,
    "quantised": 300,
}
ENDING_SECONDS = 30.0  # that a process may take to end after its last check
LAST_LINES = 40  # of a crashed process's output that are kept
WHOLE, END = "the whole section", "the end of the section"  # what has failed when it was no single check

Outcome = Literal["PASS", "FAIL", "NOT RUN"]
Facts = dict[str, dict[str, object]]  # by group ("versions", "hardware")
# The process that runs a section's trials from this index on.
Command = Callable[[int], list[str]]


@dataclass(frozen=True)
class Finding:
    """What a trial that passed has found."""

    detail: str  # a sentence
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One trial of a section. `run` returns what the trial found, or only the sentence. It raises NotRun or
    Failed with a sentence."""

    name: str
    run: Callable[[], Finding | str]


class Failed(Exception):
    """The trial found something wrong."""


class NotRun(Exception):
    """This machine lacks what the trial needs."""


@dataclass(frozen=True)
class Check:
    """The result of a trial, fit to be published."""

    section: str
    name: str
    outcome: Outcome
    detail: str
    output: str | None = None  # the traceback, or the last lines that a crashed process wrote
    facts: Facts = field(default_factory=dict)


def check_sections(names: Sequence[str]) -> None:
    """Raises ValueError for a name that no section has."""
    for name in names:
        if name not in SECTIONS:
            known = f"{', '.join(SECTIONS)}, separated by commas"
            raise ValueError(f"sections must be some of {known}, not {ascii(name)}")


def command_of(section: str) -> Command:
    return lambda start: [sys.executable, "-m", "specdemo.doctor.checks", section, str(start)]


def run_section(section: str, command: Command, limit: float) -> Iterator[Check]:
    """The section's checks as they come, for at most `limit` seconds. If its process dies, what it was
    doing has failed, and another process does the rest."""
    deadline, done = monotonic() + limit, 0  # checks
    while True:
        with TemporaryFile() as printed, closing(_Process(command(done), deadline, printed)) as process:
            doing, has_begun, is_complete = None, False, False
            for message in process.messages():
                has_begun = True
                doing = message.get("begin")  # None when its check has come
                is_complete = "done" in message
                if fields := message.get("check"):
                    done += 1
                    yield Check(**fields)
            status = process.status(ENDING_SECONDS if is_complete else 0.0)
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
    """How a process ended, in words. status: None if it did not end within the limit."""
    if status is None:
        return f"still running after {limit:g} s, so nothing more of the section was run"
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


class _Process:
    """A section's process, which `serve`s on standard output. What is printed in it goes into a file."""

    def __init__(self, command: list[str], deadline: float, printed: IO[bytes]):
        self.deadline, self.printed = deadline, printed
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=printed,
            start_new_session=True,  # so that compilers that it starts can be ended with it
        )
        self.lines = SimpleQueue[bytes]()
        Thread(target=self._read, daemon=True).start()  # a process that a driver holds never closes its end

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def messages(self) -> Iterator[dict]:
        """Yields the process's messages until it ends, or the time is over."""
        with suppress(Empty):
            while line := self.lines.get(timeout=max(0.0, self.deadline - monotonic())):
                with suppress(ValueError):  # what an import prints, or a line that was not written to its end
                    if line.startswith(b"{"):
                        yield json.loads(line)

    def status(self, grace: float) -> int | None:
        """The exit status, None if the process is still running at the deadline and after `grace` seconds."""
        try:
            return self.process.wait(max(grace, self.deadline - monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def last_lines(self) -> str:
        """The last lines of what the process has written. A process that is still running writes where it is,
        and is ended."""
        if hasattr(signal, "SIGUSR1") and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self.close()
        self.printed.seek(0)
        lines = self.printed.read().decode("utf-8", "replace").splitlines()
        return public("\n".join(lines[-LAST_LINES:]))

    def close(self) -> None:
        """Ends the process and what it has started."""
        with suppress(OSError):  # there is none any more
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it; the doctor goes on
            self.process.wait(10)


def serve(section: str, trials: Iterable[Trial], start: int) -> None:
    """Runs the trials from index `start` on, in a process of their own. Writes {"begin": name} and {"check":
    ...} for each to standard output, and {"done": true} at the end: one line of JSON each. Whatever else
    writes there writes to standard error.

    After a CUDA error no later call works in this process, so it ends without "done", and the parent starts
    another one for the rest."""
    faulthandler.enable()  # a crash says where
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1)  # and so does a hang, when the parent asks
    with open(os.dup(1), "w", encoding="utf-8", buffering=1) as lines:
        os.dup2(2, 1)
        for trial in islice(trials, start, None):
            print(json.dumps({"begin": trial.name}), file=lines)
            check = check_of(section, trial)
            print(json.dumps({"check": asdict(check)}), file=lines)
            if check.outcome == "FAIL" and ("CUDA error" in check.detail or "CUDA is lost" in check.detail):
                return
        print(json.dumps({"done": True}), file=lines)


def check_of(section: str, trial: Trial) -> Check:
    """Runs the trial."""
    try:
        found = trial.run()
    except (NotRun, Failed) as error:
        outcome = "NOT RUN" if isinstance(error, NotRun) else "FAIL"
        return Check(section, trial.name, outcome, one_sentence(str(error)))
    except Exception as error:
        sentence = one_sentence(f"{type(error).__name__}: {error}")
        return Check(section, trial.name, "FAIL", sentence, public(traceback.format_exc()))
    found = Finding(found) if isinstance(found, str) else found
    return Check(section, trial.name, "PASS", one_sentence(found.detail), None, found.facts)


def public(text: str) -> str:
    """The text without the hub's token and the name of the user's home."""
    home = str(Path.home())
    return redacted(text).replace(home, "~") if len(home) > 1 else redacted(text)


def one_sentence(text: str) -> str:
    """The text on one line, and not longer than a few lines of a terminal."""
    text = " ".join(public(text).split())
    return text if len(text) <= 400 else text[:397] + "..."


def line(check: Check) -> str:
    return f"{check.outcome:<8} {check.section}: {check.name}: {check.detail}"


def report(checks: Sequence[Check]) -> str:
    """A line for each check, and all of it as JSON, where the groups of facts have keys of their own."""
    facts: Facts = {"versions": {}, "hardware": {}}
    for check in checks:
        for group, values in check.facts.items():
            facts[group] |= values
    own = [{name: value for name, value in vars(check).items() if name != "facts"} for check in checks]
    found = {"schema": "specdemo.doctor/1", "date": date.today().isoformat(), "checks": own, **facts}
    # A backtick could end the block. In JSON it can only be inside a string.
    lines, as_json = "\n".join(map(line, checks)).replace("`", "'"), json.dumps(found).replace("`", "\\u0060")
    return f"```\n{lines}\n\n{as_json}\n```"


def exit_status(checks: Sequence[Check]) -> int:
    return 1 if any(check.outcome == "FAIL" for check in checks) else 0
