"""Notes on out-of-memory errors: the holders of the device's memory at that moment, and possible remedies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...inspector.garbage_collector import all_objects
from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import folded, joined, pattern, task_name
from ...inspector.text.sizes_and_counts import share_text, size_text
from ...inspector.torch_private.saved_variables import saved_slots
from ...inspector.torch_private.sequence_numbers import current_number
from ...inspector.torch_private.thread_state import unobserved
from .categories import BUFFERS, GRADIENTS, OTHERS, PARAMETERS, STATE
from .census import StorageCensus, state_tensors

_OF_CPU = "DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory"
_NOTE = "tapescope: when the allocation failed, "
SAVED = "saved by tasks that had not run"
_MOST_LOOKED_AT = 2_000  # limits the passes over all objects, for which an error has to wait
_WHY_UNNAMED = {
    "cycle": "held by a cycle, which gc.collect() may free",
    "unnamed": "held by running code or C++; no variable refers to it",
    "bounded": "its holder was not found quickly",
}
_UNSEEN = "memory invisible to Python: gradients in input buffers and workspaces of kernels"
_HELP = {
    SAVED: "recomputing saved tensors instead of keeping them (ts.plan_recompute(make_loss)), or a smaller batch",
    PARAMETERS: "another dtype for the parameters, or fewer of them on this device",
    GRADIENTS: "zero_grad() before the forward, if the old gradients are no longer needed",
    STATE: "an optimizer with less state",
    OTHERS: "deleting tensors that are no longer needed",
    _UNSEEN: "another order of the tasks (ts.plan_order(loss)), or a smaller batch",
}


def explain_out_of_memory(error: BaseException, graph: Graph | None = None) -> None:
    """Add notes to an out-of-memory error: the holders of the device's memory, and possible remedies.

    Other errors, and errors that already have the notes, stay as they are.

    Args:
        error: the error.
        graph: the graph of the backward that failed, for the names of its tasks.
    """
    device = _device_of(error)
    if device is None or any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    try:
        with unobserved():
            holding = _Holding(device, graph, error)
    except (RuntimeError, MemoryError):  # too little memory may be left even for the search
        return
    for note in holding.notes():
        error.add_note(note)


def _device_of(error: BaseException) -> torch.device | None:
    """Return the device that was out of memory; None for any other error."""
    if isinstance(error, torch.OutOfMemoryError):
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None:
            return None
        named = re.search(rf"(?:GPU|{accelerator.type}:) ?(\d+)", str(error))
        index = int(named[1]) if named else torch.accelerator.current_device_index()
        return torch.device(accelerator.type, index)
    is_cpu = isinstance(error, RuntimeError) and any(each in str(error) for each in _OF_CPU)
    return torch.device("cpu") if is_cpu else None


class _Holding:
    """The holders of a device's memory; each storage counts once, in the first category that it fits.

    Attributes:
        parts: bytes by category, in the order in which they were searched.
        savers: the bytes that tasks of one kind and place save, and the number of these tasks.
        largest: the largest of the other tensors and its holder, in words.
    """

    def __init__(self, device: torch.device, graph: Graph | None, error: BaseException) -> None:
        self.device = device
        self.parts: Counter[str] = Counter()
        self.savers: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self._census = StorageCensus(device)
        self._error = error
        tensors, optimizers, modules = _alive()
        parameters = [each for each in tensors if issubclass(type(each), nn.Parameter)]
        self._add(PARAMETERS, parameters)
        self._add(BUFFERS, [buffer for module in modules for buffer in module._buffers.values()])
        leaves = (each for each in tensors if each.is_leaf and each.requires_grad)
        self._add(GRADIENTS, [each.grad for each in leaves])
        self._add(STATE, [tensor for each in optimizers for tensor in state_tensors(each)])
        self._add_saved(tensors, graph)
        self.largest = self._add_others(tensors)
        unseen = _allocated(device) - self.parts.total()
        if unseen > 0:
            self.parts[_UNSEEN] = unseen

    def _add(self, category: str, tensors: Iterable[Tensor | None]) -> int:
        """Count the storages of these tensors that are not yet counted."""
        added = self._census.add(category, tensors)
        if added:
            self.parts[category] += added
        return added

    def _add_saved(self, tensors: Sequence[Tensor], graph: Graph | None) -> None:
        """Count the saved tensors of the graph's nodes, and of the nodes of all other results alive. A storage that
        several nodes save counts to the oldest node, which runs last."""
        names: dict[Node, tuple[str, str]] = {}
        if graph is not None:
            for task, node in zip(graph.tasks, graph.nodes, strict=True):
                names[node] = task_name(task), task.parameter or graph.module(task) or ""
        reached = _reached(each.grad_fn for each in tensors if each.grad_fn is not None)
        for node in sorted(names.keys() | reached, key=current_number):
            nbytes = self._add(SAVED, [slot.tensor for slot in saved_slots(node)])
            if nbytes:
                name, where = names.get(node, (node.name(), ""))
                before, places = self.savers.get((name, pattern(where)), (0, []))
                self.savers[name, pattern(where)] = before + nbytes, [*places, where]

    def _add_others(self, tensors: Sequence[Tensor]) -> str:
        """Count all other tensors, and return the largest: `(131072,) float32, 512 KiB, held as store[1]`."""
        from ...inspector.references.find_referrers import who_holds

        most = 0
        largest: list[Tensor] = []
        for each in tensors:
            nbytes = self._add(OTHERS, [each])
            if nbytes > most:
                most, largest[:] = nbytes, [each]
        if not largest:
            return ""
        dtype = str(largest[0].dtype).removeprefix("torch.")
        said = f"{tuple(largest[0].shape)} {dtype}, {size_text(most)}"
        (holder,) = who_holds(largest, _MOST_LOOKED_AT, self._error)
        return f"{said}, held as {holder}" if holder.kind == "named" else f"{said} ({_WHY_UNNAMED[holder.kind]})"

    def notes(self) -> Iterator[str]:
        """Yield the sentences: the holders, and possible remedies."""
        whole = self.parts.total()
        if not whole:
            return
        where = "the CPU" if self.device.type == "cpu" else str(self.device)
        parts = [
            f"{size_text(nbytes)} ({share_text(nbytes, whole)}) {category}{self._details(category)}"
            for category, nbytes in self.parts.most_common()
        ]
        yield f"{_NOTE}{where} held {size_text(whole)}: {'; '.join(parts)}"
        (most, _), *_ = self.parts.most_common()
        helping = f"{_HELP[most]}; " if most in _HELP else ""
        yield (
            f"tapescope: possible remedies: {helping}ts.fits(make_model, make_batch, make_optimizer, memory), which "
            "tries a training step and ways to make it smaller without allocating anything"
        )

    def _details(self, category: str) -> str:
        if category == SAVED:
            most = sorted(self.savers.items(), key=lambda saver: -saver[1][0])[:3]
            return ", most of it by " + joined([_saver(name, *found) for (name, _), found in most])
        return f", the largest {self.largest}" if category == OTHERS else ""


def _saver(name: str, nbytes: int, places: Sequence[str]) -> str:
    """`12 × SoftmaxBackward0 (blocks.*.attn, 1.2 GiB)`."""
    times = f"{len(places):,} × " if len(places) > 1 else ""
    where = ", ".join(part for part in (folded(places), size_text(nbytes)) if part)
    return f"{times}{name} ({where})"


def _alive() -> tuple[list[Tensor], list[Optimizer], list[nn.Module]]:
    """Return all tensors, optimizers and modules, by their types; isinstance() would run objects' own `__class__`."""
    tensors: list[Tensor] = []
    optimizers: list[Optimizer] = []
    modules: list[nn.Module] = []
    of_type: dict[type, list[Any] | None] = {}
    with all_objects() as objects:
        for each in objects:
            kind = type(each)
            if kind not in of_type:
                kinds = ((Tensor, tensors), (Optimizer, optimizers), (nn.Module, modules))
                of_type[kind] = next((found for base, found in kinds if issubclass(kind, base)), None)
            found = of_type[kind]
            if found is not None:
                found.append(each)
    return [each for each in tensors if not is_lazy(each)], optimizers, modules


def _reached(roots: Iterable[Node]) -> set[Node]:
    """Return the nodes of these graphs."""
    found = set(roots)
    waiting = list(found)
    while waiting:
        for child, _ in waiting.pop().next_functions:
            if child is not None and child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _allocated(device: torch.device) -> int:
    """Return the bytes that the device's allocator has allocated, if it reports them."""
    with suppress(AttributeError, NotImplementedError, RuntimeError):
        if device.type != "cpu":
            return int(torch.get_device_module(device).memory_allocated(device.index))
    return 0
