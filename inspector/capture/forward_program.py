"""A forward as the operations that the kernels ran, and the storages between them: what a replay would have to do."""

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

WHOLE = -1  # in place of the number of an output: the operation gives one tensor, not several


class StorageRead(NamedTuple):
    """An operation's use of a storage: a tensor on it as it was after `version` operations had written it.

    The one that made it counts as the first; of what was there before the forward, only writes in it count.
    """

    storage: int
    version: int
    view: View


@dataclass(frozen=True, slots=True)
class ForwardOperation:
    """One ATen operation of the forward: below autograd and autocast, whose casts are operations of their own.

    Attributes:
        number: its place among all.
        name: "aten.mul.Tensor".
        reads: its tensor arguments, those included that it writes into. Of a batch-norm in training without the running
            statistics, which it does not depend on; none of those that ask for a shape alone (`empty_like`).
        makes: the storages that are new with its result: (number of the storage, number of the output or WHOLE).
        writes: the storages that were there and that it writes into; without those statistics, which a replay leaves.
        random: it may draw random numbers.
        with_gradients: gradients were on, as they are not in a custom Function's forward and under no_grad.
        seconds: the shortest time that it took.
        module: the path of the module in whose call it ran; None outside.
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

    Its content is a small program: the operation that made it, then those which wrote into it, each in turn.

    Attributes:
        number: counts the storages.
        nbytes: its size.
        device: where it is, "cpu" or "cuda:0".
        made_by: the number of the operation that made it. None: no operation was seen to, as with parameters, inputs
            and buffers, and with what was made from data of Python's or another library's.
        output: which of that operation's outputs it came with, or WHOLE.
        written_by: the numbers of the operations that wrote into it after.
        saved_by: the (task, slot) pairs of the graph that keep it for the backward.
        obstacle: why it can't be made again by a replay: a clause that goes on after "since". None: it can.
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
        """The operations that a replay runs, in order; none where none was seen to make it."""
        return () if self.made_by is None else (self.made_by, *self.written_by)


@dataclass(frozen=True, eq=False, repr=False)
class ForwardProgram:
    """A forward that was recorded (`record_forward`).

    Attributes:
        graph: its autograd graph, without nodes: a fresh forward gives an equal one, with the same ids.
        operations: in the order in which they ran.
        storages: by number.
        seconds: the shortest time that the forward took with nobody watching. The operations' own times add up to less.
        notes: what makes its figures doubtful, in sentences.
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
        """The storages that nodes keep and that were made in the forward."""
        return [each for each in self.storages if each.saved_by and each.made_by is not None]

    def inputs_of(self, storage: int) -> tuple[int, ...]:
        """The other storages that its replay reads, ascending; those included that were there before the forward."""
        return self._inputs[storage]

    @cached_property
    def _inputs(self) -> list[tuple[int, ...]]:
        found = []
        for each in self.storages:
            read = {reading.storage for number in each.program for reading in self.operations[number].reads}
            found.append(tuple(sorted(read - {each.number})))
        return found

    def seconds_of(self, storage: int) -> float:
        """What the replay of its own program takes, without what its inputs may take."""
        return sum(self.operations[number].seconds for number in self.storages[storage].program)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for forwards of equal operations on equal sizes, whose graphs keep the same: 16 hexadecimal digits."""
        parts: list[object] = [(each.name, each.makes, each.writes) for each in self.operations]
        parts += [(each.nbytes, each.device, each.made_by, each.saved_by) for each in self.storages]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def overlap(first: View, second: View, nbytes: int) -> bool:
    """Whether two tensors on a storage of this size have a byte in common."""
    if first == second:
        return True
    low, high = _span(first)
    other_low, other_high = _span(second)
    if high <= other_low or other_high <= low:
        return False
    if first.dtype.itemsize != second.dtype.itemsize:
        return True
    with unobserved():
        covered = torch.zeros(nbytes // first.dtype.itemsize, dtype=torch.bool, device="cpu")
        covered.as_strided(first.shape, first.strides, first.offset).fill_(True)
        return bool(covered.as_strided(second.shape, second.strides, second.offset).any())


def _span(view: View) -> tuple[int, int]:
    """The first byte, and the one behind the last; strides in torch are never negative."""
    size = view.dtype.itemsize
    if 0 in view.shape:
        return 0, 0
    last = sum((count - 1) * stride for count, stride in zip(view.shape, view.strides, strict=True))
    return view.offset * size, (view.offset + last + 1) * size


def obstacles(
    program: ForwardProgram, faults: Mapping[int, str], packs: Mapping[int, list[StorageRead]]
) -> list[str | None]:
    """By storage why it can't be made again.

    Args:
        faults: by operation why it must not run again.
        packs: by storage what nodes saved of it.
    """
    storages, operations = program.storages, program.operations
    changed = {each.number for each in storages if each.made_by is None and each.written_by}
    stale = dict(faults)
    for operation in operations:
        for reading in operation.reads:
            read = storages[reading.storage]
            if reading.storage in operation.writes or operation.number in stale:
                continue
            if reading.storage in changed:
                stale[operation.number] = f"{operation.name} reads what was there before and the forward writes into"
            elif _is_overwritten(program, reading):
                stale[operation.number] = f"{operation.name} reads what is overwritten later"
            elif read.made_by is not None and read.program[-1] > operation.number:
                stale[operation.number] = f"{operation.name} reads a part of what is not complete yet"
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
                    reason = reason or f"{operations[number].name} writes into another tensor, too"
            if any(_is_overwritten(program, pack) for pack in packs.get(storage.number, ())):
                reason = reason or "it is overwritten after it was saved"
        found.append(reason)
    return found


def _is_overwritten(program: ForwardProgram, reading: StorageRead) -> bool:
    """Whether an operation after this reading writes into what was read."""
    storage = program.storages[reading.storage]
    writers = storage.program if storage.made_by is not None else storage.written_by
    for number in writers[reading.version :]:
        for other in program.operations[number].reads:
            # The result of an operation in place is what it writes, and among what it reads.
            if other.storage == reading.storage and overlap(reading.view, other.view, storage.nbytes):
                return True
    return False
