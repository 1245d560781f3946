"""What README.md promises: its front matter, its example, its figures, and that the repository is a Space."""

import re
import subprocess
from dataclasses import fields
from importlib.metadata import version

import pytest
from gradio_client import Client

from specdemo.loading.catalog import CATALOGUE
from specdemo.ui.limits import HOSTED, LOCAL, Limits
from tests.web.conftest import ROOT, serving

README = (ROOT / "README.md").read_text(encoding="utf-8")
LARGEST_FILE = 10_000_000  # bytes; a Space takes larger ones only through large-file storage
WORDS = {
    "trace_bytes": "a trace file",
    "body_bytes": "any other request",
    "prompt_characters": "characters of a prompt",
    "max_new_tokens": "tokens of a run",
    "alternatives": "recorded alternatives",
    "waiting": "visitors in line",
    "waiting_of_address": "those of one address",
    "loading": "visitors whose pair is being loaded",
    "run_seconds": "a run",
    "load_seconds": "loading a pair",
    "sessions": "open pages",
    "session_bytes": "what they keep together",
    "uncollected": "answers that nobody reads",
    "uncollected_of_address": "those of one address among them",
    "listen_seconds": "until they are dropped",
    "reader_seconds": "a reader that takes nothing of its answer is given up after",
    "events_of_session": "unanswered requests of one page or caller",
    "page_seconds": "a page whose browser has gone is kept for",
    "resume_seconds": "a run whose connection was cut goes on for",
}


def front_matter() -> dict[str, str]:
    block = README.split("---\n")[1]
    return dict(re.findall(r"^(\w+): *(.*)$", block, re.MULTILINE))


def test_the_front_matter_is_that_of_a_space():
    found = front_matter()
    assert found["sdk"] == "gradio" and found["app_file"] == "app.py" and found["license"] == "mit"
    assert found["sdk_version"] == version("gradio")
    assert re.fullmatch(r'"3\.1[1-4]\.\d+"', found["python_version"])
    assert len(found["short_description"]) <= 60
    listed = re.findall(r"^  - (\S+/\S+)$", README.split("---\n")[1], re.MULTILINE)
    known = {part for entry in CATALOGUE.values() for part in (entry.target, entry.drafter)}
    assert listed and set(listed) <= known


def test_every_file_is_small_enough_for_a_space():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("this is not a checkout")
    sizes = {name: (ROOT / name).stat().st_size for name in files.stdout.split("\0") if name}
    assert {name: size for name, size in sizes.items() if size >= LARGEST_FILE} == {}


def test_torch_that_zerogpu_supports_is_admitted():
    assert re.search(r"^torch>=2\.11(\.0)?,", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert "`torch==2.11.0`" in README


def shown(field: str, limits: Limits) -> str:
    value = getattr(limits, field)
    if value is None:
        return "no limit"
    if field.endswith("_bytes"):
        return f"{value // 2**20} MiB" if value >= 2**20 else f"{value // 2**10} KiB"
    return f"{value:,.0f} s" if field.endswith("_seconds") else f"{value:,}"


def test_the_table_of_limits_is_that_of_the_code():
    names = [field.name for field in fields(Limits) if field.name not in ("hosted", "behind_proxy")]
    rows = [f"| {WORDS[name]} | {shown(name, LOCAL)} | {shown(name, HOSTED)} |" for name in names]
    assert "\n".join(rows) in README


def test_the_example_for_other_programs_runs(url, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (example,) = [block for block in blocks if "gradio_client" in block]
    exec(compile(example.replace("http://127.0.0.1:7860", url), "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "length" in said or "eos" in said
    assert "'embedded'" in said


@pytest.mark.slow
@pytest.mark.parametrize("zero", [False, True])
def test_it_is_a_space_as_it_stands(zero):
    """Without arguments and without the hub; on ZeroGPU over a stand-in for its package."""
    environment = {"SYSTEM": "spaces", "SPACE_ID": "someone/specdemo", "HF_ENDPOINT": "http://127.0.0.1:9"}
    if zero:
        stand_ins = str(ROOT / "tests" / "stand_ins")
        environment |= {"SPACES_ZERO_GPU": "true", "PYTHONPATH": stand_ins}
    with serving("--host", "127.0.0.1", **environment) as url:
        client = Client(url, verbose=False)
        last = client.predict("Once upon a time", seed=3, max_new_tokens=20, api_name="/generate")
        trace = last["trace"]
        assert trace["finish"] == "length" and trace["pair"]["name"] == "embedded"
        assert trace["pair"]["device"] == "cpu"


def test_hosted_and_the_address_follow_from_the_space(monkeypatch):
    import app

    seen = []
    monkeypatch.setattr(app, "_serve", lambda arguments: seen.append(arguments) or 0)
    for variables in ({}, {"SPACE_ID": "someone/specdemo", "SPECDEMO_PAIR": "smollm2-1.7b"}):
        for name in ("SPACE_ID", "SPECDEMO_PAIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert app.main([]) == 0
    assert [(one.hosted, one.behind_proxy, one.host, one.pair) for one in seen] == [
        (False, False, "127.0.0.1", None),
        (True, True, "0.0.0.0", "smollm2-1.7b"),
    ]
    monkeypatch.delenv("SPACE_ID")
    assert app.main(["--hosted"]) == 0 and seen[-1].behind_proxy is False, "visitors may write the header"
    assert app.main(["--hosted", "--behind-proxy"]) == 0 and seen[-1].behind_proxy is True
    assert app.main(["--no-hosted"]) == 0 and seen[-1].hosted is False
