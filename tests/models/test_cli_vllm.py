"""The command line with a vLLM server as the engine, against a stand-in."""

import json

import pytest

from specdemo.cli.main import main
from tests.stand_ins.vllm import ROUNDS, TEXT, StandIn, slowly


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error)"""
    try:
        status = main(["generate", "Once", *arguments])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def test_the_text_and_the_numbers(capsys):
    with StandIn(ROUNDS, before_chunk=slowly(0.01)).serving() as url:
        status, out, err = run(capsys, "--vllm", url, "--max-new-tokens", "8", "--temperature", "0")
    assert status == 0 and out == f"{TEXT}\n"
    assert "vLLM 0.32.0 serves stand-in; it drafts up to 2 tokens" in err
    assert "8 tokens in 5 rounds (1.60 a round)" in err and "tokens/s by arrival" in err
    assert "acceptance rate 50%" in err and "cost ratio" not in err


def test_the_trace(capsys):
    with StandIn(ROUNDS, detailed=True).serving() as url:
        status, out, _ = run(capsys, "--vllm", url, "--max-new-tokens", "8", "--trace", "-")
    trace = json.loads(out)
    assert status == 0 and trace["text"] == TEXT and trace["pair"]["server"]["gamma"] == 2
    assert [one["next"]["source"] for one in trace["rounds"]][1:] == ["bonus", *["resampled"] * 3]


def test_the_key_comes_from_the_environment_and_is_never_said(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("OF_THE_SERVER", "s3cret-word")
    server, file = StandIn(ROUNDS, key="s3cret-word"), tmp_path / "trace.json"
    with server.serving() as url:
        how = ["--vllm", url, "--max-new-tokens", "8", "--trace", str(file)]
        assert run(capsys, *how)[0] == 1
        status, out, err = run(capsys, *how, "--vllm-key-from-env", "OF_THE_SERVER")
    assert status == 0 and "Bearer s3cret-word" in server.keys
    assert "s3cret" not in out + err + file.read_text()


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--vllm", "host"], 2, "server must be an address that begins with http"),
        (["--vllm", "http://127.0.0.1:9"], 1, "the server at http://127.0.0.1:9 cannot be reached"),
        (["--vllm", "http://127.0.0.1:9", "--pair", "embedded"], 2, "give --server or options about a pair"),
        (["--vllm", "http://127.0.0.1:9", "--dtype", "bfloat16"], 2, "give --server or options about a pair"),
        (["--vllm-key-from-env", "X"], 2, "so it needs --server"),
        (["--vllm", "http://127.0.0.1:9", "--vllm-key-from-env", "NO_SUCH"], 2, "that is set, not 'NO_SUCH'"),
    ],
)
def test_a_wrong_request_is_one_sentence(capsys, options, status, sentence):
    ended, out, err = run(capsys, *options)
    assert (ended, out) == (status, "") and sentence in err and "Traceback" not in err


def test_what_a_server_does_not_take_is_one_sentence(capsys):
    with StandIn(ROUNDS).serving() as url:
        status, _, err = run(capsys, "--vllm", url, "--gamma", "7")
    assert status == 2 and "gamma must be left at 4 for a server" in err
