"""The tensors that the nodes of a graph have saved for backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..garbage_collector import collector_paused
from ..torch_private.nodes import leaf_of
from ..torch_private.reference_counts import kept_by_others
from ..torch_private.saved_variables import packed_slots, saved_slots
from ..torch_private.tensors import storage_of, version_of


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a task's node has saved for backward.

    Attributes:
        task: the id of the task.
        slot: the node's name for it: "self", "result", "mat2", ...; "tensors" for a custom Function.
        storage: numbers storages within one graph: equal numbers share bytes. None for sparse and nested tensors, which
            have no storage of their own.
        storage_bytes: the size of that storage; the tensor may be a part of it.
        shape, dtype, device: those of the tensor; the shape is None for nested tensors.
        version: the tensor's version counter; None if the tensor was modified in place since it was saved, so that a
            backward will raise.
        parameter: the name of the parameter that shares these bytes.
        made_by: the id of the task whose node made the tensor in the forward: its `grad_fn`. None for a leaf, for a
            tensor without a graph, and for one that was modified in place since.
        held: whether something besides the nodes of this graph keeps the storage alive, so that a backward will not
            free it: a variable, a hook, another graph, or a leaf's AccumulateGrad. Saved tensors that nodes hide
            (`Graph.saved` says which do) are unknown and count as such holders.
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
    made_by: int | None
    held: bool


class SavedTensors(tuple[SavedTensor, ...]):
    """The saved tensors of a graph, in order of task.

    Attributes:
        packed: how many saved tensors are not listed because `saved_tensors_hooks` packed them.
    """

    packed: int = 0

    def __repr__(self) -> str:
        listed = super().__repr__()
        if not self.packed:
            return listed
        are = "tensor is" if self.packed == 1 else "tensors are"
        return (
            f"{listed} and {self.packed:,} {are} packed by saved_tensors_hooks; ts.orders.unpack_order(loss) lists them"
        )


@collector_paused()
def saved_tensors(nodes: Sequence[Node], names: dict[int, str | None]) -> SavedTensors:
    """Return the tensors that the nodes keep now. `names` has the leaf's name by the id of its task."""
    owners = {}
    for task, name in names.items():
        storage = storage_of(leaf_of(nodes[task]))
        if storage is not None and name is not None:
            owners[storage.address] = name
    slots, tensors = _slots(nodes)
    kept = kept_by_others(tensors)
    numbers: dict[int, int] = {}
    found = []
    for (task, slot, made_by, modified), tensor, held in zip(slots, tensors, kept, strict=True):
        storage = storage_of(tensor)
        found.append(
            SavedTensor(
                task,
                slot,
                numbers.setdefault(storage.address, len(numbers)) if storage else None,
                storage.nbytes if storage else None,
                None if tensor.is_nested else tuple(tensor.shape),
                tensor.dtype,
                tensor.device,
                None if modified else version_of(tensor),
                owners.get(storage.address) if storage else None,
                made_by,
                held,
            )
        )
    listed = SavedTensors(found)
    listed.packed = sum(1 for node in nodes for _ in packed_slots(node))
    return listed


def _slots(nodes: Sequence[Node]) -> tuple[list[tuple[int, str, int | None, bool]], list[Tensor]]:
    """Return for each slot the task, its name, `made_by` and whether the tensor was modified; and the tensors.

    After this returns, only the list of tensors refers to them, as `kept_by_others` needs.
    """
    ids = {node: task for task, node in enumerate(nodes)}
    slots, tensors = [], []
    for task, node in enumerate(nodes):
        for slot in saved_slots(node):
            slots.append((task, slot.name, None if slot.maker is None else ids.get(slot.maker), slot.modified))
            tensors.append(slot.tensor)
    return slots, tensors
