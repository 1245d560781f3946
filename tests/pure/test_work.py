"""Prompts of each kind of work, and one's own from a file."""

import pytest

from specdemo.advise.work import LARGEST_FILE, prompts_of, read_prompts
from specdemo.bench.prompts import prompt_sets
from specdemo.events.params import ChatMessage

HELLO = [ChatMessage("user", "Hello")]
SYSTEM = ChatMessage("system", "Be brief.")
USER = '[{"role": "user", "content": "Hello"}]'
OBJECT = r'must be a JSON object like \{"prompt": "..."\} or \{"messages": \[...\]\}, not '
READ = {  # what a line has: the prompt
    '{"prompt": "One\\u2028two", "n": 1}': "One\u2028two",
    f'{{"prompt": {USER}}}': HELLO,
    f'{{"model": "m", "messages": {USER}, "temperature": 0}}': HELLO,
    f'{{"custom_id": "1", "body": {{"messages": {USER}}}}}': HELLO,
    f'{{"request": {{"body": {{"messages": {USER}}}}}, "response": {{}}}}': HELLO,
    '{"input": "Hello", "instructions": "Be brief."}': [SYSTEM, *HELLO],
    f'{{"messages": [{{"role": "developer", "content": "Be brief."}}, {USER[1:]}}}': [SYSTEM, *HELLO],
    f'{{"messages": {USER[:-1]}, {{"role": "assistant", "content": null, "tool_calls": [1]}}]}}': HELLO,
    '{"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}': HELLO,
}
REFUSED = {  # what line 2 has: what is said of it
    '{"prompt": "One': OBJECT + '\'{"prompt": "One\'',
    "[" * 100_000: OBJECT,
    "3": OBJECT + "'3'",
    '{"text": "One"}': OBJECT,
    '{"body": {"text": "One"}}': OBJECT,
    '{"prompt": ["One"]}': r"must have text or a list of messages as prompt, not \['One'\]",
    '{"messages": "One"}': "must have a list of messages as messages, not 'One'",
    '{"prompt": ""}': "must not be empty",
    '{"prompt": "\\ud800"}': "must be Unicode text, but holds the lone surrogate U\\+D800",
    '{"messages": []}': "must have a message in messages before the assistant's answer",
    '{"messages": [{"role": "user"}]}': "must hold messages like .*, not .*None",
    '{"messages": [{"role": "assistant", "tool_calls": [1]}, {}]}': "must have no messages that call tools",
    '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}': "must have text alone in each",
}


def test_there_are_twenty_different_prompts_of_each_kind():
    sets = prompt_sets()
    assert list(sets) == ["chat", "code", "json", "summary", "story", "translation"]
    assert all(len(set(texts)) == len(texts) == 20 for texts in sets.values())
    assert len(set().union(*sets.values())) == 120
    assert all(40 < len(text) < 1400 for texts in sets.values() for text in texts), "about 400 tokens at most"
    chosen = prompts_of(["json", "chat"])
    assert chosen == {"json": list(sets["json"]), "chat": list(sets["chat"])}
    with pytest.raises(ValueError, match="work must be one of chat, code, .*, not 'poem'"):
        prompts_of(["poem"])


def test_a_line_is_a_prompt(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes("\ufeffOnce upon a time \r\n\n  \nÜber [INST]\u2028{}\n".encode())
    assert read_prompts(file) == ["Once upon a time ", "Über [INST]\u2028{}"]


@pytest.mark.parametrize("line", READ)
def test_a_line_of_a_log_is_a_prompt(tmp_path, line):
    file = tmp_path / "log.txt"
    file.write_text(f"{line}\n\n{line}", encoding="utf-8")
    assert read_prompts(str(file)) == [READ[line]] * 2


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:40])
def test_a_wrong_line_is_refused_by_its_number(tmp_path, line):
    file = tmp_path / "log.jsonl"
    file.write_text('{"prompt": "One"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^prompts in line 2 of {file} {REFUSED[line]}"):
        read_prompts(file)


def test_a_file_that_cannot_be_taken_is_refused(tmp_path):
    def refused(file) -> str:
        with pytest.raises(ValueError) as told:
            read_prompts(file)
        return str(told.value).replace(str(tmp_path), "x")

    files = {name: tmp_path / name for name in ("none", "empty", "latin", "large")}
    files["empty"].write_text(" \n\n")
    files["latin"].write_bytes("One\nGrün\n".encode("latin-1"))
    with files["large"].open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    assert refused(tmp_path) == "prompts must be a file, and x is a directory"
    assert {name: refused(file).removeprefix("prompts must be a file ") for name, file in files.items()} == {
        "none": "prompts must be a file, and there is none at x/none",
        "empty": "with at least one prompt, and x/empty has none",
        "latin": "in UTF-8, and line 2 of x/latin is not",
        "large": "of at most 64 MB, and x/large has 64",
    }
