"""The doctor's report, and its sections that crash, hang or print."""

import json
import sys
from contextlib import suppress
from time import sleep

import psutil
import pytest

from specdemo.cli import main as cli
from specdemo.doctor import run as doctor_run
from specdemo.doctor.run import PROCESS, Check, Failed, NotRun, check_of, report, run_section

FOUND = [
    Check("one", "first", "PASS", "all is well", facts={"versions": {"torch": "2"}}),
    Check("one", "second", "FAIL", "a line with ``` in it", "Traceback ``` here"),
    Check("two", "third", "NOT RUN", "no `GPU`"),
]


def told(text: str) -> dict:
    """The JSON in the last line of the one fenced block."""
    lines = text.splitlines()
    assert lines[0] == lines[-1] == "```" and text.count("```") == 2
    return json.loads(lines[-2])


def test_the_report_is_one_block_with_a_line_for_each_check_and_json_at_its_end():
    text = report(FOUND)
    assert [line.split(" one: ")[0].split(" two: ")[0].strip() for line in text.splitlines()[1:4]] == [
        "PASS", "FAIL", "NOT RUN"
    ]  # fmt: skip
    found = told(text)
    assert [check["outcome"] for check in found["checks"]] == ["PASS", "FAIL", "NOT RUN"]
    assert found["checks"][1]["output"] == "Traceback ``` here" and found["checks"][2]["detail"] == "no `GPU`"
    assert found["versions"] == {"torch": "2"} and found["hardware"] == {}
    assert told(report([]))["checks"] == []
    assert [doctor_run.exit_status(some) for some in (FOUND, FOUND[:1] + FOUND[2:], [])] == [1, 0, 0]


def raising(error: BaseException):
    def run():
        raise error

    return run


def test_what_a_trial_raises_decides_its_outcome_and_neither_home_nor_token_is_published(monkeypatch):
    facts = {"hardware": {"gpus": 1}}
    assert check_of("s", "t", lambda: "fine") == Check("s", "t", "PASS", "fine")
    assert check_of("s", "t", lambda: facts) == Check("s", "t", "PASS", "gpus 1", facts=facts)
    assert check_of("s", "t", raising(NotRun("no GPU"))) == Check("s", "t", "NOT RUN", "no GPU")
    assert check_of("s", "t", raising(Failed("it differs"))) == Check("s", "t", "FAIL", "it differs")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    unexpected = check_of("s", "t", raising(RuntimeError("in /home/somebody/venv\nwith hf_secret")))
    assert (unexpected.outcome, unexpected.detail) == ("FAIL", "RuntimeError: in ~/venv with ***")
    assert unexpected.output.startswith("Traceback") and "hf_secret" not in unexpected.output
    monkeypatch.setenv("HOME", "/")
    assert doctor_run.public("a/b") == "a/b"


CODE = """
import ctypes, os, sys, time
{before}
from specdemo.doctor.run import serve
def late():
{late}
def well():
    return "fine"
serve(sys.argv[1], dict(first=well, late=late, last=well), float(sys.argv[2]))
{after}
"""


def checks_of(late: str, limit: float = 30, before: str = "", after: str = "") -> list[Check]:
    """What comes of a section whose second trial has this body."""
    code = CODE.format(late=f"    {late}", before=before, after=after)
    return run_section("some", limit, [sys.executable, "-c", code])


def outcomes(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.outcome) for check in checks]


LATE_FAILS = [("first", "PASS"), ("late", "FAIL")]
CUDA_ERROR = "CUDA error: misaligned address"


@pytest.mark.parametrize(
    ("late", "reason", "where", "goes_on"),
    [
        ("sys.exit(4)", "status 4", "", False),
        ("ctypes.string_at(0)", "SIGSEGV", "in late", False),
        (f"raise RuntimeError('{CUDA_ERROR}')", CUDA_ERROR, "in late", False),
        ("raise RuntimeError('another error')", "another error", "in late", True),
    ],
)
def test_a_failure_costs_one_check_and_only_a_crash_ends_the_section(late, reason, where, goes_on):
    checks = checks_of(late)
    rest = [("last", "PASS")] if goes_on else [("the rest", "NOT RUN")] if reason == CUDA_ERROR else []
    assert outcomes(checks) == LATE_FAILS + rest
    assert reason in checks[1].detail and where in (checks[1].output or "")


@pytest.mark.slow
def test_a_hang_ends_at_the_limit_with_what_it_has_started_and_says_where(tmp_path):
    """A hanging compiler, for example."""
    file = tmp_path / "its id"
    compiler = f"echo $$ > '{file}'; exec sleep 600"
    checks = checks_of(f"__import__('subprocess').run(['sh', '-c', {compiler!r}])", limit=4)
    assert outcomes(checks) == LATE_FAILS
    assert "4 s" in checks[1].detail and "in late" in checks[1].output
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(int(file.read_text())).status() != psutil.STATUS_ZOMBIE:
            sleep(0.01)


def test_what_a_section_prints_is_no_message_and_is_kept_for_a_crash():
    checks = checks_of(
        "os.write(1, b'\\xff{\"done\": true}\\n'); os._exit(1)", before="print('{not JSON', flush=True)"
    )
    assert outcomes(checks) == LATE_FAILS
    assert '{"done": true}' in checks[1].output


def test_a_section_that_cannot_begin_fails_once_and_a_crash_after_its_last_check_is_a_failure():
    [check] = checks_of("pass", before="raise ImportError('no such library')")
    assert (check.name, check.outcome) == (PROCESS, "FAIL") and "no such library" in check.output
    checks = checks_of("return 'fine'", after="os._exit(5)")
    assert outcomes(checks) == [("first", "PASS"), ("late", "PASS"), ("last", "PASS"), (PROCESS, "FAIL")]


def test_an_interrupted_doctor_reports_what_it_has_found_on_standard_output_alone(monkeypatch, capsys):
    def run_section(section, *_):
        if section != "versions":
            raise KeyboardInterrupt
        return FOUND[:1]

    monkeypatch.setattr(doctor_run, "run_section", run_section)
    assert cli.main(["doctor"]) == 130
    out, err = capsys.readouterr()
    assert out == report(FOUND[:1]) + "\n" and "one: first" in err
