"""A session of PyTorch's own engine that can be stopped: `ts.debug(loss, engine="native")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Never, get_args
from weakref import finalize

from torch import Tensor

from ...errors import verbs_end_where_called
from ...inspector.graph.freed_nodes import begins
from ...inspector.graph.graph import Outputs, Task
from ...inspector.torch_private.engine import in_backward
from ...inspector.torch_private.thread_state import ThreadState
from ...inspector.validation import expect_choice
from ..execution.backward_arguments import BackwardCall
from ..execution.run_hooks import Gradients
from ..planning.policies import find_policy, note_on, order_name
from ..planning.simulate import schedule
from ..recording.run import Run
from ..recording.statistics import Level
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy, Choice, Policy, is_dynamic, label_of, policy_name
from ..schedule.ready_queue import AnyTask, PolicyError, ReadyTask
from .native_engine import Plan
from .native_stepping import NativeBackward
from .rank_agreement import in_group
from .session import SessionTurn, one_at_a_time
from .verbs import Verbs, as_gradients, check_edit

NO_HISTORY = 'PyTorch\'s engine cannot undo a task that has run, so it has no history; use engine="direct"'


@verbs_end_where_called
class NativeSession(Verbs):
    """A backward of PyTorch's own engine that runs one task at a time, on request.

    The engine runs in a thread of the session, and waits in a hook before each task at which it stops. Everything
    happens as in training: hooks from C++, freeing, DistributedDataParallel. At a stop, the engine has already popped
    the next task and called the hooks that run before it. So the next task cannot be chosen by hand, and no step can be
    undone (engine="direct" can do both). Without stops, the threads do not have to wait for each other.

    The session's thread has the grad mode, inference mode, autocast, `saved_tensors_hooks`, function and dispatch
    modes, default device, context variables, and accelerator streams that the caller had when the session was created.
    On accelerators all tasks share one queue and run in that thread, unless `queues` says otherwise.

    Known limitations: a profiler of the calling thread would not see the backward, so it is refused. In hooks, a
    `threading.local` has the values of the session's thread. Warnings point to that thread. After a session is closed
    early, accumulated gradients stay, and callbacks for the end of the backward have not run; see `close` for backwards
    that always run to their end.

    Args:
        tensors: the outputs where the backward starts, or all arguments of a backward, as a `BackwardCall`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        trace: the level of recording, as for `ts.backward`; None records nothing.
        queues: "one" ready queue for all devices, in the policy's total order, or one "per device", each in the
            device's own thread, as in training. With several, each thread stops before the task it has popped: `step`
            continues one of them, `step(device=)` the one of that device, `run` all at once. `current` is the task that
            comes first according to `Problem.durations`. A busy device takes the policy's choice among the tasks that
            have arrived; an idle one takes the first task pushed, in the order of the pushing task's edges. So no order
            is certain, and `planned` is recomputed when another task is taken. Once tasks have run, the policy cannot
            change. Meanwhile every other backward of the process, including nested ones, runs in its calling thread
            with one queue, because it would have to wait for the devices' threads otherwise; a backward that C++ starts
            without Python, or that had started before, does wait. An error ends the session, and tasks held by other
            devices do not run. A process in which Python has run in devices' threads may abort at exit (PyTorch's issue
            #38228).

    Attributes:
        graph: the graph; without its nodes once the session is closed, or over after an error.
    """

    _backward: NativeBackward

    def __init__(
        self,
        tensors: Outputs | BackwardCall,
        *,
        policy: AnyPolicy = "heap",
        trace: Level | None = "off",
        queues: Queues = "one",
    ) -> None:
        from .device_threads import LanesBackward

        chosen = find_policy(policy)
        if trace is not None:
            expect_choice(trace, get_args(Level), "trace")
        expect_choice(queues, get_args(Queues), "queues")
        call = BackwardCall.of(tensors)
        try:
            state = ThreadState()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a native session runs in a separate thread, which cannot adopt {error}; use "
                'ts.debug(..., engine="direct") or ts.backward'
            ) from None
        plan = Plan.of(call, chosen).agreed()
        several = queues == "per device" and len(plan.devices) > 1
        if several:
            plan = _with_several_queues(plan, call)
        self._queues: Queues = "per device" if several else "one"
        given = (call.grad_tensors,) if isinstance(call.grad_tensors, Tensor) else call.grad_tensors or ()
        backward = LanesBackward if several else NativeBackward
        self._backward = backward(call, plan, state, trace, tuple(given) if call.create_graph else ())
        self._creates_graph = bool(call.create_graph)
        self._worker = self._backward.worker
        self._turn = SessionTurn()
        self._finalizer = finalize(self, self._worker.forget)
        begins(self)
        self._finalizer.atexit = False  # at exit `_end_all` ends all runs and waits for them

    def __repr__(self) -> str:
        state = self.over or f"{len(self._worker.ready)} ready"
        ran = len(self._worker.order)
        return f"<NativeSession under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def planned(self) -> Sequence[int]:
        """All tasks in order, those that have run and those still to run; empty under a dynamic policy."""
        return self._backward.planned

    @property
    def runs_in_this_thread(self) -> bool:
        """True if the calling thread is the engine's, as in a hook; it must not wait for the engine."""
        return self._worker.is_current_thread

    @property
    def _is_inside(self) -> bool:
        return super()._is_inside or self.runs_in_this_thread

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it pops if no other task arrives, starting with the current task."""
        worker = self._worker
        upcoming, arrivals, label = worker.upcoming(), dict(worker.ready), label_of(worker.policy)
        return [
            ReadyTask(task := self.graph.tasks[task_id], at := arrivals[task_id], label(task, at))
            for task_id in upcoming
            if task_id in arrivals  # otherwise the task has started since
        ]

    @property
    def current(self) -> Task | None:
        """The task that `step()` runs next; None if all have run."""
        return self._backward.current

    @property
    @one_at_a_time
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The current task's input buffer after tensor hooks and pre-hooks, one per input, with the shapes in
        `current.inputs`.

        While you hold a reference to one of them, the engine neither adds to it in place nor steals it as a leaf's
        .grad.
        """
        self._backward.stopped_at()
        return self._backward.gradients

    @one_at_a_time
    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """Return the current task's gradients, with the shapes in `task.inputs`.

        Raises:
            NotImplementedError: `task` is not the current task; the engine shows an input buffer only when its task
                starts.
        """
        about = self._task(task)
        gradients = self._backward.taken(about)
        if gradients is None:
            raise NotImplementedError(
                f"PyTorch's engine does not show the input buffer of {self._described(about)} until that "
                'task is the current one; ts.debug(..., engine="direct") shows all input buffers'
            )
        return gradients

    @one_at_a_time
    def replace(self, gradients: Gradients | Tensor | None, task: AnyTask | None = None) -> None:
        """Replace the current task's gradients, one per input.

        Raises:
            NotImplementedError: `task` is not the current task.
            ValueError: the gradients' number, shape, dtype, device or layout differs, or an input that received no
                gradient would get one.
            TypeError: a gradient is not a tensor.
        """
        backward = self._backward
        about = backward.stopped_at() if task is None else self._task(task)
        before = backward.taken(about)
        if before is None:
            raise NotImplementedError(
                f"PyTorch's engine does not show the input buffer of {self._described(about)} until that task is the "
                'current one; ts.debug(..., engine="direct") can edit the input buffer of any ready task'
            )
        after = as_gradients(gradients)
        check_edit(self.graph, about, before, after)
        if self._worker.recorder is not None:
            self._worker.recorder.edit(about.id, before, after)
        backward.edit(about, after)

    @one_at_a_time
    def _step(self, task: AnyTask | None = None, before: int | None = None) -> Task:
        """Run the current task and stop before the next one."""
        return self._backward.step(None if task is None else self._task(task))

    @one_at_a_time
    def _next_on(self, device: str) -> Task:
        return self._backward.next_on(device)

    def result(self) -> Run:
        """Return a `Run` of the tasks run so far."""
        worker = self._worker
        order = tuple(worker.order)
        planned = tuple(self.planned) or order
        policy = worker.policy
        name, note = order_name(policy), note_on(policy)
        stopped = self.stopped.text if self.stopped else ""
        elapsed_ns, trace = worker.elapsed_ns, self.trace
        return Run(self.graph, name, "native", order, planned, elapsed_ns, trace=trace, note=note, stopped=stopped)

    def _follow(self, policy: Policy | Choice) -> None:
        worker = self._worker
        ran = worker.order if worker.taken is None else [*worker.order, worker.taken]
        chosen = self._bound(policy, ran)
        planned = [] if is_dynamic(chosen) else schedule(self.graph, chosen, self.needed, ran, queues=self.queues)
        if planned != self.planned and in_group():
            raise PolicyError(
                f"policy {policy_name(chosen)} cannot take over here: in a process group all ranks agree on one order "
                "before the backward starts; create the session with this policy on every rank"
            )
        self._backward.follow(chosen, planned)

    @property
    def history(self) -> Never:
        """Raise NotImplementedError, as all undo verbs do."""
        raise NotImplementedError(NO_HISTORY)

    @property
    def branches(self) -> tuple[()]:
        """An empty tuple, as for a `Stepper` without a history."""
        return ()

    def keep_history(self, budget_bytes: int | str = 0) -> Never:
        """Raise NotImplementedError: PyTorch's own engine cannot undo tasks."""
        raise NotImplementedError(NO_HISTORY)

    def forget(self) -> Never:
        """Raise NotImplementedError, as `keep_history` does."""
        raise NotImplementedError(NO_HISTORY)

    def back(self, count: int = 1) -> Never:
        """Raise NotImplementedError, as `keep_history` does."""
        raise NotImplementedError(NO_HISTORY)

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Run until a task is next, as `run_to` does; return the current task.

        Raises:
            NotImplementedError: the task has run already, or a branch was passed.
            ValueError: the task does not run.
        """
        if branch is None and task is None:
            raise ValueError("goto() needs a task")
        if branch is not None or task is None or self._task(task).id in self.order:
            raise NotImplementedError(NO_HISTORY)
        return self.run_to(task)

    def restore(self, task: AnyTask | None = None) -> Never:
        """Raise NotImplementedError: PyTorch's own engine does not keep replaced gradients."""
        raise NotImplementedError(
            'PyTorch\'s engine does not keep replaced gradients, so they cannot be restored; use engine="direct"'
        )

    def compare_branches(self) -> Never:
        """Raise NotImplementedError, as `keep_history` does."""
        raise NotImplementedError(NO_HISTORY)

    def close(self) -> None:
        """End the session after the running task, and release the graph's nodes; a second call does nothing.

        Under fully_shard (FSDP2), FullyShardedDataParallel and DistributedDataParallel, a backward that has started
        runs to its end, because the other ranks wait for it and later steps need its callbacks. Called from a hook, it
        does not wait for the end.
        """
        self._backward.close()


def _with_several_queues(plan: Plan, call: BackwardCall) -> Plan:
    """Return the plan in the order in which devices with separate queues would start its tasks.

    Raises:
        NotImplementedError: the backward cannot be stepped with several queues.
    """
    if is_dynamic(plan.policy):
        why = f"policy {policy_name(plan.policy)} chooses during the backward, which needs one queue for all devices"
    elif call.create_graph:
        why = "create_graph=True numbers the nodes of the backward in one thread, which needs one queue for all devices"
    elif in_group():
        why = "in a process group all ranks run one order, which needs one queue for all devices"
    elif in_backward():
        why = "the session was created inside another backward, which may occupy the thread of a device"
    else:
        order = schedule(plan.graph, plan.policy, plan.needed, queues="per device")
        return replace(plan, order=order)
    raise NotImplementedError(f'{why}; use queues="one"')
