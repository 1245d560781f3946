"""A setting as it is typed into servers: golden lines, read by what shells and JSON make of them."""

import json
import shlex
from dataclasses import replace

import pytest

from specdemo.events import DRAFTER_KINDS, LISTED, Params
from specdemo.measure.typed import SERVERS, ServerCommand, typed_into

PARAMS = Params(gamma=4, temperature=0.8, ngram=3)
CHOICE = {"target": "org/target", "drafter": "my heads/d", "kind": "model", "params": PARAMS}
GGUF = "llama-server -m target.gguf"
COMMANDS = {
    ("vLLM", "model"): "vllm serve org/target --speculative-config '"
    '{"method": "draft_model", "model": "my heads/d", "num_speculative_tokens": 4, '
    '"draft_sample_method": "probabilistic"}\'',
    ("vLLM", "lookup"): "vllm serve org/target --speculative-config '"
    '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}\'',
    ("llama.cpp", "mtp"): f"{GGUF} --spec-type draft-mtp --spec-draft-n-max 4 "
    "--spec-draft-sampling probabilistic",
    ("llama.cpp", "lookup+model"): f"{GGUF} -md d.gguf --spec-type ngram-simple,draft-simple "
    "--spec-draft-n-max 4 --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 4 "
    "--spec-draft-sampling probabilistic",
}
LACKED = {"vLLM": set(), "llama.cpp": {"pard", "eagle", "peagle"}}  # the kinds that a server cannot run


def chosen(way: str) -> dict:
    """way: a method, a kind of drafter, or a method and a kind that are joined."""
    first, plus, last = way.rpartition("+")
    if last in DRAFTER_KINDS:
        return but(CHOICE | {"kind": last}, draft_with=f"{first}{plus}model")
    return but(CHOICE | {"drafter": None, "kind": None}, draft_with=way)


def but(choice: dict, **params) -> dict:
    return choice | {"params": replace(choice["params"], **params)}


def into(server: str, choice: dict) -> ServerCommand:
    return next(typed for typed in typed_into(**choice) if typed.server.startswith(server))


def notes(server: str, choice: dict) -> set[str]:
    return {note.key for note in into(server, choice).notes}


def test_a_command_is_this():
    for (server, way), command in COMMANDS.items():
        assert into(server, chosen(way)).command == command
    assert [typed.command for typed in typed_into(**chosen("none"))] == ["vllm serve org/target", GGUF]


@pytest.mark.parametrize("way", [*DRAFTER_KINDS, *LISTED, "suffix+eagle3", "ngram+lookup"])
def test_every_way_has_a_command_or_a_note_that_it_has_none(way):
    for server in SERVERS:
        assert {kind for kind in DRAFTER_KINDS if not server.row([kind])} == LACKED[server.name]
    for typed in typed_into(**chosen(way)):
        if typed.command is None:
            assert typed.notes
        elif typed.server.startswith("vLLM") and way != "none":
            config = json.loads(shlex.split(typed.command)[-1])
            assert config["num_speculative_tokens"] == 4 and ("model" in config) == (way in DRAFTER_KINDS)


def test_how_drafts_are_drawn_is_typed_where_it_can_be_and_said_where_it_cannot():
    greedy, warm = but(CHOICE, draft_temperature=0.0), but(CHOICE, draft_temperature=0.5)
    for choice in (greedy, but(CHOICE, temperature=0.0)):
        assert not any("probabilistic" in (into(server, choice).command) for server in LACKED)
    assert "typed_vllm_greedy" in notes("vLLM", CHOICE) and "typed_vllm_greedy" not in notes("vLLM", greedy)
    assert "typed_vllm_cpu" in notes("vLLM", chosen("lookup"))
    assert "typed_vllm_cpu" not in notes("vLLM", but(CHOICE, temperature=0.0)) | notes("vLLM", chosen("none"))
    assert "typed_never_drawn" in notes("llama.cpp", chosen("eagle3"))
    assert all("typed_no_draft_temperature" in notes(server, warm) for server in LACKED)


def test_a_confidence_is_not_typed_which_is_said():
    for server in LACKED:
        assert "typed_no_confidence" in notes(server, but(CHOICE, confidence=0.4)) - notes(server, CHOICE)
        assert "typed_no_confidence" not in notes(server, but(chosen("lookup"), confidence=0.4)), (
            "it has none"
        )


def test_what_a_server_cannot_do_is_not_asked_of_it():
    """llama.cpp drafts nothing where fewer tokens follow than the n-gram has."""
    command = into("llama.cpp", but(chosen("lookup"), gamma=2)).command
    assert "--spec-ngram-simple-size-n 2" in command
