"""A setting as it is typed into servers: golden lines, read by what shells and JSON make of them."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from specdemo.advise.typed import SERVERS, Choice, typed_into
from specdemo.events import DRAFTER_KINDS, METHODS
from specdemo.words.catalogue import speaking

CHOICE = Choice("org/target", "my heads/d", "model", "model", 4, 0.0, 0.8, None, 3, True)
ALONE = replace(CHOICE, speculates=False)
GGUF = "llama-server -m target.gguf"
COMMANDS = {
    ("vLLM", "model"): "vllm serve org/target --speculative-config '"
    '{"method": "draft_model", "model": "my heads/d", "num_speculative_tokens": 4, '
    '"draft_sample_method": "probabilistic"}\'',
    ("vLLM", "lookup"): "vllm serve org/target --speculative-config '"
    '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}\'',
    ("vLLM", "peagle"): "vllm serve org/target --speculative-config '"
    '{"method": "eagle3", "model": "my heads/d", "num_speculative_tokens": 4, "parallel_drafting": true, '
    '"draft_sample_method": "probabilistic"}\'',
    ("llama.cpp", "mtp"): f"{GGUF} --spec-type draft-mtp --spec-draft-n-max 4 "
    "--spec-draft-sampling probabilistic",
    ("llama.cpp", "lookup+model"): f"{GGUF} -md d.gguf --spec-type ngram-simple,draft-simple "
    "--spec-draft-n-max 4 --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 4 "
    "--spec-draft-sampling probabilistic",
}


def chosen(way: str) -> Choice:
    """way: a method, a kind of drafter, or a method and a kind that are joined."""
    first, plus, last = way.rpartition("+")
    if last in DRAFTER_KINDS:
        return replace(CHOICE, drafter_kind=last, draft_with=f"{first}{plus}model")
    return replace(CHOICE, drafter=None, drafter_kind=None, draft_with=way)


def into(server: str, choice: Choice):
    return next(typed for typed in typed_into(choice) if typed.server == server)


LACKED = {  # the kinds of drafters that a server cannot run
    "vLLM": set(),
    "llama.cpp": {"pard", "eagle", "peagle", "medusa"},
}


def test_a_kind_without_a_command_is_one_that_was_looked_for():
    lacked = {name: DRAFTER_KINDS.keys() - server.rows.keys() for name, server in SERVERS.items()}
    assert lacked == LACKED


@pytest.mark.parametrize("server, way", COMMANDS, ids=" ".join)
def test_a_command_is_this(server, way):
    assert into(server, chosen(way)).command == COMMANDS[server, way]


WAYS = [*DRAFTER_KINDS, *METHODS, "suffix+eagle3", "ngram+lookup"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_a_command_or_a_sentence_that_says_it_has_none(way):
    for typed in typed_into(chosen(way)):
        if typed.command is None:
            assert str(typed.notes[0]).startswith(f"{typed.server} cannot draft ")
        elif typed.server == "vLLM" and way != "none":
            config = json.loads(shlex.split(typed.command)[-1])
            assert config["num_speculative_tokens"] == 4 and ("model" in config) == (way in DRAFTER_KINDS)
        with speaking("de"):
            assert not any(re.search(r"\b(the|and|which)\b", note.said()) for note in typed.notes), (
                typed.server
            )


def test_the_target_alone_is_the_plain_command():
    assert [typed.command for typed in typed_into(ALONE)] == ["vllm serve org/target", GGUF]
    assert typed_into(ALONE) == typed_into(replace(ALONE, draft_with="none", speculates=True))


def notes(server: str, choice: Choice) -> set[str]:
    return {note.key for note in into(server, choice).notes}


def test_how_drafts_are_drawn_is_typed_where_it_can_be_and_said_where_it_cannot():
    greedy, warm = replace(CHOICE, draft_temperature=0.0), replace(CHOICE, draft_temperature=0.5)
    for choice in (greedy, replace(CHOICE, temperature=0.0)):
        assert not any("probabilistic" in (into(server, choice).command) for server in SERVERS)
    assert "typed_vllm_greedy" in notes("vLLM", CHOICE) and "typed_vllm_greedy" not in notes("vLLM", greedy)
    assert "typed_vllm_cpu" in notes("vLLM", chosen("lookup"))
    assert "typed_vllm_cpu" not in notes("vLLM", replace(CHOICE, temperature=0.0)) | notes("vLLM", ALONE)
    assert "typed_never_drawn" in notes("llama.cpp", chosen("eagle3"))
    assert all("typed_no_draft_temperature" in notes(server, warm) for server in SERVERS)


def test_a_confidence_is_typed_where_it_can_be_with_what_it_means_there():
    sure = replace(CHOICE, confidence=0.4)
    assert into("llama.cpp", sure).command.endswith("--spec-draft-p-min 0.4")
    assert "typed_p_min" in notes("llama.cpp", sure)
    assert "typed_p_min_dspark" in notes("llama.cpp", replace(sure, drafter_kind="dspark"))
    assert "typed_no_confidence" in notes("vLLM", sure) and "typed_no_confidence" not in notes("vLLM", CHOICE)
    assert "typed_no_confidence" not in notes("vLLM", replace(sure, draft_with="lookup")), "it has none"


def test_llama_cpp_is_not_asked_for_longer_n_grams_than_drafts():
    """It drafts nothing where fewer tokens follow than the n-gram has."""
    command = into("llama.cpp", replace(chosen("lookup"), gamma=2)).command
    assert (
        command
        == f"{GGUF} --spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 2"
    )


def test_a_tree_has_no_flags_and_says_so():
    for one in typed_into(replace(CHOICE, tree=(3, 2, 1))):
        assert one.command is None and "the tree 3,2,1" in str(one.notes[0])
