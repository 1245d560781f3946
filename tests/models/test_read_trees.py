"""Trees of drafts with real models: a tree changes no greedy text, whatever the architecture, and what cannot
draft or read one says so."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch

from specdemo import Params, generate, load_pair
from specdemo.engine.tree import Nodes, Tree
from specdemo.errors import PairError
from specdemo.events.trace import Trace
from specdemo.loading.pair import Pair
from specdemo.runtime.device import Clock
from specdemo.runtime.lm import CachedLM
from specdemo.runtime.native import NativeLM
from specdemo.servers.pair import SERVERS_OWN
from tests.models.test_fused import FUSED
from tests.oracle import parents_of, path_to
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
    lm = NativeLM(target_of(name), Clock()) if way == "compiled" else CachedLM(target_of(name))
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


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_tree_changes_no_greedy_text(name):
    target = target_of(name)
    trace = run_of(target, drafter_of(name))
    assert trace.output_ids == greedy(target, PROMPT, NEW)
    fates = [token.fate for one in trace.rounds for token in one.draft]
    assert trace.stats.target_forwards == trace.stats.rounds + 1
    assert fates.count("rejected") > 3 and fates.count("accepted") > 10


@pytest.mark.parametrize(("tree", "temperature"), [((3, 2, 1), 1.0), ("auto", 0.0)], ids=str)
@torch.no_grad()
def test_what_the_record_says_is_what_both_models_say_without_a_cache(tree, temperature):
    """Of each token: the drafter's cache has the branch that was kept, and the target's, too."""
    models = target_of("llama"), drafter_of("llama")
    trace, text, kept = run_of(*models, temperature=temperature, top_p=1.0, tree=tree), list(PROMPT), 0
    for one in trace.rounds:
        paths: list[list[int]] = []
        for token in one.draft:
            paths.append([*(paths[token.parent] if token.parent is not None else []), token.id])
            ids = torch.tensor([text + paths[-1][:-1]])
            raw_p, raw_q = (model(ids, use_cache=False).logits[0, -1].softmax(-1) for model in models)
            assert token.raw_p == pytest.approx(raw_p[token.id].item(), abs=1e-5)
            assert token.raw_q == pytest.approx(raw_q[token.id].item(), abs=1e-5)
        path = [place for place, token in enumerate(one.draft) if token.fate == "accepted"]
        kept += path != [*range(len(path))]
        text += one.emitted
    assert kept > 3, "no branch had to be moved"


def test_a_tree_of_one_branch_is_a_chain():
    """The same tokens by the same dice."""
    models, how = (target_of("llama"), drafter_of("llama")), {"temperature": 0.9, "top_p": 0.8}
    tree = run_of(*models, tree=(1, 1, 1), **how)
    chain = run_of(*models, tree=(), gamma=3, **how)
    assert tree.output_ids == chain.output_ids
    assert [one.emitted for one in tree.rounds] == [one.emitted for one in chain.rounds]


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


def test_a_second_guess_brings_tokens():
    """At a temperature at which the first one is often refused."""
    how = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 150}
    found = [run_of(target_of("llama"), drafter_of("llama"), tree=tree, **how) for tree in ((1, 1), (4, 4))]
    one, several = (trace.stats.mean_tokens_per_round for trace in found)
    assert several > 1.1 * one


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


def refused(target, drafter, **params):
    with pytest.raises((ValueError, PairError)) as error:
        run_of(target, drafter, **params)
    assert_one_sentence(str(error.value))
    return str(error.value)


def test_what_cannot_draft_a_tree_says_so():
    target = target_of("llama")
    for method in ("lookup", "early-exit", "lookup+model", "ngram+model"):
        said = refused(target, drafter_of("llama"), draft_with=method)
        assert said == f"tree must be empty for {method}, which drafts chains only"
    assert "must not be auto for suffix" in refused(target, None, draft_with="suffix", tree="auto")
    parallel = noisy(target)
    parallel.config.pard_token = 7
    assert "of the kind pard" in refused(target, parallel)
    run_of(target, None, draft_with="none")  # where it has no effect


def test_models_that_cannot_read_a_tree_say_so():
    recurrent = small_model("lfm2")
    assert "the target has recurrent layers" in refused(recurrent, noisy(recurrent))
    by_distance = small_model("bloom")  # ALiBi: by where the cache has a token
    assert "the target does not predict the same" in refused(by_distance, noisy(by_distance))


def test_a_server_refuses_a_tree():
    assert "tree" in SERVERS_OWN


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
    assert lm.not_triton == "out of resources" and lm.buffer_epoch != before
