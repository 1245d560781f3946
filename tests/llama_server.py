"""llama.cpp's HTTP server, which the package xllamacpp has inside, serving the embedded pair. A process of
its own serves it: python -m tests.llama_server FOLDER KIND, with the packages of tests/peers.txt.
KIND: target, draft (with its drafter), or sure (which drafts what the drafter is sure of)."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.vllm_server import PAIR, ROOT

if TYPE_CHECKING:
    from gguf import GGUFWriter

GAMMA, SURE = 4, 0.6


@contextmanager
def serving_llama(python: Path, folder: Path, kind: str) -> Iterator[str]:
    """The address of a server."""
    command = [python, "-m", "tests.llama_server", folder, kind]
    with (
        open(folder / f"{kind}.txt", "w") as log,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http"), (folder / f"{kind}.txt").read_text()[-3000:]
            threading.Thread(target=process.stdout.read, daemon=True).start()  # what else it prints
            yield address
        finally:
            process.kill()


def add_tokenizer(writer: "GGUFWriter", size: int) -> None:
    """The embedded pair's."""
    from gguf import TokenType

    kept = json.loads((ROOT / PAIR / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    names = {token_id: name for name, token_id in kept["model"]["vocab"].items()}
    special = {one["id"]: one["content"] for one in kept["added_tokens"]}
    known = names | special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([known.get(token_id, f"[{token_id}]") for token_id in range(size)])
    kinds = (TokenType.CONTROL, TokenType.NORMAL)
    writer.add_token_types([kinds[token_id not in special] for token_id in range(size)])
    writer.add_token_merges(
        [one if isinstance(one, str) else " ".join(one) for one in kept["model"]["merges"]]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)


def gguf_file(folder: Path, role: str, model: LlamaForCausalLM) -> str:
    """Writes the model into the folder, in float32."""
    from gguf import MODEL_ARCH, GGUFWriter, LlamaFileType, get_tensor_name_map

    path, config = folder / f"{role}.gguf", model.config
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
    writer.add_file_type(LlamaFileType.ALL_F32)
    add_tokenizer(writer, config.vocab_size)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():  # a tied head is not among them
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = _interleaved(weight, width)
        numbers = weight.detach().float().numpy()
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _interleaved(weight: Tensor, width: int) -> Tensor:
    """llama.cpp rotates neighbouring rows, transformers those of a head's two halves. [heads * width, H]"""
    return weight.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)


def serve(folder: Path, kind: str) -> None:
    """Prints the address, and serves until standard input ends."""
    import xllamacpp

    from specdemo import load_pair

    pair, common = load_pair(device="cpu"), xllamacpp.CommonParams()
    common.model.path = gguf_file(folder, "target", pair.target)
    common.model_alias = {"embedded"}
    common.n_ctx, common.n_gpu_layers, common.n_parallel = pair.context, 0, 1
    common.verbosity, common.fit_params = 0, False
    precision = type(common.cache_type_k).GGML_TYPE_F32
    common.cache_type_k = common.cache_type_v = precision
    if kind != "target":
        draft, kinds = common.speculative.draft, type(common.speculative.types[0])
        common.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path = gguf_file(folder, "drafter", pair.drafter)
        draft.cache_type_k = draft.cache_type_v = precision
        draft.n_max, draft.n_min, draft.p_min = GAMMA, 0, SURE if kind == "sure" else 0.0
    server = xllamacpp.Server(common)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
