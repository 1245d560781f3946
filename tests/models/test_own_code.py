"""Models that come with program code of their own run like any other where they are asked for, and what a
page's visitor can send reaches none of it. test_broken_checkpoints.py refuses them otherwise."""

import shutil
from dataclasses import fields, replace

import pytest
import transformers.dynamic_module_utils
from transformers import AutoModelForCausalLM

import app
from specdemo import Params, generate, load_pair
from specdemo.errors import LoadError
from specdemo.ui.page import links
from specdemo.ui.runs.limits import HOSTED
from specdemo.ui.runs.models import Choice, Models
from tests.checkpoints import saved_in
from tests.hub import Hub
from tests.sentences import refusal
from tests.tiny import greedy, noisy, tiny, tokenizer

pytestmark = pytest.mark.slow
PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
PARAMS = Params(temperature=0.0, gamma=3, max_new_tokens=30, ignore_eos=True)
NAMES = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
# An architecture that transformers does not have: its output matrix reads the hidden state shifted by places.
CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import cached_file

open({ran!r}, "a").write("{by}")


class OwnConfig(LlamaConfig):
    model_type = "own-llama"

    @classmethod
    def from_pretrained(cls, place, **how):
        assert cached_file(place, "tokenizer.json", local_files_only=True)  # a file beside it
        return super().from_pretrained(place, **how)


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """target-v2 has target's weights and other code, and plain has no code."""
    folder = tmp_path_factory.mktemp("own")
    ran = folder / "ran"
    target = tiny(vocab_size=304)
    for name, model, by in (("target", target, 1), ("drafter", noisy(target), 1), ("target-v2", target, 5)):
        model.config.auto_map, kind = NAMES, type(model.config).model_type
        type(model.config).model_type = "own-llama"
        try:
            model.save_pretrained(folder / name)
        finally:
            type(model.config).model_type = kind
        tokenizer().save_pretrained(folder / name)
        (folder / name / "own.py").write_text(CODE.format(ran=str(ran), by=by))
    shutil.copytree(folder / "target", folder / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    saved_in(folder / "plain", tiny(vocab_size=304))
    with pytest.MonkeyPatch.context() as patch:
        modules = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
        yield folder


def written(pair):
    params = PARAMS if pair.drafter else replace(PARAMS, draft_with="lookup")
    return generate(pair, PROMPT, params, measure=False).output_ids


def expected(path):
    return greedy(AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True), PROMPT, 30)


def test_it_runs_with_greedy_parity_and_the_page_says_so(saved):
    pair = load_pair(target=saved / "target", drafter=saved / "drafter", trust_remote_code=True)
    text = written(pair)
    assert text == expected(saved / "target") != greedy(tiny(vocab_size=304), PROMPT, 30)
    assert text == generate(pair, PROMPT, replace(PARAMS, draft_with="none"), measure=False).output_ids
    assert any("(trust_remote_code)" in note and "OwnForCausalLM" in note for note in pair.notes)


def test_a_model_without_code_says_that_it_brought_none(saved):
    (note,) = load_pair(target=saved / "plain", trust_remote_code=True).limits
    assert "none" in note
    assert load_pair(target=saved / "plain").limits == ()


def test_from_the_hub_the_code_is_that_of_the_revision(saved, tmp_path, monkeypatch):
    hub = Hub(saved)
    with hub.used(monkeypatch, tmp_path):
        assert "weights" in refusal(load_pair, target="own/bare", trust_remote_code=True, kind=LoadError)
        assert hub.sent == ["bare/config.json"], "no code of a model that is not loaded"
        names = ("own/target", "own/target@v2", "own/target")
        texts = [written(load_pair(target=name, trust_remote_code=True)) for name in names]
        asked = len(hub.sent)
        assert written(load_pair(target="own/target@v2", trust_remote_code=True)) == texts[1]
        assert len(hub.sent) == asked, "what is here is not asked for again"
    assert texts[0] == texts[2] == expected(saved / "target")
    assert texts[1] == expected(saved / "target-v2") != texts[0]


def test_a_public_server_refuses_it_and_a_visitor_cannot_ask_for_it(saved, capsys):
    sentence = "trust_remote_code cannot be used"
    given = {"target": str(saved / "target"), "trust_remote_code": True}
    assert refusal(Models, given, HOSTED).startswith(sentence)
    (saved / "ran").unlink(missing_ok=True)
    options = ["--hosted", "--port", "0", "--target", str(saved / "target"), "--trust-remote-code"]
    assert app.main(options) == 2 and sentence in capsys.readouterr().err
    assert not (saved / "ran").exists()
    assert "trust_remote_code" not in {field.name for field in (*fields(Choice), *fields(Params))}
    assert "trust_remote_code" in links.read_link("trust_remote_code=true&prompt=a", ["embedded"]).note
