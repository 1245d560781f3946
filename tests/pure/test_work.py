"""Prompts of each kind of work, and one's own from a file."""

import pytest

from specdemo.events.params import ChatMessage
from specdemo.measure.prompts import prompt_sets, prompts_of, read_prompts
from tests.sentences import refused

HELLO = [ChatMessage("user", "Hello")]
USER = '[{"role": "user", "content": "Hello"}]'
READ = {  # what a line has: the prompt
    '{"prompt": "One\\u2028two", "n": 1}': "One\u2028two",
    f'{{"prompt": {USER}}}': HELLO,
    f'{{"model": "m", "messages": {USER}, "temperature": 0}}': HELLO,
    f'{{"messages": {USER[:-1]}, {{"role": "assistant", "content": null, "tool_calls": [1]}}]}}': HELLO,
}
REFUSED = {  # what line 2 has: the key of what is said of it
    '{"prompt": "One': "prompts_object",
    "[" * 100_000: "prompts_object",
    "3": "prompts_object",
    '{"body": {"text": "One"}}': "prompts_object",
    '{"prompt": ["One"]}': "message",
    '{"messages": "One"}': "prompts_object",
    '{"prompt": ""}': "no_prompt",
    '{"prompt": "\\ud800"}': "surrogate",
    '{"messages": []}': "prompts_unasked",
    '{"messages": [{"role": "user"}]}': "message",
    '{"messages": [3]}': "message",
    '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}': "message",
    '{"messages": [{"role": "user", "content": "One", "tool_calls": [1]}]}': "message",
    '{"messages": [{"role": "assistant", "tool_calls": [1]}, {}]}': "message",
}


def test_there_are_twenty_different_prompts_of_each_kind():
    sets = prompt_sets()
    assert list(sets) == ["chat", "code", "json", "summary", "story", "translation"]
    assert all(len(set(texts)) == len(texts) == 20 for texts in sets.values())
    assert len(set().union(*sets.values())) == 120
    assert all(40 < len(text) < 1400 for texts in sets.values() for text in texts), "about 400 tokens at most"
    chosen = prompts_of(["json", "coding", "code"])
    assert chosen == {"json": list(sets["json"]), "code": list(sets["code"])}, "SPEED-Bench's name, too"
    with refused("choice", field="work"):
        prompts_of(["poem"])


def test_a_line_is_a_prompt(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes("\ufeffOnce upon a time \r\n\n  \nÜber [INST]\u2028{}\n".encode())
    assert read_prompts(file) == ["Once upon a time ", "Über [INST]\u2028{}"]


def test_a_line_of_a_log_is_a_prompt(tmp_path):
    file = tmp_path / "log.txt"
    for line, prompt in READ.items():
        file.write_text(f"{line}\n\n{line}", encoding="utf-8")
        assert read_prompts(str(file)) == [prompt] * 2


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:40])
def test_a_wrong_line_is_refused_by_its_number(tmp_path, line):
    file = tmp_path / "log.jsonl"
    file.write_text('{"prompt": "One"}\n' + line, encoding="utf-8")
    for key, values in (("prompts_line", {"line": 2, "file": str(file)}), (REFUSED[line], {})):
        with refused(key, field="prompts", **values):
            read_prompts(file)


def test_an_array_of_json_is_not_taken_line_by_line(tmp_path):
    file = tmp_path / "own.json"
    file.write_text('[\n{"prompt": "One"}\n]', encoding="utf-8")
    with refused("prompts_line", field="prompts", line=1):
        read_prompts(file)


def test_a_file_that_cannot_be_taken_is_refused(tmp_path):
    none, other, odd = (tmp_path / name for name in ("none", "latin", "\0"))
    none.write_text(" \n\n")
    other.write_bytes("One\nGrün\n".encode("latin-1"))
    for key, file in (("none", none), *(("unread", one) for one in (other, tmp_path, tmp_path / "no", odd))):
        with refused(f"prompts_{key}", field="prompts", file=str(file)):
            read_prompts(file)
