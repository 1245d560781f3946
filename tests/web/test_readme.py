"""What the READMEs promise: front matter, examples, limits, links, and that the repository is a Space."""

import re
import subprocess
from dataclasses import fields
from importlib.metadata import version

import pytest
from gradio_client import Client

from specdemo.events import METHODS, RULES, Round
from specdemo.events.trace import Trace
from specdemo.loading.catalog import CATALOGUE
from specdemo.ui.runs.limits import HOSTED, LOCAL, Limits
from tests.web.conftest import ROOT, serving

READMES = [ROOT / "README.md", *(ROOT / ".github").glob("*.md")] + [
    file for folder in ("specdemo", "tests", "assets") for file in sorted((ROOT / folder).rglob("README.md"))
]
TEXTS = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in READMES}
README, PAGE = TEXTS["README.md"], TEXTS["specdemo/ui/README.md"]
MOST_WORDS = 1_150  # of README.md: it is one page
LARGEST_FILE = 10_000_000  # bytes; a Space takes larger ones only through large-file storage
WORDS = {
    "trace_bytes": "size of a trace file",
    "body_bytes": "size of any other request",
    "prompt_characters": "characters of a prompt",
    "max_new_tokens": "tokens of a run",
    "alternatives": "recorded alternatives",
    "waiting": "requests in line",
    "waiting_of_address": "requests in line from one address",
    "loading": "requests whose pair is being loaded",
    "run_seconds": "time of a run",
    "load_seconds": "time for loading a pair",
    "kept_runs": "runs that are kept for pages to show again and to save",
    "kept_bytes": "size of those together",
    "uncollected": "requests whose answer nobody has begun to read",
    "uncollected_of_address": "such requests from one address",
    "listen_seconds": "time until such a request is dropped",
    "connections": "open connections, at most three quarters of the process's limit on open files",
    "header_seconds": "time for a connection to send a request's headers",
    "reader_seconds": "time until a client that stops reading its answer is disconnected",
    "events_of_session": "unanswered requests of one page or caller",
    "resume_seconds": "time that a run goes on after its connection was cut",
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
    assert "`torch==2.11.0`" in PAGE


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
    assert "\n".join(rows) in PAGE


def test_the_tables_of_methods_and_rules_are_those_of_the_code():
    names = re.findall(r"^\| `([a-z-]+)` \|", TEXTS["specdemo/engine/README.md"], re.MULTILINE)
    assert names == [*METHODS, *RULES]


def test_the_readme_is_one_page():
    _, _, text = README.split("---\n", 2)
    assert len(text.split()) <= MOST_WORDS


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_every_relative_link_leads_somewhere(name):
    for link in re.findall(r"\]\(([^()\s]+)\)", TEXTS[name]):
        if ":" in link:
            continue  # of another host
        path, _, anchor = link.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), link
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", [name for name in TEXTS if name != ".github/CHANGELOG.md"])
def test_every_file_that_is_named_exists(name):
    """But for the changelog, which may name what was removed."""
    for path in re.findall(r"`[^`\n]*?\b((?:specdemo|tests|assets)/[\w./-]+)", TEXTS[name]):
        assert (ROOT / path).exists(), path


def example_in(name: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", TEXTS[name], re.DOTALL)
    return example


@pytest.mark.slow
def test_the_ten_lines_of_python_run(tmp_path, monkeypatch, capsys):
    example = example_in("README.md")
    assert len(example.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), ran := {})
    trace = Trace.load("run.json")
    assert trace.finish in ("length", "eos")
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
    example = example_in("specdemo/ui/README.md")
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
