"""What the nodes of a graph keep from the forward for their backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from .torch_internals import leaf_of, saved_slots, storage_of, version_of


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a task's node keeps.

    Attributes:
        task: the id of the task.
        slot: what the node calls it: "self", "result", "mat2", ...; "tensors" for a custom Function's.
        storage: numbers storages within one graph: equal numbers share bytes. None for sparse and nested tensors, which
            have no storage of their own.
        storage_bytes: the size of that storage; the tensor may be a part of it.
        version: the tensor's version counter; None where the tensor was modified in place since it was saved, so that
            a backward is going to raise.
        parameter: the name of the parameter whose bytes these are.
    """

    task: int
    slot: str
    storage: int | None
    storage_bytes: int | None
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    version: int | None
    parameter: str | None


def saved_tensors(nodes: tuple[Node, ...], names: dict[int, str | None]) -> Iterator[SavedTensor]:
    """What the nodes keep now, in order of task. `names` has the id of each leaf's task and the leaf's name."""
    owners = {}
    for task, name in names.items():
        storage = storage_of(leaf_of(nodes[task]))
        if storage is not None and name is not None:
            owners[storage.address] = name
    numbers: dict[int, int] = {}
    for task, node in enumerate(nodes):
        for slot, tensor, modified in saved_slots(node):
            storage = storage_of(tensor)
            yield SavedTensor(
                task,
                slot,
                numbers.setdefault(storage.address, len(numbers)) if storage else None,
                storage.nbytes if storage else None,
                None if tensor.is_nested else tuple(tensor.shape),
                tensor.dtype,
                tensor.device,
                None if modified else version_of(tensor),
                owners.get(storage.address) if storage else None,
            )
