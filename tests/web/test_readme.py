"""What the READMEs promise: front matter, examples, limits, links, and that the repository is a Space."""

import re
import subprocess
from importlib.metadata import version

import httpx
import pytest
from gradio_client import Client

from specdemo.events import Round
from specdemo.events.trace import Trace
from specdemo.loading.catalog import CATALOGUE
from tests.web.conftest import ROOT, ending, start

READMES = [ROOT / "README.md", *(ROOT / ".github").glob("*.md")] + [
    file for folder in ("specdemo", "tests", "assets") for file in sorted((ROOT / folder).rglob("README.md"))
]
TEXTS = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in READMES}
README = TEXTS["README.md"]
LARGEST_FILE = 10_000_000  # bytes; a Space takes larger ones only through large-file storage


def test_the_front_matter_is_that_of_a_space():
    _, block, _ = README.split("---\n", 2)
    found = dict(re.findall(r"^(\w+): *(.*)$", block, re.MULTILINE))
    assert found["sdk"] == "gradio" and found["app_file"] == "app.py" and found["license"] == "mit"
    assert found["sdk_version"] == version("gradio")
    assert re.fullmatch(r'"3\.1[1-4]\.\d+"', found["python_version"])
    assert len(found["short_description"]) <= 60
    listed = re.findall(r"^  - (\S+/\S+)$", block, re.MULTILINE)
    known = {part for entry in CATALOGUE.values() for part in (entry.target, entry.drafter)}
    assert listed and set(listed) <= known


def test_every_file_is_small_enough_for_a_space():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("this is not a checkout")
    sizes = {name: (ROOT / name).stat().st_size for name in files.stdout.split("\0") if name}
    assert {name: size for name, size in sizes.items() if size >= LARGEST_FILE} == {}


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_leads_somewhere_and_every_file_that_is_named_exists():
    for name, text in TEXTS.items():
        for link in re.findall(r"\]\(([^()\s:]+)\)", text):  # those with a colon lead to other hosts
            path, _, anchor = link.partition("#")
            file = (ROOT / name).parent / path if path else ROOT / name
            assert file.exists(), (name, link)
            assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), (name, link)
        if name != ".github/CHANGELOG.md":  # which may name what was removed
            for path in re.findall(r"`[^`\n]*?\b((?:specdemo|tests|assets)/[\w./-]+)", text):
                assert (ROOT / path).exists(), (name, path)


def example_in(name: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", TEXTS[name], re.DOTALL)
    return example


@pytest.mark.slow
def test_the_ten_lines_of_python_run(tmp_path, monkeypatch, capsys):
    example = example_in("README.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), ran := {})
    trace = Trace.load("run.json")
    said = capsys.readouterr().out
    rounds = [event for event in trace.events() if isinstance(event, Round)]
    assert said.count("Round(") == len(rounds) > 0
    assert said.endswith(f"{ran['trace'].text} {ran['trace'].stats.acceptance_rate}\n")


@pytest.mark.slow
def test_the_example_that_changes_the_drafter_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile(example_in("specdemo/loading/README.md"), "README.md", "exec"), ran := {})
    assert ran["pair"].info.drafter.endswith("poor")


def test_the_example_for_other_programs_runs(url, capsys):
    example = example_in("specdemo/ui/README.md").replace("http://127.0.0.1:7860", url)
    exec(compile(example, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "'embedded'" in said and ("length" in said or "eos" in said)


@pytest.mark.slow
def test_it_is_a_space_as_it_stands():
    """Without arguments and without the hub, on ZeroGPU over a stand-in for its package. The tools have the
    Space's name."""
    space = {"SYSTEM": "spaces", "SPACE_ID": "someone/specdemo", "HF_ENDPOINT": "http://127.0.0.1:9"}
    zero = {"SPACES_ZERO_GPU": "true", "PYTHONPATH": str(ROOT / "tests" / "stand_ins")}
    with ending(start("--host", "127.0.0.1", **space, **zero)) as url:
        asked = {"prompt": "Once upon a time", "seed": 3, "max_new_tokens": 20}
        trace = Client(url, verbose=False).predict(**asked, api_name="/generate")["trace"]
        assert trace["finish"] == "length" and trace["pair"]["name"] == "embedded"
        tools = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        said = httpx.post(f"{url}/gradio_api/mcp/", json=tools, headers=accept).text
        assert re.findall(r'"name": ?"(specdemo\w+)"', said) == ["specdemo_generate", "specdemo_pairs"]


def test_hosted_and_the_address_follow_from_the_space(monkeypatch):
    import app

    seen = []
    monkeypatch.setattr(app, "_serve", lambda arguments: seen.append(arguments) or 0)
    monkeypatch.delenv("SPACE_ID", raising=False)
    monkeypatch.delenv("SPECDEMO_PAIR", raising=False)
    for arguments in ([], ["--hosted"], ["--hosted", "--behind-proxy"]):
        assert app.main(arguments) == 0
    monkeypatch.setenv("SPACE_ID", "someone/specdemo")
    monkeypatch.setenv("SPECDEMO_PAIR", "smollm2-1.7b")
    for arguments in ([], ["--no-hosted"]):
        assert app.main(arguments) == 0
    assert [(one.hosted, one.behind_proxy, one.host, one.pair) for one in seen] == [
        (False, False, "127.0.0.1", None),
        (True, False, "127.0.0.1", None),  # visitors may write the header
        (True, True, "127.0.0.1", None),
        (True, True, "0.0.0.0", "smollm2-1.7b"),
        (False, True, "0.0.0.0", "smollm2-1.7b"),
    ]
