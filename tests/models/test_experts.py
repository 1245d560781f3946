"""How many experts a check reads: against the router's choice for the same rows, without a cache."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specdemo import Params, Trace, generate, load_pair
from specdemo.engine.sampling import Nucleus
from specdemo.events import ExpertsRead
from specdemo.runtime.device import Clock
from specdemo.runtime.graphs import Graphs
from specdemo.runtime.runner import has_hooks
from specdemo.runtime.weights import Experts, expert_weights, held_bytes, weight_bytes
from specdemo.session import loop_of, prepare
from tests.fake_cuda import FakeCuda, install
from tests.models.test_capture import Filled
from tests.runners import run_by
from tests.small import PROMPT, small_model
from tests.tiny import COMMON, GROUPED, noisy, random_weights, tiny

EACH, COUNT = 2, 16
MIXTURES = {
    "mixtral": dict(num_local_experts=COUNT),
    # The first layer is no mixture.
    "qwen3_moe": dict(num_experts=COUNT, moe_intermediate_size=32, head_dim=8, mlp_only_layers=[0]),
}
SHORT = dict(gamma=4, seed=3, max_new_tokens=23)


def mixture(name):
    settings = COMMON | GROUPED | dict(num_experts_per_tok=EACH, num_hidden_layers=3) | MIXTURES[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
    model.generation_config.eos_token_id = None
    model.set_experts_implementation("batched_mm")  # the one that never looks at a tensor's numbers
    return random_weights(model).eval()


@torch.no_grad()
def by_hand(model, text, draft):
    """What the rows of a draft after this text choose, and the first row alone."""
    ids = [*text, *draft]
    routers = model(torch.tensor([ids]), use_cache=False, output_router_logits=True).router_logits
    chosen = [logits.topk(EACH).indices[-1 - len(draft) :].tolist() for logits in routers]
    different = [len({expert for row in layer for expert in row}) for layer in chosen]
    return ExpertsRead(sum(different) / len(different), EACH)


def eager(monkeypatch, model):
    return load_pair(target=model, drafter=noisy(model))


def padded(monkeypatch, model):
    return run_by(model, noisy(model), Filled())


def captured(monkeypatch, model):
    install(monkeypatch, FakeCuda())
    monkeypatch.setattr(Clock, "ms_between", lambda *_: 0.0)
    return run_by(model, noisy(model), Graphs(Clock()))


def check_counts(pair, **params):
    """Compares the counts of a few runs, with drafts of several lengths."""
    lengths = Counter()
    for seed in range(2):
        settings = Params(gamma=4, ngram=1, seed=seed, max_new_tokens=30, **params)
        trace = generate(pair, PROMPT, settings, measure=False)
        text = list(PROMPT)
        for one in trace.rounds:
            draft = [token.id for token in one.draft]
            assert one.experts_read == by_hand(pair.target, text, draft)
            lengths[len(draft)] += 1
            text += one.emitted
        assert Trace.from_json(trace.to_json()) == trace
    assert lengths[4] and sum(lengths[k] for k in (1, 2, 3)), lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "name", "draft_with"),
    [
        (eager, "mixtral", "lookup"),
        (padded, "qwen3_moe", "model"),
        (captured, "mixtral", "model"),
        (captured, "qwen3_moe", "lookup"),
    ],
)
def test_they_are_the_routers_choice_for_the_rows_of_the_draft(monkeypatch, way, name, draft_with):
    """Also where the end of the text, an eos or too little to copy leaves a draft shorter than its step, and
    where p is judged again."""
    monkeypatch.setattr(Nucleus, "WIDTHS", (2,))
    model = mixture(name)
    model.generation_config.eos_token_id = [*range(3)]
    pair = way(monkeypatch, model)
    check_counts(pair, draft_with=draft_with)
    if way is captured:
        assert pair.runner.graphs.fault is None and pair.runner.graphs.graphs


@pytest.mark.slow
def test_tokens_that_are_fed_again_do_not_count():
    target = small_model("qwen3_next")
    pair = load_pair(target=target, drafter=noisy(target))
    check_counts(pair)
    fed = generate(pair, PROMPT, Params(**SHORT), measure=False).rounds
    assert sum(one.fed_again for one in fed) and all(one.target_forwards == 1 for one in fed)


@pytest.mark.slow
def test_none_are_told_where_tokens_are_fed_one_at_a_time_or_only_the_drafter_has_experts():
    one_by_one = small_model("jamba")
    for target, drafter in ((one_by_one, noisy(one_by_one)), (tiny(), noisy(mixture("mixtral")))):
        pair = load_pair(target=target, drafter=drafter)
        trace = generate(pair, PROMPT, Params(**SHORT), measure=False)
        assert trace.stats.drafted and {one.experts_read for one in trace.rounds} == {None}
        assert (max(one.target_forwards for one in trace.rounds) > 1) == (target is one_by_one)


def test_a_forward_in_another_thread_is_not_counted():
    model = mixture("mixtral")
    experts = Experts.of(model)
    with torch.no_grad(), experts.watching() as chosen:
        model(torch.tensor([PROMPT]))
        seen = list(chosen)
        assert not has_hooks(model), "another pair that shares the model captures its steps"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model, torch.tensor([PROMPT[:2]])).result()
    assert len(seen) == 3 and all(one is other for one, other in zip(seen, chosen, strict=True))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    model.register_forward_pre_hook(lambda *_: None)
    assert has_hooks(model)


def test_a_token_reads_the_weights_of_its_experts_alone():
    dense, model = tiny(), mixture("mixtral")
    own = sum(4 * weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    assert expert_weights(model) == (own, EACH / COUNT) and expert_weights(dense) == (0, 1.0)
    tables = 4 * model.get_input_embeddings().weight.numel()
    assert weight_bytes(model) == held_bytes(model) - tables - own + own * EACH // COUNT


def test_dbrx_tells_in_its_ffn_config_through_how_many_a_token_goes():
    config = AutoConfig.for_model("dbrx", d_model=32, n_heads=4, n_layers=1, vocab_size=12)
    config.attn_config.rope_theta = 1e4
    config.ffn_config.moe_num_experts, config.ffn_config.moe_top_k = 8, 2
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert expert_weights(model).size > 0 and expert_weights(model).chosen == 2 / 8


def test_the_length_is_chosen_by_what_the_experts_of_more_rows_weigh():
    """As counted: the same for each pair of the same models."""
    model = mixture("mixtral")
    own, chosen = expert_weights(model)

    def cost():
        pair = load_pair(target=model, drafter=noisy(model))
        started = prepare(pair, PROMPT, Params(gamma="auto", seed=1))
        with pair.runner.active():
            return loop_of(pair, started, lambda: False).length.cost

    assert cost() == cost()
    read = own * chosen
    by_five = own * (1 - (1 - chosen) ** 5)
    assert cost().of_a_draft(4) == pytest.approx(4 * cost().token + (by_five - read) / weight_bytes(model))
