"""Models that also see or hear: their text part, as a model of its own. It is of a class that has models
without such parts, too, so that what holds for these holds for it."""

import torch
import transformers
from torch.nn import Embedding, Linear, Module
from transformers import PreTrainedConfig, PreTrainedModel

# The classes of such models in transformers, and those of their text parts. Of Qwen3.5 transformers loads
# the text part alone by itself.
TEXT_CLASSES = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4UnifiedForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
}
NOT_CAUSAL = ("qwen3_vl", "qwen3_vl_moe")  # those of them that transformers does not count as causal models
SENSES = ("vision_config", "audio_config")


def has_senses(config: PreTrainedConfig) -> bool:
    return any(getattr(config, sense, None) is not None for sense in SENSES)


def text_alone(model: PreTrainedModel) -> PreTrainedModel:
    """The text part of a model that also sees or hears, made of the same modules; the rest gives its memory
    back. Any other model as it is."""
    name = TEXT_CLASSES.get(type(model).__name__)
    if name is None:
        return model
    kind, whole = getattr(transformers, name), model.model.language_model
    with torch.device("meta"):
        text = kind(_text_config(model.config, kind.config_class))
    if type(text.model) is type(whole):
        text.model = whole
    else:
        _take_over(text.model, whole)
        text.model.rotary_emb = type(text.model.rotary_emb)(text.config).to(model.device)
    text.lm_head = model.lm_head
    text.generation_config = model.generation_config
    text.config._name_or_path = model.config._name_or_path
    return text.eval()


def _text_config(config: PreTrainedConfig, kind: type[PreTrainedConfig]) -> PreTrainedConfig:
    """The text part's config, as one of this kind. The three positions that Qwen3-VL's rotary embeddings give
    to a picture's parts are one position for text."""
    own = config.get_text_config(decoder=True)
    if isinstance(own, kind):
        return own
    fields = own.to_dict() | {"tie_word_embeddings": config.tie_word_embeddings}
    fields |= {"norm_topk_prob": True}  # of a mixture, which Qwen3-VL's config does not say
    del fields["model_type"]
    rope = fields.get("rope_parameters") or {}
    fields["rope_parameters"] = {name: rope[name] for name in rope if not name.startswith("mrope")}
    return kind(**fields)


def _take_over(own: Module, theirs: Module) -> None:
    """Gives a module the weights of one that is built like it, and its layers, also quantised ones."""
    for name in own._parameters:
        own.register_parameter(name, getattr(theirs, name))
    for name, part in own.named_children():
        if isinstance(part, (Linear, Embedding)):
            setattr(own, name, getattr(theirs, name))
        elif hasattr(theirs, name):
            _take_over(part, getattr(theirs, name))
