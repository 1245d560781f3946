"""What a measurement and a run must share for their figures to stand in one chart."""

from dataclasses import replace

from specdemo.events import ByModel, PairInfo, Params
from specdemo.events.trace import SCHEMA, Trace
from specdemo.ui.view.feed import conditions_of, setting

INFO = PairInfo(
    "toy", "target", "org/some/drafter", "cpu", "a CPU", ByModel("float32", "float32"), ByModel(None, None)
)


def conditions(info: PairInfo = INFO, prompt_ids: tuple[int, ...] = (1, 2), **params) -> str:
    trace = Trace(SCHEMA, info, {}, Params(**params), "Once", prompt_ids)
    assert setting(trace)["conditions"] == conditions_of(trace)
    return conditions_of(trace)


def test_what_changes_the_figures_counts_and_nothing_else():
    for other in (
        *({"gamma": 9}, {"seed": 8}, {"max_new_tokens": 9}, {"alternatives": 0}, {"lenience": 0.1}),
        *({"prompt_ids": (1, 3)}, {"ngram": 5}),
    ):
        assert conditions(**other) == conditions(), other
    for other in (
        *({"drafter": "poor"}, {"target": "larger"}, {"device": "cuda"}, {"device_name": "another CPU"}),
        *({"dtype": ByModel("bfloat16", "bfloat16")}, {"quantize": ByModel("int8", None)}),
    ):
        assert conditions(info=replace(INFO, **other)) != conditions(), other
    for other in (
        *({"draft_with": "lookup"}, {"temperature": 0}, {"top_p": 0.5}, {"top_k": 40}),
        *({"min_p": 0.1}, {"confidence": 0.5}, {"repetition_penalty": 1.2}, {"presence_penalty": 1.0}),
        *({"frequency_penalty": 1.0}, {"logit_bias": {3: 1.0}}, {"rule": "block"}),
    ):
        assert conditions(**other) != conditions(), other


def test_what_only_one_method_or_rule_uses_counts_with_it():
    lookup, lenient = {"draft_with": "lookup"}, {"rule": "lenient"}
    assert conditions(**lookup, ngram=5) != conditions(**lookup)
    assert conditions(**lenient, lenience=0.1) != conditions(**lenient)
