"""The page on the releases of Gradio that requirements.txt lets in, each in a folder of its own."""

import os
import re
import subprocess
import sys

import pytest

from tests.web.conftest import ROOT

pytestmark = pytest.mark.long

VERSIONS = ("6.28.0", "6.29.1", "6.30.0", "6.31.0")  # the latest of each minor release
QUICK = ("gate", "links", "traces", "text")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *arguments], check=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_works_on(version, tmp_path):
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    (oldest,) = re.findall(r"^gradio\[mcp\]>=([\d.]+),", requirements, re.M)
    assert VERSIONS[0].startswith(f"{oldest}."), "the oldest one that is let in is among them"
    pip("--target", str(tmp_path), f"gradio=={version}")
    metadata = (tmp_path / f"gradio-{version}.dist-info" / "METADATA").read_text(encoding="utf-8")
    (client,) = re.findall(r"^Requires-Dist: gradio-client==([\d.]+)", metadata, re.M)
    pip("--target", str(tmp_path), f"gradio_client=={client}")
    paths = ["tests/models/test_gradio_inside.py", *(f"tests/web/test_{name}.py" for name in QUICK)]
    with_it = {"env": os.environ | {"PYTHONPATH": str(tmp_path)}, "capture_output": True, "text": True}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *paths]
    ran = subprocess.run(command, cwd=ROOT, **with_it)
    assert ran.returncode == 0, ran.stdout[-3000:]
    used = [sys.executable, "-c", "import gradio; print(gradio.__version__)"]
    assert subprocess.run(used, **with_it).stdout.strip() == version
