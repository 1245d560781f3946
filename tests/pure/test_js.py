"""The scripts' pure modules, tested by Node: node --test tests/js/*.test.js"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH")
def test_the_scripts_pure_modules():
    tests = sorted(map(str, (ROOT / "tests" / "js").glob("*.test.js")))
    assert tests
    done = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
