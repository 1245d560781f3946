"""OpenVINO GenAI as a contestant. A Llama model is written as a graph of OpenVINO's operations."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specdemo.bench.measure import RunIds
from specdemo.bench.peers import Work

if TYPE_CHECKING:
    from openvino import Model, Node


def run_openvino(work: Work) -> RunIds:
    """Generation by OpenVINO with what the package calls paged attention: the other attention cannot draft,
    and is slower."""
    import openvino_genai
    from openvino import Tensor as Input

    kind = {"float32": "f32"}[work.precision]
    options = {"INFERENCE_NUM_THREADS": work.threads}
    options |= dict.fromkeys(("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"), kind)
    pair, params = work.pair, work.params
    scheduler, config = openvino_genai.SchedulerConfig(), openvino_genai.GenerationConfig()
    scheduler.enable_prefix_caching = False  # every run computes its prompt
    given = {"ATTENTION_BACKEND": "PA", "scheduler_config": scheduler}
    config.max_new_tokens, config.ignore_eos = params.max_new_tokens, True
    if params.draft_with != "none":
        config.num_assistant_tokens = params.gamma
    if params.draft_with == "model":
        drafter = _folder(work.folder / "openvino-drafter", pair.drafter)
        given["draft_model"] = openvino_genai.draft_model(drafter, "CPU", **options)
    elif params.draft_with == "lookup":
        given["prompt_lookup"] = True
        config.max_ngram_size = params.ngram
    if params.temperature:
        config.do_sample, config.rng_seed = True, params.seed
        config.temperature, config.top_p, config.min_p = params.temperature, params.top_p, params.min_p
        config.top_k = params.top_k or pair.target.config.vocab_size
    target = _folder(work.folder / "openvino-target", pair.target)
    pipeline = openvino_genai.LLMPipeline(target, "CPU", **given, **options)

    def run(ids: list[int]) -> tuple[list[int], None]:
        prompt = np.array([ids], dtype=np.int64)  # [1, T]
        inputs = openvino_genai.TokenizedInputs(Input(prompt), Input(np.ones_like(prompt)))
        return list(pipeline.generate(inputs, config).tokens[0]), None

    return run


def _folder(folder: Path, model: LlamaForCausalLM) -> str:
    """Writes the model into the folder, once. The package wants a tokenizer, too: this one is never used,
    since prompts are token ids and so are the texts."""
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if not folder.exists():
        folder.mkdir()
        save_model(_graph(model), folder / "openvino_model.xml", compress_to_fp16=False)
        unused = Tokenizer(models.BPE({str(i): i for i in range(model.config.vocab_size)}, []))
        unused.pre_tokenizer, unused.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        fast = PreTrainedTokenizerFast(tokenizer_object=unused, eos_token="0")
        for name, part in zip(
            ("tokenizer", "detokenizer"), convert_tokenizer(fast, with_detokenizer=True), strict=True
        ):
            save_model(part, folder / f"openvino_{name}.xml")
    return str(folder)


def _graph(model: LlamaForCausalLM) -> "Model":
    """The whole model, which keeps its keys and values as state. B texts, N new tokens, T tokens in all."""
    from openvino import Model, PartialShape, Type
    from openvino import opset13 as op

    config, core = model.config, model.model
    query_heads, heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def constant(value: Tensor | float) -> "Node":
        return op.constant(torch.as_tensor(value).detach().float().numpy())

    def integers(*values: int) -> "Node":  # [len(values)]
        return op.constant(np.array(values, dtype=np.int64))

    def parameter(name: str, shape: list[int], kind: Type) -> "Node":
        node = op.parameter(PartialShape(shape), kind, name=name)
        node.output(0).set_names({name})
        return node

    def length(node: "Node", axis: int) -> "Node":  # [1]
        return op.gather(op.shape_of(node), integers(axis), integers(0))

    ids, mask, positions = (
        parameter(name, [-1, -1], Type.i64) for name in ("input_ids", "attention_mask", "position_ids")
    )
    beams = parameter("beam_idx", [-1], Type.i32)
    zero, one = op.constant(np.int64(0)), op.constant(np.int64(1))
    known = op.range(zero, op.gather(op.shape_of(mask), one, zero), one, output_type="i64")  # [T]
    seen = op.less_equal(op.unsqueeze(known, integers(0, 1, 2)), op.unsqueeze(positions, integers(1, 3)))

    frequencies = constant(core.rotary_emb.inv_freq[None, None])  # [1, 1, width / 2]
    angles = op.matmul(op.unsqueeze(op.convert(positions, "f32"), integers(2)), frequencies, False, False)
    angles = op.unsqueeze(op.concat([angles, angles], 2), integers(1))  # [B, 1, N, width]
    cos, sin = op.cos(angles), op.sin(angles)

    def norm(x: "Node", layer: torch.nn.Module) -> "Node":
        square = op.reduce_mean(op.power(x, constant(2.0)), integers(-1), True)
        root = op.sqrt(op.add(square, constant(layer.variance_epsilon)))
        return op.multiply(op.multiply(x, op.divide(constant(1.0), root)), constant(layer.weight))

    def linear(x: "Node", layer: torch.nn.Module) -> "Node":
        return op.matmul(x, constant(layer.weight), False, True)

    def by_head(x: "Node", count: int) -> "Node":  # [B, N, count * width] -> [B, count, N, width]
        return op.transpose(op.reshape(x, integers(0, 0, count, width), True), integers(0, 2, 1, 3))

    def rotated(x: "Node") -> "Node":
        low = op.slice(x, integers(0), integers(width // 2), integers(1), integers(3))
        high = op.slice(x, integers(width // 2), integers(width), integers(1), integers(3))
        turned = op.concat([op.negative(high), low], 3)
        return op.add(op.multiply(x, cos), op.multiply(turned, sin))

    kept = []

    def with_past(x: "Node", name: str) -> "Node":  # [B, heads, N, width] -> [B, query_heads, T, width]
        empty = op.broadcast(constant(0.0), op.concat([length(ids, 0), integers(heads, 0, width)], 0))
        past = op.read_value(empty, name, Type.f32, PartialShape([-1, heads, -1, width]))
        whole = op.concat([op.gather(past, beams, zero), x], 2)
        kept.append(op.assign(whole, name))
        if heads == query_heads:
            return whole
        groups = integers(heads, query_heads // heads)
        shape = op.concat([length(ids, 0), groups, length(whole, 2), integers(width)], 0)
        repeated = op.broadcast(op.unsqueeze(whole, integers(2)), shape, "BIDIRECTIONAL")
        return op.reshape(repeated, integers(0, query_heads, -1, width), True)

    table = constant(core.embed_tokens.weight)
    x = op.gather(table, op.convert(ids, "i32"), zero)  # [B, N, H]
    for i, layer in enumerate(core.layers):
        attention, mlp = layer.self_attn, layer.mlp
        y = norm(x, layer.input_layernorm)
        queries = rotated(by_head(linear(y, attention.q_proj), query_heads))
        keys = with_past(rotated(by_head(linear(y, attention.k_proj), heads)), f"keys.{i}")
        values = with_past(by_head(linear(y, attention.v_proj), heads), f"values.{i}")
        y = op.transpose(op.scaled_dot_product_attention(queries, keys, values, seen), integers(0, 2, 1, 3))
        x = op.add(x, linear(op.reshape(y, integers(0, 0, query_heads * width), True), attention.o_proj))
        y = norm(x, layer.post_attention_layernorm)
        gated = op.multiply(op.swish(linear(y, mlp.gate_proj)), linear(y, mlp.up_proj))
        x = op.add(x, linear(gated, mlp.down_proj))
    is_tied = model.lm_head.weight is core.embed_tokens.weight
    logits = op.matmul(norm(x, core.norm), table if is_tied else constant(model.lm_head.weight), False, True)
    logits.output(0).set_names({"logits"})
    return Model([op.result(logits)], kept, [ids, mask, positions, beams])
