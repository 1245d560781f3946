"""Runs the doctor's sections, each in processes of its own, so that a crash or a hang ends no other one, and
reports what they found: a line for each check, and all of it as JSON, in one fenced block that can be pasted
into an issue."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import date
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep

from specdemo.doctor.trials import Check, public, serve
from specdemo.loading.catalog import ROOT

SECTIONS = {  # in the order in which they run: the module with the section's trials, and seconds for them
    "versions": ("machine", 120),
    "capture": ("capture", 120),
    "failed-capture": ("capture", 120),
    "parity": ("texts", 300),
    "quantised": ("texts", 300),
    "threads": ("texts", 180),
}
ENDING_SECONDS = 30  # seconds that a process may take to end after its last check
LOOKS_EVERY = 0.05  # seconds, for what a process has found
LAST_LINES = 40  # of a crashed process's output that are kept
WHOLE, END = "the whole section", "the end of the section"  # what has failed when it was no single check

# The process that runs a section's trials from this index on; the file for what it finds is added.
Command = Callable[[int], list[str]]


def check_sections(names: Sequence[str]) -> None:
    """Raises ValueError for a name that no section has."""
    for name in names:
        if name not in SECTIONS:
            known = f"{', '.join(SECTIONS)}, separated by commas"
            raise ValueError(f"sections must be some of {known}, not {ascii(name)}")


def command_of(section: str) -> Command:
    return lambda start: [sys.executable, "-m", "specdemo.doctor.run", section, str(start)]


def run_section(section: str, command: Command, limit: float) -> Iterator[Check]:
    """The section's checks as they come, for at most `limit` seconds. If its process dies, what it was
    doing has failed, and another process does the rest."""
    deadline, done = monotonic() + limit, 0  # checks
    while True:
        with closing(_Process(command(done), deadline)) as process:
            doing, has_begun, is_complete = None, False, False
            for message in process.messages():
                has_begun = True
                doing = message.get("begin")  # None when its check has come
                is_complete = "done" in message
                if fields := message.get("check"):
                    done += 1
                    yield Check(**fields)
            status = process.status(ENDING_SECONDS if is_complete else 0)
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
    """A section's process. What it does and finds goes into one file, what is printed in it into another."""

    def __init__(self, command: list[str], deadline: float):
        self.deadline, self.folder = deadline, tempfile.TemporaryDirectory()
        self.found, self.printed = (Path(self.folder.name, name) for name in ("found", "printed"))
        self.found.touch()
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [*command, str(self.found)],
                cwd=ROOT,
                env=quiet | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,  # so that compilers that it starts can be ended with it
            )

    def close(self) -> None:
        self._kill()
        self.folder.cleanup()

    def messages(self) -> Iterator[dict]:
        """Yields the process's messages until it ends, or the time is over."""
        begun, is_running = "", True  # begun: a line that is not yet whole
        with self.found.open(encoding="utf-8") as lines:
            while is_running:
                is_running = self.process.poll() is None and monotonic() < self.deadline
                *whole, begun = (begun + lines.read()).split("\n")
                yield from map(json.loads, whole)
                if is_running:
                    sleep(LOOKS_EVERY)

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
        self._kill()
        lines = self.printed.read_text("utf-8", "replace").splitlines()
        return public("\n".join(lines[-LAST_LINES:]))

    def _kill(self) -> None:
        """Ends the process and what it has started."""
        with suppress(OSError):  # there is none any more
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver may hold it; the doctor goes on
            self.process.wait(10)


def line(check: Check) -> str:
    return f"{check.outcome:<8} {check.section}: {check.name}: {check.detail}"


def report(checks: Sequence[Check]) -> str:
    """A line for each check, and all of it as JSON, where the groups of facts have keys of their own."""
    facts: dict[str, dict[str, object]] = {"versions": {}, "hardware": {}}
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


if __name__ == "__main__":  # a section's own process
    name, start, file = sys.argv[1:]
    module = import_module(f"specdemo.doctor.{SECTIONS[name][0]}")
    serve(name, module.TRIALS[name], int(start), file)
