"""The command line: what goes where, and what a user's mistake looks like."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specdemo import Trace
from specdemo.cli.main import main
from specdemo.cli.terminal import Printer
from specdemo.events import DRAFTER_KINDS, Next, Round
from specdemo.loading.catalog import CATALOGUE, EMBEDDED
from specdemo.words.message import harmless

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "assets" / "traces" / "first.json"
SHORT = ["--max-new-tokens", "12", "--seed", "3"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error)"""
    try:
        status = main(list(arguments))
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def test_standard_output_is_the_text_and_a_newline(capsys, tmp_path):
    file = tmp_path / "run.json"
    status, out, err = run(capsys, "generate", "Once upon a time", *SHORT, "--trace", str(file))
    trace = Trace.load(file)
    assert status == 0 and trace.finish == "length" and trace.text
    assert out == trace.text + "\n"
    assert "12 tokens" in err and "seed 3" in err and "acceptance rate" in err


def test_every_field_of_params_is_an_option(capsys):
    options = (
        "--draft-with lookup --gamma 2 --exit-layer 1 --rule lenient --lenience 0.4 --temperature 0.5 "
        "--top-k 7 --top-p 0.8 --confidence 0.2 --min-p 0.1 --repetition-penalty 1.2 --seed 9 "
        "--presence-penalty 0.5 --frequency-penalty -0.25 --logit-bias 7=-3.5 --logit-bias 5=2 "
        "--max-new-tokens 5 --ignore-eos --ngram 2 --alternatives 1 --draft-temperature 0.3"
    )
    status, out, _ = run(
        capsys,
        "generate",
        "One day",
        *options.split(),
        "--stop",
        "xyz",
        "--stop",
        "two words",
        "--trace",
        "-",
    )
    params = json.loads(out)["params"]
    assert status == 0
    assert params == {
        "draft_with": "lookup",
        "gamma": 2,
        "tree": [],
        "confidence": 0.2,
        "exit_layer": 1,
        "rule": "lenient",
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "logit_bias": {"5": 2.0, "7": -3.5},
        "seed": 9,
        "max_new_tokens": 5,
        "stop": ["xyz", "two words"],
        "ignore_eos": True,
        "chat": False,
        "system": None,
        "chat_template_kwargs": None,
        "json_schema": None,
        "regex": None,
        "grammar": None,
        "ngram": 2,
        "alternatives": 1,
        "lenience": 0.4,
        "draft_temperature": 0.3,
    }


@pytest.mark.slow
def test_a_stop_string_is_never_written_not_even_its_beginning(capsys):
    _, whole, _ = run(capsys, "generate", "Once upon a time", "--max-new-tokens", "30", "--temperature", "0")
    stop = whole[20:29]  # spans several tokens
    status, out, err = run(
        capsys, "generate", "Once upon a time", "--max-new-tokens", "30", "--temperature", "0", "--stop", stop
    )
    assert status == 0 and out == whole[: whole.index(stop)] + "\n" and "ended by stop" in err


WRONG = {
    "--gamma 99": "gamma must be a whole number from 1 to 16 or auto, not 99",
    "--temperature nan": "temperature must be a number from 0 to 2, not nan",
    "--logit-bias 7": "argument --logit-bias: must be ID=N, a token id and what to add to its logit, not '7'",
    "--logit-bias a=1": "logit_bias must be a mapping of different token ids, not of 'a'",
    "--logit-bias 7=x": "logit_bias must be a mapping to numbers from -100 to 100, not to 'x'",
    "--logit-bias 999999=1": "logit_bias must be of token ids below 4,096 for this pair, not of 999999",
    "--draft-with early-exit --exit-layer 16": "exit_layer must be a whole number from 1 to 15 for Llama",
    "--draft-with magic": "draft_with must be one of model, mtp, lookup",
    "--stop=": "stop must be a list of strings, none of them empty",
    "--system x": "system is part of the chat template",
    "--chat --chat-template-kwargs x": "chat_template_kwargs must be a JSON object of values by name such as",
    "--regex (": "regex cannot be followed: ",
    "--json-schema {}x": "json_schema must be a JSON object, a schema, not '{}x'",
    "--chat": "chat must be false for this pair: its tokenizer has no chat template",
    "--pair nosuch": "pair must be one of embedded, ",
    "--pair embeded": "did you mean embedded?",
    f"--drafter {EMBEDDED / 'drafter'}": "target must be given with a drafter, unless that is a speculator",
    "--target /no/such/place": "target: there is no directory /no/such/place",
    "--target .": "has no config.json",
    "--device cuda:99": "device cuda:99 is not there",
    "--dtype int3": "dtype must be one of auto, float32, bfloat16, float16, not 'int3'",
    "--quantize int3": "quantize must be one of none, int8, int4, int2, float8, not 'int3'",
    "--quantize-drafter int3": "quantize must be one of none, int8, int4, int2, float8, not 'int3'",
    "--trace .": "trace must be a file, but . is a directory",
    "--nonsense 3": "unrecognized arguments: --nonsense 3",
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_request_is_one_sentence_and_exit_status_2(capsys, options):
    status, out, err = run(capsys, "generate", "Once upon a time", "--max-new-tokens", "5", *options.split())
    lines = [line for line in err.splitlines() if "Loading weights" not in line]
    assert status == 2 and out == ""
    assert WRONG[options] in lines[-1] and lines[-1].startswith("specdemo: ")
    assert "Traceback" not in err


def test_a_prompt_of_megabytes_is_refused_before_it_is_read(capsys):
    status, out, err = run(capsys, "generate", "word " * 300_000)
    says = "prompt must fit the context of 1,024 tokens, but has 1,500,000 characters"
    assert status == 2 and out == "" and says in err.splitlines()[-1]


def test_no_command_or_a_wrong_one_is_one_sentence(capsys):
    for arguments in ([], ["frobnicate"], ["generate"]):
        status, out, err = run(capsys, *arguments)
        assert status == 2 and out == "" and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_full_disk_costs_the_trace_but_not_the_text(capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    status, out, err = run(capsys, "generate", "Once upon a time", *SHORT, "--trace", "/dev/full")
    assert status == 1 and len(out) > 10
    assert (
        "the trace could not be saved to /dev/full: No space left on device" in err and "Traceback" not in err
    )


ANSWERED_WITHOUT_TORCH = {
    "--help": (0, ""),
    "generate --help": (0, ""),
    "bench --help": (0, ""),
    "": (2, "the following arguments are required: generate | bench | advise | pairs"),
    "generate": (2, "the following arguments are required: PROMPT"),
    "generate x --nonsense": (2, "unrecognized arguments: --nonsense"),
    "generate x --gamma x": (2, "gamma must be a whole number from 1 to 16 or auto, not 'x'"),
    "generate x --gamma 99": (2, "gamma must be a whole number from 1 to 16 or auto, not 99"),
    "generate x --pair embedded --target y": (2, "pair: give --pair or --target with --drafter, not both"),
    "generate x --trace /no/such/place/x.json": (
        2,
        "trace cannot be saved: there is no directory /no/such/place",
    ),
    "bench --prompts 0": (2, "argument --prompts: must be a whole number from 1 to 1,000, not '0'"),
    "bench --top-p 0": (2, "top_p must be a number above 0 to 1, not 0"),
    "pairs": (0, ""),
}


@pytest.fixture(scope="module")
def answered() -> dict[str, list]:
    """Each line's status, output and errors, in a process in which importing torch or transformers raises."""
    code = """
import io, json, sys
sys.modules |= dict.fromkeys(("torch", "transformers"))
from specdemo.cli.main import main
own, answered = sys.stdout, {}
for line in sys.argv[1:]:
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    try:
        status = main(line.split())
    except SystemExit as end:
        status = end.code
    said = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    answered[line] = status, *said
print(json.dumps(answered), file=own)
"""
    command = [sys.executable, "-c", code, *ANSWERED_WITHOUT_TORCH]
    return json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout)


@pytest.mark.parametrize("line", ANSWERED_WITHOUT_TORCH)
def test_what_needs_no_model_is_answered_before_torch_is_imported(answered, line):
    status, out, err = answered[line]
    expected, sentence = ANSWERED_WITHOUT_TORCH[line]
    assert status == expected and sentence in err and bool(out) == (status == 0), err
    assert len(err.splitlines()) == (status != 0)
    assert status == 0 or err.startswith("specdemo: ")


def help_of(capsys, command: str) -> str:
    return " ".join(run(capsys, command, "--help")[1].split())


def test_help_gives_the_defaults_of_its_own_command(capsys):
    generate, bench = help_of(capsys, "generate"), help_of(capsys, "bench")
    assert "a number from 0 to 2 (default 0.8)" in generate and "to 32,768 (default 200)" in generate
    assert "a number from 0 to 2 (default 0.0)" in bench and "to 32,768 (default 128)" in bench
    assert "to 9,007,199,254,740,991 (default 0)" in bench
    assert "from 1 to 16 or auto (default 4)" in generate and "or auto (default 4)" in bench


def test_pairs_says_what_each_needs(capsys):
    status, out, _ = run(capsys, "pairs")
    assert status == 0 and "GB in bfloat16" in out and "set HF_TOKEN" in out and "tried:" in out
    assert "; loaded in int8 unless you choose otherwise; gated" in out
    groups = [group.splitlines() for group in out.split("\n\n")[:-1]]
    of_each = {}
    for head, *lines in groups:
        of_each[head] = [line.split()[0] for line in lines[::2]]
    assert of_each == {
        f"{kind.label}: {kind.sentence}": [e.name for e in CATALOGUE.values() if e.drafter_kind == name]
        for name, kind in DRAFTER_KINDS.items()
        if any(entry.drafter_kind == name for entry in CATALOGUE.values())
    }
    assert "quantised weights: int8, int4, int2, float8 on a CPU; on CUDA only without kernels that" in out


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    "is_terminal, environment, coloured",
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_only_a_terminal_that_wants_colours_has_them(monkeypatch, is_terminal, environment, coloured):
    """Those of accepted, bonus, rejected and resampled tokens."""
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    screen = Screen(is_terminal)
    trace, printer = Trace.load(RECORDED), Printer(screen, screen)
    for one in trace.rounds:
        printer.round(one, trace.text)
    shown = screen.getvalue()
    assert ("\033" in shown) == coloured
    if coloured:
        assert "\033[4;32m" in shown and "\033[1;34m" in shown
        rejected = shown.index("\033[9;31m")
        assert shown.index("\033[1;31m") > rejected, "what replaces a rejected token comes after it"


CONTROLS = "\x1b]0;title\x07", "\x9b2J\x7f", "\r\n\tb"
ESCAPED = "\\u001b]0;title\\u0007\\u009b2J\\u007f\\u000d\n\tb\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_control_character_of_a_token_reaches_a_terminal(monkeypatch, is_terminal):
    monkeypatch.setenv("NO_COLOR", "1")
    trace, screen = replace(Trace.load(RECORDED), rounds=[], text=""), Screen(is_terminal)
    printer = Printer(screen, screen)
    for index, text in enumerate(CONTROLS):
        trace.add(
            Round(index, (), Next(index, text, "sampled", 1, None, 1, None, 0.5, None, ()), (index,), 0, 0)
        )
        printer.round(trace.rounds[-1], trace.text)
    printer.finish(trace.text)
    assert screen.getvalue() == (ESCAPED if is_terminal else "".join(CONTROLS) + "\n")
    assert json.loads(harmless(json.dumps(CONTROLS[1], ensure_ascii=False))) == CONTROLS[1]


def test_a_rejected_token_and_a_sentence_have_none_either(capsys, monkeypatch):
    for name, value in {"NO_COLOR": "", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    screen = Screen(True)
    trace = Trace.load(RECORDED)
    refused = next(one for one in trace.rounds if one.draft and one.draft[-1].fate == "rejected")
    draft = (*refused.draft[:-1], replace(refused.draft[-1], text="".join(CONTROLS)))
    Printer(screen, screen).round(replace(refused, draft=draft), trace.text)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert "\\u001b]0;title" in shown and not re.search(r"[^\n\t -~⏎]", shown)
    for line in (["generate", "x", "--\x1b[2J"], ["generate", "x", "--trace", "\x1b[2J/x.json"]):
        _, _, err = run(capsys, *line)
        assert "\\u001b[2J" in err and "\x1b" not in err
