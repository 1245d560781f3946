"""Random grammars, on tiny models of random weights, which write anything that is allowed: no run dies, a
fresh matcher takes each text, which ends only where it may, and greedily it is that of the target alone."""

import json
import random
from dataclasses import replace

import pytest

from specdemo import Params, generate, load_pair
from specdemo.engine.grammar_check import Vocabulary
from specdemo.events.params import field_of_grammar
from tests.checkpoints import saved_in
from tests.heads import save_head, tiny_head
from tests.tiny import noisy, tiny, tokenizer

WIDTH = 304  # of the target: a few tokens more than the tokenizer has
ORDINARY = range(3, 290)  # token ids
NAMES = ["<start>", "<|pad|>", "<tool_call>"]
WORDS = ["the", "cat", " sat", "on ", "a", "b", ".", " ", "\\n", "once there", "12", "€", "[END]", *NAMES]
CLASSES = ["[a-z ]", "[a-c]", "[0-9]", ".", "[^a]", "\\w", "[ab ]", "(the|cat| )"]
ENDS = ["", '("a" | "")', '"."?', "/[a-z]{0,3}/", "<[70]>?", "<[70]>", "<end>"]
ATTRIBUTES = ['stop="."', 'suffix="."', "max_tokens=3", "lazy"]
VALUES = ["cat", 'a "b"', "<|pad|>", "a [END] b", 1, 2.5, None, True, [1, "a"], {"a": [True]}, "é\n"]
DRAFTERS = ["model", "lookup", "eagle3"]
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 100))]


def counted(rng, most):
    low = rng.randint(0, 3)
    return rng.choice(["?", "*", "+", f"{{{low},{low + rng.randint(1, most)}}}", f"{{{low + 1}}}"])


def regex(rng, depth):
    """A regular expression, that can be a part of one."""
    if not depth or rng.random() < 0.25:
        return rng.choice(["the", "cat", " ", "a", "b", "12", "€", r"\.", "<tool_call>", *CLASSES])
    parts = [regex(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    joined = rng.choice(["", "|"]).join(parts)
    return f"({joined}{rng.choice(['', '', '|'])}){rng.choice(['', counted(rng, 6)])}"


def ids(rng):
    """A set of tokens by their numbers; rarely all others."""
    ranges = [f"{low}-{low + rng.randint(1, 9)}" for low in rng.sample(ORDINARY, rng.randint(0, 2))]
    return f"<[{rng.choice(['', '', '', '^'])}{','.join([str(rng.choice(ORDINARY)), *ranges])}]>"


def part(rng, rules, depth):
    """A part of a rule of a Lark grammar. rules: the names of those that it may refer to."""
    if depth and rng.random() < 0.4:
        return alternatives(rng, rules, depth - 1) + rng.choice(["", "", counted(rng, 3)])
    low = rng.randint(1, 5)
    pattern = f"/{rng.choice(CLASSES)}{{{low},{low + rng.randint(1, 10)}}}/"
    token = f"<[{rng.choice(ORDINARY)}]>"
    return rng.choice(
        [f'"{rng.choice(WORDS)}"', pattern, token, ids(rng), rng.choice(NAMES), rng.choice(rules)]
    )


def sequence(rng, rules, depth):
    return " ".join(part(rng, rules, depth) for _ in range(rng.randint(1, 3)))


def alternatives(rng, rules, depth):
    options = [sequence(rng, rules, depth) for _ in range(rng.randint(1, 3))]
    options += rng.choice([[], [], [], ['""']])
    return f"({' | '.join(options)})"


def lark(rng):
    rules, lines = ["WORD"], [f"WORD: /{regex(rng, 2)}/ /[a-z]/"]
    for name in ("x", "y")[: rng.randint(0, 2)]:
        within_itself = rng.choice(["", f' | "(" {name} ")"'])
        lines.append(f"{name}: {alternatives(rng, rules, 1)}{within_itself}")
        rules.append(name)
    if rng.random() < 0.3:
        lines.append(f"z[{rng.choice(ATTRIBUTES)}]: /[a-z ]+/")
        rules.append("z")
    return "\n".join([f"start: {sequence(rng, rules, 2)} {rng.choice(ENDS)}", *lines])


def schema(rng, depth):
    low = rng.randint(0, 4)
    if not depth or rng.random() < 0.4:
        leaves = [
            {"type": rng.choice(["integer", "number", "string", "boolean", "null"])},
            {"type": "integer", "minimum": low, "maximum": low + 20},
            {"type": "number", "minimum": low, "maximum": low + 2.25},
            {"type": "string", "minLength": low, "maxLength": low + 5},
            {"type": "string", "pattern": f"^{regex(rng, 2)}$"},
            {"type": "string", "format": "date"},
            {"type": [rng.choice(["integer", "string"]), "null"]},
            {"enum": rng.sample(VALUES, rng.randint(1, 4))},
            {"const": rng.choice(VALUES)},
        ]
        return rng.choice(leaves)
    kind = rng.choice(["object", "object", "object", "array", "anyOf"])
    if kind == "anyOf":
        return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "array":
        array = {"type": kind, "items": schema(rng, depth - 1), "minItems": low // 2}
        return array | rng.choice([{}, {"maxItems": low + 1}, {"prefixItems": [schema(rng, 0)]}])
    names = rng.sample(["name", "age", "x y", "<|pad|>", "é"], rng.randint(0, 4))
    needed, others = [name for name in names if rng.random() < 0.7], rng.choice([False, False, True])
    properties = {name: schema(rng, depth - 1) for name in names}
    return {"type": kind, "properties": properties, "required": needed, "additionalProperties": others}


MADE_BY = {"grammar": lark, "regex": lambda rng: regex(rng, 3), "json_schema": lambda rng: schema(rng, 3)}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """By what drafts. They have two tokens that end a text: one is special, and one is text."""
    words = tokenizer()
    words.add_special_tokens({"pad_token": "<|pad|>"})
    words.add_tokens(["<tool_call>", "[END]"])
    target = tiny("llama", vocab_size=WIDTH)
    target.generation_config.eos_token_id = words.convert_tokens_to_ids(["<end>", "[END]"])
    folders = {name: tmp_path_factory.mktemp(name) for name in ("target", "model", "eagle3")}
    saved_in(folders["target"], target, words), saved_in(folders["model"], noisy(target), words)
    save_head(tiny_head(target), folders["eagle3"])
    by_model, by_head = (load_pair(target=folders["target"], drafter=folders[name]) for name in DRAFTERS[::2])
    return {"model": by_model, "lookup": by_model, "none": by_model, "eagle3": by_head}


def assert_follows(trace, vocabulary):
    name = field_of_grammar(trace.params)
    matcher = vocabulary.compiled(name, getattr(trace.params, name))
    ended = trace.finish == "eos"
    assert ended or trace.finish == "length"
    for token in trace.output_ids[: len(trace.output_ids) - ended]:
        assert matcher.consume_token(token), matcher.get_error()
    if ended and not matcher.is_accepting():  # a grammar can end in the token that ends the text
        assert matcher.consume_token(trace.output_ids[-1]) and matcher.is_accepting(), trace.text
    if ended and name == "json_schema":
        json.loads(trace.text)


@pytest.mark.parametrize("kind", MADE_BY)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_run_dies_and_every_text_follows_its_grammar(pairs, kind, seed):
    rng = random.Random(f"{kind} {seed}")
    plain, text = pairs["none"], MADE_BY[kind](rng)
    vocabulary = Vocabulary(plain.tokenizer.backend_tokenizer.to_str(), WIDTH, sorted(plain.eos))
    bias = dict.fromkeys(plain.eos, rng.choice([0, 6]))  # half of the texts end as soon as they can
    params = Params(top_p=1, max_new_tokens=40, seed=seed, ngram=2, logit_bias=bias, **{kind: text})
    for temperature in (0, 1):
        texts = []
        for drafter in ("none", *DRAFTERS):
            how = {"draft_with": "model" if drafter == "eagle3" else drafter, "temperature": temperature}
            one = replace(params, gamma=rng.randint(1, 6), **how)
            trace = generate(pairs[drafter], "the dog and the cat", one, measure=False)
            assert_follows(trace, vocabulary)
            texts.append(trace.output_ids)
        assert temperature or texts == texts[:1] * len(texts)
