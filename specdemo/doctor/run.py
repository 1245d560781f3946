"""Runs the doctor's sections, each in a process of its own, so that a crash or a hang ends one section, and
reports what they found: a line for each check, and all of it as JSON, in one fenced block that can be pasted
into an issue."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryFile
from time import time
from typing import Literal

from specdemo.errors import in_short, redacted
from specdemo.loading.catalog import ROOT

SECTIONS = {  # in the order in which they run, with seconds for each
    "versions": 120,
    "parity": 300,
    "quantised": 300,
}
COMMAND = (sys.executable, "-m", "specdemo.doctor.checks")  # then a section and a deadline
GRACE = 5.0  # s that a process may take to say where it hangs
MARK = b"\x1e"  # before a message, in what else is printed
LAST_LINES = 40  # of a crashed process's output that are kept
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


def run_section(section: str, limit: float, command: Sequence[str] = COMMAND) -> list[Check]:
    """The section's checks, which a process of its own makes in at most `limit` seconds. Where it dies, the
    check that it was making has failed, and the section ends."""
    deadline = time() + limit
    with TemporaryFile() as printed:
        process = subprocess.Popen(
            [*command, section, str(deadline)],
            cwd=ROOT,
            env={"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that compilers that it starts can be ended with it
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit + GRACE)
        finally:
            with suppress(OSError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        printed.seek(0)
        lines = printed.read().splitlines()
    messages = [json.loads(line.partition(MARK)[2]) for line in lines if MARK in line]
    checks = [Check(**message["check"]) for message in messages if "check" in message]
    if (status := process.returncode) != 0:
        why = f"the process ended with status {status}"
        if time() > deadline:
            why = f"still running after {limit:g} s"
        elif status is not None and status < 0:
            why = f"the process was ended by {signal.Signals(-status).name}"
        doing = messages[-1].get("begin", PROCESS) if messages else PROCESS
        output = b"\n".join([line for line in lines if MARK not in line][-LAST_LINES:])
        why += ", and nothing more of the section was run"
        checks.append(Check(section, doing, "FAIL", why, public(output.decode("utf-8", "replace"))))
    return checks


def serve(section: str, trials: Mapping[str, Trial], deadline: float) -> None:
    """Makes the checks, in a process of their own. Writes {"begin": name} and {"check": ...} for each, as
    JSON on a line, after MARK. A crash says where it was, and so does what is not done at the deadline, by
    time(); then it ends. So it does after a CUDA error, since no later call works in this process."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, deadline - time()), exit=True)

    def tell(**message: object) -> None:
        print(f"{MARK.decode()}{json.dumps(message)}", flush=True)

    for name, trial in trials.items():
        tell(begin=name)
        check = check_of(section, name, trial)
        tell(check=asdict(check))
        if check.outcome == "FAIL" and "CUDA error" in check.detail:
            left = "after a CUDA error no call works in a process, so nothing more of the section was run"
            tell(check=asdict(Check(section, "the rest", "NOT RUN", left)))
            os._exit(0)  # the usual end could fail, too


def check_of(section: str, name: str, trial: Trial) -> Check:
    """Runs the trial."""
    outcome: Outcome = "PASS"
    output, facts = None, {}
    try:
        found = trial()
        if isinstance(found, dict):
            facts = found
            known = [one for group in facts.values() for one in group.items() if one[1] is not None]
            found = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in known)
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
