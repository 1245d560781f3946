"""The scripts' pure modules, tested by Node: node --test tests/js/*.test.js"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from specdemo.ui.view.feed import wire_rule

ROOT = Path(__file__).resolve().parents[2]


def test_the_scripts_are_tested_with_the_servers_rules():
    held = json.loads((ROOT / "tests" / "js" / "rules.json").read_text(encoding="utf-8"))
    assert held == {name: wire_rule(name) for name in held}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")
def test_the_scripts_pure_modules():
    tests = sorted(map(str, (ROOT / "tests" / "js").glob("*.test.js")))
    assert tests
    done = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
