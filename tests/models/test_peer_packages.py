"""OpenVINO GenAI and llama.cpp, installed from the package index, run the embedded pair in the benchmark."""

import json
import subprocess

import pytest

from specdemo.bench.contestants import ENTRANTS
from specdemo.bench.run import RATIOS
from tests.vllm_server import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(3600)]

OF_PACKAGES = [entrant.full_name for entrant in ENTRANTS if entrant.package is not None]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    lists = ("-r", ROOT / "requirements.txt", "-r", ROOT / "tests" / "peers.txt")
    return environment(tmp_path_factory.mktemp("packages") / "venv", *lists)


def bench(python, options: str) -> tuple[dict, dict]:
    """The result, and its rows by name."""
    command = f"-m specdemo bench --peers --prompts 3 --repeats 2 --max-new-tokens 60 {options}"
    done = subprocess.run([python, *command.split()], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    result = json.loads(done.stdout.splitlines()[-1])
    return result, {row["name"]: row for row in result["rows"]}


def test_all_of_them_run_and_in_float32_they_write_what_transformers_writes(python):
    result, rows = bench(python, "")
    assert set(OF_PACKAGES) <= set(rows) and len(OF_PACKAGES) == 7 and result["notes"] == []
    for name in OF_PACKAGES:
        assert rows[name]["tokens_per_second"] > 0 and rows[name]["tokens_per_processor_second"] > 0
        if name.endswith("float32"):
            assert rows[name]["equal_to_plain"] == "6 of 6" and rows[name]["differs_at"] is None
    measured = [(one["name"], one["other"]) for one in result["ratios"]]
    own_threads = result["threads"] != result["own_threads"]
    assert measured == [both for both in RATIOS if own_threads or not both[1].endswith("own threads")]


def test_they_draft_in_float32_what_transformers_would_accept(python):
    """More drafts a round are more tokens a second only if they are used."""
    _, rows = bench(python, "--gamma 4")
    for package, drafting in (("OpenVINO GenAI", "draft_model"), ("llama.cpp", "with drafter")):
        plain, drafted = rows[f"{package} plain, float32"], rows[f"{package} {drafting}, float32"]
        assert drafted["tokens_per_processor_second"] > 1.1 * plain["tokens_per_processor_second"]


def test_all_of_them_can_sample(python):
    _, rows = bench(python, "--temperature 0.8 --top-k 50 --min-p 0.02")
    assert all(rows[name]["tokens_per_second"] > 0 for name in OF_PACKAGES)
