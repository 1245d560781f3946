"""The doctor's report, and its sections that crash, hang or print."""

import json
import sys
from contextlib import suppress
from time import sleep

import psutil
import pytest

from specdemo.cli import main as cli
from specdemo.doctor import run as doctor_run
from specdemo.doctor.run import END, SECTIONS, WHOLE, exit_status, report, run_section
from specdemo.doctor.trials import Check, Failed, Finding, NotRun, Trial, check_of, public

FOUND = [
    Check("one", "first", "PASS", "all is well", facts={"versions": {"torch": "2"}}),
    Check("one", "second", "FAIL", "a line with ``` in it", "Traceback ``` here"),
    Check("two", "third", "NOT RUN", "no `GPU`"),
]


def block_of(text: str) -> list[str]:
    """The lines of the one fenced block."""
    lines = text.splitlines()
    assert lines[0] == lines[-1] == "```" and text.count("```") == 2
    return lines[1:-1]


def test_the_report_is_one_block_with_a_line_for_each_check_and_json_at_its_end():
    lines = block_of(report(FOUND))
    assert lines[0] == "PASS     one: first: all is well"
    assert lines[1].startswith("FAIL     one: second: ") and lines[2] == "NOT RUN  two: third: no 'GPU'"
    assert len(lines) == 5 and lines[-2] == ""
    told = json.loads(lines[-1])
    assert [check["outcome"] for check in told["checks"]] == ["PASS", "FAIL", "NOT RUN"]
    assert told["checks"][1]["output"] == "Traceback ``` here"
    assert told["versions"] == {"torch": "2"} and told["hardware"] == {}
    assert told["checks"][2]["detail"] == "no `GPU`"


def test_the_report_of_nothing_parses_too_and_only_a_failure_makes_the_exit_status_1():
    assert json.loads(block_of(report([]))[-1])["checks"] == []
    assert exit_status(FOUND) == 1 and exit_status([FOUND[0], FOUND[2]]) == exit_status([]) == 0


def raising(error: BaseException):
    def run():
        raise error

    return run


def test_what_a_trial_raises_decides_its_outcome():
    facts = {"hardware": {"gpus": 1}}
    assert check_of("s", Trial("t", lambda: "fine")) == Check("s", "t", "PASS", "fine")
    assert check_of("s", Trial("t", lambda: Finding("fine", facts))).facts == facts
    assert check_of("s", Trial("t", raising(NotRun("no GPU")))) == Check("s", "t", "NOT RUN", "no GPU")
    assert check_of("s", Trial("t", raising(Failed("it differs")))) == Check("s", "t", "FAIL", "it differs")
    unexpected = check_of("s", Trial("t", raising(RuntimeError("two\nlines"))))
    assert (unexpected.outcome, unexpected.detail) == ("FAIL", "RuntimeError: two lines")
    assert unexpected.output.startswith("Traceback") and "two\nlines" in unexpected.output


def test_neither_the_home_nor_the_token_is_published(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    error = RuntimeError("in /home/somebody/venv with hf_secret")
    assert check_of("s", Trial("t", raising(error))).detail == "RuntimeError: in ~/venv with ***"
    monkeypatch.setenv("HOME", "/")
    assert public("a/b") == "a/b"


PROCESS = """
import ctypes, os, sys, time
{before}
from specdemo.doctor.trials import Trial, open_channel, serve
channel = open_channel()
def late():
{late}
def well():
    return str(os.getpid())
serve("some", [Trial("first", well), Trial("late", late), Trial("last", well)], int(sys.argv[1]), channel)
{after}
"""


def checks_of(late: str, limit: float = 30, before: str = "", after: str = "") -> list[Check]:
    """What comes of a section whose second trial has this body."""
    code = PROCESS.format(late=f"    {late}", before=before, after=after)
    return list(run_section("some", lambda start: [sys.executable, "-c", code, str(start)], limit))


def outcomes(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.outcome) for check in checks]


LATE_FAILS = [("first", "PASS"), ("late", "FAIL"), ("last", "PASS")]


CUDA_ERROR = "CUDA error: misaligned address"


@pytest.mark.parametrize(
    ("late", "reason", "where"),
    [
        ("os._exit(0)", "the process ended with status 0", ""),
        ("sys.exit(4)", "the process ended with status 4", ""),
        ("ctypes.string_at(0)", "the process was ended by SIGSEGV", "in late"),
        (f"raise RuntimeError('{CUDA_ERROR}')", f"RuntimeError: {CUDA_ERROR}", "in late"),
    ],
)
def test_a_crash_costs_one_check_and_the_next_ones_run_in_another_process(late, reason, where):
    checks = checks_of(late)
    assert outcomes(checks) == LATE_FAILS
    assert checks[1].detail == reason and where in (checks[1].output or "")
    assert checks[0].detail != checks[2].detail


@pytest.mark.parametrize("late", ["raise RuntimeError('another error')", f"return '{CUDA_ERROR}'"])
def test_what_is_no_crash_costs_no_process(late):
    first, _, last = checks_of(late)
    assert first.detail == last.detail


@pytest.mark.slow
def test_a_hang_ends_at_the_limit_with_what_it_has_started_and_says_where(tmp_path):
    """A hanging compiler, for example."""
    file = tmp_path / "its id"
    compiler = f"echo $$ > '{file}'; exec sleep 600"
    checks = checks_of(f"__import__('subprocess').run(['sh', '-c', {compiler!r}])", limit=4)
    assert outcomes(checks) == [("first", "PASS"), ("late", "FAIL")]
    assert checks[1].detail == "still running after 4 s, so nothing more of the section was run"
    assert "in late" in checks[1].output
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(int(file.read_text())).status() != psutil.STATUS_ZOMBIE:
            sleep(0.01)


def test_what_a_section_prints_is_no_message_and_is_kept_for_a_crash():
    prints = "print('{}', '[1]', flush=True); os.write(1, b'\\xff{\"done\": true}\\n'); os._exit(1)"
    checks = checks_of(prints, before="print('{\"x\": 1}\\n[1]\\nnoise', flush=True)")
    assert outcomes(checks) == LATE_FAILS
    assert '{"done": true}' in checks[1].output


def test_a_section_that_cannot_begin_fails_once_and_a_crash_after_its_last_check_is_a_failure():
    [check] = checks_of("pass", before="raise ImportError('no such library')")
    assert (check.name, check.outcome, check.detail) == (WHOLE, "FAIL", "the process ended with status 1")
    assert "no such library" in check.output
    checks = checks_of("return 'fine'", after="os._exit(5)")
    assert outcomes(checks) == [("first", "PASS"), ("late", "PASS"), ("last", "PASS"), (END, "FAIL")]


def test_the_command_line_prints_the_report_alone_on_standard_output(monkeypatch, capsys):
    monkeypatch.setattr(doctor_run, "run_section", lambda *_: iter(FOUND))
    assert cli.main(["doctor", "--sections", "parity"]) == 1
    out, err = capsys.readouterr()
    assert out == report(FOUND) + "\n"
    assert f"parity, at most {SECTIONS['parity'][1]} s" in err and "FAIL     one: second" in err


def test_an_interrupted_doctor_reports_what_it_has_found(monkeypatch, capsys):
    def interrupted(*_):
        yield FOUND[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_run, "run_section", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().out == report(FOUND[:1]) + "\n"


def test_an_unknown_section_is_a_wrong_request(capsys):
    assert cli.main(["doctor", "--sections", "versions,sped"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "sections must be some of versions, capture, " in err and "not 'sped'" in err
