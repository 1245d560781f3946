"""Every causal language model that transformers has and that can be built small: its greedy text is what the
model itself says without a cache, or the model is refused in a sentence. The judge is the model's own
cacheless forward, since the text of `generate` differs from it for some. The lists are those of transformers
5.24: a newer version's kinds have to be added."""

from dataclasses import replace

import pytest
from transformers import logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specdemo import PairError, Params, generate, load_pair
from specdemo.runtime.lm import keeps_state
from tests.sentences import assert_one_sentence
from tests.small import PROMPT, cacheless, small_model
from tests.tiny import noisy

NEW = 16  # with the prompt well beyond the sliding window

# Why a model is refused, and which are.
REASONS = {
    "its cache has layers of type": "axk2 deepseek_v32 deepseek_v4 glm_moe_dsa hy_v4",
    "it takes no cache": "openai-gpt rwkv xlm xlnet",
    # Their positions depend on padding tokens, which a text may have; dory loops over copies of its cache.
    "its predictions with a cache differ from those without one": """
        camembert data2vec-text dory recurrent_gemma roberta roberta-prelayernorm
        xlm-roberta xlm-roberta-xl xmod""",
    "its forward fails": "cpmant minimax prophetnet xlstm",
}
REFUSED = {name: reason for reason, names in REASONS.items() for name in names.split()}
NO_EARLY_EXIT = ("hrm_text", "longcat_flash")  # their layers are not one list of modules
# Their configs allow no small model in this way, or need a library that is not here.
NOT_SMALL = """
    blt cohere_compass_text dbrx dots1 dots3_note dots3_note_text gemma3 gemma3n gemma3n_text gemma4
    gemma4_assistant gemma4_text gemma4_unified_assistant git got_ocr2 gpt_neo
    moss_transcribe_diarize musicgen musicgen_melody phi4_multimodal reformer zaya
"""


# In the line: each kind of attention, of positions, of experts, of state, and a model for each of REASONS.
# test_greedy.py has twelve more, test_states.py mamba, and test_experts.py qwen3_moe.
LINE = """
    axk2 bloom cohere2 cpmant deepseek_v3 falcon gpt_oss gptj hrm_text mamba2 minimax mpt openai-gpt
    recurrent_gemma roberta rwkv
"""
EVERY = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
assert {*LINE.split()} <= {*EVERY}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in LINE.split() else pytest.param(name, marks=pytest.mark.long) for name in EVERY]
)
def test_its_greedy_text_is_the_models_own_or_it_is_refused(name):
    """With a near drafter, and with its own first layers."""
    logging.set_verbosity_error()
    try:
        model = small_model(name)
    except Exception as error:
        assert name in NOT_SMALL.split(), error
        pytest.skip(f"it cannot be built small: {error}")
    assert name not in NOT_SMALL.split(), "it can be built small now"
    if name in REFUSED:
        with pytest.raises(PairError) as refused:
            load_pair(target=model)
        assert_one_sentence(str(refused.value))
        assert REFUSED[name] in str(refused.value) and type(model).__name__ in str(refused.value)
        return
    params = Params(temperature=0, gamma=4, max_new_tokens=NEW, alternatives=0)
    pair = load_pair(target=model, drafter=noisy(model))
    check_greedy(model, pair, params)
    early = replace(params, draft_with="early-exit", max_new_tokens=NEW // 2)
    if name in NO_EARLY_EXIT or keeps_state(model):
        with pytest.raises(ValueError, match='^draft_with must not be "early-exit" for ') as refused:
            generate(pair, PROMPT, early)
        assert_one_sentence(str(refused.value))
    else:
        check_greedy(model, pair, early)


def check_greedy(model, pair, params):
    trace = generate(pair, PROMPT, params, measure=False)
    text = trace.output_ids
    probabilities = cacheless(model, PROMPT + text)[len(PROMPT) - 1 : -1]  # [N, V]
    # By induction: each token is the likeliest after those before it.
    assert probabilities.argmax(-1).tolist() == text
    told = [token.raw_p for one in trace.rounds for token in in_text(one)]
    own = probabilities[range(len(text)), text].tolist()
    assert told == pytest.approx(own, rel=1e-2, abs=1e-4), "also where the text repeats one token"


def in_text(one):
    """The round's tokens that are part of the text."""
    kept = [token for token in one.draft if token.fate == "accepted"]
    return [*kept, one.next] if one.next else kept
