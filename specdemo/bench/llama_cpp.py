"""llama.cpp as a contestant, through the package xllamacpp. A Llama model is written as a GGUF file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from transformers import LlamaForCausalLM

from specdemo.bench.measure import RunIds
from specdemo.bench.peers import Work

if TYPE_CHECKING:
    from gguf import GGUFWriter


def run_llama_cpp(work: Work) -> RunIds:
    """Weights, keys and values have the work's precision, and so has what a product rounds its input to."""
    import xllamacpp

    def prepare(part: object, threads: tuple[object, ...]) -> None:
        for each in threads:
            each.n_threads = work.threads
        if work.precision == "float32":
            kinds = type(part.cache_type_k)
            part.cache_type_k = part.cache_type_v = kinds.GGML_TYPE_F32

    pair, params, common = work.pair, work.params, xllamacpp.CommonParams()
    common.model.path = gguf_file(work.folder, "target", pair.target, work.precision)
    common.n_ctx, common.n_gpu_layers = pair.context, 0
    common.verbosity, common.fit_params = 0, False
    prepare(common, (common.cpuparams, common.cpuparams_batch))
    if params.draft_with == "model":
        draft, kinds = common.speculative.draft, type(common.speculative.types[0])
        common.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path = gguf_file(work.folder, "drafter", pair.drafter, work.precision)
        draft.n_max, draft.n_min, draft.p_min = params.gamma, 0, 0.0
        prepare(draft, (draft.cpuparams, draft.cpuparams_batch))
    server = xllamacpp.Server(common)
    options = {
        "n_predict": params.max_new_tokens,
        "cache_prompt": False,  # every run computes its prompt
        "samplers": ["temperature", "top_k", "top_p", "min_p"],  # in transformers' order
        "seed": params.seed,
        **{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")},
    }

    def run(ids: list[int]) -> tuple[list[int], None]:
        text = server.handle_completions({"prompt": ids, **options})["choices"][0]["text"]
        return [int(token) for token in text.split(",")[:-1]], None

    return run


def ids_as_texts(writer: "GGUFWriter", size: int) -> None:
    """A token's text is its id and a comma, since prompts are token ids and the texts are to be token ids,
    too. The tokenizer is one that does not end a text at any token."""
    from gguf import TokenType

    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"{i}," for i in range(size)])
    writer.add_token_types([TokenType.NORMAL] * size)


def gguf_file(
    folder: Path,
    role: str,
    model: LlamaForCausalLM,
    precision: str,
    add_tokenizer: Callable[["GGUFWriter", int], None] = ids_as_texts,
) -> str:
    """Writes the model into the folder, once."""
    from gguf import MODEL_ARCH, GGUFWriter, LlamaFileType, get_tensor_name_map

    path = folder / f"{role}-{precision}.gguf"
    if path.exists():
        return str(path)
    config, half = model.config, precision == "float16"
    writer, width = GGUFWriter(path, "llama"), config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(LlamaFileType.MOSTLY_F16 if half else LlamaFileType.ALL_F32)
    add_tokenizer(writer, config.vocab_size)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    weights = dict(model.named_parameters())  # a tied head is not among them
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = _interleaved(weight, width)
        numbers = weight.detach().float().numpy()
        kind = np.float16 if half and numbers.ndim > 1 else np.float32
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(numbers, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _interleaved(weight: Tensor, width: int) -> Tensor:
    """llama.cpp rotates neighbouring rows, transformers those of a head's two halves. [heads * width, H]"""
    return weight.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
