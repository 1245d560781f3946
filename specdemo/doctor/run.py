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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep, time
from typing import Literal

from specdemo.errors import in_short, redacted
from specdemo.loading.catalog import ROOT

SECTIONS = {  # in the order in which they run, with seconds for each
    "versions": 120,
    "parity": 300,
    "quantised": 300,
}
COMMAND = (sys.executable, "-m", "specdemo.doctor.checks")  # then a section, its first trial, and a deadline
GRACE = 5.0  # s that a process may take to say where it hangs
LOOK = 0.05  # s between two looks at what a process has written
MARK = b"\x1e"  # before a message, in what else is printed
LAST_LINES = 40  # of a crashed process's output that are kept
LOST = 75  # the exit status of a process in which CUDA does not work any more
PROCESS = "the section's process"  # what has failed when it was no single check

Outcome = Literal["PASS", "FAIL", "NOT RUN"]
Facts = dict[str, dict[str, object]]  # by group ("versions", "hardware")
# Returns what it has found, as facts or in a sentence, or raises NotRun or Failed with one.
Trial = Callable[[], Facts | str]


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


def run_section(section: str, limit: float, command: Sequence[str] = COMMAND) -> Iterator[Check]:
    """The section's checks as they come, for at most `limit` seconds. If its process dies in one, that has
    failed, and another process does the rest."""
    deadline, done, goes_on = time() + limit, 0, True
    while goes_on:
        doing: str | None = None
        given = section, str(done), str(deadline)
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            printed = Path(folder) / "printed"
            with _started([*command, *given], printed) as process:
                for message in _messages(process, printed, deadline + GRACE):
                    doing = message.get("begin")  # None when its check has come
                    if fields := message.get("check"):
                        done += 1
                        yield Check(**fields)
                status, is_late = process.poll(), time() > deadline
            if status != 0 and (status != LOST or is_late):
                why = f"the process ended with status {status}"
                if is_late:
                    why = f"still running after {limit:g} s, so nothing more of the section was run"
                elif status is not None and status < 0:
                    why = f"the process was ended by {signal.Signals(-status).name}"
                lines = [line for line in printed.read_bytes().splitlines() if MARK not in line]
                output = public(b"\n".join(lines[-LAST_LINES:]).decode("utf-8", "replace"))
                yield Check(section, doing or PROCESS, "FAIL", why, output)
        goes_on = not is_late and (status == LOST or doing is not None)
        done += doing is not None


@contextmanager
def _started(command: Sequence[str], printed: Path) -> Iterator[subprocess.Popen]:
    """A process that writes into this file. It is ended with all that it has started."""
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that compilers that it starts can be ended with it
        )
    try:
        yield process
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):  # it has ended, or a driver holds it
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait(10)


def _messages(process: subprocess.Popen, printed: Path, deadline: float) -> Iterator[dict]:
    """What the process `serve`s, until it ends or the time is over."""
    with printed.open("rb") as file:
        is_over = False
        while not is_over:
            is_over = process.poll() is not None or time() > deadline
            while (line := file.readline()).endswith(b"\n"):
                if MARK in line:
                    yield json.loads(line.partition(MARK)[2])
            file.seek(-len(line), os.SEEK_CUR)  # it is not written to its end
            sleep(LOOK)


def serve(section: str, trials: Mapping[str, Trial], start: int, deadline: float) -> None:
    """Runs the trials from number `start` on, in a process of their own. Writes {"begin": name} and {"check":
    ...} for each, as JSON on a line, after MARK. A crash says where it was, and so does what is not done at
    the deadline, by time(); then it ends.

    After a CUDA error no later call works in this process, so it ends with LOST, and the parent starts
    another one for the rest."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, deadline - time()), exit=True)

    def tell(**message: object) -> None:
        print(f"{MARK.decode()}{json.dumps(message)}", flush=True)

    for name, trial in islice(trials.items(), start, None):
        tell(begin=name)
        check = check_of(section, name, trial)
        tell(check=asdict(check))
        if check.outcome == "FAIL" and ("CUDA error" in check.detail or "CUDA is lost" in check.detail):
            os._exit(LOST)  # the usual end could fail, too


def check_of(section: str, name: str, trial: Trial) -> Check:
    """Runs the trial."""
    outcome: Outcome = "PASS"
    output, facts = None, {}
    try:
        found = trial()
        if isinstance(found, dict):
            facts, known = (
                found,
                [one for group in found.values() for one in group.items() if one[1] is not None],
            )
            found = ", ".join(f"{fact.replace('_', ' ')} {value}" for fact, value in known)
    except NotRun as error:
        outcome, found = "NOT RUN", str(error)
    except Failed as error:
        outcome, found = "FAIL", str(error)
    except Exception as error:
        outcome, found, output = "FAIL", f"{type(error).__name__}: {error}", public(traceback.format_exc())
    return Check(section, name, outcome, in_short(public(found)), output, facts)


def public(text: str) -> str:
    """The text without the hub's token and the name of the user's home."""
    home = str(Path.home())
    return redacted(text).replace(home, "~") if len(home) > 1 else redacted(text)


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
