"""The baseline: memory that was there before a forward or a step, which the levels of a backward do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.graph.capture_records import Operation
from ...inspector.graph.forward_allocations import ForwardAllocations
from ...inspector.graph.graph import Graph
from ...inspector.text.sizes_and_counts import size_text
from ...inspector.torch_private.distributed import bucketed
from ...inspector.torch_private.optimizer_steps import optimizers_alive, parameters_of
from ...inspector.torch_private.thread_state import unobserved
from .census import StorageCensus, state_tensors
from .lifetimes import BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE

OLDER_THAN_RECORDING = (
    "Not counted is what is older than the recording and is neither a parameter, a buffer, a gradient nor optimizer "
    "state of the loop: a batch, an average of the weights (EMA), DistributedDataParallel's buckets. So a step takes "
    "at least what is said."
)
"""The memory that recorded steps leave out: an allocator does not report blocks that were there before."""

BUCKETS = "buckets of DistributedDataParallel"


def constants_sentence(nbytes: int) -> str:
    """Say what `Timeline.constant_bytes` may add; "" where it is 0."""
    if not nbytes:
        return ""
    return (
        f"Not counted are {size_text(nbytes)} of tensors without a gradient that nodes saved and something else holds: "
        "inputs, buffers, constants. For those that the forward itself made the true figure may be higher by up to as "
        "much; a forward under ts.capture() shows which these are."
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """Memory on one device that was there before, by kind.

    Attributes:
        parts: the bytes of each kind: "parameters" (of the graph, of the modules that a capture saw, and of the
            optimizers that hold any of these), "buffers", "gradients" (`.grad`), "optimizer state", "batch" (what the
            forward was given, as far as that was seen), "buckets of DistributedDataParallel". Each storage counts once.
    """

    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all kinds."""
        return sum(self.parts.values())

    @property
    def grad_bytes(self) -> int:
        """The bytes of the .grad that was there."""
        return self.parts.get(GRADIENTS, 0)

    def with_gradients(self, nbytes: int) -> Baseline:
        """The same with this much .grad."""
        parts = {**self.parts, GRADIENTS: nbytes}
        return replace(self, parts={kind: size for kind, size in parts.items() if size})

    @property
    def listed(self) -> str:
        """`parameters 1.5 MiB, optimizer state 3.0 MiB`, most first."""
        most_first = sorted(self.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{'.grad' if kind == GRADIENTS else kind} {size_text(size)}" for kind, size in most_first)

    @property
    def older_gradients(self) -> str:
        """A sentence to put beside a peak: what zero_grad() would add to it. "" where there was no .grad."""
        if not self.grad_bytes:
            return ""
        return (
            f"That is without the .grad that was there before ({size_text(self.grad_bytes)}), to which the backward "
            "adds; after zero_grad() the backward allocates it, and it counts."
        )

    def sentence(self, peak_bytes: int | None = None) -> str:
        """Say what was there before the forward, and the peak with it if one is given; "" if nothing was found."""
        if not self.nbytes:
            return ""
        whole = "" if peak_bytes is None else f" With them the peak is {size_text(peak_bytes + self.nbytes)}."
        return (
            f"{size_text(self.nbytes)} were there before the forward and are not counted: {self.listed}.{whole} "
            "Parameters and buffers never count, also where make_loss makes the model."
        )


def census_before(graph: Graph, allocations: ForwardAllocations) -> StorageCensus:
    """Count what was there before the forward of a graph: its model, the model's .grad, and optimizer state.

    Args:
        graph: the graph, whose backward has not run.
        allocations: the tensors that its forward made without a node.
    """
    census = StorageCensus()
    with unobserved():
        facts = dict.fromkeys(each.operation.facts for each in graph.tasks if isinstance(each.operation, Operation))
        leaves = [leaf for task, leaf in graph.leaves.items() if task not in allocations.leaves]
        model = [*leaves, *(each for seen in facts for each in seen.model_tensors())]
        parameters: dict[int, Tensor] = {id(each): each for each in model if isinstance(each, Parameter)}
        known = parameters.keys() | set(map(id, leaves))
        optimizers = [each for each in optimizers_alive() if not known.isdisjoint(map(id, parameters_of(each)))]
        parameters |= {id(each): each for optimizer in optimizers for each in parameters_of(optimizer)}
        reduced = bucketed(graph.leaves)
        views = {id(graph.leaves[task]) for task, kind in reduced.items() if kind == "view"}
        census.add(PARAMETERS, parameters.values())
        own = {id(each): each for each in (*parameters.values(), *leaves) if id(each) not in views}
        census.add(GRADIENTS, (each.grad for each in own.values() if each.is_leaf))
        census.add(STATE, (each for optimizer in optimizers for each in state_tensors(optimizer)))
        census.add(BATCH, leaves)
        census.add(BUFFERS, model)
        for task in reduced:  # C++ holds them
            leaf = graph.leaves[task]
            census.storages[leaf.device, -1 - task] = BUCKETS, leaf.nbytes
    return census


def baseline_on(census: StorageCensus, device: torch.device | str) -> Baseline:
    """The part of a census that is on one device."""
    return Baseline(census.parts(torch.device(device)))
