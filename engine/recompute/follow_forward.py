"""Following a forward along its plan: the storages it drops, and their substitutes in the nodes that save them."""

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
from ...inspector.capture.operator_traits import traits_of, written_by
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
)

Packed = Saved | tuple[Tensor, int]
"""The packed form of a saved tensor: a recomputable storage and a view of it, or the tensor itself and its version."""

Function = Callable[..., Any]
"""A function that a TorchFunctionMode intercepts, such as `torch.nn.functional.linear`."""


class RecomputeTally(ReplayTally):
    """Counts of dropped and recomputed storages.

    Attributes:
        forwards: number of forwards that ran as planned.
        dropped, dropped_bytes: number and size of the saved storages that were dropped.
        notes: deviations from the plan, as sentences.
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
    """A call of a torch function in the planned forward, such as `torch.nn.functional.linear`.

    Attributes:
        function: the function.
        begin, end: the range of its operations in the plan.
        drops: whether one of them makes a dropped storage or writes to one.
        saves: whether its nodes save a dropped storage.
        writes: whether its operations may write to an argument.
    """

    function: Function
    begin: int
    end: int
    drops: bool
    saves: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """The calls that run the operations of the planned forward, as far as it is inside the `with` block.

    Attributes:
        calls: calls of functions that run operations with gradients, in order.
        others: all other functions that it calls, such as those that read a shape.
        saves_between: whether custom Functions save a dropped storage outside of these calls.
    """

    calls: tuple[PlannedCall, ...]
    others: frozenset[Function]
    saves_between: bool


class PlanState:
    """The findings of a plan's forwards so far, shared by all its `with` blocks.

    Attributes:
        operators: the operators of the planned forward, in order.
        drops: by position of the operator, the (output, storage number) pairs to drop.
        unverified: storages that have not been recomputed and compared yet.
        banned: storages that are kept although the plan drops them, with the reason.
        matched: whether a forward has run as planned.
        leaves: the storages of the parameters of that forward, by address.
        calls: the calls that ran its operations; None if unknown or if calls cannot identify the operations.
        names: the names of the operators.
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
    """Raised for a tensor without its own storage, such as a sparse tensor."""


class ForwardFollower(SeenOperations):  # type: ignore[no-untyped-call]
    """Dispatch mode that follows the forwards of one `with` block along their plan, operation by operation.

    Attributes:
        hooks: the saved-tensor hooks that replace dropped tensors.
        place: the position of the next operation in the plan.
        call: the position of the next call, if calls are followed.
        differs: whether the forward has deviated from the plan; everything is kept from there on.
        between: whether one forward has ended and the next one has not begun.
        is_planned_model: whether this forward uses the parameters of the planned model; None if none was seen yet.
        drops, saves, writes: whether, since the caller reset them, an operation dropped a storage or wrote to one, a
            dropped storage was saved, or an operation may have written to an argument.
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
        # Keyed by address. The allocator may give the address of a freed storage to a new one, which would then be
        # mistaken for it; so each entry holds its bytes, or a FollowedStorage, which reserves the address alone.
        self._known: dict[int, tuple[FollowedStorage | None, Bytes]] = {}
        self._written: list[tuple[Bytes, Tensor | None]] = []  # by the last operation; versions not noted yet
        # The unverified storages, with which the recomputed bits are compared.
        self._originals: dict[Bytes, tuple[torch.UntypedStorage, list[View]]] = {}
        self._others_leaves: dict[int, FollowedStorage] = {}  # by address
        self._doubt: str | None = None  # the deviation, until it is known whether this is another model
        myself = weakref.ref(self)  # nodes hold the hooks, which must not hold the follower and its tensors
        self.hooks = saved_tensors_hooks(partial(_pack, myself), partial(_unpack, myself))

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._written:
            self.note_versions()
        state, drops = self._state, None
        if torch.is_grad_enabled():  # else it runs in a custom Function or under no_grad, which plans do not contain
            if self.place == len(state.operators):
                self.end()
            if not self.differs and state.operators and operator is state.operators[self.place]:
                drops = state.drops.get(self.place)
                if not self.is_planned_model:
                    self.note_model(args)
                self.place += 1
                self.between = False
            elif not self.differs:
                self._deviate(operator, args)
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
            # Undo the records of the writes of an operation that raised.
            for each, _ in self._written:
                each.writes.pop()
                if each.calls is not None:
                    each.calls.pop()
            raise

    def _drop(
        self, drops: list[tuple[int, int]], operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation, some of whose outputs are dropped."""
        if self._state.banned:
            drops = [each for each in drops if each[1] not in self._state.banned]
        early = not traits_of(operator).reads_nothing  # else its output says enough to recompute it
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
        """Record a call so that it can run again; None if an argument has no storage of its own, such as a sparse one.

        Args:
            into: the existing storage that it writes to, if any.
        """
        try:
            return FollowedCall(operator, args, kwargs, partial(self._argument, into))
        except _NoBytesError:
            return None

    def _argument(self, into: Bytes | None, tensor: Tensor) -> StorageView | Held:
        """Return the recorded form of an argument. A tensor that is not dropped is held."""
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
        """Return whether one of these tensors is dropped or an input of recomputation."""
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
            assert part.bytes is not None, "parts exclude the storage that the call writes to"
            shown = part.view if isinstance(part, StorageView) else part.tensor
            part.bytes.readers.append((reference, shown))

    def _note_writes(self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Prepare for an operation's writes: recompute or record now what could not be recomputed afterwards."""
        written = [args[0]] if traits_of(operator).writes_first else written_by(operator, args, kwargs)
        for tensor in written:
            found = self._find(tensor)
            if found is None:
                continue
            self.drops = True
            if found.is_behind(tensor):  # an unseen write came first: recomputation restores the older content
                del self._known[tensor.untyped_storage()._cdata]
                continue
            view = View.of(tensor)
            for reference, read in found.readers:
                reader = reference()
                if reader is None or reader.calls is None:
                    continue
                # The reader was computed from the old content, so it is recomputed while that is still there. It is so,
                # too, if the written storage is itself dropped: each would need the other to be recomputed first.
                part = View.of(read) if isinstance(read, Tensor) else read
                if found.calls is not None or overlap(part, view, found.nbytes):
                    bytes_of(reader)
            if found.calls is not None:
                again = torch.is_grad_enabled() and not self.differs and not traits_of(operator).moves_storage
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
            else:  # already recomputed: the tensor written to is no longer its storage
                del self._known[tensor.untyped_storage()._cdata]

    def note_versions(self) -> None:
        """Note the versions of the storages that the last operation wrote to."""
        for each, tensor in self._written:
            each.note_version(tensor)
        self._written.clear()

    def note_model(self, values: object) -> None:
        """Note whether the parameters among the arguments of a call belong to the planned model or to another.

        Raises:
            ValueError: if this is the forward of another model and it deviates from the plan.
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

    def _deviate(self, operator: Operator, args: tuple[Any, ...]) -> None:
        """Handle an operation other than the planned one; between forwards such operations are allowed."""
        if self.place == 0 and self.between:
            return
        if not self.is_planned_model:
            self.note_model(args)
        self.differ(f"operation {self.place} is {operator}, but the plan expects {self._state.names[self.place]}")

    def differ(self, how: str) -> None:
        """Keep all saved tensors from here on.

        Args:
            how: how the forward deviates from the plan.

        Raises:
            ValueError: if this is the forward of another model.
        """
        self.differs = True
        self._doubt = f"the plan was made for a different forward: {how}"
        if not self._state.matched:
            self.is_planned_model = False
        self._decide()

    def _decide(self, last: bool = False) -> None:
        """Raise for a forward of another model, or warn that the planned model deviates, once either is certain.

        Args:
            last: whether the forward is over, so that no more parameters will be seen.
        """
        if self._doubt is None or (self.is_planned_model is None and not last):
            return
        message, self._doubt = self._doubt, None
        if self.is_planned_model is False:
            raise ValueError(
                f"{message}; plan again for this one with ts.plan_recompute. For a trainer, which calls the model in "
                "its own way, use ts.recompute(budget=...)"
            )
        note = f"All later saved tensors are kept: {message}."
        if note not in self._tally.notes:
            self._tally.notes.append(note)
        warn(f"ts.recompute: {note} Plan again if the forward stays this way")

    def pack(self, tensor: Tensor) -> Packed:
        """Pack a tensor that a node saves."""
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
        """True if the forward has run all planned operations, or has deviated."""
        return self.differs or self.place == len(self._state.operators)

    def end(self) -> None:
        """End the forward: recompute unverified storages once, and expect the next forward."""
        self.note_versions()
        self._decide(last=True)
        # The forward ran as planned, so its parameters may be those of an equal model: accept them from now on.
        if not self.differs and self.place == len(self._state.operators):
            self._state.leaves.update(self._others_leaves)
        self._others_leaves.clear()
        if not self.differs and self.place:
            self._state.matched = True
            self._tally.forwards += 1
        # From here on only nodes hold dropped storages' records, so each is freed with the last node that needs it.
        self._known.clear()
        self.place, self.call, self.differs, self.between = 0, 0, False, True
        self.is_planned_model = None
        originals, self._originals = self._originals, {}
        self._verify(originals)

    def _verify(self, originals: dict[Bytes, tuple[torch.UntypedStorage, list[View]]]) -> None:
        """Recompute storages whose originals are alive, drop those with equal bits, and ban the others.

        Writes that PyTorch does not see (numpy, data_ptr) would silently give wrong gradients otherwise.
        """

        state, banned = self._state, []
        for each, (original, views) in originals.items():
            try:
                made = each.storage
                if made is None:
                    made = made_again(each, lambda other: originals[other][0] if other in originals else None)
                reason = None if _same(made, original, views) else "the recomputed bits differ"
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
        """Leave the `with` block."""
        try:
            if not raised:
                self.end()
        finally:
            self._known.clear()
            self._originals.clear()
            self._written.clear()


def _leaves(values: object) -> dict[int, FollowedStorage]:
    """Return the storages of the parameters among the arguments, by address. Following them reserves the addresses."""
    found = {}
    for tensor in tensors_of(values):
        if tensor.requires_grad and tensor.is_leaf and (storage := storage_of(tensor)) is not None:
            found[storage.address] = FollowedStorage(tensor)
    return found


def _same(made: torch.UntypedStorage, original: torch.UntypedStorage, views: Sequence[View]) -> bool:
    """Return whether the given parts of two storages have equal bits."""
    if made._cdata == original._cdata:
        return True
    with unobserved():
        return all(torch.equal(_bits(on_storage(made, view)), _bits(on_storage(original, view))) for view in set(views))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def banned_sentence(banned: Sequence[tuple[PlannedStorage, str]]) -> str:
    """Return a sentence such as `2 storages are kept although the plan drops them: ...`, without its period."""
    storages = "1 storage is" if len(banned) == 1 else f"{len(banned):,} storages are"
    reasons = [f"{each.operation}{f' in {each.module}' if each.module else ''} ({why})" for each, why in banned]
    return (
        f"{storages} kept although the plan drops {'it' if len(banned) == 1 else 'them'}, because recomputing "
        f"{'it' if len(banned) == 1 else 'them'} failed: {joined(reasons)}"
    )


def _pack(watching: weakref.ref[ForwardFollower], tensor: Tensor) -> Packed:
    """Pack a tensor; the pack hook."""
    watch = watching()
    return (at_hand(tensor), version_of(tensor)) if watch is None else watch.pack(tensor)


def _unpack(watching: weakref.ref[ForwardFollower], packed: Packed) -> Tensor:
    """Return the saved tensor, recomputed if it was dropped; the unpack hook."""
    watch = watching()
    # The first unpack shows that the forward is over, also inside the `with` block. The engine runs one thread for each
    # device (Engine::start_device_threads in torch/csrc/autograd/engine.cpp), hence the lock.
    if watch is not None and watch.is_over:
        with _lock:
            watch.end()
    if isinstance(packed, Saved):
        if packed.is_stale:
            raise _modified(packed.view, "was written to after it was saved")
        return on_storage(bytes_of(packed.bytes), packed.view)
    tensor, version = packed
    # Hooks turn off the version check of SavedVariable::unpack (torch/csrc/autograd/saved_variable.cpp), so it is done
    # here.
    if version_of(tensor) != version:
        how = f"is at version {version_of(tensor)}; expected version {version} instead"
        raise _modified(View.of(tensor), how)
    return tensor


def _modified(view: View, how: str) -> RuntimeError:
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{described(view)} {how}. It was saved under ts.recompute; run without it and PyTorch names the operation"
    )


keep_compiler_out(_pack)
keep_compiler_out(_unpack)
