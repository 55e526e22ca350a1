"""`with th.mirror(plan): loss = model(x)`: saved tensors are let go of, and made again when the backward asks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import RLock
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..inspector.forward_program import WHOLE, overlap
from ..inspector.marks import tensors_of
from ..inspector.operators import may_write, moves_storage, reads_nothing, written_by
from ..inspector.torch_internals import (
    FollowedStorage,
    Operator,
    SeenOperations,
    View,
    computes_itself,
    detached,
    keep_compiler_out,
    on_storage,
    operator_named,
    storage_of,
    unobserved,
    version_of,
)
from .mirror_plan import MirrorPlan, PlannedStorage
from .mirror_replay import Bytes, Call, Part, Tally, bytes_of, described, made_again
from .sizes import size_text
from .storage_words import joined

Packed = Part | tuple[Tensor, int]
"""What stands for a saved tensor: how to make it again, or it itself with the version that it had."""


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a mirrored forward and its backward came to, so far.

    Attributes:
        forwards: how many forwards ran as planned, to the plan's end or to that of the `with` block.
        dropped: how many storages that nodes save were let go of; dropped_bytes: their sizes.
        replayed: how many were made again, those on the way included; replayed_bytes: their sizes.
        operations: how many operations that took; seconds: how long, on the host.
        banned: the storages which the plan drops and which are kept, with the reason: making them again failed, or gave
            something else.
        notes: what else did not go as planned, in sentences.
    """

    forwards: int
    dropped: int
    dropped_bytes: int
    replayed: int
    replayed_bytes: int
    operations: int
    seconds: float
    banned: tuple[tuple[PlannedStorage, str], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        said = [
            f"{_count(self.dropped, 'saved storage')} let go of, {size_text(self.dropped_bytes)}.",
            f"{_count(self.replayed, 'storage')} made again, {size_text(self.replayed_bytes)}, by "
            f"{self.operations:,} operation{'' if self.operations == 1 else 's'} in {1e3 * self.seconds:.1f} ms.",
        ]
        if self.banned:
            said.append(f"{banned_sentence(self.banned)}.")
        return "\n".join([*said, *self.notes])


def _count(number: int, what: str) -> str:
    return f"1 {what} was" if number == 1 else f"{number:,} {what}s were"


class mirror:
    """Runs forwards by a plan: what it drops is let go of, and made again when the backward needs it.

    Gradients are the same bits as without, those of dropout included, and so is what the forward writes (the running
    statistics of a batch-norm are updated once). The backward is PyTorch's own, inside the `with` block or after it,
    and so are optimiser, autocast, GradScaler, DistributedDataParallel, gradient accumulation and the user's
    checkpoints.

    The first forward under a plan keeps all, as without it; at its end each storage that the plan drops is made again,
    compared with what it was, and let go of if it is the same to the bit. If not, as with data that was written behind
    torch's back, it is kept from then on (`report.banned`), with a warning.

    A storage is made again of what the forward had then. If that was modified in place meanwhile, the backward raises
    as PyTorch does for saved tensors.

    Args:
        plan: of `th.plan_mirror`, or `MirrorPlan.load`. Forwards of other sizes may use it, too: what it drops is made
            again from their own operations. If its first forward runs other operations than were planned for, or one of
            another model does, it is refused. If a later one of the same model does, all is kept from there on, with a
            warning. With a plan that drops nothing, of a model that is left alone, the block does nothing and takes no
            time.

    Attributes:
        plan: the plan.

    Raises:
        TypeError: it is given no plan.
        ValueError: in the forward: it is not the one that was planned for.

    Known limitations: only the thread that opens it is mirrored. What a compiled kernel gives is kept, as it is not run
    again. torch.func.grad and its like refuse to run, as under any `saved_tensors_hooks`; hooks which the user opens
    around the block pack nothing of it. Tensors changed through .data between forward and backward are not noticed, nor
    are other settings for the precision of products.
    """

    def __init__(self, plan: MirrorPlan) -> None:
        if not isinstance(plan, MirrorPlan):
            raise TypeError(f"th.mirror takes a plan, such as th.plan_mirror makes, not a {type(plan).__name__}")
        self.plan = plan
        self._idle = not plan.dropped
        self._tally = _Tally()
        self._watch: _Watch | None = None  # while it is open
        self._hooks: saved_tensors_hooks | None = None

    def __repr__(self) -> str:
        return f"<mirror: {self.plan}>"

    def __enter__(self) -> mirror:
        if self._watch is not None:
            raise RuntimeError("this mirror is open already; make another one with th.mirror(plan)")
        if self._idle:
            return self
        watch = _Watch(_state_of(self.plan), self._tally)
        watching = weakref.ref(watch)
        hooks = saved_tensors_hooks(partial(_pack, watching), partial(_unpack, watching))
        hooks.__enter__()
        try:
            watch.__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            hooks.__exit__(None, None, None)
            raise
        self._watch, self._hooks = watch, hooks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watch, hooks = self._watch, self._hooks
        if self._idle:
            return
        assert watch is not None and hooks is not None, "it was not entered"
        self._watch = self._hooks = None
        try:
            watch.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        finally:
            hooks.__exit__(kind, error, traceback)
            watch.close(raised=error is not None)

    @property
    def report(self) -> MirrorReport:
        """What came of it so far, the replays of backwards after the `with` block included."""
        tally, state = self._tally, _state_of(self.plan)
        return MirrorReport(
            tally.forwards,
            tally.dropped,
            tally.dropped_bytes,
            tally.storages,
            tally.nbytes,
            tally.operations,
            tally.seconds,
            state.banned_storages(state.banned),
            tuple(tally.notes),
        )


class _Tally(Tally):
    """Counts the forwards, too."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0
        self.dropped = 0
        self.dropped_bytes = 0
        self.notes: list[str] = []

    def note_drop(self, dropped: Bytes) -> None:
        self.dropped += 1
        self.dropped_bytes += dropped.nbytes


class _State:
    """What is known of a plan besides what it says.

    Attributes:
        operators: what it expects to run.
        writes: which of them may write into an argument.
        drops: by place among them, what is let go of: (output, number of the storage).
        unverified: the storages that were never made again.
        banned: those that are kept all the same, with the reason.
        matched: a forward has run as planned.
        leaves: by address the storages of the parameters that it used.
    """

    def __init__(self, plan: MirrorPlan) -> None:
        self.operators = [operator_named(name) for name in plan.operations]
        self.writes = [operator is not None and may_write(operator) for operator in self.operators]
        self.drops: dict[int, list[tuple[int, int]]] = {}
        for each in plan.storages:
            if each.is_dropped:
                self.drops.setdefault(each.made_by, []).append((each.output, each.number))
        self.unverified = {each.number for each in plan.storages if each.fate == "dropped"}
        self.banned: dict[int, str] = {}
        self.matched = False
        self.leaves: dict[int, FollowedStorage] = {}
        self.names = plan.operations
        self._storages = {each.number: each for each in plan.storages}

    def banned_storages(self, numbers: Iterable[int]) -> tuple[tuple[PlannedStorage, str], ...]:
        return tuple((self._storages[number], self.banned[number]) for number in numbers)


_states: weakref.WeakKeyDictionary[MirrorPlan, _State] = weakref.WeakKeyDictionary()
_lock = RLock()


def _state_of(plan: MirrorPlan) -> _State:
    with _lock:
        found = _states.get(plan)
        if found is None:
            found = _states[plan] = _State(plan)
        return found


class _NoBytesError(Exception):
    """A tensor has no bytes of its own."""


class _Watch(SeenOperations):  # type: ignore[no-untyped-call]
    """Follows the forward of one `with` block along its plan."""

    def __init__(self, state: _State, tally: _Tally) -> None:
        super().__init__()
        self._state = state
        self._tally = tally
        self._place = 0  # of the next operation in the plan
        self._between = False  # one has run, and the next has not begun
        self._differs = False  # the forward is not the planned one; from there on all is kept
        self._known: dict[int, tuple[FollowedStorage, Bytes]] = {}  # by address, which can't become another's
        self._written: list[Bytes] = []  # by the operation before
        self._originals: dict[Bytes, tuple[torch.UntypedStorage, list[View]]] = {}  # to compare with

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._written:
            self._note_versions()
        state, drops = self._state, None
        if not torch.is_grad_enabled():  # of custom Functions, or under no_grad: not planned
            writes = may_write(operator)
        else:
            if self._place == len(state.operators):
                self.end()
            if not self._differs and state.operators and operator is state.operators[self._place]:
                drops, writes = state.drops.get(self._place), state.writes[self._place]
                if not state.matched:
                    state.leaves.update(_leaves(args))
                self._place += 1
                self._between = False
            else:
                writes = may_write(operator)
                if not self._differs:
                    self._meet(operator, args)
        if writes:
            self._note_writes(operator, args, kwargs)
        if drops is None:
            return operator(*args, **kwargs)
        return self._drop(drops, operator, args, kwargs)

    def _drop(
        self, drops: list[tuple[int, int]], operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs an operation some of whose results are let go of."""
        if self._state.banned:
            drops = [each for each in drops if each[1] not in self._state.banned]
        early = not reads_nothing(operator)  # else what it is called with matters less than what it gives
        call = self._call(operator, args, kwargs) if drops and early else None
        result = operator(*args, **kwargs)
        if drops and not early:
            call = Call(operator, args, kwargs, partial(self._part, None), result)
        if call is None:
            return result
        for output, number in drops:
            tensor = result if output == WHOLE else result[output]
            found = storage_of(tensor)
            if found is not None and found.address not in self._known:
                made = Bytes(tensor, self._tally, call, number)
                call.outputs.append((output, weakref.ref(made)))
                self._note_reader(made, call)
                self._known[found.address] = FollowedStorage(tensor), made
        return result

    def _call(
        self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], into: Bytes | None = None
    ) -> Call | None:
        """An operation as it may run again; None where it takes a tensor without bytes of its own, such as a sparse.

        Args:
            into: what it writes into, if that was there before.
        """
        try:
            return Call(operator, args, kwargs, partial(self._part, into))
        except _NoBytesError:
            return None

    def _part(self, into: Bytes | None, tensor: Tensor) -> Part:
        """An argument of an operation that may run again. What is not dropped is held."""
        storage = None if computes_itself(tensor) else storage_of(tensor)
        if storage is None:
            raise _NoBytesError
        known = self._known.get(storage.address)
        if known is None:
            known = self._known[storage.address] = FollowedStorage(tensor), Bytes(tensor, self._tally)
        return Part(None if known[1] is into else known[1], View.of(tensor))

    def _find(self, tensor: Tensor) -> Bytes | None:
        storage = storage_of(tensor)
        known = None if storage is None else self._known.get(storage.address)
        return None if known is None else known[1]

    def _note_reader(self, reader: Bytes, call: Call) -> None:
        for other, view in call.parts:
            other.readers.append((weakref.ref(reader), view))

    def _note_writes(self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What an operation is about to write into must not be missing later."""
        written = written_by(operator, args, kwargs)
        for tensor in written:
            found = self._find(tensor)
            if found is None:
                continue
            view = View.of(tensor)
            for reference, read in found.readers:
                reader = reference()
                if reader is None or reader.calls is None:
                    continue
                # Two that are made of each other's parts could never be made again.
                if found.calls is not None or overlap(read, view, found.nbytes):
                    bytes_of(reader)  # as long as what it is made of is there
            if found.calls is not None:
                again = torch.is_grad_enabled() and not self._differs and not moves_storage(operator)
                call = self._call(operator, args, kwargs, found) if again and len(written) == 1 else None
                if call is not None:
                    found.calls.append(call)
                    self._note_reader(found, call)
                else:
                    found.hold(tensor)
                    self._written.append(found)
                    found.note_write()
            elif found.storage is not None and found.storage._cdata == tensor.untyped_storage()._cdata:
                self._written.append(found)
                found.note_write()
            else:  # made again already: what is written is not those bytes any more
                del self._known[tensor.untyped_storage()._cdata]

    def _note_versions(self) -> None:
        for each in self._written:
            each.note_version()
        self._written.clear()

    def _meet(self, operator: Operator, args: tuple[Any, ...]) -> None:
        """The forward runs another operation than planned."""
        if self._place == 0 and self._between:
            return
        message = (
            f"the plan is for another forward: operation {self._place} is {operator}, planned was "
            f"{self._state.names[self._place]}"
        )
        known = self._state.leaves
        other_model = known.keys().isdisjoint(self._known) and not _leaves(args).keys() <= known.keys()
        if other_model or not self._state.matched:
            raise ValueError(f"{message}; plan again, with th.plan_mirror, for this one")
        self._differs = True
        note = f"From there on all is kept: {message}."
        if note not in self._tally.notes:
            self._tally.notes.append(note)
        warnings.warn(f"th.mirror: {note} Plan again if it is to stay so", stacklevel=2)

    def pack(self, tensor: Tensor) -> Packed:
        """What is to stand for a tensor that a node saves."""
        found = self._find(tensor)
        if found is None or found.calls is None:
            return detached(tensor), version_of(tensor)
        part = Part(found, View.of(tensor))
        if found.number in self._state.unverified:
            self._originals.setdefault(found, (tensor.untyped_storage(), []))[1].append(part.view)
        elif not found.saved:
            found.saved = True
            self._tally.note_drop(found)
        return part

    @property
    def is_over(self) -> bool:
        """Whether the forward has come to its end, as far as the plan knows."""
        return self._differs or self._place == len(self._state.operators)

    def end(self) -> None:
        """The forward is over: what was never made again is, once, and nothing more is expected of it."""
        self._note_versions()
        if not self._differs and self._place:
            self._state.matched = True
            self._tally.forwards += 1
        self._known.clear()
        self._place, self._differs, self._between = 0, False, True
        originals, self._originals = self._originals, {}
        self._verify(originals)

    def _verify(self, originals: dict[Bytes, tuple[torch.UntypedStorage, list[View]]]) -> None:
        """Makes bytes again of which the originals are there; those that come out the same are let go of."""

        def original_of(each: Bytes) -> torch.UntypedStorage | None:
            return originals[each][0] if each in originals else None

        state, banned = self._state, []
        for each, (original, views) in originals.items():
            try:
                made = made_again(each, original_of) if each.storage is None else each.storage
                reason = None if _same(made, original, views) else "other bits came out"
            except Exception as error:
                reason = f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            state.unverified.discard(each.number)
            if reason is None:
                self._tally.note_drop(each)
            else:
                each.storage, each.calls = original, None
                state.banned[each.number] = reason
                banned.append(each.number)
        if banned:
            warnings.warn(f"th.mirror: {banned_sentence(state.banned_storages(banned))}", stacklevel=2)

    def close(self, raised: bool) -> None:
        """The `with` block was left."""
        try:
            if not raised:
                self.end()
        finally:
            self._known.clear()
            self._originals.clear()
            self._written.clear()


def watching(plan: MirrorPlan) -> mirror:
    """A mirror that follows the forward even where the plan drops nothing, to see what that alone takes."""
    found = mirror(plan)
    found._idle = False
    return found


def _leaves(args: tuple[Any, ...]) -> dict[int, FollowedStorage]:
    """The storages of the parameters among the arguments, by address, which is theirs as long as they are followed."""
    found = {}
    for tensor in tensors_of(args):
        if tensor.requires_grad and tensor.is_leaf and (storage := storage_of(tensor)) is not None:
            found[storage.address] = FollowedStorage(tensor)
    return found


def _same(made: torch.UntypedStorage, original: torch.UntypedStorage, views: Sequence[View]) -> bool:
    """Whether these parts of the two are the same bits."""
    if made._cdata == original._cdata:
        return True
    with unobserved():
        return all(torch.equal(_bits(on_storage(made, view)), _bits(on_storage(original, view))) for view in set(views))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def banned_sentence(banned: Sequence[tuple[PlannedStorage, str]]) -> str:
    """`2 storages are kept though the plan drops them: ...`."""
    storages = "1 storage is" if len(banned) == 1 else f"{len(banned):,} storages are"
    reasons = [f"{each.operation}{f' in {each.module}' if each.module else ''} ({why})" for each, why in banned]
    return (
        f"{storages} kept though the plan drops {'it' if len(banned) == 1 else 'them'}, since running the operations "
        f"again that made {'it' if len(banned) == 1 else 'them'} was no use: {joined(reasons)}"
    )


def _pack(watching: weakref.ref[_Watch], tensor: Tensor) -> Packed:
    """The pack hook. Nodes keep it, so it must keep nothing."""
    watch = watching()
    return (detached(tensor), version_of(tensor)) if watch is None else watch.pack(tensor)


def _unpack(watching: weakref.ref[_Watch], packed: Packed) -> Tensor:
    """The unpack hook."""
    watch = watching()
    if watch is not None and watch.is_over:
        with _lock:
            watch.end()
    if isinstance(packed, Part):
        assert packed.bytes is not None, "what a node keeps has bytes"
        return on_storage(bytes_of(packed.bytes), packed.view)
    tensor, version = packed
    if version_of(tensor) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{described(View.of(tensor))} is at version {version_of(tensor)}; expected version {version} instead. "
            "It was saved under th.mirror; without it, PyTorch's message names its operation"
        )
    return tensor


keep_compiler_out(_pack)
keep_compiler_out(_unpack)
