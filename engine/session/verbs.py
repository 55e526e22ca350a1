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
from ...inspector.validation import a_kind, expect, expect_number
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
from .breakpoints.watch_conditions import GradientPredicate
from .breakpoints.watchpoints import Watchpoint
from .session import SessionBase, one_at_a_time

if TYPE_CHECKING:
    from ...inspector.graph.capture_records import Operation
    from .check_task import Check, Compared


def norm_of(gradients: Sequence[Tensor | None], where: str) -> float:
    """The 2-norm of them all. `where` says in an error whose they are.

    Raises:
        ValueError: there is none, since an element is NaN or infinite.
    """
    norm = 0.0
    for gradient in gradients:
        if gradient is None:
            continue
        if computes_itself(gradient):  # of a DTensor this rank's part has another norm
            raise ValueError(f"a gradient of {where} has no norm to clip: {a_kind(gradient)} computes in its own way")
        each_once = gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient
        found = measure(each_once, "cheap").read()
        bad = found.unavailable or (found.nan_count and "NaN") or (found.inf_count and "infinite elements")
        if bad:
            raise ValueError(f"a gradient of {where} has no norm to clip: {bad}; replace() or zero() it")
        norm = math.hypot(norm, found.norm or 0.0)
    return norm


def as_gradients(given: object) -> tuple[Any, ...]:
    """One gradient or several as a tuple.

    Raises:
        TypeError: it is neither a tensor nor a sequence.
    """
    if given is None or isinstance(given, Tensor):
        return (given,)
    if not isinstance(given, Iterable) or type(given).__module__ == "numpy":
        raise TypeError(f"expected a gradient or a sequence of them, one per input, not {a_kind(given)}")
    return tuple(given)


def check_edit(graph: Graph, task: Task, before: Gradients, after: Gradients) -> None:
    """Says what is wrong with gradients that are to replace those in a task's input buffer.

    Raises:
        ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
        TypeError: one is no tensor.
    """
    where = graph.describe(task)
    if len(after) != len(before):
        raise ValueError(f"{where} takes {len(before)} gradients, not {len(after)}")
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if new is None:
            continue
        if not isinstance(new, Tensor):
            raise TypeError(f"gradient {number} of {where} must be a tensor or None, not {a_kind(new)}")
        if old is None:
            raise ValueError(f"no gradient came to input {number} of {where}, so none can be replaced")
        for what in ("shape", "dtype", "device", "layout"):
            if getattr(new, what) != getattr(old, what):
                raise ValueError(
                    f"gradient {number} of {where} has {what} {getattr(old, what)}; the new one has "
                    f"{getattr(new, what)}"
                )


@verbs_end_where_called
class Verbs(SessionBase):
    """The verbs of a debugger that are the same for the sessions of both engines."""

    def step(self, task: AnyTask | None = None, *, count: int = 1, device: str | torch.device | None = None) -> Task:
        """Runs one task, or `count`: the given one (a task, its number, an entry of `ready`), or the policy's choice;
        with `device` its choice among the tasks of that device. Returns the last. With `batch=` a step also runs those
        that run as one with its task.

        Several end early at what stops a run, which is then in `stopped`, and at the end of the backward. If a task
        raises (a hook, a custom Function, a freed graph), the error says in which task, and the session is over: what
        had been accumulated into .grad by then stays, as after an exception in `loss.backward()`.

        Raises:
            ValueError: the given task is not ready, or `count` is below 1; the device stands still, or there is none
                of that name.
            NotImplementedError: PyTorch's engine can't run the given task next, nor one device by itself.
            RuntimeError: no task is left, or the session is over.
        """
        expect_count(count)
        if device is not None and task is not None:
            raise ValueError("step() runs either a task or a device's next one: give one of the two")
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
        """None for what the policy chooses anyway: it is not chosen by hand."""
        return None if task is self.current else task

    def next_on(self, device: str | torch.device) -> Task:
        """The task that `step(device=device)` would run now.

        Raises:
            ValueError: none of that device is ready; it says which task the device waits for.
        """
        expect(device, str | torch.device, "device", 'the name of a device, such as "cuda:0"')
        names = devices_in_order(list(map(str, self.graph.devices)))
        if str(device) not in names:
            raise ValueError(f"no task of this backward runs on {device}; it runs on {joined(names, len(names))}")
        self._check_open()
        return self._next_on(str(device))

    @property
    def policy(self) -> str:
        """The policy's name. Another policy may be set at any stop: it takes over the queue, in PyTorch's own engine
        after the current task."""
        return policy_name(self._backward.policy)

    @policy.setter
    @one_at_a_time
    def policy(self, policy: AnyPolicy) -> None:
        self._follow(find_policy(policy))

    @property
    def picks(self) -> Policy | Choice:
        """The policy itself, bound to this graph."""
        return self._backward.policy

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far; None with trace=None."""
        recorder = self._backward.recorder
        return None if recorder is None else recorder.trace()

    @one_at_a_time
    def run(self) -> Run:
        """Runs all tasks that are left, in the policy's order; up to a breakpoint, a watchpoint's find, or `stop`."""
        self._backward.run_until(None)
        return self.result()

    @one_at_a_time
    def run_to(self, task: AnyTask) -> Task | None:
        """Runs what the policy picks before a task, which is then the current one, or up to what stops a run. Returns
        the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._backward.run_to(self._task(task).id)
        return self.current

    def stop(self) -> None:
        """Makes `run` or `run_to` return before the next task: one under way, or the next. May be called from a hook,
        another thread or a signal's handler."""
        self.stops.stop_asked = True

    def stop_here(self, wait: bool = True) -> Stop | None:
        """Whether a run would stop where the session stands: a breakpoint before the current task, what a watchpoint
        found in the last step, or what it found when all tasks had run.

        Args:
            wait: for what is still on its way from an accelerator.
        """
        return None if self.over is not None else self._stop_here(wait)

    @one_at_a_time
    def _stop_here(self, wait: bool) -> Stop | None:
        return self._backward.stop_here(wait)

    def save_trace(self, path: str | Path) -> Path:
        """Writes what has run as a trace file, for `ts.load` and `tapescope view`; see `Run.save`."""
        return self.result().save(path)

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes `run` stop before a task. A run never stops before the task at which it begins.

        Args:
            where: a task or its number; the name of a node ("Addmm", "AddmmBackward0"); a module's path
                ("encoder.layer.3": where the backward enters a call of it); a parameter's name (before its gradient is
                accumulated); a line ("model.py:120"). Names may be patterns ("encoder.layer.*"). What more than one of
                these could be is the first of: task, line, kind, module, parameter; a prefix ("task:", "line:",
                "kind:", "module:", "grad:") says which is meant. Or a function (task, gradients) -> bool.
            hit: only at the n-th task that matches, in the order in which they run.
            when: only where this function (task, gradients) -> bool says so.

        Raises:
            ValueError: nothing is there by that name; it has the nearest ones.
        """
        return self.stops.break_at(where, hit, when)

    def watch(
        self,
        *conditions: str | GradientPredicate,
        at: str | int | None = None,
        synchronize: bool | None = None,
    ) -> Watchpoint:
        """Makes `run` stop right after a task that gave a gradient of which one of these holds, as the next task gets
        it; or after a leaf's that got one, where no task gave it so: a sum of several, or what a hook made.

        "nan", "inf", "zero" (all of it); "norm>1e3", "norm<=1e-8" (the 2-norm); "ratio>100", "ratio<0.01": of the norms
        of the gradients that leave a module's call and of those that came into it; "upcast": it is wider than what came
        in, or is cast on its way; "shape": it is summed since the forward has broadcast something that is no leaf;
        "missing": no gradient comes to a leaf, told when all tasks have run; or a function (gradient, task) -> bool.
        "a and b" in one text: both. What was found is in `stopped`: for NaN and infinite gradients with the way back to
        the value that made them.

        On the CPU a gradient is read once. On an accelerator nobody waits for each task: the run stops some tasks late,
        and says how many.

        Known limitations. PyTorch's own engine shows gradients after it has summed and cast them: "upcast" doesn't see
        those casts there, and "shape" only elementwise operations and losses. Of a DTensor this rank's part is read,
        of other wrapper subclasses the inner tensors. Which gradients could not be read, such as those on the meta
        device, is told when all tasks have run. What hooks do to a gradient on its way is seen in the next task's.

        Args:
            at: only there: a place as in `break_at`, mostly a module.
            synchronize: True waits for each task on accelerators, too; False does not wait on the CPU either.

        Raises:
            ValueError: a condition is unknown, or there is no such place.
        """
        return self.stops.watch(*conditions, at=at, synchronize=synchronize)

    def step_over(self) -> Task | None:
        """Runs until all tasks of the current task's innermost module call have run, the calls in it included; one task
        in the outermost call, and where no capture saw one. Stops at what stops a run. Returns the current task."""
        return self._leave(0)

    def step_out(self) -> Task | None:
        """The same for the call around it: at the top to the end."""
        return self._leave(1)

    def _leave(self, out: int) -> Task | None:
        current = self.current
        if current is None:
            self.step()  # raises: no task is left
        elif (tasks := self.tasks_to_leave(out)) is None:
            self.run()
        else:
            self._run_all(tasks)
        return self.current

    def tasks_to_leave(self, out: int) -> set[int] | None:
        """The tasks that run until the current one's module call is left, or the one so many `out` around it. Of the
        outermost call, which is the whole model, the current task alone. None: all that are left.
        """
        current = self._about(None)
        calls = calls_of(self.graph, current.id)
        if not out and len(calls) < 2:
            return {current.id}
        if len(calls) <= out:
            return None
        left = tasks_of_call(self.graph, calls[out]).difference(self.order)
        return left if self.needed is None else left.intersection(self.needed)

    def _run_all(self, tasks: set[int]) -> None:
        """Runs until these tasks have run, or something stops it."""
        self.stops.stopped = None
        while tasks:
            tasks.difference_update(self._step_on())
            if self._stops(wait=not tasks):
                return

    def _stops(self, wait: bool) -> bool:
        """After a step of several: whether something ends them here, which is then in `stopped`."""
        self.stops.stopped = found = self.stop_here(wait) or self.stops.asked()
        return found is not None

    def scale(self, factor: float, task: AnyTask | None = None) -> None:
        """Multiplies the gradients that wait for a task, by default the current one.

        Raises:
            TypeError: the factor is no number.
        """
        expect_number(factor, Number | Tensor, "factor", "a number")
        self._edit(lambda gradients: [None if each is None else each * factor for each in gradients], task)

    def zero(self, task: AnyTask | None = None) -> None:
        """Makes the gradients that wait for a task zero, by default for the current one."""
        self._edit(lambda gradients: [None if each is None else torch.zeros_like(each) for each in gradients], task)

    def clip(self, max_norm: float, task: AnyTask | None = None) -> None:
        """Scales the gradients that wait for a task, by default for the current one, so that the norm of them all is at
        most `max_norm`. Leaves them if it is.

        Raises:
            TypeError: max_norm is no number.
            ValueError: there is no norm, since an element is NaN or infinite; or max_norm is negative.
        """
        expect_number(max_norm, Number | Tensor, "max_norm", "the largest norm, a number")
        if not max_norm >= 0:
            raise ValueError(f"clip({max_norm}): the largest norm must be at least 0")
        about = self._about(task)
        norm = norm_of(self.waiting(about), self._described(about))
        if norm > max_norm:
            self.scale(max_norm / norm, about)

    def check(self, task: AnyTask | None = None) -> Check:
        """Compares a task's backward with finite differences of its forward operation; see `check_task`."""
        from .check_task import check_task

        about = self._about(task)
        try:
            gradients = self.waiting(about)
        except NotImplementedError:  # PyTorch's engine keeps them to itself
            gradients = None
        return check_task(self.graph, about, gradients, self._compared)

    @cached_property
    def _compared(self) -> dict[Operation, Compared]:
        """The results of `check`, by operation."""
        return {}

    def interact(self) -> None:
        """A prompt for the terminal, with the same verbs."""
        drawn("session at a prompt", self)

    def _about(self, task: AnyTask | None) -> Task:
        about = self.current if task is None else self._task(task)
        if about is None:
            self._check_open()
            raise RuntimeError(f"no task is left: all {len(self.order)} have run")
        return about

    def _edit(self, change: Callable[[Sequence[Tensor | None]], list[Tensor | None]], task: AnyTask | None) -> None:
        about = self._about(task)  # once: another thread's step may make another task the current one meanwhile
        with torch.no_grad():
            changed = change(self.waiting(about))
        self.replace(changed, about)


def expect_count(count: int) -> None:
    """Refuses what is no number of tasks to run."""
    expect_number(count, int, "count", "how many tasks to run")
    if count < 1:
        raise ValueError(f"step(count={count}): the number of tasks to run must be at least 1")


def expect_no_count(graph: Graph, task: AnyTask | None) -> None:
    """Refuses a number above those of the graph's tasks: it was meant as how many to run.

    Raises:
        ValueError: it is one.
    """
    if isinstance(task, int) and task >= len(graph):
        raise ValueError(
            f"there is no task {task}; this graph has tasks 0 to {len(graph) - 1}. For {task} tasks: step(count={task})"
        )
