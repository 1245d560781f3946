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
from specdemo.cli.main import Printer, main
from specdemo.events import Next, Round
from specdemo.loading.catalog import CATALOGUE, EMBEDDED
from tests.checkpoints import saved_in
from tests.heads import save_head, tiny_head
from tests.stand_ins.vllm import ROUNDS, TEXT, StandIn
from tests.tiny import tiny

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


OPTIONS = {  # each field of Params: how it is given, and what it is then
    "draft_with": ("lookup", "lookup"),
    "gamma": ("2", 2),
    "tree": (None, []),
    "confidence": ("0.2", 0.2),
    "exit_layer": ("1", 1),
    "rule": ("lenient", "lenient"),
    "lenience": ("0.4", 0.4),
    "draft_temperature": ("0.3", 0.3),
    "temperature": ("0.5", 0.5),
    "top_k": ("7", 7),
    "top_p": ("0.8", 0.8),
    "min_p": ("0.1", 0.1),
    "repetition_penalty": ("1.2", 1.2),
    "presence_penalty": ("0.5", 0.5),
    "frequency_penalty": ("-0.25", -0.25),
    "logit_bias": ("7=-3.5", {"7": -3.5}),
    "seed": ("9", 9),
    "max_new_tokens": ("5", 5),
    "stop": ("two words", ["two words"]),
    "ignore_eos": ("", True),
    "chat": (None, False),
    **dict.fromkeys(("system", "chat_template_kwargs", "json_schema", "regex", "grammar"), (None, None)),
    "ngram": ("2", 2),
    "alternatives": ("1", 1),
}


def test_every_field_of_params_is_an_option(capsys):
    words = []
    for field, (given, _) in OPTIONS.items():
        option = f"--{field.replace('_', '-')}"
        words += {None: [], "": [option]}.get(given, [option, given])
    status, out, _ = run(capsys, "generate", "One day", *words, "--trace", "-")
    assert status == 0
    assert json.loads(out)["params"] == {field: value for field, (_, value) in OPTIONS.items()}


@pytest.mark.slow
def test_a_stop_string_is_never_written_not_even_its_beginning(capsys):
    _, whole, _ = run(capsys, "generate", "Once upon a time", "--max-new-tokens", "30", "--temperature", "0")
    stop = whole[20:29]  # spans several tokens
    status, out, err = run(
        capsys, "generate", "Once upon a time", "--max-new-tokens", "30", "--temperature", "0", "--stop", stop
    )
    assert status == 0 and out == whole[: whole.index(stop)] + "\n" and "ended by stop" in err


NOBODY = "http://127.0.0.1:9"
WRONG = {  # what only a process with torch can refuse, and words of the sentence
    "--logit-bias 999999=1": "logit_bias must be of token ids below 4,096",
    "--draft-with early-exit --exit-layer 16": "exit_layer must be a whole number from 1 to 15",
    "--system x": "system ",
    "--regex (": "regex ",
    "--json-schema {}x": "json_schema ",
    "--chat": "chat ",
    "--pair embeded": "did you mean embedded?",
    f"--drafter {EMBEDDED / 'drafter'}": "target must be given",
    "--target /no/such/place": "target: there is no directory /no/such/place",
    "--device cuda:99": "device cuda:99 ",
    "--dtype int3": "dtype must be one of",
    "--quantize-drafter int3": "quantize must be one of",
    "--vllm host": "server ",
    f"--gamma 7 --vllm {NOBODY}": f"{NOBODY} cannot be reached",
    f"--vllm {NOBODY} --vllm-key-from-env NO_SUCH": "'NO_SUCH'",
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_request_is_one_sentence(capsys, options):
    status, out, err = run(capsys, "generate", "Once upon a time", "--max-new-tokens", "5", *options.split())
    lines = [line for line in err.splitlines() if "Loading weights" not in line]
    assert status == (1 if "cannot be reached" in WRONG[options] else 2) and out == ""
    assert WRONG[options] in lines[-1] and lines[-1].startswith("specdemo: ")
    assert "Traceback" not in err


def test_models_of_folders_are_loaded_as_asked(capsys, tmp_path):
    saved_in(tmp_path / "target", target := tiny(vocab_size=304, hidden_size=64))
    save_head(tiny_head(target), tmp_path / "head")
    how = f"--target {tmp_path / 'target'} --drafter {tmp_path / 'head'} --device cpu --dtype bfloat16"
    status, out, _ = run(capsys, "generate", "the cat", *how.split(), "--quantize", "int8", "--trace", "-")
    pair = json.loads(out)["pair"]
    assert (status, pair["drafter_kind"], pair["device"]) == (0, "eagle3", "cpu")
    assert (*pair["dtype"].values(), pair["quantize"]["target"]) == ("bfloat16", "bfloat16", "int8")


def test_a_prompt_of_megabytes_is_refused_before_it_is_read(capsys):
    status, out, err = run(capsys, "generate", "word " * 300_000)
    assert status == 2 and out == "" and "1,500,000 characters" in err.splitlines()[-1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_costs_the_trace_but_not_the_text(capsys):
    status, out, err = run(capsys, "generate", "Once upon a time", *SHORT, "--trace", "/dev/full")
    assert status == 1 and len(out) > 10
    assert "/dev/full" in err and "Traceback" not in err


WITHOUT_TORCH = {  # what is wrong with a command, before anything is loaded; None: it is answered
    **dict.fromkeys(("--help", "generate --help", "bench --help", "pairs"), None),
    "": "the following arguments are required",
    "frobnicate": "frobnicate",
    "generate": "PROMPT",
    "generate x --nonsense": "--nonsense",
    "generate x --gamma x": "gamma must be a whole number from 1 to 16 or auto, not 'x'",
    "generate x --gamma 99": "gamma must be a whole number from 1 to 16 or auto, not 99",
    "generate x --temperature nan": "temperature ",
    "generate x --draft-with magic": "draft_with must be one of",
    "generate x --stop=": "stop ",
    "generate x --chat --chat-template-kwargs x": "chat_template_kwargs ",
    "generate x --logit-bias 7": "logit_bias must be given as ID=N",
    "generate x --logit-bias 7=1 --logit-bias 7=2": "logit_bias must be given once",
    "generate x --pair embedded --target y": "give --pair or --target",
    "generate x --trace /no/such/place/x.json": "/no/such/place",
    "generate x --trace .": "trace must be a file",
    "generate x --vllm http://a:1 --pair embedded": "server: ",
    "generate x --server http://a:1 --pair=": "server: ",
    "generate x --vllm-key-from-env X": "--server",
    "bench --prompts 0": "--prompts",
    "bench --top-p 0": "top_p ",
    "bench --methods all,model": "methods ",
    "bench --methods none --prompt-tokens 64": "methods: ",
    "bench --trees 2,1": "trees ",
    "bench --methods model --trees 2,1 9,9": "'9,9'",
    "doctor --sections versions,sped": "'sped'",
    "advise --budget soon": "'soon'",
    "advise --budget 1s": "from 10s to 24h",
    "advise --drafter x": "drafter: ",
    "advise --prompts x --work chat": "prompts: ",
    "advise --quantize-drafter int8": "quantize_drafter ",
    "advise --report nowhere/a.html": "report ",
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
    command = [sys.executable, "-c", code, *WITHOUT_TORCH]
    return json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout)


@pytest.mark.parametrize("line", WITHOUT_TORCH)
def test_what_needs_no_model_is_answered_before_torch_is_imported(answered, line):
    (status, out, err), wrong = answered[line], WITHOUT_TORCH[line]
    assert (status, bool(out)) == ((0, True) if wrong is None else (2, False)), err
    assert len(err.splitlines()) == (wrong is not None) and "Traceback" not in err
    assert wrong is None or (err.startswith("specdemo: ") and wrong in err)
    assert line != "pairs" or all(f"  {name} " in out for name in CATALOGUE)


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    "is_terminal, environment, coloured",
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
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
        own = Next(index, text, "sampled", 1, None, 1, None, 0.5, None, ())
        trace.add(Round(index, (), own, (index,), 0, 0))
        printer.round(trace.rounds[-1], trace.text)
    printer.finish(trace.text)
    assert screen.getvalue() == (ESCAPED if is_terminal else "".join(CONTROLS) + "\n")


def test_a_rejected_token_and_a_sentence_have_none_either(capsys, monkeypatch):
    for name, value in {"NO_COLOR": "", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    trace, screen = Trace.load(RECORDED), Screen(True)
    refused = next(one for one in trace.rounds if one.draft and one.draft[-1].fate == "rejected")
    draft = (*refused.draft[:-1], replace(refused.draft[-1], text="".join(CONTROLS)))
    Printer(screen, screen).round(replace(refused, draft=draft), trace.text)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert "\\u001b]0;title" in shown and not re.search(r"[^\n\t -~⏎]", shown)
    _, _, err = run(capsys, "generate", "x", "--\x1b[2J")
    assert "\\u001b[2J" in err and "\x1b" not in err


# A vLLM server as the engine


def test_the_text_the_numbers_and_the_trace_of_a_server(capsys, tmp_path, monkeypatch):
    """Its key comes from the environment and is never said."""
    monkeypatch.setenv("OF_THE_SERVER", "s3cret-word")
    server, file = StandIn(ROUNDS, key="s3cret-word", detailed=True), tmp_path / "trace.json"
    with server.serving() as url:
        how = ["generate", "Once", "--vllm", url, "--max-new-tokens", "8", "--trace", str(file)]
        assert run(capsys, *how)[0] == 1
        status, out, err = run(capsys, *how, "--vllm-key-from-env", "OF_THE_SERVER")
    trace = json.loads(file.read_text())
    assert (status, out) == (0, f"{TEXT}\n") and trace["text"] == TEXT
    assert [one["next"]["source"] for one in trace["rounds"]][1:] == ["bonus", *["resampled"] * 3]
    assert "vLLM 0.32.0" in err and "8 tokens in 5 rounds (1.60 a round)" in err and "50%" in err
    assert "Bearer s3cret-word" in server.keys and "s3cret" not in out + err + file.read_text()
