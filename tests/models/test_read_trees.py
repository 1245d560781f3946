"""Trees of drafts with real models: each row sees the text and its own path, and what cannot draft or read a
tree says so. test_drafter_contract.py compares texts."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.engine.tree import Nodes, Tree, draw_children
from specdemo.errors import PairError
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.lm import CachedLM
from specdemo.servers.software import SERVERS_OWN
from tests.block_heads import tiny_block_head
from tests.models.test_fused import FUSED
from tests.oracle import parents_of, path_to
from tests.runners import with_head
from tests.sentences import assert_one_sentence
from tests.small import small_model
from tests.tiny import ARCHITECTURES, VOCAB, WINDOW, greedy, noisy, tiny

PROMPT = [5, 17, 3, 88, 42, 9, 9, 17, 61, 30, 2, 71]
NEW = 50  # with the prompt several sliding windows


@cache
def target_of(name):
    return tiny(name)


@cache
def drafter_of(name):
    return noisy(target_of(name))


def run_of(target, drafter, **params):
    params = Params(**{"temperature": 0, "max_new_tokens": NEW, "seed": 1, "tree": (3, 2, 1)} | params)
    pair = target if isinstance(target, Pair) else load_pair(target=target, drafter=drafter)
    return generate(pair, PROMPT, params, measure=False)


def lm_of(name, way):
    lm = CachedLM(target_of(name), compiled=way == "compiled")
    lm.begin_run(static=way != "plain")
    assert way != "compiled" or lm.native is not None
    return lm


WAYS = [(name, way) for name in ARCHITECTURES for way in ("plain", "static")]
WAYS += [(name, "compiled") for name in FUSED]
CASES = [(*way, (3, 2, 1)) for way in WAYS] + [("llama", way, (2, 2, 2, 2)) for way in ("static", "compiled")]


@pytest.mark.parametrize(("name", "way", "children"), CASES, ids=str)
@torch.no_grad()
def test_each_row_sees_the_text_and_its_own_path(name, way, children):
    """After a text that is longer than a sliding window; and the branch that is kept is the text from then
    on."""
    model, lm, parents = target_of(name), lm_of(name, way), parents_of(children)
    text = [7 * i % VOCAB for i in range(2 * WINDOW)]
    drafted = [(11 * i + 5) % VOCAB for i in range(len(parents))]

    def expected(ids):
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1]

    lm.prefill(torch.tensor(text[:-1]))
    lm.reserve(len(text) - 1, len(text) + len(parents))
    start = torch.tensor(len(text) - 1)
    branches = Nodes.of(torch.tensor(parents), Tree(children)).branches
    said = lm.forward(torch.tensor([text[-1], *drafted]), start, branches)
    for token in range(-1, len(parents)):
        path = [drafted[one] for one in path_to(parents, token)]
        assert torch.allclose(said[token + 1], expected(text + path), atol=2e-4), f"token {token}"

    kept = path_to(parents, len(parents) - 2)
    following = [*text, *(drafted[token] for token in kept)]
    lm.keep(len(text), kept)
    lm.reserve(len(following), len(following) + 1)
    after = lm.forward(torch.tensor([3]), torch.tensor(len(following)))
    assert torch.allclose(after[-1], expected([*following, 3]), atol=2e-4)


@pytest.mark.parametrize("method", ["ngram", "ngram-one-level", "suffix"])
def test_what_is_looked_up_is_a_tree_too(method):
    """Without a drafter, and of a text that comes back to itself. A store has fewer guesses than it may."""
    target = target_of("llama")
    trace = run_of(target, None, draft_with=method, ngram=2, max_new_tokens=90)
    assert trace.output_ids == greedy(target, PROMPT, 90)
    drafts = [one.draft for one in trace.rounds]
    assert {len(draft) for draft in drafts} & set(range(2, 14)), "an irregular tree"
    for draft in drafts:
        families = Counter(token.parent for token in draft)
        assert all(count <= 3 for count in families.values())
        assert len({(token.parent, token.id) for token in draft}) == len(draft)
        assert all(token.q == 1 for token in draft if token.u is not None)
    assert Trace.from_json(trace.to_json()) == trace


def test_the_text_is_that_of_its_tokens_up_to_a_stop_string():
    """The pieces of all branches are told where they stand, and leave no trace in the text."""
    pair = load_pair()
    params = Params(temperature=1.2, top_p=1.0, tree=(3, 2, 1), seed=4, max_new_tokens=120, ignore_eos=True)
    trace = generate(pair, "Once upon a time", params, measure=False)
    whole = pair.tokenizer.decode([*trace.prompt_ids, *trace.output_ids], skip_special_tokens=True)
    assert whole == "Once upon a time" + trace.text
    texts = [token.text for one in trace.rounds for token in one.draft]
    assert sum(map(bool, texts)) > 0.9 * len(texts)
    stop = trace.text[40:47]
    stopped = generate(pair, "Once upon a time", replace(params, stop=(stop,)), measure=False)
    assert (stopped.finish, stopped.text) == ("stop", trace.text[: trace.text.index(stop)])
    assert Trace.from_json(stopped.to_json()) == stopped


def test_what_cannot_draft_a_tree_says_so():
    target = target_of("llama")
    parallel = noisy(target)
    parallel.config.pard_token = 7
    pair, in_parallel = (load_pair(target=target, drafter=each) for each in (drafter_of("llama"), parallel))
    refused = [(pair, dict(draft_with=method)) for method in ("lookup", "early-exit", "lookup+model")]
    refused += [(pair, dict(draft_with="suffix", tree="auto")), (in_parallel, {})]
    for one, how in refused:
        assert_refused(one, **how)
    with_few = with_head(target, tiny_block_head(target, block_size=3))
    assert_refused(with_few, tree=(1, 1, 1))
    with_few.check(Params(tree=(3, 1)))
    run_of(target, None, draft_with="none")  # where it has no effect


def assert_refused(pair, **params):
    with pytest.raises((ValueError, PairError), match="^tree ") as error:
        run_of(pair, None, **params)
    assert_one_sentence(str(error.value))


@pytest.mark.parametrize("name", ["lfm2", "bloom"])
def test_models_that_cannot_read_a_tree_say_so(name):
    """Recurrent layers; and ALiBi, which looks at where the cache has a token."""
    model = small_model(name)
    assert_refused(load_pair(target=model, drafter=noisy(model)))


def test_a_server_refuses_a_tree():
    assert "tree" in SERVERS_OWN


def test_what_can_draft_few_tokens_drafts_none_twice():
    logits = torch.tensor([[-torch.inf, -torch.inf, 2.0, 1.0, -torch.inf]])
    tokens, q = draw_children(logits.softmax(-1), logits, torch.zeros(1, 5, dtype=torch.float64))
    assert sorted(tokens[0].tolist()) == [0, 1, 2, 3, 4]
    assert (q.gather(2, tokens[..., None]) > 0).all()


def test_a_model_whose_kernels_cannot_read_trees_goes_on_without_them(monkeypatch):
    """As where a compiler fails: with another error than those of a model that cannot."""
    pair = load_pair(target=tiny())
    lm, tried = pair.runner.lms[0], CachedLM._try_branches

    def with_kernels(self):
        if self.fused is not None and self.fused.triton:
            raise Exception("out of resources")
        return tried(self)

    monkeypatch.setattr(CachedLM, "_try_branches", with_kernels)
    lm.begin_run(static=True)
    assert lm.fused is not None
    lm.fused.triton, before = True, lm.buffer_epoch
    assert lm.reads_branches() and lm.fused is not None and not lm.fused.triton
    assert lm.faults["no_triton"] == "out of resources" and lm.buffer_epoch != before
