"""Models that come with program code of their own: refused in a sentence unless asked for, and then run like
any other. What a page's visitor can send reaches none of it."""

from dataclasses import fields, replace

import pytest
import transformers.dynamic_module_utils
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

import app
from specdemo import PairError, Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.loading.request import resolve
from specdemo.ui.page import links
from specdemo.ui.runs.limits import HOSTED
from specdemo.ui.runs.models import Choice, Models
from tests.hub import Hub
from tests.sentences import assert_one_sentence
from tests.tiny import greedy, noisy, tiny, tokenizer

pytestmark = pytest.mark.slow
PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
PARAMS = Params(temperature=0.0, gamma=3, max_new_tokens=30, ignore_eos=True)
NAMES = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
# An architecture that transformers does not have: its output matrix reads the hidden state shifted by places.
CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

open({ran!r}, "a").write("{by}")


class OwnConfig(LlamaConfig):
    model_type = "own-llama"


class OwnHead(torch.nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden.roll({by}, dims=-1))


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.lm_head = OwnHead(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
"""
LOOKS_AHEAD = """

    def forward(self, input_ids=None, past_key_values=None, **options):
        output = super().forward(input_ids=input_ids, past_key_values=past_key_values, **options)
        output.logits = output.logits + output.logits.mean(1, keepdim=True)
        return output
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """target, drafter, target-v2 (the same weights with other code), and one that looks at later tokens."""
    folder = tmp_path_factory.mktemp("own")
    ran = folder / "ran"
    target = tiny(vocab_size=304)
    kinds = {"target": (target, 1, ""), "drafter": (noisy(target), 1, ""), "target-v2": (target, 5, "")}
    for name, (model, by, more) in (kinds | {"looks-ahead": (target, 1, LOOKS_AHEAD)}).items():
        model.config.auto_map, kind = NAMES, type(model.config).model_type
        type(model.config).model_type = "own-llama"
        try:
            model.save_pretrained(folder / name)
        finally:
            type(model.config).model_type = kind
        tokenizer().save_pretrained(folder / name)
        (folder / name / "own.py").write_text(CODE.format(ran=str(ran), by=by) + more)
    with pytest.MonkeyPatch.context() as patch:
        modules = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
        patch.setattr("builtins.input", lambda *_: "y")
        yield folder


def written(pair):
    params = PARAMS if pair.drafter else replace(PARAMS, draft_with="lookup")
    return generate(pair, PROMPT, params, measure=False).output_ids


def expected(path):
    return greedy(AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True), PROMPT, 30)


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_it_is_refused_unless_asked_for(saved, role):
    plain = saved / "plain"
    if not plain.is_dir():
        tiny(vocab_size=304).save_pretrained(plain)
        tokenizer().save_pretrained(plain)
    (saved / "ran").unlink(missing_ok=True)
    with pytest.raises(LoadError) as error:
        load_pair(**{"target": plain, "drafter": plain, role: saved / "target"})
    assert_one_sentence(str(error.value))
    assert str(error.value).startswith(role) and "--trust-remote-code" in str(error.value)
    assert not (saved / "ran").exists(), "its code has run"


def test_it_runs_with_greedy_parity_and_the_page_says_so(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "drafter", trust_remote_code=True)
    text = written(pair)
    assert text == expected(saved / "target") != greedy(tiny(vocab_size=304), PROMPT, 30)
    assert text == generate(pair, PROMPT, replace(PARAMS, draft_with="none"), measure=False).output_ids
    note = "program code that comes with the models is trusted and run (trust_remote_code): "
    assert note + "OwnForCausalLM and OwnForCausalLM came with it" in pair.notes


def test_a_model_without_code_says_that_it_brought_none(saved):
    plain = saved / "none"
    tiny(vocab_size=304).save_pretrained(plain)
    tokenizer().save_pretrained(plain)
    (note,) = load_pair(target=plain, trust_remote_code=True).limits
    assert note.endswith("these models came with none for their forwards")
    assert load_pair(target=plain).limits == ()


def test_its_cache_is_tried_like_that_of_any_model(saved):
    with pytest.raises(PairError, match="its predictions with a cache differ from those without one"):
        load_pair(target=saved / "looks-ahead", trust_remote_code=True)


def test_from_the_hub_the_code_is_that_of_the_revision(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    hub = Hub(saved)
    with hub.serving() as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        texts = [
            written(load_pair(target=name, trust_remote_code=True))
            for name in ("own/target", "own/target@v2", "own/target")
        ]
        asked = len(hub.sent)
        assert written(load_pair(target="own/target@v2", trust_remote_code=True)) == texts[1]
        assert len(hub.sent) == asked, "what is here is not asked for again"
    assert texts[0] == texts[2] == expected(saved / "target")
    assert texts[1] == expected(saved / "target-v2") != texts[0]


def test_a_public_server_refuses_it(saved, capsys):
    with pytest.raises(PairError, match="^trust_remote_code cannot be used on a public server"):
        Models({"target": str(saved / "target"), "trust_remote_code": True}, HOSTED)
    (saved / "ran").unlink(missing_ok=True)
    options = ["--hosted", "--port", "0", "--target", str(saved / "target"), "--trust-remote-code"]
    assert app.main(options) == 2
    assert "trust_remote_code cannot be used on a public server" in capsys.readouterr().err
    assert not (saved / "ran").exists()


def test_a_visitor_cannot_ask_for_it():
    assert "trust_remote_code" not in {field.name for field in (*fields(Choice), *fields(Params))}
    assert "trust_remote_code" in links.read_link("trust_remote_code=true&prompt=a", ["embedded"]).note


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"trust_remote_code": True}, "trust_remote_code goes with target and drafter"),
        ({"name": "embedded", "trust_remote_code": True}, "trust_remote_code goes with target and drafter"),
        ({"target": "a/b", "trust_remote_code": "yes"}, "trust_remote_code must be true or false, not 'yes'"),
    ],
)
def test_a_wrong_request(request_, words):
    with pytest.raises(PairError) as error:
        resolve(**request_)
    assert_one_sentence(str(error.value))
    assert str(error.value).startswith(words)


def test_models_in_memory_are_there_already():
    with pytest.raises(PairError, match="^trust_remote_code must be left out for models given in memory"):
        load_pair(target=tiny(), trust_remote_code=True)


def test_two_requests_that_differ_in_it_are_two():
    trusted, usual = (resolve(target="a/b", trust_remote_code=trust).key for trust in (True, False))
    assert trusted != usual
