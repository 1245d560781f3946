"""app.py's flags: wrong ones are answered in one sentence."""

import socket

import pytest
from huggingface_hub import constants

import app


def ended(capsys, *arguments: str) -> tuple[int, str]:
    """The exit status and standard error. A page that is up already when a mistake shows is taken down."""
    try:
        status = app.main(["--port", "0", *arguments])
    except SystemExit as ended:
        status = ended.code
    out, said = capsys.readouterr()
    assert out == "" and "Traceback" not in said
    return status, said


@pytest.mark.parametrize(
    "arguments, status, sentence",
    [
        (["--pair", "embeded"], 2, "did you mean embedded"),
        (["--pair", "embedded", "--target", "x"], 2, "not both"),
        (["--drafter", "x"], 2, "drafter: there is no directory x"),
        (["--port", "70000"], 2, "must be a whole number from 0 to 65535"),
        (["--host", "203.0.113.7"], 1, "cannot listen on 203.0.113.7"),
        (["--allow-host", "https://lab.example"], 2, "--allow-host: must be the name or address of a host"),
        (["--vllm", "host:8000"], 2, "server must be an address that begins with http:// or https://"),
        (["--vllm-key-from-env", "KEY"], 2, "server_key_from_env is for a server, so it needs --server"),
        (["--quantize-drafter", "x"], 2, "quantize must be one of none, int8, int4, int2, float8, not 'x'"),
    ],
)
def test_a_wrong_flag_is_answered_in_a_sentence(capsys, monkeypatch, arguments, status, sentence):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # or one waits for a hub that is out of reach
    code, said = ended(capsys, *arguments)
    assert code == status and sentence in said
    assert all(line.startswith("app.py: ") for line in said.splitlines())


def test_a_port_in_use_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = ended(capsys, "--port", str(port))
    assert code == 1 and f"port {port}" in said
