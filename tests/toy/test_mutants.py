"""Small mistakes planted in the package, one at a time: the tests must find each of them.

`python -m pytest -m long tests/toy/test_mutants.py` plants each mistake of mistakes.txt in a copy of the
package, and runs tests of that copy until one fails. mistakes.txt has of each mistake: its name; the file
under specdemo/, and the tests that have to find it; lines of that file (-), and what takes their place (+).
A test of the quick set has to find it, or, where it is "slow", one of the whole line."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    is_slow: bool
    tests: list[str]  # of pytest
    right: str
    wrong: str


def read(block: str) -> Mutant:
    name, where, *lines = block.splitlines()
    file, tests = where.split(": ")
    right, wrong = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return Mutant(name, file.removesuffix(", slow"), file.endswith(", slow"), tests.split(), right, wrong)


BLOCKS = Path(__file__).with_name("mistakes.txt").read_text("utf-8").strip().split("\n\n")
MUTANTS = [read(block) for block in BLOCKS if not block.startswith("# ")]


def planted(folder: Path, mutant: Mutant | None) -> Path:
    """A copy of the package and its tests, with the mutant in it."""
    for name in ("specdemo", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "pyproject.toml", "README.md", "requirements.txt", "assets"):
        (folder / name).symlink_to(ROOT / name)
    if mutant:
        file = folder / "specdemo" / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.right) == 1, f"{mutant.file} has it {text.count(mutant.right)} times"
        file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
    return folder


def status_of(folder: Path, tests: list[str], marker: str) -> int:
    """0: all tests have passed; 1: one has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marker, *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    print(done.stdout[-3000:], done.stderr[-1000:])
    return done.returncode


@pytest.mark.timeout(3_600)  # it runs 37 files or tests
def test_without_a_mutant_all_of_these_tests_pass(tmp_path):
    tests = sorted({test for one in MUTANTS for test in one.tests})
    assert status_of(planted(tmp_path, None), tests, "not slow and not long") == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_test_finds(tmp_path, mutant):
    marker = "not long" if mutant.is_slow else "not slow and not long"
    assert status_of(planted(tmp_path, mutant), mutant.tests, marker) == 1
