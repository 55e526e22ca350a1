"""The interface of a training loop's observers, and the follower that calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.optim import Optimizer

from ...inspector.graph.node_metadata import nodes_of
from ...inspector.torch_private.allocators import left_out_of_recording
from ...inspector.torch_private.nodes import notes_on
from ...inspector.torch_private.optimizer_steps import has_hooks, optimizers_alive, stepping_for
from ...inspector.torch_private.tensors import beneath_all_transforms
from ...inspector.torch_private.thread_state import (
    autocast_is_on,
    function_mode_is_on,
    functorch_is_active,
    unobserved,
)
from ..api.environment import Autocast, autocast_now
from ..session.error_notes.explain_error import explain_error
from .follow_loop import BackwardGiven, LoopFollower, RunBackward
from .pending_graphs import MODULE
from .training_result import Training


class LoopPart:
    """An observer of a training loop. Its methods are called in the loop's thread, `unobserved`.

    An error is noted once and never raised into the loop. An observer is made without arguments for each training. It
    keeps only weak references to the loop's tensors, because a strong one would keep them alive.
    """

    def begins(self, training: Training) -> None:
        """Watching begins: install hooks here."""

    def step_begins(self, number: int) -> None:
        """A step begins; steps are counted from 0. If no optimizers were passed, and one that exists never steps, the
        end of the first step is noticed late: when another optimizer steps again.
        """

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        """An outermost module is called with grad mode on, also in an optimizer's closure or in a torch.func transform.
        `given` are its arguments without the transform's wrappers.
        """

    def forward_ends(self, module: nn.Module, result: object) -> None: ...

    def backward_begins(self, given: BackwardGiven) -> None:
        """An outermost backward begins, with these tensors, gradients, retain_graph, create_graph and inputs."""

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None: ...

    def gradients_begin(self, outputs: Sequence[Tensor | GradientEdge]) -> None:
        """torch.autograd.grad is called with these outputs, or a backward inside a backward or of another thread.

        It may be called in any thread."""

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """The gradients are complete and no parameter is updated yet. A step with a closure has run it once."""

    def optimizer_ends(self, optimizer: Optimizer) -> None: ...

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler skipped its step."""

    def step_ends(self, number: int) -> None: ...

    def failed(self, error: BaseException) -> None:
        """An exception leaves the `with` block or a backward."""

    def ends(self) -> None:
        """Watching ends: remove the hooks, and release all objects of the loop."""


class TrainingWatch(LoopFollower):
    """Follows a loop and calls its observers.

    A step ends at the first forward or backward after all known optimizers have stepped, or when one of them steps
    again. The known optimizers are those passed to `ts.training`; without any, those seen so far, and in the first step
    all that are alive. After `next_step` has been called once, only it ends steps.

    Args:
        training: the result; findings are added to it.
        parts: the observers, in the order in which they are called. One that raises is no longer called, except `ends`.
        modules: the modules to watch; none: all.
        optimizers: the optimizers to watch, or wrappers of them; none: all.

    Attributes:
        number: the number of the current step, from 0.
        stepped: the optimizers that have stepped in it, or whose step was skipped.
    """

    def __init__(
        self,
        training: Training,
        parts: Sequence[LoopPart],
        modules: Iterable[nn.Module] = (),
        optimizers: Iterable[Optimizer] = (),
    ) -> None:
        super().__init__()
        self.number = 0
        self.stepped: WeakSet[Optimizer] = WeakSet()
        self._has_stepped = False  # whether an optimizer has stepped in this step; it may have been freed since
        self._training = training
        self._parts, self._all_parts = list(parts), list(parts)
        # For each method: the observers that override it, and their bound methods.
        self._overriding: dict[str, list[tuple[LoopPart, Callable[..., None]]]] = {}
        self._modules: WeakSet[nn.Module] = WeakSet(each for module in modules for each in module.modules())
        self._around: WeakSet[nn.Module] = WeakSet()  # modules that contain one of the passed modules
        self._unwatched: WeakSet[nn.Module] = WeakSet()
        # For each passed optimizer or wrapper: the optimizers whose steps it runs.
        self._given: list[WeakSet[Optimizer]] = [WeakSet(stepping_for(each)) for each in optimizers]
        self._known: WeakSet[Optimizer] = WeakSet()
        self._alive: WeakSet[Optimizer] | None = None
        self._by_hand = False
        self._owes_optimizer_begins = False  # `optimizer_begins` is still to be called, after the closure
        self._last_failure = 0  # the id of an exception, until the next backward
        self._notified_since: int | None = None  # when the call of observers under way began
        self._observers_ns = 0

    def start(self, stack: ExitStack) -> None:
        """Begin, and install the hooks; closing the stack removes them."""
        stack.callback(self._end_observers)
        self._notify("begins", self._training)
        self.install_hooks(stack)
        self._notify("step_begins", self.number)

    def _end_observers(self) -> None:
        self._over = True
        with unobserved():
            for part in self._all_parts:
                try:
                    part.ends()
                except Exception as error:
                    self._note_error(part, error)
        self._all_parts.clear()
        self._parts.clear()
        self._overriding.clear()
        self._training.marks.clear()

    def end(self, error: BaseException | None) -> None:
        """End the loop, and its last step if an optimizer has stepped in it. `error`: the exception that ended it."""
        if error is not None:
            self._failed(error)
        if not self._over:
            if self._has_stepped:
                self._notify("step_ends", self.number)
                self.number += 1
            self._over = True

    def next_step(self) -> None:
        """End the step; from now on only this method ends steps."""
        self._by_hand = True
        self._step_is_over()

    def _failed(self, error: BaseException) -> None:
        """Call `failed` once for an exception, which may leave a backward first and then the `with` block."""
        if id(error) != self._last_failure:
            self._last_failure = id(error)
            self._explain(error)
            self._notify("failed", error)

    def _explain(self, error: BaseException) -> None:
        explain_error(error, modules=[module for _, module in self._training.watched.modules()])

    def loop_ns(self) -> int:
        """Return the nanoseconds that have passed outside of the observers."""
        return (perf_counter_ns() if self._notified_since is None else self._notified_since) - self._observers_ns

    def _notify(self, method: str, *arguments: object) -> None:
        self._notify_of([(method, *arguments)])

    def _notify_of(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Call the observers for several events. Each is the name of a method and its arguments."""
        self._notified_since = started = perf_counter_ns()
        try:
            with unobserved(), left_out_of_recording():
                for method, *arguments in events:
                    self._call_all(self._observers_of(method), *arguments)
        finally:
            self._notified_since = None
            self._observers_ns += perf_counter_ns() - started

    def _call_all(self, observers: list[tuple[LoopPart, Callable[..., None]]], *arguments: object) -> None:
        """Call one method of several observers. One that raises is called no more."""
        for part, call in observers:
            try:
                call(*arguments)
            except Exception as error:
                self._note_error(part, error)
                if part in self._parts:
                    self._parts.remove(part)
                self._overriding.clear()

    def _note_error(self, part: LoopPart, error: Exception) -> None:
        since = f"{type(part).__name__} stopped in step {self.number} after an error"
        self._training.note(f"{since}: {type(error).__name__}: {error}")

    def _observers_of(self, method: str) -> list[tuple[LoopPart, Callable[..., None]]]:
        """Return the observers that override this method, with their bound methods."""
        found = self._overriding.get(method)
        if found is None:
            base = getattr(LoopPart, method)
            overriding = [part for part in self._parts if getattr(type(part), method) is not base]
            found = self._overriding[method] = [(part, getattr(part, method)) for part in overriding]
        return found

    def _is_watched_module(self, module: nn.Module) -> bool:
        """Return whether the module is watched: it was passed, or contains one that was."""
        if not self._modules or module in self._modules or module in self._around:
            return True
        if module in self._unwatched:
            return False
        found = any(each in self._modules for each in module.modules())
        (self._around if found else self._unwatched).add(module)
        return found

    def _step_is_over(self) -> None:
        self._notify_of(self._end_of_step())

    def _end_of_step(self) -> Iterator[tuple[Any, ...]]:
        """Yield the end of the step, then begin the next one and yield its beginning."""
        yield "step_ends", self.number
        self._known.update(self.stepped)
        self.stepped.clear()
        self._has_stepped = False
        self.number += 1
        yield "step_begins", self.number

    @property
    def _may_be_over(self) -> bool:
        """True if all optimizers have stepped: a forward or backward that begins is the next step's."""
        return not self._by_hand and self._has_stepped and self._all_have_stepped

    @property
    def _all_have_stepped(self) -> bool:
        if self._given:
            return not any(each and each.isdisjoint(self.stepped) for each in self._given)
        if self._known:
            return self._known <= self.stepped
        if self._alive is None:
            self._alive = WeakSet(each for each in optimizers_alive() if has_hooks(each))
        return self._alive == self.stepped  # they differ if gc.freeze hides an optimizer, as it may hide others

    def _forward_begins(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if self._is_watched_module(module):
            autocast = autocast_now() if autocast_is_on() else {}  # observers are called without it
            self._notify_of(self._start_of_forward(module, beneath_all_transforms(given), autocast))

    def _start_of_forward(
        self, module: nn.Module, given: tuple[Any, ...], autocast: Autocast
    ) -> Iterator[tuple[Any, ...]]:
        if self._may_be_over:
            yield from self._end_of_step()
        self._training.watched.add(module)
        self._training.autocast = autocast
        yield "forward_begins", module, given

    def _module_ends(self, module: nn.Module, result: object, is_forward: bool) -> None:
        # torch also calls the hooks of a module that raised, while it handles the exception.
        if is_forward and result is None and (error := sys.exception()) is not None:
            self._explain(error)
        self._training.called[id(module)] = reference = ref(module)
        if type(result) is Tensor and not function_mode_is_on() and not functorch_is_active():
            node = result.grad_fn
            if node is not None:
                self._mark(node, reference)
        elif result is not None:
            result = beneath_all_transforms(result)
            with unobserved():
                for node in nodes_of(result):
                    self._mark(node, reference)
        if is_forward and self._is_watched_module(module):
            self._notify("forward_ends", module, result)

    def _mark(self, node: Node, module: ref[nn.Module]) -> None:
        """Mark a node that a module has returned. The marks of the innermost of nested modules stay."""
        notes = notes_on(node)
        notes.setdefault(MODULE, module)
        for key, mark in self._training.marks.items():
            notes.setdefault(key, mark)

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        if not self._depth and not self._stepping and self._may_be_over:
            self._step_is_over()
        self._last_failure = 0
        try:
            self._notify("backward_begins", given)
            result = run()
        except BaseException as error:
            self._notify("backward_ends", given, error)
            self._failed(error)
            raise
        self._notify("backward_ends", given, None)
        return result

    def _gradients_begin(self, outputs: Sequence[Tensor | GradientEdge]) -> None:
        if not self._over:
            self._notify("gradients_begin", outputs)

    def _is_watched(self, optimizer: Optimizer) -> bool:
        return not self._is_ignored and (not self._given or any(optimizer in each for each in self._given))

    def _before_step(self, optimizer: Optimizer, is_nested: bool) -> None:
        if optimizer in self.stepped and not is_nested and not self._by_hand:
            self._step_is_over()

    def _optimizer_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._owes_optimizer_begins = True
        if not has_closure:
            self._notify_optimizer_begins(optimizer)

    def _notify_optimizer_begins(self, optimizer: Optimizer) -> None:
        """Call `optimizer_begins` once. In a step with a closure, this is after the closure's first run, which computes
        the gradients.
        """
        if self._owes_optimizer_begins:
            self._owes_optimizer_begins = False
            self._notify("optimizer_begins", optimizer)

    def _optimizer_ends(self, optimizer: Optimizer, is_skipped: bool) -> None:
        self.stepped.add(optimizer)
        self._has_stepped = True
        if is_skipped:
            self._notify("optimizer_skipped", optimizer)
        else:
            self._notify_optimizer_begins(optimizer)
            self._notify("optimizer_ends", optimizer)

    def _closure_ends(self, optimizer: Optimizer) -> None:
        if len(self._stepping) == 1:
            self._notify_optimizer_begins(optimizer)
