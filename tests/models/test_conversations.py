"""Prompts that are messages, which go through the chat template; and tokens that no prompt may have."""

import json
from dataclasses import replace

import pytest
import torch

from specdemo import Params, generate, load_pair, stream
from specdemo.events.thoughts import Opened
from specdemo.events.trace import Trace
from specdemo.session import prepare
from tests.sentences import assert_one_sentence
from tests.tiny import noisy, tiny, tokenizer

CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}so{% endif %}"
)


@pytest.fixture
def pair():
    target = tiny(vocab_size=304)
    return load_pair(target=target, drafter=noisy(target), tokenizer=tokenizer())


def test_a_conversation_goes_through_the_chat_template(pair):
    with pytest.raises(ValueError, match="^prompt "):
        stream(pair, [{"role": "user", "content": "Once"}])
    pair.tokenizer.chat_template = CHAT
    roles = {"be brief": "system", "the cat": "user", "sat": "assistant", "and then": "user"}
    turns = [{"role": role, "content": content} for content, role in roles.items()]
    params = Params(max_new_tokens=12, seed=1)
    trace = generate(pair, turns, params)
    text = "system: be brief user: the cat assistant: sat user: and then so"
    assert trace.prompt_ids == tuple(pair.tokenizer(text, add_special_tokens=False).input_ids)
    assert trace.prompt == "" and trace.params.chat
    again = Trace.from_json(trace.to_json())
    assert [(one.role, one.content) for one in again.messages] == [tuple(one.values()) for one in turns]
    assert again.messages == trace.messages == next(again.events()).messages
    assert generate(pair, again.messages, again.params).output_ids == trace.output_ids
    # A text is the user's message, and `system` the one before it.
    single = generate(pair, "the cat", replace(params, chat=True, system="be brief"))
    assert single.messages is None
    assert single.prompt_ids == generate(pair, turns[:2], params).prompt_ids


ARGUED = (
    "{% if thinks is not defined %}{% set thinks = true %}{% endif %}"
    "{% if own_tools is defined %}{% set tools = own_tools %}{% endif %}"
    "{% if tools is not defined %}{% set tools = none %}{% endif %}"
    "{% macro turn(message) %}{{ message.role }}: {{ message.content }} {{ mood }}{% endmacro %}"
    "{% for m in messages %}{% if m.content is string %}{% set said = turn(m) %}{% endif %}{{ said }}"
    "{% endfor %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for document in documents or [] %}{{ document.text }}{% endfor %}"
    "{% if bad is defined %}{{ raise_exception('no ' + bad) }}{% endif %}"
    "{% generation %}{% if thinks %}hm{% endif %}{% endgeneration %}{{ eos_token }}"
    "{% if add_generation_prompt %}so{{ '!' * loud | default(0) }}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"é": {}}}}}
# What the template does not name, and what would change apply_chat_template itself.
UNREAD = ("moods", "messages", "add_generation_prompt", "chat_template", "padding")


@pytest.mark.parametrize(
    "arguments",
    [
        {"mood": "sad", "loud": 2, "thinks": False},
        {"tools": [TOOL], "documents": [{"title": "a", "text": "b"}]},
        {"own_tools": [{"b": 1, "a": None}], "mood": 1.5},
    ],
)
def test_a_template_gets_its_arguments(pair, arguments):
    pair.tokenizer.chat_template = ARGUED
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the cat"}]
    expected = pair.tokenizer.apply_chat_template(turns, add_generation_prompt=True, **arguments).input_ids
    assert expected != pair.tokenizer.apply_chat_template(turns, add_generation_prompt=True).input_ids
    params = Params(max_new_tokens=3, seed=1, chat_template_kwargs=arguments)
    trace = generate(pair, turns, params)
    single = replace(params, chat=True, system="be brief", chat_template_kwargs=json.dumps(arguments))
    assert list(trace.prompt_ids) == list(generate(pair, "the cat", single).prompt_ids) == expected
    assert Trace.from_json(trace.to_json()).params.chat_template_kwargs == arguments


def test_a_template_s_arguments_are_those_that_it_names(pair):
    pair.tokenizer.chat_template = ARGUED
    wrong = {name: ({name: 1}, f"^chat_template_kwargs .*, not '{name}'$") for name in UNREAD}
    wrong["bad"] = {"bad": "way"}, "no way$"
    wrong["loud"] = {"loud": 10**6}, "^prompt .*256 tokens, but has 1,000,"
    wrong["long"] = {"bad": "x" * 30_000}, "no xxx"
    for arguments, why in wrong.values():
        with pytest.raises(ValueError, match=why) as refused:
            stream(pair, "the cat", Params(chat=True, chat_template_kwargs=arguments))
        assert len(str(refused.value)) < 500
    pair.tokenizer.chat_template = CHAT
    for prompt, chat in (("the cat", True), ("the cat", False), ([3, 4], False)):
        with pytest.raises(ValueError, match="^chat_template_kwargs "):
            stream(pair, prompt, Params(chat=chat, chat_template_kwargs={"mood": "sad"}))


def test_the_marks_of_a_template_go_into_the_trace():
    words = tokenizer(extra=2)
    words.add_tokens(["<think>", "</think>", "[THINK]"])
    pair = load_pair(target=tiny(vocab_size=len(words)), tokenizer=words)
    params = Params(draft_with="none", max_new_tokens=4, seed=1)
    assert generate(pair, "the cat", params).marks == ()
    words.chat_template = CHAT + "<think> </think> <tool_call> <seed:think>"
    trace = generate(pair, "the cat", params)
    roles = {"<think>": "thinking", "</think>": "end", "<end>": "end"}
    assert {mark.text: mark.role for mark in trace.marks} == roles
    assert [mark.id for mark in trace.marks] == words.convert_tokens_to_ids([*roles])
    assert any("<seed:think>" in note for note in pair.notes)
    assert Trace.from_json(trace.to_json()).marks == trace.marks == next(trace.events()).marks
    words.chat_template = CHAT + "</think>"
    assert generate(pair, "the cat", params).marks == trace.marks
    words.chat_template = CHAT + "<tool_call>"
    assert generate(pair, "the cat", params).marks == ()


THOUGHT = CHAT + "{% if add_generation_prompt and thinks | default(false) %}<think> {% endif %}"
CLOSED, OPEN = Opened(), Opened(thinking=True)


@pytest.mark.parametrize(
    ("prompt", "arguments", "expected"),
    [
        ([{"role": "user", "content": "the <think> cat"}], None, CLOSED),
        ([{"role": "user", "content": "<end> the </think> cat"}], {"thinks": True}, OPEN),
        ([{"role": "assistant", "content": "<think> a"}, {"role": "user", "content": "b"}], None, CLOSED),
        ("the <think> cat", {}, CLOSED),  # a text that is the user's message
        ("the cat <think> sat", None, OPEN),  # a text that the target reads as it is
        ("the cat <think> sat </think>", None, Opened(has_thought=True)),
        ("the cat </think>", None, Opened(has_thought=True)),
    ],
)
def test_a_prompt_opens_what_its_template_opens_and_not_what_a_message_says(prompt, arguments, expected):
    words = tokenizer(extra=2)
    words.add_tokens(["<think>", "</think>"])
    words.chat_template = THOUGHT
    pair = load_pair(target=tiny(vocab_size=len(words)), tokenizer=words)
    chat = not isinstance(prompt, str) or arguments is not None
    params = Params(
        draft_with="none", max_new_tokens=2, seed=1, chat=chat, chat_template_kwargs=arguments or None
    )
    started = prepare(pair, prompt, params)
    assert pair.opened(started.messages or started.prompt, params, started.prompt_ids) == expected


def test_a_tokenizer_can_have_a_template_of_its_own_for_tools(pair):
    pair.tokenizer.chat_template = {"default": CHAT, "tool_use": ARGUED}
    params = Params(chat=True, chat_template_kwargs={"tools": [TOOL], "mood": "sad"}, max_new_tokens=1)
    ids = generate(pair, "the cat", params).prompt_ids
    assert "sad" in pair.tokenizer.decode(ids) and '"name": "f"' in pair.tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([{"role": "user", "content": None}], {}, "^prompt must hold messages"),
        ([{"role": "user", "content": "x", "name": "y"}], {}, "^prompt must hold messages"),
        ([{"role": "user", "content": "x"}, "y"], {}, "^prompt must hold messages"),
        ([{"role": "user", "content": "x"}], {"chat": True, "system": "y"}, "^system "),
        ([{"role": "user", "content": "\ud800"}], {}, "lone surrogate"),
    ],
)
def test_what_is_no_message(pair, prompt, params, words):
    with pytest.raises(ValueError, match=words) as wrong:
        stream(pair, prompt, Params(**params))
    assert_one_sentence(str(wrong.value))


@pytest.mark.parametrize("narrow", ["vocabulary", "embeddings", "logits"])
def test_a_token_that_the_target_lacks_is_refused_however_it_is_given(narrow):
    target = tiny(vocab_size=295 if narrow == "vocabulary" else 304)  # it has the ids from 0 to 294
    if narrow != "vocabulary":
        table = target.get_input_embeddings() if narrow == "embeddings" else target.get_output_embeddings()
        table.weight = torch.nn.Parameter(table.weight[:295].detach())
    words = tokenizer(extra=4)
    words.chat_template = CHAT
    pair = load_pair(target=target, tokenizer=words)
    text = "the cat <extra0> <extra2><extra3> sat"
    for prompt in (text, [{"role": "user", "content": text}], words(text).input_ids):
        for penalty in (1.0, 1.2):
            with pytest.raises(ValueError, match=r"^prompt .*294.* not 296 \('<extra2>'\)$"):
                stream(pair, prompt, Params(repetition_penalty=penalty, draft_with="none"))
    with pytest.raises(ValueError, match="from 0 to 294, not True$"):
        stream(pair, [5, True, 296])
    assert generate(pair, "the cat <extra0> sat", Params(max_new_tokens=3, draft_with="none")).stats.tokens
