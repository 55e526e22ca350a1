"""What the nodes of a graph keep as its backward starts, by address; measured blocks are found in it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from ...inspector.graph.facts import Operation
from ...inspector.graph.graph import Graph
from ...inspector.graph.marks import tensors_of
from ...inspector.torch_internals.checkpoints import (
    cached_results,
    random_states,
    region_inputs,
    region_of,
    regions_around,
)
from ...inspector.torch_internals.nodes import leaf_of
from ...inspector.torch_internals.saved import attributes_of, hides_saved, packed_by_user, saved_slots, saved_variables
from ..memory.timeline import LEAF, ON_CTX, RANDOM_STATE, REGION
from .memory_watch import look

Slots = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class SavedBlocks:
    """What nodes keep.

    Attributes:
        saved: by address the (task, slot) pairs that keep it.
        hidden: by address the tasks whose nodes hide what they keep (CopySlices), and that had this to work on.
        hiding: the tasks whose nodes hide what they keep, or had it packed by `saved_tensors_hooks`.
        regions: by task the tasks of its checkpointed region, itself included.
        openers: of each such region the tasks of which any has it computed again: its own, and those of regions inside.
    """

    saved: Mapping[int, Slots]
    hidden: Mapping[int, Collection[int]]
    hiding: Collection[int]
    regions: Mapping[int, Collection[int]]
    openers: Collection[Collection[int]]


def kept_by(graph: Graph, written: Mapping[Operation, Collection[int]], leaves: Collection[int] = ()) -> SavedBlocks:
    """Looks at all nodes.

    Args:
        graph: the graph.
        written: by operation in place the addresses of its arguments.
        leaves: the tasks of leaves that nothing but the graph holds.
    """
    saved: dict[int, Slots] = {}
    hidden: dict[int, list[int]] = {}
    hiding = set()
    regions: dict[Hashable, list[int]] = {}
    openers: dict[Hashable, list[int]] = {}
    for task, node in enumerate(graph.nodes):
        kept = [(slot.tensor, slot.name) for slot in saved_slots(node)]
        region = region_of(node)
        if region is not None:
            regions.setdefault(region, []).append(task)
            for each in regions_around(node):
                openers.setdefault(each, []).append(task)
            kept += [(tensor, REGION) for tensor in (*region_inputs(region), *cached_results(region))]
            kept += [(tensor, RANDOM_STATE) for tensor in random_states(region)]
        for attribute, value in attributes_of(node).items():
            kept += [(tensor, ON_CTX + attribute) for tensor in tensors_of(value)]
        if task in leaves:
            kept.append((leaf_of(node), LEAF))
        for tensor, name in kept:
            if (seen := look(tensor)) is not None:
                saved[seen.address] = (*saved.get(seen.address, ()), (task, name))
        if hides_saved(node) or packed_by_user(saved_variables(node)):
            hiding.add(task)
        operation = graph.tasks[task].operation
        if hides_saved(node) and isinstance(operation, Operation):
            for address in written.get(operation, ()):
                hidden.setdefault(address, []).append(task)
    by_task = {task: tasks for tasks in regions.values() for task in tasks}
    return SavedBlocks(saved, hidden, hiding, by_task, list(openers.values()))
