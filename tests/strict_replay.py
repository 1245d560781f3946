"""CUDA graphs replayed on a CPU as strictly as CUDA's memory is used, which tests/fake_cuda.py does not do.

What was allocated while a graph was captured is its own memory. All other memory that it reads or writes is
held weakly: once its owner has let it go, a replay is a use after free. Around each replay the graph's own
memory is spoiled, except for its outputs, because anything in its pool may use that memory. So are the
outputs of all graphs captured later, which may lie in what this one has freed while it was captured, and the
inputs of all other graphs, which hold until the next step only."""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from specdemo.runtime.graphs import Graphs, tensors_of
from tests.fake_cuda import FakeCuda, Operations, install


def spoil(tensor: Tensor) -> None:
    """Numbers that nothing right can come from: as ids they are out of every range."""
    if tensor.is_floating_point():
        tensor.fill_(math.nan)
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else 2 ** (8 * tensor.element_size() - 3))


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Outside:
    """A tensor in memory that is not the graph's own."""

    def __init__(self, tensor: Tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.dtype = tensor.dtype
        self.place = (tensor.storage_offset(), tensor.shape, tensor.stride())

    def tensor(self) -> Tensor | None:
        """None where its memory has been freed."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return None if storage is None else torch.empty(0, dtype=self.dtype).set_(storage, *self.place)


class StrictOperations(Operations):
    """noted: (operation, args, kwargs, outputs), in which each tensor outside of the graph's own memory is an
    Outside. Views are not noted, and what writes in place has no outputs. own: a tensor for each allocation,
    by its address."""

    def __init__(self, fake):
        super().__init__(fake)
        self.own = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = super().__torch_dispatch__(operation, types, args, kwargs)
        _, args, kwargs, _ = self.noted.pop()
        schema = operation._schema
        writes = any(each.alias_info and each.alias_info.is_write for each in schema.arguments)
        allocates = not any(each.alias_info for each in schema.returns)
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)] if allocates else []
        for each in outputs:
            self.own.setdefault(address(each), each)
        if writes or allocates:
            self.noted.append((operation, *tree_map(self._held, (args, kwargs)), outputs))
        return output

    def _held(self, leaf):
        return Outside(leaf) if isinstance(leaf, Tensor) and address(leaf) not in self.own else leaf


@dataclass
class Captured:
    """What other graphs' replays spoil of one: its outputs and inputs."""

    graph: int  # its address
    outputs: list[Outside]
    inputs: list[Outside]


class StrictCuda(FakeCuda):
    """`faults`: what was found wrong, and how often."""

    def __init__(self):
        super().__init__()
        self.notes_operations = StrictOperations
        self.faults = Counter()
        self.captured: list[Captured] = []  # in order
        self.replays = 0

    def has_captured(self, captured) -> None:
        """Is given a `graphs.Graph`, after its capture."""
        operations, outputs = captured.graph.operations, tensors_of(captured.output)
        if any(address(output) not in operations.own for output in outputs):
            self.faults["an output outside of the graph's own memory"] += 1
        addresses = {address(output) for output in outputs}
        captured.graph.scratch = [own for at, own in operations.own.items() if at not in addresses]
        of_others = {each.storage.cdata for other in self.captured for each in other.outputs}
        inputs = [Outside(each) for each in tensors_of(captured.input)]
        inputs = [each for each in inputs if each.storage.cdata not in of_others]
        self.captured.append(Captured(id(captured.graph), [Outside(each) for each in outputs], inputs))

    def spoil_around(self, graph) -> None:
        for each in graph.scratch:
            spoil(each)
        own = next(i for i, other in enumerate(self.captured) if other.graph == id(graph))
        for i, other in enumerate(self.captured):
            spoiled = (other.outputs if i > own else []) + (other.inputs if i != own else [])
            for each in spoiled:
                if (tensor := each.tensor()) is not None:
                    spoil(tensor)

    def found(self, leaf, operation):
        """The tensor, RuntimeError if its memory was freed."""
        if not isinstance(leaf, Outside):
            return leaf
        tensor = leaf.tensor()
        if tensor is None:
            self.faults["use after free"] += 1
            raise RuntimeError(f"use after free, by {operation}")
        return tensor


def install_strict(monkeypatch) -> StrictCuda:
    """As fake_cuda.install, with strict replays."""
    fake = install(monkeypatch, StrictCuda())

    class StrictGraph(torch.cuda.CUDAGraph):
        def replay(self):
            fake.replays += 1
            fake.spoil_around(self)
            for each in self.operations.noted:
                run(*each)
            for each in self.scratch:
                spoil(each)

        def reset(self):
            fake.captured = [each for each in fake.captured if each.graph != id(self)]
            super().reset()

    def run(operation, args, kwargs, outputs):
        args, kwargs = tree_map(lambda leaf: fake.found(leaf, operation), (args, kwargs))
        new = fake.changed(operation, operation(*args, **kwargs))
        for old, fresh in zip(outputs, tree_leaves(new), strict=False):
            old.copy_(fresh)

    capture = Graphs._capture

    def told(self, key, step, value):
        captured = capture(self, key, step, value)
        fake.has_captured(captured)
        return captured

    monkeypatch.setattr(torch.cuda, "CUDAGraph", StrictGraph)
    monkeypatch.setattr(Graphs, "_capture", told)
    return fake
