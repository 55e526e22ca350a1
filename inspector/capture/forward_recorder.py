"""Recording of a forward below autograd: the operations that made and wrote each storage, and the saved tensors."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..graph.graph import Graph
from ..graph.node_metadata import tensors_of
from ..graph.operations_and_calls import Operation, resolve_sources
from ..torch_private.checkpoints import hidden_from_checkpoints
from ..torch_private.compiled import compiled_code_refused
from ..torch_private.engine import in_backward
from ..torch_private.operators import Operator, SeenOperations
from ..torch_private.saved_variables import hides_saved, packed_slots
from ..torch_private.sequence_numbers import number_of, sequence_nr
from ..torch_private.tensors import (
    FollowedStorage,
    View,
    bytes_below,
    content_of,
    detached,
    has_view,
    is_fake,
    is_wrapped,
    parts_of,
    storage_of,
    strided_parts,
    without_bytes,
)
from ..torch_private.thread_state import unobserved
from .capture import capture
from .forward_program import WHOLE, ForwardOperation, ForwardProgram, ForwardStorage, StorageRead, obstacles
from .interrupt_safe_stack import hooks_opened
from .operator_traits import (
    replayed_arguments,
    traits_of,
    written_by,
)


class _Packed:
    """A tensor that a node saves."""

    def __init__(self, tensor: Tensor, reading: StorageRead | None) -> None:
        self.tensor = detached(tensor)
        self.reading = reading
        self.sequence_nr = sequence_nr() - 1  # of the newest node, which usually is the one that saves
        self.is_read_early = False  # by a backward inside the forward


_READ_EARLY = "a backward inside the forward reads it"


class _Storage:
    def __init__(self, number: int, tensor: Tensor, made_by: int | None, output: int) -> None:
        self.number = number
        found = storage_of(tensor)
        assert found is not None, "the caller has looked"
        self.address, self.nbytes = found
        self.device = str(tensor.device)
        self.made_by = made_by
        self.output = output
        self.written_by: list[int] = []
        self.followed = FollowedStorage(tensor)  # keeps the address from being reused

    def reading(self, tensor: Tensor) -> StorageRead:
        return StorageRead(self.number, len(self.written_by) + (self.made_by is not None), View.of(tensor))


class ForwardRecorder(SeenOperations):  # type: ignore[no-untyped-call]
    """Context manager that records the operations of one forward of this thread.

    Open it once, inside the capture passed to it. `restore` undoes the forward's writes to tensors that existed
    before it. `verb` is the public verb, for messages.

    Attributes:
        operators: the operators that were called, in order.
        accelerated: whether any tensor was on another device than the CPU.
    """

    def __init__(self, names: capture, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self.operators: list[Operator] = []
        self.accelerated = False
        self._names = names
        self._storages: list[_Storage] = []
        self._known: dict[int, _Storage] = {}  # by address
        self._operations: list[ForwardOperation] = []
        self._called: list[Operation] = []
        self._faults: dict[int, str] = {}
        self._fused: set[int] = set()  # operations whose fault is a fused kernel
        self._empty: set[int] = set()  # the operations that only allocate
        self._packed: list[weakref.ref[_Packed]] = []
        self._before: list[
            tuple[torch.UntypedStorage, torch.UntypedStorage]
        ] = []  # (written storage, copy from before)
        self._contents: dict[int, Callable[[], None]] = {}  # by id(): functions that restore tensors without a storage
        self._sparse: dict[int, weakref.ref[Tensor]] = {}  # by id(): sparse tensors made by operations
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(compiled_code_refused(f"{self._verb} cannot follow it"))
            hooks = saved_tensors_hooks(partial(self._pack), _unpack)
            stack.enter_context(hidden_from_checkpoints(hooks))
            stack.enter_context(hooks_opened(hooks, self._verb))
            super().__enter__()  # type: ignore[no-untyped-call]
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self._opened.__exit__(kind, error, traceback)

    def wrote(self, tensor: Tensor) -> bool:
        """Return whether the forward wrote to this tensor, which existed before it."""
        parts = {part.untyped_storage().data_ptr() for part in strided_parts(tensor)} - {0}  # 0: no bytes
        return id(tensor) in self._contents or any(each.data_ptr() in parts for each, _ in self._before)

    def restore(self) -> None:
        """Restore the tensors that the forward modified."""
        with unobserved():
            for storage, copy in self._before:
                if storage.nbytes() == copy.nbytes():  # otherwise fully_shard has freed the gathered parameter
                    storage.copy_(copy)
            for put_back in self._contents.values():
                put_back()

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = len(self.operators)
        self.operators.append(operator)
        traits = traits_of(operator)
        given = [] if traits.reads_nothing else list(tensors_of((replayed_arguments(operator, args), kwargs)))
        written = written_by(operator, args, kwargs) if traits.may_write else []
        if (fault := _fault(operator, [*given, *written])) is not None:
            self._faults[number] = f"{operator} {fault}"
            if torch.is_grad_enabled() and traits.is_opaque:
                self._fused.add(number)
        reads, writes = [], []
        for tensor in given:
            if (storage := self._storage(tensor)) is not None:
                reads.append(storage.reading(tensor))
        for tensor in written:
            if (storage := self._storage(tensor)) is None:
                self._note_content(tensor)
            else:
                if storage.made_by is None:
                    self._note_before(storage, tensor)
                if any(tensor is each for each in given):
                    writes.append(storage)
                if number not in storage.written_by:
                    storage.written_by.append(number)
        if traits.leaves_empty:
            self._empty.add(number)
        self._called.append(self._names.operation(operator))
        makes: list[tuple[int, int]] = []
        seconds = 0.0
        began = perf_counter()
        try:  # an operation that raises also counts, since the forward may continue
            result = operator(*args, **kwargs)
            seconds = perf_counter() - began
            for output, tensor in [(WHOLE, result)] if isinstance(result, Tensor) else _numbered(result):
                found = storage_of(tensor)
                if found is None or is_wrapped(tensor) or not has_view(tensor):
                    self._faults.setdefault(number, f"{operator} returns a tensor that is not dense")
                    self._sparse[id(tensor)] = weakref.ref(tensor)
                elif found.address not in self._known:
                    if found.address in self._inside(given):
                        self._add(tensor, None, WHOLE)
                        continue
                    made = self._add(tensor, number, output)
                    makes.append((made.number, output))
        finally:
            self._operations.append(
                ForwardOperation(
                    number,
                    str(operator),
                    tuple(reads),
                    tuple(makes),
                    tuple(dict.fromkeys(each.number for each in writes)),
                    traits.is_random,
                    torch.is_grad_enabled(),
                    seconds,
                    None,
                    None,
                )
            )
        return result

    def _storage(self, tensor: Tensor) -> _Storage | None:
        """Return the storage of an argument; None if it has none, or is more than a view of it."""
        found = None if is_wrapped(tensor) else storage_of(tensor)
        if found is None:
            return None
        if not has_view(tensor):
            if (known := self._known.get(found.address)) is not None and known.made_by is not None:
                self._faults.setdefault(known.made_by, "its result is also used through a tensor that is not dense")
            return None
        return self._known.get(found.address) or self._add(tensor, None, WHOLE)

    def _add(self, tensor: Tensor, made_by: int | None, output: int) -> _Storage:
        storage = _Storage(len(self._storages), tensor, made_by, output)
        self._storages.append(storage)
        self._known[storage.address] = storage
        self.accelerated = self.accelerated or tensor.device.type not in ("cpu", "meta")
        return storage

    def _note_before(self, storage: _Storage, tensor: Tensor) -> None:
        if not storage.written_by and tensor.device.type != "meta" and not is_fake(tensor):
            with unobserved():
                whole = tensor.untyped_storage()
                self._before.append((whole, whole.clone()))  # type: ignore[no-untyped-call]

    def _inside(self, tensors: Sequence[Tensor]) -> set[int]:
        """Return the storages inside sparse and wrapped tensors, which an operation such as `values` may return."""
        return {
            part.untyped_storage()._cdata
            for tensor in tensors
            if is_wrapped(tensor) or not has_view(tensor)
            for part in strided_parts(tensor)
        }

    def _note_content(self, tensor: Tensor) -> None:
        """Copy a tensor from before the forward that is about to be written, and is more than a view of a storage."""
        made = self._sparse.get(id(tensor))
        if (made is not None and made() is tensor) or without_bytes(tensor):
            return
        with unobserved():
            for part in parts_of(tensor):
                if (whole := bytes_below(part)) is None:
                    self._contents.setdefault(id(part), content_of(part))
                elif all(each.data_ptr() != whole.data_ptr() for each, _ in self._before):
                    self._before.append((whole, whole.clone()))  # type: ignore[no-untyped-call]

    def _pack(self, tensor: Tensor) -> _Packed:
        storage = self._storage(tensor)
        packed = _Packed(tensor, None if storage is None else storage.reading(tensor))
        self._packed.append(weakref.ref(packed))
        return packed

    def program(self, graph: Graph, seconds: float = 0.0) -> ForwardProgram:
        """Return the recorded forward, given its graph. The capture must still be open, or just closed."""
        saved, packs = self._saved(graph)
        resolve_sources(self._called)
        storages = [
            ForwardStorage(
                each.number,
                each.nbytes,
                each.device,
                each.made_by,
                each.output,
                tuple(each.written_by),
                tuple(saved.get(each.number, ())),
                None,
            )
            for each in self._storages
        ]
        operations = [
            replace(each, module=None if called.call is None else called.call.full_path, source=called.source)
            for each, called in zip(self._operations, self._called, strict=True)
        ]
        program = ForwardProgram(replace(graph, nodes=()), tuple(operations), tuple(storages), seconds)
        faults = dict(self._faults)
        for storage in self._storages:
            if storage.made_by is not None and storage.made_by in self._empty and not storage.written_by:
                faults[storage.made_by] = "no operation was seen to write to it"
        reasons = obstacles(program, faults, packs)
        early = {packed.reading.storage for packed in self._alive() if packed.is_read_early and packed.reading}
        known = tuple(
            replace(
                each,
                obstacle=_READ_EARLY if reason is None and each.number in early else reason,
                is_fused=bool(each.nbytes) and next((n for n in each.program if n in faults), None) in self._fused,
            )
            for each, reason in zip(storages, reasons, strict=True)
        )
        return replace(program, storages=known)

    def _alive(self) -> Iterator[_Packed]:
        """Yield the saved tensors that nodes still keep."""
        return (packed for reference in self._packed if (packed := reference()) is not None)

    def _saved(self, graph: Graph) -> tuple[dict[int, list[tuple[int, str]]], dict[int, list[StorageRead]]]:
        """Map each storage to the (task, slot) pairs that save it, and to the parts of it that they read."""
        keepers: list[tuple[_Packed, int, str]] = []
        numbers: list[tuple[int, int]] = []  # (sequence number, task) of the numbered nodes, ascending
        for task, node in enumerate(graph.nodes):
            if not graph.tasks[task].is_leaf:
                numbers.append((number_of(node), task))
            keepers += [(each, task, slot) for slot, each in packed_slots(node) if isinstance(each, _Packed)]
        shown = {packed for packed, _, _ in keepers}
        for packed in self._alive():
            if packed not in shown:
                place = bisect_left(numbers, (packed.sequence_nr, 0))
                if place < len(numbers) and hides_saved(graph.nodes[numbers[place][1]]):
                    keepers.append((packed, numbers[place][1], "hidden"))
        saved: dict[int, list[tuple[int, str]]] = {}
        packs: dict[int, list[StorageRead]] = {}
        for packed, task, slot in keepers:
            if packed.reading is not None:
                saved.setdefault(packed.reading.storage, []).append((task, slot))
                packs.setdefault(packed.reading.storage, []).append(packed.reading)
        return saved, packs


def _unpack(packed: _Packed) -> Tensor:
    packed.is_read_early = packed.is_read_early or in_backward()  # in this context only a nested backward can run
    return packed.tensor


def _numbered(result: object) -> list[tuple[int, Tensor]]:
    """Return the tensors among several outputs, with their numbers."""
    if not isinstance(result, tuple | list):
        return []
    return [(number, each) for number, each in enumerate(result) if isinstance(each, Tensor)]


def _fault(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    """Return why this call must not be replayed, as far as the call alone shows it; None if it may be."""
    if not torch.is_grad_enabled():
        return "ran with gradients disabled, in a custom Function or under no_grad"
    if traits_of(operator).is_opaque:
        return "runs a fused kernel with hidden state"
    if traits_of(operator).moves_storage:
        return "changes a tensor's shape or storage in place"
    if any(is_wrapped(each) or storage_of(each) is None or not has_view(each) for each in tensors):
        return "takes a tensor that is not dense"
    if traits_of(operator).is_inexact and any(each.device.type != "cpu" for each in tensors):
        return "may return different bits in each run on this device"
    return None
