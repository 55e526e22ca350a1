"""Tensors that a forward made without a node: leaves, masks, noise, and parts of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from ..garbage_collector import collector_paused
from ..torch_private.nodes import leaf_of
from ..torch_private.reference_counts import kept_by_others
from ..torch_private.saved_variables import saved_slots
from ..torch_private.tensors import FollowedStorage, address_below, local_of, storage_of
from .graph import Graph
from .operations_and_calls import Facts, Operation


@dataclass(frozen=True, slots=True)
class ForwardAllocations:
    """The tensors that a forward made without a node: leaves, masks, noise.

    Parameters, and the buffers of modules that a capture saw, belong to the model and are not among these, wherever
    they are made.

    Attributes:
        leaves: the tasks of leaves that the forward made: a capture saw this, or only the graph holds the leaf.
        alone: the tasks of those leaves that only the graph holds.
        unsure: the tasks of leaves that may be older: no capture saw the forward, and something else holds the leaf.
        addresses: the addresses of the storages that captures saw being allocated, without those of the model.
        of_model: the addresses of the model's storages that captures and the graph's leaves show.
        alive: the storages at `addresses` that are alive.
        earlier: the living storages that may belong to an earlier forward: when they were allocated, the capture had
            seen other nodes, but none of this graph.
    """

    leaves: frozenset[int]
    alone: frozenset[int]
    unsure: frozenset[int]
    addresses: frozenset[int]
    of_model: frozenset[int]
    alive: tuple[FollowedStorage, ...]
    earlier: tuple[FollowedStorage, ...]


@collector_paused()
def forward_allocations(graph: Graph) -> ForwardAllocations:
    """Find the tensors that the forward of a graph made without a node. The graph has to have its nodes."""
    seen: dict[Facts, int] = {}  # for each capture, the number of the first node of this graph that it saw
    for each in (task.operation for task in graph.tasks):
        if isinstance(each, Operation):
            seen[each.facts] = min(each.start, seen.get(each.facts, each.start))
    parameters = (leaf for leaf in graph.leaves.values() if isinstance(leaf, Parameter))
    model_tensors = chain(*(facts.model_tensors() for facts in seen), parameters)
    of_model = {address for tensor in model_tensors if (address := address_below(tensor))}
    addresses = {address for facts in seen for address in facts.allocations} - of_model
    others = [
        task
        for task, leaf in graph.leaves.items()
        if not isinstance(leaf, Parameter) and _address(leaf) not in of_model
    ]
    alone = _alone(graph.nodes, others)
    made, unsure = set(), set()
    for task in others:
        address = _address(leaf_of(graph.nodes[task]))
        if task in alone or address in addresses:
            made.add(task)
        elif not any(facts.sees_every_call for facts in seen):
            unsure.add(task)
    alive: list[FollowedStorage] = []
    earlier: list[FollowedStorage] = []
    for facts, first in seen.items():
        for address, (storage, number) in facts.allocations.items():
            if address not in of_model and storage.alive:
                (alive if number > first or facts.first == first else earlier).append(storage)
    return ForwardAllocations(
        frozenset(made),
        frozenset(alone),
        frozenset(unsure),
        frozenset(addresses),
        frozenset(of_model),
        tuple(alive),
        tuple(earlier),
    )


def allocations_were_seen(graph: Graph) -> bool:
    """Return whether a capture saw the allocations of operations without a node in the graph's forward."""
    operations = (task.operation for task in graph.tasks)
    return any(each.facts.sees_every_call for each in operations if isinstance(each, Operation))


def _address(tensor: Tensor) -> int:
    """Return the address of the tensor's bytes; 0 for a tensor without its own bytes."""
    return address_below(local_of(tensor)) or 0


def _alone(nodes: Sequence[Node], leaves: list[int]) -> set[int]:
    """Return the leaves held only by nodes. An AccumulateGrad holds its leaf like a saved tensor."""
    addresses = {each.address for task in leaves if (each := storage_of(leaf_of(nodes[task]))) is not None}
    if not addresses:
        return set()
    tensors = [leaf_of(nodes[task]) for task in leaves]
    tensors += [
        slot.tensor
        for node in nodes
        for slot in saved_slots(node)
        if (storage := storage_of(slot.tensor)) is not None and storage.address in addresses
    ]
    return {task for task, held in zip(leaves, kept_by_others(tensors), strict=False) if not held}
