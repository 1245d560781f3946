"""What each kind of drafter owes: it loads, it fits or is refused, what it drafts is what it says when
everything is computed anew, the text is the target's own, and its steps can be captured. A file of its own
has only what no other kind has."""

import copy
import shutil
from functools import cache, partial
from itertools import cycle

import pytest
import torch

import specdemo.drafters.heads
import specdemo.drafters.mtp
import specdemo.runtime.lm
from specdemo import PairError, Params, Round, generate, load_pair, stream
from specdemo.drafters.configs import LAYER_CONFIG
from specdemo.drafters.model import ModelDrafter
from specdemo.engine.draft import DraftLength
from specdemo.errors import LoadError
from specdemo.events import DRAFTER_KINDS, LISTED
from specdemo.loading.load import plan
from specdemo.loading.request import resolve
from specdemo.runtime.cuda import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.steps import EagerSteps
from tests.checkpoints import change_config, change_tensors, cut_in_half, gemma4, gemma4_assistant, saved_in
from tests.drafters import (
    NEVER_CAPTURED,
    OF_TREES,
    PROMPT,
    ROWS,
    drawn_as_said,
    loaded,
    model_says,
    parallel,
    right_now_and_then,
    with_other_words,
)
from tests.eagle_heads import save_eagle_head, tiny_eagle_head
from tests.fake_cuda import FakeCuda, install
from tests.models.test_capture import Filled, timeless
from tests.models.test_no_sync import SAMPLERS, Kept, waits_of
from tests.oracle import leaves_of
from tests.runners import run_by, with_head
from tests.sentences import refusal, refused
from tests.tiny import greedy, tiny, tokenizer

NEW = 30
TREE = (2, 2, 1)


def rows_where(fits) -> list:
    """Layers for multi-token prediction are skipped where transformers cannot run them."""
    old = pytest.mark.skipif(specdemo.drafters.mtp.MtpModel is None, reason="an older transformers")
    return [
        pytest.param(name, marks=old) if name == "mtp" else name for name, row in ROWS.items() if fits(row)
    ]


IN_MEMORY = pytest.mark.parametrize("name", rows_where(lambda row: row is not ROWS["another tokenizer"]))
THAT_SAY = pytest.mark.parametrize("name", rows_where(lambda row: row.says))
CAPTURED = [name for name, row in ROWS.items() if row.says and name not in NEVER_CAPTURED]


@cache
def target_of(name, vocab_size=96):
    return ROWS[name].target(vocab_size=vocab_size)


@cache
def drafter_of(name, vocab_size=96):
    row = ROWS[name]
    make = right_now_and_then if (name, vocab_size) == ("eagle3", 96) else row.make
    return make and make(target_of(name, vocab_size))


def says_of(name, vocab_size=12, places=0):
    """places: the size of a block that is larger than the draft. What each place says depends on it."""

    def says(text, draft):
        is_block = hasattr(getattr(drafter, "config", None), "places")
        more = [0] * (places - len(draft)) if is_block else []
        return ROWS[name].says(drafter, target, text, draft + more)[: len(draft)]

    drafter, target = drafter_of(name, vocab_size), target_of(name, vocab_size)
    return says


def pair_of(name, vocab_size=96, capture="off"):
    return with_head(target_of(name, vocab_size), drafter_of(name, vocab_size), capture)


def run_over(name, run_step, vocab_size=96):
    """A pair whose steps are those that can be captured, where they can."""
    if name in NEVER_CAPTURED:
        return pair_of(name, vocab_size)
    return run_by(target_of(name, vocab_size), drafter_of(name, vocab_size), run_step)


def sampled(name, **changes):
    how = dict(temperature=2.0, top_p=1.0, presence_penalty=0.3, gamma=3, max_new_tokens=30, seed=1)
    how |= dict(draft_with=ROWS[name].method, alternatives=3, ignore_eos=True)
    return Params(**how | changes)


def test_each_kind_and_each_method_has_a_row():
    assert all(ROWS[kind].says and ROWS[kind].save for kind in DRAFTER_KINDS)
    assert {*OF_TREES} == {name for name, kind in DRAFTER_KINDS.items() if kind.drafts_trees}
    assert LISTED.keys() - ROWS.keys() == {"none"} and all(ROWS[name].says for name in ("mtp", "early-exit"))


# It agrees


def rounds_of_lengths():
    """In place of DraftLength.learn. A round that drafts nothing is a pause."""
    lengths = cycle([3, 3, 1, 3, 0, 0, 0, 0, 0, 0, 3, 0, 1, 3])

    def learn(self, *verdicts):
        self.gamma = next(lengths)
        self.pause = int(self.gamma == 0)

    return learn


@THAT_SAY
def test_what_it_drafts_is_what_it_says_when_computed_anew(name, monkeypatch):
    """After drafts of which nothing or something was accepted, after rounds that drafted little or nothing,
    and after pauses. Each token is drawn by its number from that. As steps are captured, too."""
    for run_step in (EagerSteps(), Filled())[: 1 + (name in CAPTURED)]:
        monkeypatch.setattr(DraftLength, "learn", rounds_of_lengths())
        pair = run_over(name, run_step, 12)
        trace = generate(pair, PROMPT, sampled(name), measure=False)
        drafting = pair.runner.lms[1] or next(iter(pair.runner._own.values()))
        assert drafting.is_captured == (name in CAPTURED)
        says = says_of(name, places=3 * isinstance(run_step, Filled))
        accepted = drawn_as_said(says, PROMPT, trace)
        assert min(accepted) == 0 < max(accepted)


@pytest.mark.slow
@THAT_SAY
def test_prompts_of_any_length(name, monkeypatch):
    """Also longer than the parts that a prefill reads, and shorter than what a round feeds again. Some need a
    feature of a token before the last one."""
    monkeypatch.setattr(specdemo.runtime.lm, "PREFILL_CHUNK", 7)
    monkeypatch.setattr(specdemo.drafters.heads, "HEAD_PREFILL_CHUNK", 5)
    for length in (1, 2, 4, 30):
        prompt = (PROMPT * 6)[:length]
        trace = generate(pair_of(name, 12), prompt, sampled(name, max_new_tokens=9), measure=False)
        drawn_as_said(says_of(name), prompt, trace)
        first = trace.rounds[0]
        assert len(first.draft) == 3 if length > 1 else (len(first.draft), first.ended_by) in NOTHING_OR_ALL


NOTHING_OR_ALL = ((0, "drafter"), (3, "gamma"))


@pytest.mark.parametrize("tree", [TREE, pytest.param("auto", marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", OF_TREES)
def test_what_each_token_of_a_tree_was_drawn_from_is_what_is_said_after_its_path(name, tree, monkeypatch):
    """By the drafter and by the target, also after paths that are not the first ones, whose features, keys
    and values have to be moved. A block of a tree that grows has all its places, however long a path is: what
    a place says depends on how many they are."""
    keep, kept, paths = ModelDrafter.keep, [], []
    monkeypatch.setattr(ModelDrafter, "keep", lambda *given: kept.append(given[-1]) or keep(*given))
    target, text = target_of(name, 12), list(PROMPT)
    says = says_of(name, places=0 if tree == TREE else getattr(drafter_of(name, 12).config, "places", 0))
    temperature, seed = (2.0, 6) if tree == TREE else (0.6, 5)
    params = Params(temperature=temperature, top_p=1.0, tree=tree, max_new_tokens=14, seed=seed)
    for one in generate(pair_of(name, 12), PROMPT, params, measure=False).rounds:
        for leaf in leaves_of(one.draft):
            ids = [one.draft[at].id for at in leaf]
            for at, q, p in zip(leaf, says(text, ids), model_says(target, target, text, ids), strict=True):
                token = one.draft[at]
                assert token.raw_q == pytest.approx(q[token.id].item(), abs=3e-4)
                assert token.raw_p == pytest.approx(p[token.id].item(), abs=3e-4)
        paths.append([at for at, token in enumerate(one.draft) if token.fate == "accepted"])
        text += one.emitted
    # Rows that later rounds read were not where they belong: two depths of TREE have rows in the drafter's
    # cache, and those of a grown tree have another order than its tokens.
    if tree == TREE:
        assert any(path[:2] != [*range(len(path[:2]))] for path in paths[:-2])
    elif name == "model":
        assert any(rows != path[: len(rows)] for rows, path in zip(kept, paths[:-2], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "eagle3"])
def test_a_temperature_of_its_own_is_that_of_q_alone(name):
    for own in (0.0, 1.7):
        params = sampled(name, temperature=0.9, draft_temperature=own)
        trace = generate(pair_of(name, 12), PROMPT, params, measure=False)
        if own:
            drawn_as_said(says_of(name), PROMPT, trace)
        else:
            assert {token.q for one in trace.rounds for token in one.draft} == {1.0}
    params = Params(temperature=0, draft_temperature=0.4, max_new_tokens=NEW, seed=1)
    trace = generate(pair_of(name, 12), PROMPT, params, measure=False)
    assert trace.output_ids == greedy(target_of(name, 12), PROMPT, NEW)


# It is exact


@pytest.mark.slow
@IN_MEMORY
def test_greedy_text_is_the_target_s_and_a_seed_gives_the_same_rounds_again(name):
    """Compiled, where it can be: drafts of a given length, of one that is chosen round by round, those that
    confidence ends, and trees."""
    target, pair = target_of(name), pair_of(name, capture="auto")
    expected = greedy(target, PROMPT, NEW)
    hows = [dict(gamma=4), dict(gamma="auto"), dict(confidence=0.3)]
    for how in [*hows, dict(tree=TREE)] if name in OF_TREES else hows:
        params = Params(draft_with=ROWS[name].method, temperature=0, max_new_tokens=NEW, **how)
        trace = generate(pair, PROMPT, params, measure=False)
        assert trace.output_ids == expected and (
            trace.stats.drafted or "confidence" in how or not ROWS[name].says
        )
    first, second = (generate(pair, PROMPT, sampled(name), measure=False).rounds for _ in range(2))
    assert ids_of(first) == ids_of(second)


def ids_of(rounds):
    return [([token.id for token in one.draft], one.emitted) for one in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.make and row.says])
def test_beyond_its_context_nothing_is_drafted(name):
    target = target_of(name)
    limit = "max_position_embeddings" if name == "assistant" else "context"
    pair = with_head(target, ROWS[name].make(target, **{limit: 40}))
    assert any("40" in str(note) for note in pair.notes)
    trace = generate(pair, PROMPT * 5, Params(temperature=0, gamma=4, max_new_tokens=NEW), measure=False)
    assert trace.output_ids == greedy(target, PROMPT * 5, NEW)
    length = len(PROMPT * 5)
    for one in trace.rounds[:-4]:
        left = max(0, ROWS[name].last + 1 - length)
        assert len(one.draft) == (4 * bool(left) if name == "assistant" else min(4, left))
        length += len(one.emitted)
    assert length > 45


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")], ids=str)
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.make and row.says])
def test_it_computes_in_a_dtype_of_its_own(name, dtypes):
    """Its drafts are drawn from what it says, and the text from what the target says, as far as bfloat16
    rounds. dflash2 drafts from its likeliest tokens only; here these are all 12."""
    of_target, of_drafter = (getattr(torch, dtype) for dtype in dtypes)
    target = ROWS[name].target(vocab_size=12).to(of_target)
    drafter = ROWS[name].make(target, **{"candidates": 12} if name == "dflash2" else {}).to(of_drafter)
    trace = generate(with_head(target, drafter, "auto"), PROMPT, sampled(name), measure=False)
    drafter, target = (copy.deepcopy(model).float() for model in (drafter, target))
    error = {"model": 0.06, "dflash2": 0.1}.get(name, 0.03)
    drawn_as_said(partial(ROWS[name].says, drafter, target), PROMPT, trace, error)
    text, error = list(PROMPT), 3e-4 if of_target == torch.float32 else 0.03
    for one in trace.rounds:
        ids, kept = [token.id for token in one.draft], [token.fate for token in one.draft].count("accepted")
        said = model_says(target, target, text, [*ids, 0])  # [K+1, V]
        for token, p in [*zip(one.draft, said, strict=False), (one.next, said[kept])]:
            assert token.raw_p == pytest.approx(p[token.id].item(), abs=error)
        text += one.emitted
    assert trace.stats.drafted and trace.stats.tokens == 30


# It is captured


CASES = [*((name, ()) for name in CAPTURED), ("eagle3", "auto"), ("dspark", "auto"), ("peagle", TREE)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tree"), CASES, ids=str)
def test_a_run_over_captured_steps_is_the_run(name, tree, monkeypatch):
    """Both steps as CUDA graphs, without a GPU: features pass from one graph to the other."""
    how = dict(temperature=0.9, top_p=0.9, seed=3, max_new_tokens=20, tree=tree)
    params = Params(draft_with=ROWS[name].method, **how)
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)

    def rounds_of(run_step):
        events = stream(run_over(name, run_step), PROMPT, params, measure=False)
        return timeless([event for event in events if isinstance(event, Round)])

    expected = rounds_of(Filled())
    fake = install(monkeypatch, FakeCuda())
    graphs = Graphs(Clock())
    assert rounds_of(graphs) == expected
    assert not graphs.refused and {key[0] for key in graphs.graphs} == {"draft", "verify"}
    assert fake.log.count("replay") > len(expected) and not fake.violations


@pytest.mark.parametrize(("sampler", "tree"), [("all", ()), ("adjusted", ()), ("adjusted", "auto")], ids=str)
@pytest.mark.parametrize("name", CAPTURED)
def test_no_step_waits(name, sampler, tree):
    run = Kept()
    tree = tree if name in OF_TREES else ()
    how = dict(max_new_tokens=8, alternatives=3, seed=1, tree=tree) | SAMPLERS[sampler]
    params = Params(draft_with=ROWS[name].method, **how)
    with stream(run_over(name, run), PROMPT, params) as events:
        next(one for one in events if isinstance(one, Round))
    assert waits_of(run.steps) == {"draft": [], "verify": []}


@pytest.mark.parametrize("name", rows_where(lambda row: row is ROWS["eagle3"] or row.method == "mtp"))
def test_runs_with_and_without_it_do_not_disturb_each_other(name):
    """One pair, whose forwards keep features or do not. Plain rounds are measured after each run."""
    pair, texts = pair_of(name, capture="auto"), []
    expected = greedy(pair.target, PROMPT, 20)
    for method in (ROWS[name].method, "lookup", ROWS[name].method, "none", ROWS[name].method):
        trace = generate(pair, PROMPT, Params(temperature=0, draft_with=method, max_new_tokens=20, seed=0))
        assert trace.output_ids == expected
        texts.append(ids_of(trace.rounds))
    assert texts[0] == texts[2] == texts[4]


# It loads


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("drafters")


@cache
def saved_target(root, name):
    """A folder, of which nothing may be changed, and the greedy text."""
    folder = saved_in(root / f"target of {name}", ROWS[name].target(vocab_size=304))
    return folder, greedy(loaded(folder), tokenizer()(TEXT).input_ids, 20)


@cache
def saved(root, name, at=0):
    """A drafter, and the folder with it in one of its formats."""
    target, _ = saved_target(root, name)
    drafter = ROWS[name].make(loaded(target))
    return drafter, ROWS[name].save[at](drafter, root / f"{name} {at}", target)


TEXT = "the cat sat"
FORMATS = [(name, at) for name, row in ROWS.items() for at in range(len(row.save))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), FORMATS)
def test_it_is_loaded_as_it_was_saved_and_takes_what_was_planned(root, name, at):
    target, expected = saved_target(root, name)
    drafter, folder = saved(root, name, at)
    pair = load_pair(target=target, drafter=folder)
    assert pair.info.drafter == str(folder)
    assert pair.info.drafter_kind == (name if name in DRAFTER_KINDS else "model")
    assert (pair.other_tokenizer is not None) == (name == "another tokenizer")
    held = pair.drafter.state_dict()
    assert all(torch.equal(held[key], value) for key, value in drafter.state_dict().items())
    sizes = plan(resolve(target=target, drafter=folder)).sizes
    assert [pair.bytes_held.target, pair.bytes_held.drafter] == pytest.approx(sizes, abs=2000)
    trace = generate(pair, TEXT, Params(temperature=0, max_new_tokens=20, ignore_eos=True), measure=False)
    assert trace.output_ids == expected and trace.stats.drafted
    assert trace.pair.drafter_kind == pair.info.drafter_kind
    if says := ROWS[name].says:
        trace = generate(pair, TEXT, sampled(name, max_new_tokens=12), measure=False)
        drawn_as_said(partial(says, drafter, pair.target), trace.prompt_ids, trace)


# It fits, or it is refused


OF_HEADS = dict(hidden_size=64, intermediate_size=128)
UNFIT = {  # of which kind, how the target differs that it was made for, the drafter's options, what is said
    "hidden states": ("peagle", OF_HEADS, {}, ("64", "32")),
    "a vocabulary": ("dflash", dict(vocab_size=90), {}, ("90 tokens", "96")),
    "layers": ("dspark", {}, dict(layer_ids=(0, 9)), ("layers 0, 9",)),
    "the assistant's hidden states": ("assistant", {}, dict(backbone=64), ("64", "32")),
    "the assistant's vocabulary": ("assistant", {}, dict(vocab_size=95), ("95", "96")),
    "key heads": ("assistant", {}, dict(num_key_value_heads=1), ("sliding_attention", "1", "2")),
    "keys": ("assistant", {}, dict(global_head_dim=8), ("full_attention", "8", "16")),
}


@pytest.mark.parametrize(("name", "of_target", "options", "words"), UNFIT.values(), ids=UNFIT)
def test_a_drafter_of_another_target_is_refused_for_what_differs(tmp_path, name, of_target, options, words):
    row = ROWS[name]
    drafter = row.make(row.target(**of_target), **options)
    folder = row.save[0](drafter, tmp_path, tmp_path)
    said = refusal(load_pair, target=target_of(name), drafter=folder)
    assert said.startswith(f"drafter {folder} does not fit target ")
    assert all(word in said.removeprefix(f"drafter {folder}") for word in words)


def test_what_a_target_cannot_have_as_a_drafter_is_refused(tmp_path):
    """An assistant of another kind of target, an EAGLE head where the last norm has no known name, a PARD
    model with another tokenizer, and a method for which the target lacks what drafts."""
    llama, norm = tiny(vocab_size=304), tiny("gpt2")
    assistant = ROWS["assistant"].save[0](gemma4_assistant(gemma4()), tmp_path / "assistant", tmp_path)
    assert "gemma4_text" in refusal(load_pair, target=llama, drafter=assistant)
    eagle = save_eagle_head(tiny_eagle_head(norm), tmp_path / "eagle", norm)
    assert "its last norm is not found" in refusal(load_pair, target=norm, drafter=eagle)
    pard = with_other_words(parallel(tiny(vocab_size=304)), tmp_path / "pard", tmp_path)
    target = saved_in(tmp_path / "target", llama)
    pair = load_pair(target=target)
    for call in (pair.attach, partial(load_pair, target=target)):
        assert "tokenizer" in refusal(call, drafter=pard)
    for method in ("model", "mtp", "lookup+model"):
        with refused("method_unfit", field="draft_with"):
            generate(pair, TEXT, Params(draft_with=method))
    for method in ("lookup", "early-exit", "none"):
        assert generate(pair, TEXT, Params(draft_with=method, max_new_tokens=5), measure=False).output_ids


# It refuses what is broken


def config(**changes):
    return lambda folder: change_config(folder, **changes)


def layer(**changes):
    return lambda folder: change_config(folder, LAYER_CONFIG, **changes)


def tensor(name, value=None):
    """Sets a tensor, or takes it away."""

    def change(tensors):
        tensors.pop(name, None)
        tensors.update({} if value is None else {name: value})

    return lambda folder: change_tensors(folder, change)


def cut(file):
    return lambda folder: cut_in_half(folder / file)


UP, OF_LAYERS = "layers.0.mlp.up_proj.weight", "eagle_aux_hidden_state_layer_ids"
SLIDING = ["sliding_attention"]
BROKEN = [  # of which kind, in which format, what is done to it, and what must be named
    ("eagle3", 0, config(speculators_model_type="mtp"), "speculators_model_type"),
    ("eagle3", 0, config(transformer_layer_config=None), "transformer_layer_config"),
    ("eagle3", 0, config(draft_vocab_size=None), "draft_vocab_size"),
    ("eagle3", 0, config(**{OF_LAYERS: [*range(10**6)]}), OF_LAYERS),
    ("eagle3", 0, config(**{OF_LAYERS: [0, 1, 2]}), "fc.weight"),
    ("eagle3", 0, layer(vocab_size=10**12), "vocab_size"),
    ("eagle3", 0, layer(head_dim=10**10), "head_dim"),
    ("eagle3", 0, layer(num_attention_heads=0), "num_attention_heads"),
    ("eagle3", 0, layer(num_hidden_layers=65), "num_hidden_layers"),
    ("eagle3", 0, layer(layer_types=["chunked_attention"]), "layer_types"),
    ("eagle3", 0, layer(layer_types=SLIDING, sliding_window=None), "sliding_window"),
    ("eagle3", 0, layer(rope_parameters=dict(rope_type="spiral", rope_theta=1e4)), "rope_parameters"),
    ("eagle3", 0, tensor(UP), UP),
    ("eagle3", 0, tensor("fc.weight", torch.zeros(32, 64, dtype=torch.float8_e4m3fn)), "float8_e4m3fn"),
    ("eagle3", 0, tensor("fc.weight_scale", torch.ones(1)), "fc.weight_scale"),
    ("eagle3", 0, cut("model.safetensors"), "deserializing header"),
    ("eagle3", 0, cut("config.json"), "config"),
    ("eagle3", 1, tensor("midlayer.mlp.up_proj.weight"), UP),
    ("eagle", 0, config(bias=False), "fc.bias"),
    ("eagle", 0, config(qkv_bias=1), "qkv_bias"),
    ("eagle", 0, config(intermediate_size=32), "shape"),
    ("dflash", 0, config(mask_token_id=None), "mask_token_id: Input should be a valid integer, not None"),
    ("dflash", 0, config(mask_token_id=304), "mask_token_id must be a whole number from 0 to 303"),
    ("dflash", 0, config(aux_hidden_state_layer_ids=None), "aux_hidden_state_layer_ids"),
    ("dflash", 0, config(block_size=1), "block_size"),
    ("dflash", 0, config(draft_vocab_size=400), "draft_vocab_size must be at most vocab_size, 304"),
    ("dflash", 0, layer(model_type="llama"), "qwen3"),
    ("dflash", 0, layer(model_type=["qwen3"]), "model_type"),
    ("dflash", 0, layer(layer_types=SLIDING * 2, sliding_window=4), "use_sliding_window"),
    ("dflash", 1, config(output_multiplier="2"), "output_multiplier"),
    ("dflash2", 0, config(draft_vocab_size=96), "draft_vocab_size"),
    ("dflash2", 0, config(block_size=1), "block_size must be at least 2"),
    ("dflash2", 0, config(conv_kernel_size=6), "conv_kernel_size"),
    ("dflash2", 0, config(selector_top_k=305), "selector_top_k"),
    ("dspark", 0, config(markov_head_type="hidden"), "markov_head_type"),
    *(("pard", 0, config(pard_token=mask), "pard_token") for mask in (-1, 304, "7", True)),
]


@cache
def bare(root, name):
    """A pair without a drafter, which each test must leave as it is."""
    return load_pair(target=saved_target(root, name)[0])


@pytest.mark.parametrize(("name", "at", "breaks", "named"), BROKEN)
def test_what_is_broken_is_refused_by_its_name(root, tmp_path, name, at, breaks, named):
    """In one sentence, and the pair is what it was."""
    folder = tmp_path / "broken"
    shutil.copytree(saved(root, name, at)[1], folder)
    breaks(folder)
    pair = bare(root, name)
    before = pair.info, pair.drafter, pair.limits
    said = refusal(pair.attach, folder, kind=PairError if name == "pard" else LoadError)
    assert said.startswith("drafter") and named in said.replace(str(folder), "")
    assert (pair.info, pair.drafter, pair.limits) == before
