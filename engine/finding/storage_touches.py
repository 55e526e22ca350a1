"""Which tasks of a backward read, and which write, the same bytes although no gradient goes from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...inspector.capturing.operators import may_write, written_by
from ...inspector.graph.marks import tensors_of
from ...inspector.graph.source import Source, source_at, users_place
from ...inspector.torch_internals.operators import Operator, SeenOperations
from ...inspector.torch_internals.tensors import FollowedStorage, bytes_below, parts_of


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """One task's write into what another one reads.

    Attributes:
        task: the id of the task that writes.
        operation: what writes: `mul_`.
        source: the user's line, where Python calls it.
    """

    task: int
    operation: str
    source: Source | None


class StorageTouches(SeenOperations):  # type: ignore[no-untyped-call]
    """Notes, while it is open around a backward, what tasks read and write of bytes that were there before them.

    Known limitations: what is read or written past torch's operations (through NumPy, in an extension) is not seen.
    """

    sees_backward = True

    def __init__(self) -> None:
        super().__init__()
        self._task: int | None = None
        self._made: dict[int, FollowedStorage] = {}  # by the current task
        self._touched: dict[int, _Touched] = {}

    def begin(self, task: int, gradients: Sequence[Tensor | None]) -> None:
        """What operations do from here on is this task's, which takes these."""
        self._task = task
        self._made = {}
        for tensor in tensors_of(gradients):
            self._read(tensor)

    def end(self) -> None:
        self._task = None
        self._made = {}

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._task is None:  # the engine's own sums, hooks of tensors
            return operator(*args, **kwargs)
        for tensor in tensors_of((args, kwargs)):
            self._read(tensor)
        if may_write(operator):
            for tensor in written_by(operator, args, kwargs):
                self._written(tensor, operator)
        result = operator(*args, **kwargs)
        for tensor in tensors_of(result):
            for part in parts_of(tensor):
                storage = bytes_below(part)
                if storage is not None and storage._cdata not in self._touched and storage._cdata not in self._made:
                    self._made[storage._cdata] = FollowedStorage(part)
        return result

    def writes_to(self, task: int) -> list[SharedWrite]:
        """What others write of that which a task reads, in their order; its own writes, if no other does."""
        found = [touched for touched in self._touched.values() if task in touched.readers]
        writes = [write for touched in found for write in touched.writes]
        others = [write for write in writes if write.task != task]
        return others or writes

    def _read(self, tensor: Tensor) -> None:
        for touched in self._those_of(tensor):
            assert self._task is not None
            touched.readers[self._task] = None

    def _written(self, tensor: Tensor, operator: Operator) -> None:
        assert self._task is not None
        place = users_place()
        name = operator._schema.name.rpartition("::")[2]
        for touched in self._those_of(tensor):
            touched.writes.append(SharedWrite(self._task, name, None if place is None else source_at(place)))

    def _those_of(self, tensor: Tensor) -> list[_Touched]:
        found = []
        for part in parts_of(tensor):
            storage = bytes_below(part)
            if storage is None or part.is_meta:
                continue
            made = self._made.get(storage._cdata)
            if made is not None and made.alive:
                continue
            touched = self._touched.get(storage._cdata)
            if touched is None:
                touched = self._touched[storage._cdata] = _Touched(FollowedStorage(part), {}, [])
            found.append(touched)
        return found


@dataclass(slots=True)
class _Touched:
    """Bytes that were there before a task. No others get their number while they are followed."""

    storage: FollowedStorage
    readers: dict[int, None]
    writes: list[SharedWrite]
