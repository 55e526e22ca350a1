"""Which tensors a forward made besides those that its nodes computed: leaves, masks, noise, and parts of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from ..torch_internals.nodes import leaf_of
from ..torch_internals.references import kept_by_others
from ..torch_internals.saved import saved_slots
from ..torch_internals.tensors import address_below, local_of, storage_of
from .collector import collector_paused
from .facts import Facts, Operation
from .graph import Graph


@dataclass(frozen=True, slots=True)
class ForwardBirths:
    """Which of the tensors that the forward did not compute it nevertheless made: leaves, masks, noise.

    Parameters, and the buffers of modules that a capture saw, are the model's wherever they are made,
    and never among these.

    Attributes:
        leaves: the ids of the tasks of leaves that the forward made: a capture saw it, or nothing but the graph holds
            the leaf any more.
        alone: those of them that nothing but the graph holds.
        unsure: those of leaves of which this can't be told, as no capture saw the forward and something holds them.
        addresses: where the bytes begin of all that captures saw made, without the model's.
        of_model: where those of the model begin, as far as captures saw it and the graph's leaves tell.
    """

    leaves: frozenset[int]
    alone: frozenset[int]
    unsure: frozenset[int]
    addresses: frozenset[int]
    of_model: frozenset[int]


@collector_paused()
def forward_births(graph: Graph) -> ForwardBirths:
    """What the forward of a graph made besides what its nodes computed. The graph still has its nodes."""
    operations = (task.operation for task in graph.tasks)
    seen = dict.fromkeys(each.facts for each in operations if isinstance(each, Operation))
    of_model = {address for tensor in _model_tensors(graph, seen) if (address := address_below(tensor))}
    addresses = {address for facts in seen for address in facts.births} - of_model
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
        elif not seen:
            unsure.add(task)
    return ForwardBirths(
        frozenset(made), frozenset(alone), frozenset(unsure), frozenset(addresses), frozenset(of_model)
    )


def _model_tensors(graph: Graph, seen: Iterable[Facts]) -> Iterator[Tensor]:
    for facts in seen:
        yield from facts.model_tensors()
    yield from (leaf for leaf in graph.leaves.values() if isinstance(leaf, Parameter))


def _address(tensor: Tensor) -> int:
    """Where its bytes begin; 0 where it has none of its own."""
    return address_below(local_of(tensor)) or 0


def _alone(nodes: Sequence[Node], leaves: list[int]) -> set[int]:
    """Those of the leaves that nothing but nodes holds; an AccumulateGrad holds its leaf as if it had saved it."""
    addresses = {each.address for task in leaves if (each := storage_of(leaf_of(nodes[task]))) is not None}
    if not addresses:
        return set()
    tensors = [leaf_of(nodes[task]) for task in leaves]
    tensors += [slot.tensor for node in nodes for slot in saved_slots(node) if _is_at(slot.tensor, addresses)]
    return {task for task, held in zip(leaves, kept_by_others(tensors), strict=False) if not held}


def _is_at(tensor: Tensor, addresses: set[int]) -> bool:
    storage = storage_of(tensor)
    return storage is not None and storage.address in addresses
