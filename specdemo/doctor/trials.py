"""What a section of the doctor is made of: trials, run one after the other in a process of their own, which
tells its parent what it finds. A crash costs one trial."""

import faulthandler
import json
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from specdemo.errors import redacted

Outcome = Literal["PASS", "FAIL", "NOT RUN"]


@dataclass(frozen=True)
class Finding:
    """What a trial that passed has found. facts: the facts by group ("versions", "hardware")."""

    detail: str  # a sentence
    facts: dict[str, dict[str, object]] = field(default_factory=dict)


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
    facts: dict[str, dict[str, object]] = field(default_factory=dict)


def public(text: str) -> str:
    """The text without the hub's token and the name of the user's home."""
    home = str(Path.home())
    return redacted(text).replace(home, "~") if len(home) > 1 else redacted(text)


def one_sentence(text: str) -> str:
    """The text on one line, and not longer than a few lines of a terminal."""
    text = " ".join(public(text).split())
    return text if len(text) <= 400 else text[:397] + "..."


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


def serve(section: str, trials: Iterable[Trial], start: int, file: str) -> None:
    """Runs the trials from index `start` on. Writes {"begin": name} and {"check": ...} for each to the file,
    and {"done": true} at the end: one line of JSON each.

    After a CUDA error no later call works in this process, so it ends without "done", and the parent starts
    another one for the rest."""
    faulthandler.enable()  # a crash says where
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1)  # and so does a hang, when the parent asks
    with open(file, "w", encoding="utf-8", buffering=1) as lines:
        for trial in islice(trials, start, None):
            print(json.dumps({"begin": trial.name}), file=lines)
            check = check_of(section, trial)
            print(json.dumps({"check": asdict(check)}), file=lines)
            if check.outcome == "FAIL" and ("CUDA error" in check.detail or "CUDA is lost" in check.detail):
                return
        print(json.dumps({"done": True}), file=lines)
