"""A forward as the operations that ran and the storages between them: the basis of a recomputation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from ..graph.graph import Graph
from ..graph.source_lines import Source
from ..torch_private.tensors import View
from ..torch_private.thread_state import unobserved

WHOLE = -1  # in place of an output number: the operation returns a single tensor


class StorageRead(NamedTuple):
    """An operation's use of a storage: a tensor on it after `version` operations have written to it.

    The operation that made the storage counts as the first write. For a storage from before the forward, only writes in
    the forward count.
    """

    storage: int
    version: int
    view: View


@dataclass(frozen=True, slots=True)
class ForwardOperation:
    """One ATen operation of the forward, below autograd and autocast. A cast of autocast is an operation itself.

    Attributes:
        number: its position among all operations.
        name: "aten.mul.Tensor".
        reads: its tensor arguments, including those to which it writes. A batch norm in training does not read its
            running statistics; operations that need only a shape (`empty_like`) read nothing.
        makes: the storages that its result allocates: (number of the storage, number of the output or WHOLE).
        writes: the existing storages to which it writes, without running statistics, which a replay does not update.
        random: whether it may draw random numbers.
        with_gradients: whether gradients were enabled; they are not in a custom Function's forward and under no_grad.
        seconds: the shortest measured time.
        module: the path of the module in whose call it ran; None outside of modules.
        source: the user's line that led to it.
    """

    number: int
    name: str
    reads: tuple[StorageRead, ...]
    makes: tuple[tuple[int, int], ...]
    writes: tuple[int, ...]
    random: bool
    with_gradients: bool
    seconds: float
    module: str | None
    source: Source | None


@dataclass(frozen=True, slots=True)
class ForwardStorage:
    """The bytes below one or more tensors of the forward.

    Its content can be recomputed by the operation that made it, followed by the operations that wrote to it.

    Attributes:
        number: its position among all storages.
        nbytes: its size in bytes.
        device: its device, "cpu" or "cuda:0".
        made_by: the number of the operation that made it. None for parameters, inputs, buffers, and tensors made from
            data of Python or of another library.
        output: the number of the operation's output on this storage, or WHOLE.
        written_by: the numbers of the operations that wrote to it afterwards, in order.
        saved_by: the (task, slot) pairs of the graph that save it for backward.
        obstacle: why it can't be recomputed, as a clause that follows "since"; None if it can.
        is_fused: whether the obstacle is that a fused kernel with hidden state makes it.
    """

    number: int
    nbytes: int
    device: str
    made_by: int | None
    output: int
    written_by: tuple[int, ...]
    saved_by: tuple[tuple[int, str], ...]
    obstacle: str | None
    is_fused: bool = False

    @property
    def program(self) -> tuple[int, ...]:
        """Operations that a recomputation runs, in order; empty if no recorded operation made the storage."""
        return () if self.made_by is None else (self.made_by, *self.written_by)


@dataclass(frozen=True, eq=False, repr=False)
class ForwardProgram:
    """A recorded forward (`record_forward`).

    Attributes:
        graph: its autograd graph, without nodes. Another forward gives an equal graph with the same ids.
        operations: its operations, in the order in which they ran.
        storages: its storages, by number.
        seconds: the shortest time of a forward without recording. The operations' times add up to less.
        notes: sentences that say why its figures may be inaccurate.
    """

    graph: Graph
    operations: tuple[ForwardOperation, ...]
    storages: tuple[ForwardStorage, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ForwardProgram of {len(self.operations):,} operations, {len(self.storages):,} storages>"

    @property
    def saved(self) -> list[ForwardStorage]:
        """Return the storages that were made in the forward and saved by nodes."""
        return [each for each in self.storages if each.saved_by and each.made_by is not None]

    def inputs_of(self, storage: int) -> tuple[int, ...]:
        """Return the other storages read by its recomputation, ascending, including those from before the forward."""
        return self._inputs[storage]

    @cached_property
    def _inputs(self) -> list[tuple[int, ...]]:
        found = []
        for each in self.storages:
            read = {reading.storage for number in each.program for reading in self.operations[number].reads}
            found.append(tuple(sorted(read - {each.number})))
        return found

    def seconds_of(self, storage: int) -> float:
        """Return the time of a replay of its own operations, without that of recomputing their inputs."""
        return sum(self.operations[number].seconds for number in self.storages[storage].program)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits, equal for forwards with equal operations, sizes and saved tensors."""
        parts: list[object] = [(each.name, each.makes, each.writes) for each in self.operations]
        parts += [(each.nbytes, each.device, each.made_by, each.saved_by) for each in self.storages]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def overlap(first: View, second: View, nbytes: int) -> bool:
    """Return whether two tensors on a storage of this size share a byte."""
    if first == second:
        return True
    low, high = _span(first)
    other_low, other_high = _span(second)
    if high <= other_low or other_high <= low:
        return False
    # Elements of different sizes are not compared one by one; an overlap is assumed.
    if first.dtype.itemsize != second.dtype.itemsize:
        return True
    # Views with gaps can interleave without sharing a byte, so the elements of one are marked.
    with unobserved():
        covered = torch.zeros(nbytes // first.dtype.itemsize, dtype=torch.bool, device="cpu")
        covered.as_strided(first.shape, first.strides, first.offset).fill_(True)
        return bool(covered.as_strided(second.shape, second.strides, second.offset).any())


def _span(view: View) -> tuple[int, int]:
    """Return the first byte, and the one after the last; strides in torch are never negative."""
    size = view.dtype.itemsize
    if 0 in view.shape:
        return 0, 0
    last = sum((count - 1) * stride for count, stride in zip(view.shape, view.strides, strict=True))
    return view.offset * size, (view.offset + last + 1) * size


def obstacles(
    program: ForwardProgram, faults: Mapping[int, str], packs: Mapping[int, list[StorageRead]]
) -> list[str | None]:
    """Map each storage to the reason why it can't be recomputed, or None.

    Args:
        faults: maps operations to the reason why they must not run again.
        packs: maps storages to the parts that nodes saved.
    """
    storages, operations = program.storages, program.operations
    # Storages from before the forward that it modifies: their earlier content is lost.
    changed = {each.number for each in storages if each.made_by is None and each.written_by}
    stale = dict(faults)
    for operation in operations:
        for reading in operation.reads:
            read = storages[reading.storage]
            if reading.storage in operation.writes or operation.number in stale:
                continue
            if reading.storage in changed:
                stale[operation.number] = (
                    f"{operation.name} reads a tensor from before the forward, which the forward writes to"
                )
            elif _is_overwritten(program, reading):
                stale[operation.number] = f"{operation.name} reads a tensor that is overwritten later"
            elif read.made_by is not None and read.program[-1] > operation.number:
                stale[operation.number] = f"{operation.name} reads a storage that is not complete yet"
    found: list[str | None] = []
    for storage in storages:
        reason = None
        if storage.made_by is None:
            reason = "no operation of the forward made it"
        elif not storage.nbytes:
            reason = "it has no bytes"
        else:
            reason = next((stale[number] for number in storage.program if number in stale), None)
            for number in storage.program:
                if any(each != storage.number for each in operations[number].writes):
                    reason = reason or f"{operations[number].name} also writes to another tensor"
            if any(_is_overwritten(program, pack) for pack in packs.get(storage.number, ())):
                reason = reason or "it is overwritten after it was saved"
        found.append(reason)
    return found


def _is_overwritten(program: ForwardProgram, reading: StorageRead) -> bool:
    """Return whether an operation after this read writes to the bytes that were read."""
    storage = program.storages[reading.storage]
    writers = storage.program if storage.made_by is not None else storage.written_by
    for number in writers[reading.version :]:
        for other in program.operations[number].reads:
            # The result of an in-place operation is the tensor it writes to, which is also among its reads.
            if other.storage == reading.storage and overlap(reading.view, other.view, storage.nbytes):
                return True
    return False
