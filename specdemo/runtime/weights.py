"""How many bytes of weights a model holds, and how many a forward reads."""

import torch
from torch.nn import Module

from specdemo.runtime.graphs import stored


def held_bytes(*models: Module) -> int:
    """Bytes of the models' parameters and buffers. A quantised weight consists of inner tensors; tied and
    shared ones count once."""
    storages = {}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            for part in stored(tensor):
                storage = part.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def weight_bytes(model: Module) -> int:
    """Bytes of weights that one forward of few tokens reads; quantised weights as they are in memory.

    An embedding table is not counted, because a forward reads only one row per token, unless it is the output
    matrix, too (tied). The cache of keys and values is not counted."""
    head = model.get_output_embeddings()
    output = None if head is None else head.weight.untyped_storage().data_ptr()
    tables = {
        storage.data_ptr(): storage.nbytes()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        for storage in (module.weight.untyped_storage(),)
    }
    return held_bytes(model) - sum(size for address, size in tables.items() if address != output)
