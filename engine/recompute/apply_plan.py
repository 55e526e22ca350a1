"""Running forwards under a plan: saved tensors are dropped, and recomputed when the backward needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...inspector.capture.interrupt_safe_stack import Opened, hooks_opened, refuse_disabled_hooks
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.checkpoints import hidden_from_checkpoints
from ...inspector.torch_private.compiled import compiled_code_refused, keep_compiler_out
from ...inspector.torch_private.engine import in_backward
from ...inspector.torch_private.thread_state import (
    close_hooks,
    close_mode,
    hooks_are_enabled,
    open_hooks,
    open_mode,
    open_pack_hook,
)
from .follow_forward import (
    ForwardFollower,
    Function,
    PlannedCall,
    PlannedCalls,
    PlanState,
    RecomputeTally,
    state_of,
)
from .plan import RecomputePlan
from .recompute_report import RecomputeReport


def followed(
    state: PlanState, tally: RecomputeTally
) -> tuple[ForwardFollower, list[AbstractContextManager[object]], _LearnedCalls | _FollowedCalls]:
    """Return the mode that follows a forward along its plan, the context managers to enter for it, and the last of
    them, which sees the calls."""
    watch = ForwardFollower(state, tally)
    hidden = hidden_from_checkpoints(watch.hooks)
    if state.calls is None:
        learned = _LearnedCalls(state, watch)
        return watch, [hidden, hooks_opened(watch.hooks, "ts.recompute"), watch, learned], learned
    # A checkpoint around the block counts the saved tensors, so it has to see all of them or none. That is why the
    # hooks are open for the whole block if another pack hook is active, and else only in the calls that need them.
    hooks = (
        [hooks_opened(watch.hooks, "ts.recompute")] if state.calls.saves_between or open_pack_hook() is not None else []
    )
    calls = _FollowedCalls(state, state.calls, watch)
    return watch, [hidden, *hooks, calls], calls


class _LearnedCalls(TorchFunctionMode):
    """Function mode that learns which torch functions run the planned operations, and stores them in the plan's state.

    Later forwards then follow only those calls, because a dispatch mode over a whole forward costs 9 to 26 µs for each
    operation. `watch` is active meanwhile.
    """

    def __init__(self, state: PlanState, watch: ForwardFollower) -> None:
        super().__init__()
        self._state = state
        self._watch = watch
        self._calls: list[PlannedCall] = []
        self._saves_between = False
        self._learns = bool(state.operators)
        self._learned: PlannedCalls | None = None  # the calls of the current or last forward
        self.is_used = False  # whether this thread has called a function of torch

    def __torch_function__(
        self, function: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.is_used = True
        self._note_late_saves()
        if not self._learns or not torch.is_grad_enabled() or in_backward():
            return function(*args, **kwargs)
        watch, calls = self._watch, self._calls
        begin = watch.place
        if watch.drops or begin != (calls[-1].end if calls else 0):  # an operation ran outside of any call
            self._learns = False
        self._saves_between |= watch.saves
        watch.drops = watch.saves = watch.writes = False
        result = function(*args, **kwargs)
        calls.append(PlannedCall(function, begin, watch.place, watch.drops, watch.saves, watch.writes))
        watch.drops = watch.saves = False
        if watch.differs:
            self._learns = False
        if self._learns and watch.place == len(self._state.operators):
            self._learns = False
            self._learned = self._state.calls = self._planned()
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._note_late_saves()
        watch = self._watch
        learns = self._learns and kind is None and not watch.differs and not watch.drops
        if learns and self._calls and 0 < watch.place == self._calls[-1].end:  # the block ends before the loss
            self._saves_between |= watch.saves
            self._state.calls = self._planned()
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def _note_late_saves(self) -> None:
        """Note whether custom Functions save a dropped tensor after the last planned operation."""
        if self._watch.place != len(self._state.operators):
            self._learned = None
        elif self._learned is not None and self._watch.saves:
            self._state.calls = replace(self._learned, saves_between=True)

    def _planned(self) -> PlannedCalls:
        functions = {each.function for each in self._calls}
        running = {each.function for each in self._calls if each.end > each.begin or each.drops or each.saves}
        calls = tuple(each for each in self._calls if each.function in running)
        return PlannedCalls(calls, frozenset(functions - running), self._saves_between)


class _FollowedCalls(TorchFunctionMode):
    """Function mode that activates `watch` and its hooks only in calls that drop, save or write planned tensors."""

    def __init__(self, state: PlanState, planned: PlannedCalls, watch: ForwardFollower) -> None:
        super().__init__()
        self._state = state
        self._planned = planned
        self._watch = watch
        self._hook: object = None
        self.is_used = False  # whether this thread has called a function of torch

    def __enter__(self) -> _FollowedCalls:
        self._hook = open_pack_hook()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, function: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.is_used = True
        planned, watch = self._planned, self._watch
        if function in planned.others or in_backward():
            return function(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._unplanned(function, args, kwargs)
        if not watch.is_planned_model:
            watch.note_model((args, kwargs))
        if watch.differs:
            return self._unplanned(function, args, kwargs)
        if watch.call == len(planned.calls):
            watch.end()
        call = planned.calls[watch.call]
        if function is not call.function and function != call.function:
            return self._other(function, call, args, kwargs)
        watch.call += 1
        watch.between = False
        # Keywords may also ask for an in-place write: relu(x, inplace=True), add(x, y, out=z).
        writes = call.writes or bool(kwargs.get("inplace")) or kwargs.get("out") is not None
        if not call.drops and not call.saves and not (writes and watch.knows_any(args, kwargs)):
            result = function(*args, **kwargs)
            watch.place = call.end
            return result
        return self._followed(function, call, call.drops or writes, args, kwargs)

    def _followed(
        self, function: Function, call: PlannedCall, watched: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a call in which the plan drops, saves or writes tensors.

        Args:
            watched: whether to follow its operations one by one.
        """
        watch = self._watch
        watch.place = call.begin
        # Only the innermost of nested hooks pack a tensor (PyDefaultSavedVariableHooks::get_hooks in
        # torch/csrc/autograd/python_saved_variable_hooks.cpp): inside the user's hooks no tensor can be dropped.
        saves = call.saves and hooks_are_enabled() and open_pack_hook() is self._hook
        if saves:
            open_hooks(watch.hooks.pack_hook, watch.hooks.unpack_hook)
        try:
            if watched:
                open_mode(watch)
                try:
                    result = function(*args, **kwargs)
                finally:
                    close_mode(None)
            else:
                result = function(*args, **kwargs)
        finally:
            if saves:
                close_hooks()
        watch.note_versions()
        if not watched:
            watch.place = call.end
        elif watch.place != call.end and not watch.differs and not watch.between:
            watch.differ(
                f"{_name(function)} ends at operation {watch.place}, but the plan expects it to end at {call.end}"
            )
        return result

    def _unplanned(self, function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call that drops nothing; it may write to dropped storages or to inputs of recomputation."""
        watch = self._watch
        if not watch.knows_any(args, kwargs):
            return function(*args, **kwargs)
        with watch:
            result = function(*args, **kwargs)
        watch.note_versions()
        return result

    def _other(self, function: Function, call: PlannedCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call that is not the next planned one. It matters only if it runs an operation of the plan."""
        watch, state = self._watch, self._state
        if watch.between:
            if self._planned.calls[-1].end < len(state.operators):
                state.calls = None  # this block contains more of the forward than the one before: learn again
            return function(*args, **kwargs)
        begin = watch.place
        with watch:
            result = function(*args, **kwargs)
        watch.note_versions()
        if watch.place != begin and not watch.differs:
            watch.differ(f"operation {begin} is run by {_name(function)}, but the plan expects {_name(call.function)}")
        return result


def _name(function: Function) -> str:
    return str(getattr(function, "__name__", function))


for _mode in (_LearnedCalls, _FollowedCalls):
    keep_compiler_out(_mode.__torch_function__)


class apply_plan:
    """Context manager behind `ts.recompute(plan)`; see there for its guarantees and errors."""

    def __init__(self, plan: RecomputePlan) -> None:
        self.plan = plan
        self._idle = not plan.dropped
        self._tally = RecomputeTally()
        self._opened: Opened | None = None
        self._calls: _LearnedCalls | _FollowedCalls | None = None  # while it is open

    def __repr__(self) -> str:
        return f"<recompute: {self.plan}>"

    def __enter__(self) -> apply_plan:
        if self._opened is not None:
            raise RuntimeError("this ts.recompute block is already entered; create another one with ts.recompute(plan)")
        if self._idle:
            return self
        watch, contexts, self._calls = followed(state_of(self.plan), self._tally)
        self._opened = Opened(self, partial(_enter, contexts, watch))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._idle:
            return
        opened, self._opened = self._opened, None
        assert opened is not None, "the block was not entered"
        calls, self._calls = self._calls, None
        opened.close(kind, error, traceback)
        if error is None and calls is not None and not calls.is_used:
            warn(
                "ts.recompute dropped nothing: this thread called no function of torch inside the block. If the "
                "forward runs in another thread, open the block there"
            )

    @property
    def report(self) -> RecomputeReport:
        """The counts so far, including recomputation in backwards after the `with` block."""
        tally, state = self._tally, state_of(self.plan)
        return RecomputeReport(
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


def _enter(contexts: Iterable[AbstractContextManager[object]], watch: ForwardFollower, stack: ExitStack) -> None:
    # Pushed first, so it runs last: once the hooks are closed, no tensor is packed and the forward is over.
    stack.push(lambda kind, error, traceback: watch.close(raised=error is not None))
    refuse_disabled_hooks("ts.recompute")
    stack.enter_context(compiled_code_refused("ts.recompute cannot follow it"))
    for each in contexts:
        stack.enter_context(each)
