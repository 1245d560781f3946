"""The scripts: their pure modules, tested by Node (node --test tests/js/*.test.js), and what they repeat of
the server's."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specdemo.events.params import LIMITS
from specdemo.ui.view.feed import wire_rule

ROOT = Path(__file__).resolve().parents[2]


def test_the_scripts_are_tested_with_the_servers_rules():
    held = json.loads((ROOT / "tests" / "js" / "rules.json").read_text(encoding="utf-8"))
    assert held == {name: wire_rule(name) for name in held}


def test_the_chart_ends_with_the_longest_draft():
    chart = ROOT / "specdemo" / "ui" / "static" / "view" / "chart.js"
    longest = re.search(r"LONGEST = (\d+)", chart.read_text(encoding="utf-8"))
    assert int(longest[1]) == LIMITS["gamma"].largest


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")
def test_the_scripts_pure_modules():
    """All in one process: node --test would start one for each file."""
    tests = sorted((ROOT / "tests" / "js").glob("*.test.js"))
    assert tests
    script = "\n".join(f"import {json.dumps(file.as_uri())};" for file in tests)
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("^ok ", done.stdout, re.MULTILINE)) > 90, done.stdout
