"""The verbs of a session: break, watch, step over, edit, clip, check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import verbs_end_where_called
from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.phrases import joined
from ...inspector.renderers import drawn
from ...inspector.torch_private.tensors import computes_itself
from ...inspector.validation import a_kind, expect, expect_number, expect_truth
from ..execution.run_hooks import Gradients
from ..planning.policies import find_policy
from ..recording.run import Run
from ..recording.statistics import measure
from ..recording.task_records import Trace
from ..schedule.device_queues import devices_in_order
from ..schedule.find_tasks import calls_of, tasks_of_call
from ..schedule.policy import AnyPolicy, Choice, Policy, policy_name
from ..schedule.ready_queue import AnyTask
from .breakpoints.breakpoints import Breakpoint, Predicate, Stop, Where
from .session import SessionBase, one_at_a_time

if TYPE_CHECKING:
    from .breakpoints.watch_conditions import GradientPredicate
    from .breakpoints.watchpoints import Watchpoint
    from .check_task import Check
    from .float64_replay import SharedChecks


def norm_of(gradients: Sequence[Tensor | None], where: str) -> float:
    """Return the 2-norm of all gradients together.

    Args:
        gradients: the gradients; None entries are skipped.
        where: the owner of the gradients, for error messages.

    Raises:
        ValueError: the norm does not exist because an element is NaN or infinite.
    """
    norm = 0.0
    for gradient in gradients:
        if gradient is None:
            continue
        if computes_itself(gradient):  # the local part of a DTensor has another norm
            raise ValueError(
                f"cannot clip a gradient of {where}: {a_kind(gradient)} defines its own operations, so its norm is "
                "unknown"
            )
        each_once = gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient
        found = measure(each_once, "cheap").read()
        bad = found.unavailable or (found.nan_count and "NaN") or (found.inf_count and "infinite elements")
        if bad:
            raise ValueError(f"a gradient of {where} has no norm to clip: {bad}; replace it with replace() or zero()")
        norm = math.hypot(norm, found.norm or 0.0)
    return norm


def as_gradients(given: object) -> tuple[Any, ...]:
    """Return one gradient or several as a tuple.

    Raises:
        TypeError: `given` is neither a tensor nor a sequence.
    """
    if given is None or isinstance(given, Tensor):
        return (given,)
    if not isinstance(given, Iterable) or type(given).__module__ == "numpy":
        raise TypeError(f"expected a gradient or a sequence of gradients, one per input, got {a_kind(given)}")
    return tuple(given)


def check_edit(graph: Graph, task: Task, before: Gradients, after: Gradients) -> None:
    """Check gradients that are to replace those in a task's input buffer.

    Raises:
        ValueError: their number, shape, dtype, device or layout differs, or an input that received no gradient would
            get one.
        TypeError: a gradient is not a tensor.
    """
    where = graph.describe(task)
    if len(after) != len(before):
        raise ValueError(f"{where} needs {len(before)} gradients, got {len(after)}")
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if new is None:
            continue
        if not isinstance(new, Tensor):
            raise TypeError(f"gradient {number} of {where} must be a tensor or None, got {a_kind(new)}")
        if old is None:
            raise ValueError(f"input {number} of {where} received no gradient, so there is none to replace")
        for field in ("shape", "dtype", "device", "layout"):
            if getattr(new, field) != getattr(old, field):
                raise ValueError(
                    f"gradient {number} of {where} must have {field} {getattr(old, field)}, got {getattr(new, field)}"
                )


@verbs_end_where_called
class Verbs(SessionBase):
    """The debugger verbs that both engines' sessions share."""

    def step(self, task: AnyTask | None = None, *, count: int = 1, device: str | torch.device | None = None) -> Task:
        """Run one task or several, and return the last one.

        With `batch=` a step also runs the tasks batched with its task. Several steps end early at a stop, which is then
        in `stopped`, and at the end of the backward. If a task raises (a hook, a custom Function, a freed graph), the
        error names the task, and the session is over. Gradients accumulated into .grad by then stay, as after an
        exception in `loss.backward()`.

        Args:
            task: the task to run: a task, its number, or an entry of `ready`. None runs the policy's choice.
            count: the number of tasks to run.
            device: run the policy's choice among the tasks of this device.

        Raises:
            ValueError: the task is not ready; `count` is below 1; the device is unknown or has no ready task.
            NotImplementedError: PyTorch's engine cannot run this task next, or cannot step a single device.
            RuntimeError: no task is left, or the session is over.
        """
        expect_count(count)
        if device is not None and task is not None:
            raise ValueError("step() accepts a task or device=, not both")
        if device is not None:
            task = self._unless_current(self.next_on(device))
        expect_no_count(self.graph, task)
        if count == 1:
            return self._step(task)
        self.stops.stopped = None
        for left in reversed(range(count)):
            last = self._step(task)
            task = None
            if self._stops(wait=not left) or self.over is not None or self.current is None:
                break
            if device is not None and left:
                task = self._unless_current(self.next_on(device))
        return last

    def _unless_current(self, task: Task) -> Task | None:
        """Return None for the task the policy would choose, so that it does not count as chosen by hand."""
        return None if task is self.current else task

    def next_on(self, device: str | torch.device) -> Task:
        """Return the task that `step(device=device)` runs next.

        Raises:
            ValueError: the device has no ready task; the message names the task it waits for.
        """
        expect(device, str | torch.device, "device", 'the name of a device, such as "cuda:0"')
        names = devices_in_order(list(map(str, self.graph.devices)))
        if str(device) not in names:
            raise ValueError(f"no task of this backward runs on {device}; expected one of {joined(names, len(names))}")
        self._check_open()
        return self._next_on(str(device))

    @property
    def policy(self) -> str:
        """The policy's name. It can be set to another policy at any stop.

        The new policy takes over the queue, in PyTorch's own engine after the current task.
        """
        return policy_name(self._backward.policy)

    @policy.setter
    @one_at_a_time
    def policy(self, policy: AnyPolicy) -> None:
        self._follow(find_policy(policy))

    @property
    def picks(self) -> Policy | Choice:
        """The policy as an object, bound to this graph."""
        return self._backward.policy

    @property
    def trace(self) -> Trace | None:
        """The records so far; None with trace=None."""
        recorder = self._backward.recorder
        return None if recorder is None else recorder.trace()

    @one_at_a_time
    def run(self) -> Run:
        """Run the remaining tasks in the policy's order, up to a breakpoint, a watchpoint or `stop`."""
        self._backward.run_until(None)
        return self.result()

    @one_at_a_time
    def run_to(self, task: AnyTask) -> Task | None:
        """Run tasks in the policy's order until this one is next, or until a stop; return the current task.

        Raises:
            ValueError: the task has run already, or does not run.
        """
        self._backward.run_to(self._task(task).id)
        return self.current

    def stop(self) -> None:
        """Make the current or next `run` or `run_to` return before its next task.

        This may be called from a hook, another thread or a signal handler.
        """
        self.stops.stop_asked = True

    def stop_here(self, wait: bool = True) -> Stop | None:
        """Return the stop that a run would make at this position: a breakpoint before the current task, or a watchpoint
        that the last step or the end of the backward triggered. None if there is none.

        Args:
            wait: whether to wait for values still being copied from an accelerator.
        """
        return None if self.over is not None else self._stop_here(wait)

    @one_at_a_time
    def _stop_here(self, wait: bool) -> Stop | None:
        return self._backward.stop_here(wait)

    def save_trace(self, path: str | Path) -> Path:
        """Write the tasks run so far as a trace file for `ts.load` and `tapescope view`; see `Run.save`."""
        return self.result().save(path)

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Make `run` stop before a task. A run never stops before its own first task.

        Args:
            where: one of: a task or its number; a tensor of the forward (before the task that receives its gradient);
                the name of a node ("Addmm", "AddmmBackward0"); a module's path ("encoder.layer.3", where the backward
                enters a call of it); a parameter's name (before its gradient is accumulated); a source line
                ("model.py:120") of the forward, or of a custom Function's backward; a function (task, gradients) ->
                bool. Names may be patterns ("encoder.layer.*"). An
                ambiguous name is resolved in the order task, line, kind, module, parameter; a prefix ("task:", "line:",
                "kind:", "module:", "grad:") selects one.
            hit: stop only at the n-th matching task, in the order in which they run.
            when: stop only if this function (task, gradients) -> bool returns True.

        Raises:
            ValueError: nothing matches the name; the message suggests close names.
        """
        return self.stops.break_at(where, hit, when)

    def watch(
        self,
        *conditions: str | GradientPredicate,
        at: str | int | None = None,
        synchronize: bool | None = None,
    ) -> Watchpoint:
        """Make `run` stop right after a task that returned a gradient for which a condition holds.

        The gradient is checked as the next task receives it. If no task returned such a gradient, because it is a sum
        of several or was made by a hook, the run stops after the leaf's task that received it. Conditions are:

        * "nan", "inf", "zero": an element is NaN or infinite, or all elements are zero
        * "norm>1e3", "norm<=1e-8": the 2-norm
        * "ratio>100", "ratio<0.01": the norm of the gradients that leave a module's call, divided by the norm of those
          that entered it
        * "upcast": the gradient has a wider dtype than the gradients the task received, or is cast on its way
        * "shape": the gradient is summed because the forward broadcast a tensor that is not a leaf
        * "missing": no gradient arrives at a leaf; reported when all tasks have run
        * a function (gradient, task) -> bool
        * "a and b" in one string: both conditions

        The result is in `stopped`; for NaN and infinite gradients it traces the value back to its origin.

        On the CPU each gradient is read once. On an accelerator the run does not wait for each task: it stops some
        tasks late, and says how many.

        Known limitations: PyTorch's own engine shows gradients after it has summed and cast them, so there "upcast"
        misses those casts, and "shape" sees only elementwise operations and losses. Of a DTensor only this rank's part
        is read, of other wrapper subclasses the inner tensors. Gradients that could not be read, such as those on the
        meta device, are listed when all tasks have run. A change made by a hook is seen in the next task's gradient.

        Args:
            conditions: the conditions; any of them stops the run.
            at: check only at this place, as in `break_at`; usually a module.
            synchronize: True also waits for each task on accelerators; False does not wait on the CPU either.

        Raises:
            ValueError: a condition or the place is unknown.
        """
        return self.stops.watch(*conditions, at=at, synchronize=synchronize)

    def step_over(self) -> Task | None:
        """Run until all tasks of the current task's innermost module call have run, nested calls included, or until a
        stop.

        In the outermost call, or if the forward was not captured, run one task. Return the current task.
        """
        return self._leave(0)

    def step_out(self) -> Task | None:
        """Run until the enclosing module call is done, as `step_over`; run to the end from the outermost call."""
        return self._leave(1)

    def _leave(self, out: int) -> Task | None:
        current = self.current
        if current is None:
            self.step()  # raises: no task is left
        elif (tasks := self.tasks_to_leave(out)) is None:
            self.run()
        else:
            self.stops.stopped = None
            while tasks:
                ran = len(self.order)
                self._step()
                tasks.difference_update(self.order[ran:])
                if self._stops(wait=not tasks):
                    break
        return self.current

    def tasks_to_leave(self, out: int) -> set[int] | None:
        """Return the tasks to run until the current task's module call is left, or the call `out` levels around it.

        For the outermost call, the entire model, return the current task alone. Return None if all remaining tasks have
        to run.
        """
        current = self._about(None)
        calls = calls_of(self.graph, current.id)
        if not out and len(calls) < 2:
            return {current.id}
        if len(calls) <= out:
            return None
        left = tasks_of_call(self.graph, calls[out]).difference(self.order)
        return left if self.needed is None else left.intersection(self.needed)

    def _stops(self, wait: bool) -> bool:
        """Set `stopped` after one step of several and return whether the run ends here."""
        self.stops.stopped = found = self.stop_here(wait) or self.stops.take_request()
        return found is not None

    def scale(self, factor: float, task: AnyTask | None = None) -> None:
        """Multiply the gradients in a task's input buffer, by default the current task's.

        Raises:
            TypeError: the factor is not a number.
        """
        expect_number(factor, Number | Tensor, "factor", "a number")
        self._edit(lambda gradients: [None if each is None else each * factor for each in gradients], task)

    def zero(self, task: AnyTask | None = None) -> None:
        """Set the gradients in a task's input buffer to zero, by default the current task's."""
        self._edit(lambda gradients: [None if each is None else torch.zeros_like(each) for each in gradients], task)

    def clip(self, max_norm: float, task: AnyTask | None = None) -> None:
        """Scale the gradients in a task's input buffer, by default the current task's, to a total 2-norm of at most
        `max_norm`.

        Gradients within the limit are not changed.

        Raises:
            TypeError: `max_norm` is not a number.
            ValueError: the norm does not exist because an element is NaN or infinite; or `max_norm` is negative.
        """
        expect_number(max_norm, Number | Tensor, "max_norm", "the largest norm, a number")
        if not max_norm >= 0:
            raise ValueError(f"max_norm must be at least 0, got {max_norm}")
        about = self._about(task)
        norm = norm_of(self.waiting(about), self._described(about))
        if norm > max_norm:
            self.scale(max_norm / norm, about)

    def check(self, task: AnyTask | None = None, *, second: bool | None = None) -> Check:
        """Compare a task's backward with finite differences of its forward operation; see `check_task`.

        Args:
            task: the task or its number; None for the current one.
            second: whether to also compare the derivative of that backward, as torch.autograd.gradgradcheck does. None:
                if the graph is differentiated twice.
        """
        from .check_task import check_task

        if second is None:
            second = self._creates_graph or self._shared_checks.differentiated_twice
        else:
            expect_truth(second, "second")
        about = self._about(task)
        try:
            gradients = self.waiting(about)
        except NotImplementedError:  # PyTorch's engine does not show this input buffer
            gradients = None
        return check_task(self.graph, about, gradients, self._shared_checks, bool(second))

    @cached_property
    def _shared_checks(self) -> SharedChecks:
        from .float64_replay import SharedChecks

        return SharedChecks(self.graph)

    def interact(self) -> None:
        """Open a prompt in the terminal with the same verbs."""
        drawn("session at a prompt", self)

    def _about(self, task: AnyTask | None) -> Task:
        about = self.current if task is None else self._task(task)
        if about is None:
            self._check_open()
            raise RuntimeError(f"no task is left: all {len(self.order)} have run")
        return about

    def _edit(self, change: Callable[[Sequence[Tensor | None]], list[Tensor | None]], task: AnyTask | None) -> None:
        about = self._about(task)  # once, since a step in another thread may change the current task
        with torch.no_grad():
            changed = change(self.waiting(about))
        self.replace(changed, about)


def expect_count(count: int) -> None:
    """Raise unless `count` is a positive number of tasks."""
    expect_number(count, int, "count", "how many tasks to run")
    if count < 1:
        raise ValueError(f"step(count={count}): count must be at least 1")


def expect_no_count(graph: Graph, task: AnyTask | None) -> None:
    """Raise if `task` is a number beyond the graph's tasks: a count was probably meant.

    Raises:
        ValueError: the number is too large.
    """
    if isinstance(task, int) and task >= len(graph):
        raise ValueError(
            f"unknown task {task}; this graph has tasks 0 to {len(graph) - 1}. To run {task} tasks, use "
            f"step(count={task})"
        )
