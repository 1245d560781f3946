"""Runs all checks that need no test: python -m tests.check. Prints PASS, FAIL or NOT RUN for each.

The exit status is 1 if a check fails. The checks are ruff's lint and format, pyrefly's types
(pyproject.toml names the folders), and TypeScript's types of the browser's scripts. The last one needs node
and npx, which downloads TypeScript the first time.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = [sys.executable, "-m"]
TSC = [
    "npx",
    "--yes",
    "--package",
    "typescript@5.9.3",
    "tsc",
    "--project",
    "tests/js/jsconfig.json",
]

CHECKS = {
    "lint": [*PYTHON, "ruff", "check", "--output-format", "concise", "."],
    "format": [*PYTHON, "ruff", "format", "--check", "."],
    "types": [
        *PYTHON,
        "pyrefly",
        "check",
        "--output-format",
        "min-text",
        "--python-interpreter-path",
        sys.executable,
    ],
    "scripts": TSC,
}


def run(name: str, command: list[str]) -> bool:
    """Prints the result, after a failing check's own output. Returns False if the check failed."""
    if command is TSC and not (shutil.which("node") and shutil.which("npx")):
        print(f"{name:8} NOT RUN: node and npx are not on the PATH", flush=True)
        return True
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, end="")
    print(f"{name:8} {'FAIL' if done.returncode else 'PASS'}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(not all([run(name, command) for name, command in CHECKS.items()]))
