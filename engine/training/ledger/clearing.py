"""Checks when gradients are cleared: never, between backward and step, or not before a second optimizer steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import Tensor
from torch.optim import Optimizer

from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import Place, users_place
from ....inspector.text.sizes_and_counts import counted
from ....inspector.torch_private.gradient_calls import watching_zero_grad
from ....inspector.torch_private.optimizer_steps import parameters_of
from ....inspector.torch_private.tensors import identity_of, version_of
from ..findings import Finding, FindingKind
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..norms import NormSums, TensorNorms, squares_by_tensor
from ..pending_graphs import at
from ..training_result import Training

_SURE = 3  # steps in a row after which a fault is reported


class _State(NamedTuple):
    """The tensor in a parameter's `.grad` at some time, and its version."""

    parameter: ReferenceType[Tensor]
    identity: int
    version: int

    def is_unchanged(self) -> bool:
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        return gradient is not None and (identity_of(gradient), version_of(gradient)) == self[1:]


def _states(parameters: Iterable[Tensor]) -> dict[int, _State]:
    return {
        id(each): _State(ref(each), identity_of(gradient), version_of(gradient))
        for each in parameters
        if (gradient := each.grad) is not None
    }


def _same(states: Mapping[int, _State]) -> dict[int, _State]:
    """Return the current states of the gradients that are still the same tensors, modified in place or not."""
    parameters = [parameter for state in states.values() if (parameter := state.parameter()) is not None]
    return {key: now for key, now in _states(parameters).items() if now.identity == states[key].identity}


@dataclass(slots=True)
class _Interval:
    """The gradients of an optimizer's parameters between two of its steps.

    Attributes:
        left: the gradients that only backwards have modified since the step; None: they are not followed.
        is_cleared: whether the optimizer's own `zero_grad` was called.
        norms: the norms of `left`, just before the last backward.
        backwards: the number of backwards that have run.
    """

    left: dict[int, _State] | None
    is_cleared: bool = False
    norms: list[TensorNorms] = field(default_factory=list)
    backwards: int = 0


@dataclass(slots=True)
class _Streak:
    """Consecutive steps of an optimizer that have the same fault.

    Attributes:
        first: the first of these steps.
        count: the number of these steps.
        parameters: the ids of the parameters that have the fault in all of them.
    """

    first: int
    count: int
    parameters: frozenset[int]


class _PendingStep(NamedTuple):
    """A step to check when the norms of its gradients have been computed."""

    kind: FindingKind
    optimizer: ReferenceType[Optimizer]
    step: int
    place: Place | None
    norms: list[TensorNorms]
    calls: tuple[str, ...]
    among: frozenset[int] = frozenset()  # parameters


class Clearing(LoopPart):
    """Follows when gradients are set to None or to zero.

    The version of a gradient shows whether it was modified in place. Its norm, which is read when it has been
    computed, shows whether it is zero, so nothing waits for an accelerator. The gradients of an optimizer are not
    checked if its own `zero_grad` was called since its step.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._thread = get_ident()
        self._sums = NormSums()
        self._number = 0
        self._intervals: WeakKeyDictionary[Optimizer, _Interval] = WeakKeyDictionary()
        self._streaks: dict[FindingKind, WeakKeyDictionary[Optimizer, _Streak]] = {}
        self._pending: deque[_PendingStep] = deque()
        self._with_gradient: frozenset[int] = frozenset()  # ids of parameters, when the last backward ended
        self._calls: list[tuple[str, Place | None]] = []  # calls of zero_grad since then: class and line
        self._is_after_backward = False
        self._backwards = 0  # number of backwards that have ended
        self._stepped_at: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # `_backwards` at its last step
        # The optimizer step that last updated each parameter since the last backward, by the id of the parameter.
        self._stepped: dict[int, tuple[ReferenceType[Optimizer], str, _State]] = {}

    def begins(self, training: Training) -> None:
        self._training = training
        self._stack.enter_context(watching_zero_grad(self._cleared))

    def step_begins(self, number: int) -> None:
        self._number = number

    def _cleared(self, owner: Any) -> None:
        if get_ident() != self._thread:
            return
        if self._is_after_backward:
            self._calls.append((type(owner).__name__, users_place()))
        interval = self._intervals.get(owner) if isinstance(owner, Optimizer) else None
        if interval is not None:
            interval.is_cleared = True

    def backward_begins(self, given: BackwardGiven) -> None:
        self._is_after_backward = False
        self._calls.clear()
        self._stepped.clear()
        for interval in self._intervals.values():
            interval.backwards += 1
            if interval.is_cleared or not interval.left:
                continue
            interval.left = {key: state for key, state in interval.left.items() if state.is_unchanged()}
            interval.norms = self._norms_of(interval.left)

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        taken = self._training.taken_norms
        if error is not None or taken is None:
            return
        self._is_after_backward = True
        self._with_gradient = taken.parameters
        for interval in self._intervals.values():
            if interval.left and not interval.is_cleared:
                interval.left = _same(interval.left)
        self._backwards += 1

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._read()
        held = parameters_of(optimizer)
        if self._is_after_backward and self._stepped_at.get(optimizer) != self._backwards:
            self._look_for_early_clearing(optimizer, held)
        interval = self._intervals.get(optimizer)
        if interval is None or not interval.backwards:
            return
        left = {} if interval.is_cleared else _same(interval.left or {})
        norms = interval.norms if left else []
        if left or optimizer in self._streaks.get("never cleared", ()):
            self._pending.append(
                _PendingStep("never cleared", ref(optimizer), self._number, users_place(), norms, (), frozenset(left))
            )
        if len(self._intervals) > 1:
            self._look_for_second_step(optimizer, held)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        before = self._intervals.get(optimizer)
        held = parameters_of(optimizer)
        is_followed = before is None or not before.is_cleared
        states = _states(held) if is_followed or len(self._intervals) > 1 else {}
        self._intervals[optimizer] = _Interval(states if is_followed else None)
        self._stepped_at[optimizer] = self._backwards
        if len(self._intervals) > 1:
            step = f"{type(optimizer).__name__}.step(){at(users_place())}"
            self._stepped.update({key: (ref(optimizer), step, state) for key, state in states.items()})

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self._intervals[optimizer] = _Interval(None)
        self._stepped_at[optimizer] = self._backwards

    def step_ends(self, number: int) -> None:
        self._read()

    def ends(self) -> None:
        self._stack.close()
        self._read()
        self._intervals.clear()
        self._pending.clear()
        self._stepped.clear()

    def _norms_of(self, states: Mapping[int, _State]) -> list[TensorNorms]:
        """Compute the norms of gradients, by the id of the parameter."""
        there = [(key, each.grad) for key, state in states.items() if (each := state.parameter()) is not None]
        found = [(key, gradient) for key, gradient in there if gradient is not None]
        return self._sums.take([gradient for _, gradient in found], [0] * len(found), keys=[key for key, _ in found])

    def _look_for_early_clearing(self, optimizer: Optimizer, held: list[Tensor]) -> None:
        """Look for gradients that the last backward computed and that are None or zero now."""
        had = [each for each in held if id(each) in self._with_gradient]
        there = [each for each in had if each.grad is not None]
        calls = tuple(f"{owner}.zero_grad(){at(place)}" for owner, place in dict.fromkeys(self._calls))
        if had and not there:
            self._extend_streak("cleared early", optimizer, self._number, frozenset(map(id, had)), users_place(), calls)
        elif there and calls:
            norms = self._norms_of(_states(there))
            self._pending.append(
                _PendingStep("cleared early", ref(optimizer), self._number, users_place(), norms, calls)
            )
        elif optimizer in self._streaks.get("cleared early", ()):
            self._extend_streak("cleared early", optimizer, self._number, frozenset(), None, ())

    def _look_for_second_step(self, optimizer: Optimizer, held: list[Tensor]) -> None:
        """Look for gradients that another optimizer has already used for a step."""
        same: set[int] = set()
        steps: dict[str, None] = {}
        for each in held if self._stepped else ():
            other, step, state = self._stepped.get(id(each), (None, "", None))
            if other is not None and state is not None and other() is not optimizer and state.is_unchanged():
                same.add(id(each))
                steps[step] = None
        if same or optimizer in self._streaks.get("stepped twice", ()):
            self._extend_streak("stepped twice", optimizer, self._number, frozenset(same), users_place(), tuple(steps))

    def _read(self) -> None:
        """Check the pending steps whose norms have been computed."""
        while self._pending and all(each.is_ready() for each in self._pending[0].norms):
            pending = self._pending.popleft()
            optimizer = pending.optimizer()
            if optimizer is None:
                continue
            squares = squares_by_tensor(pending.norms)
            if pending.kind == "cleared early":
                found = frozenset(squares) if squares and not any(squares.values()) else frozenset()
            else:
                found = frozenset(key for key, value in squares.items() if value and key in pending.among)
            self._extend_streak(pending.kind, optimizer, pending.step, found, pending.place, pending.calls)

    def _extend_streak(
        self,
        kind: FindingKind,
        optimizer: Optimizer,
        step: int,
        found: frozenset[int],
        place: Place | None,
        calls: tuple[str, ...],
    ) -> None:
        streaks = self._streaks.setdefault(kind, WeakKeyDictionary())
        streak = streaks.get(optimizer)
        parameters = found if streak is None else found & streak.parameters
        if not parameters:
            streaks.pop(optimizer, None)
            parameters, streak = found, None
        if not parameters:
            return
        streak = streaks[optimizer] = _Streak(
            step if streak is None else streak.first, 1 if streak is None else streak.count + 1, parameters
        )
        if streak.count >= _SURE:
            self._report(kind, optimizer, streak, step, place, calls)

    def _report(
        self,
        kind: FindingKind,
        optimizer: Optimizer,
        streak: _Streak,
        step: int,
        place: Place | None,
        calls: tuple[str, ...],
    ) -> None:
        held = parameters_of(optimizer)
        names = [self._training.watched.name_of(each) for each in held if id(each) in streak.parameters]
        known = [each for each in names if each is not None]
        which = joined(known) if known else counted(len(names), "parameter")
        title = type(optimizer).__name__
        covers_all = len(names) == len([each for each in held if id(each) in self._with_gradient])
        text = _TEXTS[kind].format(
            which=which,
            were="were" if len(names) > 1 else "was",
            count=streak.count,
            first=streak.first,
            step=f"{title}.step(){at(place)}",
            clear="optimizer.zero_grad()"
            if covers_all
            else "zero_grad() of the optimizer or the module that holds them",
            calls=joined(calls) if calls else "An assignment of None or zeros",
            clears="clear" if len(calls) > 1 else "clears",
        )
        self._training.add(
            Finding(
                kind, streak.first, text, tensor=known[0] if known else None, last_step=step, at=at(place)[4:] or None
            )
        )


_TEXTS: dict[FindingKind, str] = {
    "never cleared": (
        "The gradients of {which} are never cleared. In {count} consecutive steps from step {first} on, nothing set "
        "them to None or zero between {step} and the next backward, so each step uses the sum of all earlier "
        "gradients. What to do: call {clear} once per step, before the backward."
    ),
    "cleared early": (
        "{calls} {clears} the gradients of {which} between the backward and {step}, so from step {first} on the "
        "optimizer has no gradient to use. What to do: call zero_grad() before the backward, or after the step."
    ),
    "stepped twice": (
        "{which} {were} updated twice with the same gradient, from step {first} on: {calls} and {step} update the same "
        "parameters, and no backward runs between them. What to do: pass each parameter to one optimizer only."
    ),
}
