"""Following a forward along its plan: what is dropped, and what stands for it in the nodes that save it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...inspector.capture.forward_program import WHOLE, overlap
from ...inspector.capture.operator_traits import moves_storage, traits_of, written_by
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.operators import Operator, SeenOperations, operator_named
from ...inspector.torch_private.tensors import (
    FollowedStorage,
    View,
    bytes_below,
    computes_itself,
    has_view,
    on_storage,
    storage_of,
    version_of,
)
from ...inspector.torch_private.thread_state import unobserved
from .plan import PlannedStorage, RecomputePlan
from .replay_operations import (
    Bytes,
    FollowedCall,
    Held,
    ReplayTally,
    Saved,
    StorageView,
    at_hand,
    bytes_of,
    described,
    made_again,
    view_of,
)

Packed = Saved | tuple[Tensor, int]
"""What stands for a saved tensor: its bytes, to be made again, or it itself with the version that it had."""

Function = Callable[..., Any]
"""What a TorchFunctionMode is called with: `torch.nn.functional.linear`."""


class RecomputeTally(ReplayTally):
    """Counts what is dropped, too.

    Attributes:
        forwards: how many ran as planned.
        dropped: how many storages that nodes save were let go of; dropped_bytes: their sizes.
        notes: what did not go as planned, in sentences.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0
        self.dropped = 0
        self.dropped_bytes = 0
        self.notes: list[str] = []

    def note_drop(self, dropped: Bytes) -> None:
        self.dropped += 1
        self.dropped_bytes += dropped.nbytes


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a torch function in the planned forward: `torch.nn.functional.linear`.

    Attributes:
        function: what is called.
        begin, end: its operations' places in the plan.
        drops: some of what they make is dropped, or they write into such.
        saves: its nodes save something that is dropped.
        writes: its operations may write into an argument.
    """

    function: Function
    begin: int
    end: int
    drops: bool
    saves: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """The calls in which the planned forward runs its operations, or as much of it as is in the `with` block.

    Attributes:
        calls: those of functions that run operations with gradients, in order.
        others: the functions which it calls besides, such as those that read a shape.
        saves_between: custom Functions save something that is dropped.
    """

    calls: tuple[PlannedCall, ...]
    others: frozenset[Function]
    saves_between: bool


class PlanState:
    """What is known of a plan besides what it says.

    Attributes:
        operators: what it expects to run.
        drops: by place among them, what is let go of: (output, number of the storage).
        unverified: the storages that were never made again.
        banned: those that are kept all the same, with the reason.
        matched: a forward has run as planned.
        leaves: by address the storages of the parameters that it used.
        calls: in which calls it ran; None: that is not known, or no way to follow it.
    """

    def __init__(self, plan: RecomputePlan) -> None:
        self.operators = [operator_named(name) for name in plan.operations]
        self.drops: dict[int, list[tuple[int, int]]] = {}
        for each in plan.storages:
            if each.is_dropped:
                self.drops.setdefault(each.made_by, []).append((each.output, each.number))
        self.unverified = {each.number for each in plan.storages if each.fate == "dropped"}
        self.banned: dict[int, str] = {}
        self.matched = False
        self.leaves: dict[int, FollowedStorage] = {}
        self.calls: PlannedCalls | None = None
        self.names = plan.operations
        self._storages = {each.number: each for each in plan.storages}

    def banned_storages(self, numbers: Iterable[int]) -> tuple[tuple[PlannedStorage, str], ...]:
        return tuple((self._storages[number], self.banned[number]) for number in numbers)


_states: weakref.WeakKeyDictionary[RecomputePlan, PlanState] = weakref.WeakKeyDictionary()
_lock = RLock()


def state_of(plan: RecomputePlan) -> PlanState:
    with _lock:
        found = _states.get(plan)
        if found is None:
            found = _states[plan] = PlanState(plan)
        return found


class _NoBytesError(Exception):
    """A tensor has no bytes of its own."""


class ForwardFollower(SeenOperations):  # type: ignore[no-untyped-call]
    """Follows the forwards of one `with` block along their plan, operation by operation while it is open.

    Attributes:
        hooks: what stands for saved tensors while they are open, too.
        place: of the next operation in the plan.
        call: of the next call, where calls are followed.
        differs: the forward is not the planned one; from there on all is kept.
        between: one forward has run, and the next has not begun.
        is_planned_model: whether the parameters seen in this forward are the plan's; None: none was seen.
        drops, saves, writes: an operation dropped something or wrote into such; a dropped one was saved; an operation
            may have written into an argument. For whoever sets them to False.
    """

    def __init__(self, state: PlanState, tally: RecomputeTally) -> None:
        super().__init__()
        self.place = 0
        self.call = 0
        self.differs = False
        self.between = False
        self.is_planned_model: bool | None = None
        self.drops = self.saves = self.writes = False
        self._state = state
        self._tally = tally
        # By address, which can't become another's as long as the bytes are kept, or followed.
        self._known: dict[int, tuple[FollowedStorage | None, Bytes]] = {}
        self._written: list[tuple[Bytes, Tensor | None]] = []  # by the operation before
        self._originals: dict[Bytes, tuple[torch.UntypedStorage, list[View]]] = {}  # to compare with
        self._others_leaves: dict[int, FollowedStorage] = {}  # by address, as those of the planned model
        self._doubt: str | None = None  # how the forward differs, while it may be another model's
        myself = weakref.ref(self)  # nodes keep the hooks, so these must keep nothing
        self.hooks = saved_tensors_hooks(partial(_pack, myself), partial(_unpack, myself))

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._written:
            self.note_versions()
        state, drops = self._state, None
        if torch.is_grad_enabled():  # else it is of a custom Function, or under no_grad: not planned
            if self.place == len(state.operators):
                self.end()
            if not self.differs and state.operators and operator is state.operators[self.place]:
                drops = state.drops.get(self.place)
                if not self.is_planned_model:
                    self.note_model(args)
                self.place += 1
                self.between = False
            elif not self.differs:
                self._meet(operator, args)
            elif self._doubt is not None:
                self.note_model(args)
        if traits_of(operator).may_write:
            self.writes = True
            self._note_writes(operator, args, kwargs)
        try:
            if drops is None:
                return operator(*args, **kwargs)
            self.drops = True
            return self._drop(drops, operator, args, kwargs)
        except BaseException:
            self._forget_writes()
            raise

    def _drop(
        self, drops: list[tuple[int, int]], operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs an operation some of whose results are let go of."""
        if self._state.banned:
            drops = [each for each in drops if each[1] not in self._state.banned]
        early = not traits_of(operator).reads_nothing  # else what it is called with matters less than what it gives
        call = self._call(operator, args, kwargs) if drops and early else None
        result = operator(*args, **kwargs)
        if drops and not early:
            call = FollowedCall(operator, args, kwargs, partial(self._argument, None), result)
        if call is None:
            return result
        for output, number in drops:
            tensor = result if output == WHOLE else result[output]
            storage = bytes_below(tensor)
            if storage is not None and storage._cdata not in self._known:
                made = Bytes(tensor, storage, self._tally, call, number)
                call.outputs.append((output, weakref.ref(made)))
                self._note_reader(made, call)
                self._known[storage._cdata] = FollowedStorage(tensor), made
        return result

    def _call(
        self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], into: Bytes | None = None
    ) -> FollowedCall | None:
        """An operation as it may run again; None where it takes a tensor without bytes of its own, such as a sparse.

        Args:
            into: what it writes into, if that was there before.
        """
        try:
            return FollowedCall(operator, args, kwargs, partial(self._argument, into))
        except _NoBytesError:
            return None

    def _argument(self, into: Bytes | None, tensor: Tensor) -> StorageView | Held:
        """An argument of an operation that may run again. What is not dropped is held."""
        storage = bytes_below(tensor) if has_view(tensor) and not computes_itself(tensor) else None
        if storage is None:
            raise _NoBytesError
        known = self._known.get(storage._cdata)
        if known is None or known[1].is_behind(tensor):
            found = Bytes(tensor, storage, self._tally)
            self._known[storage._cdata] = None, found
            return found.first_argument()
        return StorageView(None, View.of(tensor)) if known[1] is into else known[1].argument(tensor)

    def _find(self, tensor: Tensor) -> Bytes | None:
        storage = bytes_below(tensor)
        known = None if storage is None else self._known.get(storage._cdata)
        return None if known is None else known[1]

    def knows_any(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether one of these tensors has bytes that are dropped, or that a replay reads."""
        for each in args:
            if isinstance(each, Tensor):
                if self._find(each) is not None:
                    return True
            elif isinstance(each, list | tuple) and any(self._find(tensor) is not None for tensor in tensors_of(each)):
                return True
        return bool(kwargs) and self.knows_any(tuple(kwargs.values()), {})

    def _note_reader(self, reader: Bytes, call: FollowedCall) -> None:
        reference = weakref.ref(reader)
        for part in call.parts:
            assert part.bytes is not None, "it is not what the call writes into"
            shown = part.view if isinstance(part, StorageView) else part.tensor
            part.bytes.readers.append((reference, shown))

    def _note_writes(self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What an operation is about to write into must not be missing later."""
        written = [args[0]] if traits_of(operator).writes_first else written_by(operator, args, kwargs)
        for tensor in written:
            found = self._find(tensor)
            if found is None:
                continue
            self.drops = True
            if found.is_behind(tensor):  # what replays make is what it was before
                del self._known[tensor.untyped_storage()._cdata]
                continue
            view = View.of(tensor)
            for reference, read in found.readers:
                reader = reference()
                if reader is None or reader.calls is None:
                    continue
                # Two that are made of each other's parts could never be made again.
                if found.calls is not None or overlap(view_of(read), view, found.nbytes):
                    bytes_of(reader)  # as long as what it is made of is there
            if found.calls is not None:
                again = torch.is_grad_enabled() and not self.differs and not moves_storage(operator)
                call = self._call(operator, args, kwargs, found) if again and len(written) == 1 else None
                if call is not None:
                    found.calls.append(call)
                    self._note_reader(found, call)
                else:
                    found.hold(tensor)
                self._written.append((found, tensor))
                found.note_write(view)
            elif found.storage is not None and found.storage._cdata == tensor.untyped_storage()._cdata:
                self._written.append((found, tensor))
                found.note_write(view)
            else:  # made again already: what is written is not those bytes any more
                del self._known[tensor.untyped_storage()._cdata]

    def _forget_writes(self) -> None:
        """The operation raised instead of writing."""
        for each, _ in self._written:
            each.writes.pop()
            if each.calls is not None:
                each.calls.pop()

    def note_versions(self) -> None:
        """What was written into is written."""
        for each, tensor in self._written:
            each.note_version(tensor)
        self._written.clear()

    def note_model(self, values: object) -> None:
        """Whether the arguments of a call are parameters of the model that was planned for, or another's.

        Raises:
            ValueError: another's, in a forward that differs from the planned one.
        """
        state = self._state
        leaves = _leaves(values)
        if not leaves:
            return
        if not state.matched:
            state.leaves.update(leaves)
        elif not leaves.keys().isdisjoint(state.leaves):
            self.is_planned_model = True
        else:
            self.is_planned_model = False
            self._others_leaves.update(leaves)
        self._decide()

    def _meet(self, operator: Operator, args: tuple[Any, ...]) -> None:
        """The forward runs another operation than planned."""
        if self.place == 0 and self.between:
            return
        if not self.is_planned_model:
            self.note_model(args)
        self.differ(f"operation {self.place} is {operator}, planned was {self._state.names[self.place]}")

    def differ(self, how: str) -> None:
        """From here on all is kept.

        Raises:
            ValueError: it is another model's forward.
        """
        self.differs = True
        self._doubt = f"the plan is for another forward: {how}"
        if not self._state.matched:
            self.is_planned_model = False
        self._decide()

    def _decide(self, last: bool = False) -> None:
        """Refuses another model's forward, and warns of one that takes another way, as soon as it is known which."""
        if self._doubt is None or (self.is_planned_model is None and not last):
            return
        message, self._doubt = self._doubt, None
        if self.is_planned_model is False:
            raise ValueError(
                f"{message}; plan again, with ts.plan_recompute, for this one. A trainer calls a model in a way of its "
                "own: ts.recompute(budget=...) plans where it does"
            )
        note = f"From there on all is kept: {message}."
        if note not in self._tally.notes:
            self._tally.notes.append(note)
        warn(f"ts.recompute: {note} Plan again if it is to stay so")

    def pack(self, tensor: Tensor) -> Packed:
        """What is to stand for a tensor that a node saves."""
        found = self._find(tensor)
        if found is None or found.calls is None or found.is_behind(tensor) or not has_view(tensor):
            return at_hand(tensor), version_of(tensor)
        self.saves = True
        view = View.of(tensor)
        if found.number in self._state.unverified:
            self._originals.setdefault(found, (tensor.untyped_storage(), []))[1].append(view)
        elif not found.saved:
            found.saved = True
            self._tally.note_drop(found)
        return Saved(found, view, len(found.writes))

    @property
    def is_over(self) -> bool:
        """Whether the forward has come to its end, as far as the plan knows."""
        return self.differs or self.place == len(self._state.operators)

    def end(self) -> None:
        """The forward is over: what was never made again is, once, and nothing more is expected of it."""
        self.note_versions()
        self._decide(last=True)
        if not self.differs and self.place == len(self._state.operators):  # so the model may be another of its kind
            self._state.leaves.update(self._others_leaves)
        self._others_leaves.clear()
        if not self.differs and self.place:
            self._state.matched = True
            self._tally.forwards += 1
        self._known.clear()
        self.place, self.call, self.differs, self.between = 0, 0, False, True
        self.is_planned_model = None
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
            warn(f"ts.recompute: {banned_sentence(state.banned_storages(banned))}")

    def close(self, raised: bool) -> None:
        """The `with` block was left."""
        try:
            if not raised:
                self.end()
        finally:
            self._known.clear()
            self._originals.clear()
            self._written.clear()


def _leaves(values: object) -> dict[int, FollowedStorage]:
    """The storages of the parameters among the arguments, by address, which is theirs as long as they are followed."""
    found = {}
    for tensor in tensors_of(values):
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
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def banned_sentence(banned: Sequence[tuple[PlannedStorage, str]]) -> str:
    """`2 storages are kept though the plan drops them: ...`."""
    storages = "1 storage is" if len(banned) == 1 else f"{len(banned):,} storages are"
    reasons = [f"{each.operation}{f' in {each.module}' if each.module else ''} ({why})" for each, why in banned]
    return (
        f"{storages} kept though the plan drops {'it' if len(banned) == 1 else 'them'}, since running the operations "
        f"again that made {'it' if len(banned) == 1 else 'them'} was no use: {joined(reasons)}"
    )


def _pack(watching: weakref.ref[ForwardFollower], tensor: Tensor) -> Packed:
    """The pack hook."""
    watch = watching()
    return (at_hand(tensor), version_of(tensor)) if watch is None else watch.pack(tensor)


def _unpack(watching: weakref.ref[ForwardFollower], packed: Packed) -> Tensor:
    """The unpack hook."""
    watch = watching()
    if watch is not None and watch.is_over:
        with _lock:
            watch.end()
    if isinstance(packed, Saved):
        if packed.is_stale:
            raise _modified(packed.view, "was written into after it was saved")
        return on_storage(bytes_of(packed.bytes), packed.view)
    tensor, version = packed
    if version_of(tensor) != version:
        how = f"is at version {version_of(tensor)}; expected version {version} instead"
        raise _modified(View.of(tensor), how)
    return tensor


def _modified(view: View, how: str) -> RuntimeError:
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{described(view)} {how}. It was saved under ts.recompute; without it, PyTorch's message names its operation"
    )


keep_compiler_out(_pack)
keep_compiler_out(_unpack)
