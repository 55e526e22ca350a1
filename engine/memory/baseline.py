"""The baseline: memory allocated before a forward or a step, which the levels of a backward do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.graph.forward_allocations import ForwardAllocations
from ...inspector.graph.graph import Graph
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.text.sizes_and_counts import size_text
from ...inspector.torch_private.distributed import bucketed
from ...inspector.torch_private.optimizer_steps import parameters_of
from ...inspector.torch_private.thread_state import unobserved
from .categories import BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE
from .census import StorageCensus, optimizers_of, state_tensors

OLDER_THAN_RECORDING = (
    "Tensors from before the recording count only if they are parameters, buffers, gradients or optimizer state of the "
    "loop. A batch, an average of the weights (EMA) or DistributedDataParallel's buckets do not, so the step needs at "
    "least this much."
)
"""The memory that recorded steps leave out: an allocator does not report blocks allocated before the recording."""

BUCKETS = "buckets of DistributedDataParallel"


def constants_sentence(nbytes: int) -> str:
    """Return a sentence on what `Timeline.constant_bytes` may add; "" if it is 0."""
    if not nbytes:
        return ""
    return (
        f"{size_text(nbytes)} of saved tensors without a gradient (inputs, buffers, constants), which are also held "
        "outside the graph, are not counted. If the forward allocated some of them, the true figure is higher by their "
        "size; run the forward under ts.capture() to see which."
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """Memory on one device from before the forward, by kind.

    Attributes:
        parts: the bytes of each kind: "parameters" (of the graph, of the modules that a capture saw, and of the
            optimizers that hold any of these), "buffers", "gradients" (`.grad`), "optimizer state", "batch" (the known
            inputs of the forward), "buckets of DistributedDataParallel". Each storage counts once.
    """

    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all kinds."""
        return sum(self.parts.values())

    @property
    def grad_bytes(self) -> int:
        """The bytes of the .grad from before."""
        return self.parts.get(GRADIENTS, 0)

    def with_gradients(self, nbytes: int) -> Baseline:
        """Return a copy with this many bytes of .grad."""
        parts = {**self.parts, GRADIENTS: nbytes}
        return replace(self, parts={kind: size for kind, size in parts.items() if size})

    @property
    def listed(self) -> str:
        """The parts in words, largest first: `parameters 1.5 MiB, optimizer state 3.0 MiB`."""
        most_first = sorted(self.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{'.grad' if kind == GRADIENTS else kind} {size_text(size)}" for kind, size in most_first)

    @property
    def older_gradients(self) -> str:
        """A sentence about a peak: the bytes that zero_grad() would add to it. "" without a .grad."""
        if not self.grad_bytes:
            return ""
        return (
            f"The peak does not include the existing .grad ({size_text(self.grad_bytes)}), to which the backward adds. "
            "After zero_grad() the backward allocates it, and it counts."
        )

    def sentence(self, peak_bytes: int | None = None) -> str:
        """Return a sentence on the memory from before the forward, and the peak with it if one is passed; "" if
        empty."""
        if not self.nbytes:
            return ""
        total = "" if peak_bytes is None else f" With them the peak is {size_text(peak_bytes + self.nbytes)}."
        return (
            f"{size_text(self.nbytes)} from before the forward are not counted: {self.listed}.{total} "
            "Parameters and buffers never count, even if make_loss creates the model."
        )


def census_before(graph: Graph, allocations: ForwardAllocations) -> StorageCensus:
    """Count the memory from before a graph's forward: its model, the model's .grad, and optimizer state.

    Args:
        graph: the graph, whose backward has not run.
        allocations: the tensors that its forward created without a node.
    """
    census = StorageCensus()
    with unobserved():
        facts = dict.fromkeys(each.operation.facts for each in graph.tasks if isinstance(each.operation, Operation))
        leaves = [leaf for task, leaf in graph.leaves.items() if task not in allocations.leaves]
        model = [*leaves, *(each for seen in facts for each in seen.model_tensors())]
        parameters: dict[int, Tensor] = {id(each): each for each in model if isinstance(each, Parameter)}
        optimizers = optimizers_of([*parameters.values(), *leaves])
        parameters |= {id(each): each for optimizer in optimizers for each in parameters_of(optimizer)}
        reduced = bucketed(graph.leaves)
        views = {id(graph.leaves[task]) for task, kind in reduced.items() if kind == "view"}
        census.add(PARAMETERS, parameters.values())
        own = {id(each): each for each in (*parameters.values(), *leaves) if id(each) not in views}
        census.add(GRADIENTS, (each.grad for each in own.values() if each.is_leaf))
        census.add(STATE, (each for optimizer in optimizers for each in state_tensors(optimizer)))
        census.add(BATCH, leaves)
        census.add(BUFFERS, model)
        for task in reduced:  # C++ holds the buckets, so they have no tensor here
            leaf = graph.leaves[task]
            census.storages[leaf.device, -1 - task] = BUCKETS, leaf.nbytes
    return census


def baseline_on(census: StorageCensus, device: torch.device | str) -> Baseline:
    """Return the part of a census that is on one device."""
    return Baseline(census.parts(torch.device(device)))
