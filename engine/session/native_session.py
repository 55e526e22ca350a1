"""A session of PyTorch's own engine that can be stopped: `ts.debug(loss, engine="native")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Never, get_args
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
from .engine_thread import Worker
from .native_engine import Plan
from .native_stepping import NativeBackward
from .rank_agreement import in_group
from .session import SessionTurn, one_at_a_time
from .verbs import Verbs, as_gradients, check_edit

if TYPE_CHECKING:
    pass

NO_HISTORY = "PyTorch's engine can't take back a task that has run, so it has no history; use engine=\"direct\""


@verbs_end_where_called
class NativeSession(Verbs):
    """A backward of PyTorch's own engine which runs one task at a time, when told to.

    The engine runs in a thread of the session's own and waits in a hook before each task at which it is to stop. All is
    as in training: hooks from C++, freeing, DistributedDataParallel. The engine has then taken the task that comes from
    its queue, and called the hooks that run before it: so the next task can't be chosen by hand, and no step taken back
    (engine="direct" can do both). Where nothing stops, nothing is handed over between threads.

    The session's thread has the caller's grad mode, inference mode, autocast, `saved_tensors_hooks`, modes of functions
    and dispatch, default device, context variables, and accelerators' streams, all as of the session's making. On
    accelerators all tasks share one queue and run in that thread, unless `queues` says otherwise.

    Known limitations. A profiler of the calling thread would not see the backward: refused. A `threading.local` of the
    user's is the session's thread's own in hooks. Warnings point to that thread. After a session that was closed before
    its end, gradients which have been accumulated stay, and callbacks for the end of the backward have not run; but
    `close` says what runs to its end.

    Args:
        tensors: the outputs where the backward starts, or all its arguments, as a `BackwardCall`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        trace: what is recorded of each task, as for `ts.backward`; None: nothing.
        queues: "one" ready queue for all devices, in the policy's total order, or one "per device", worked through in
            that device's own thread, as in training. Each thread then stands still before a task that it has
            taken: `step` lets one of them go on, `step(device=)` that device's, `run` all at once. `current` is the one
            that comes first where `Problem.durations` say how long tasks take. What a device takes is PyTorch's affair:
            the policy's choice among what has arrived; but one that stands idle takes what is pushed first, in the
            order of the edges of the task that pushes. So no order is certain, and `planned` is made again where
            another task is taken. Once tasks have begun the policy stays. Meanwhile every other backward of the
            process, one inside of a task, too, runs in the thread that calls it, with one queue, or it would wait for
            the devices' threads; one that C++ begins without Python, or that was under way, does wait. An error ends
            the session: what other devices hold does not run. A process in which Python has run in devices' threads may
            abort at its exit (PyTorch's issue #38228).

    Attributes:
        graph: the graph that is run; without its nodes once the session is closed, or over after an error.
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
                f"a native session runs in a thread of its own, which can't be given {error}; use "
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
        self._turn = SessionTurn()
        self._finalizer = finalize(self, self._worker.forget)
        begins(self)
        self._finalizer.atexit = False  # all that run are ended then, and waited for

    def __repr__(self) -> str:
        state = self.over or f"{len(self._worker.ready)} ready"
        ran = len(self._worker.order)
        return f"<NativeSession under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def planned(self) -> Sequence[int]:
        """All tasks in the order in which they ran and are going to; empty under a dynamic policy."""
        return self._backward.planned

    @property
    def runs_in_this_thread(self) -> bool:
        """Whether the calling thread is the one in which the engine runs: that of hooks, which must not wait for it."""
        return self._worker.is_current_thread

    @property
    def _is_inside(self) -> bool:
        return super()._is_inside or self.runs_in_this_thread

    def _let_go(self) -> None:
        self._backward.close()

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it pops if no other task comes. The first is the current task."""
        worker = self._worker
        upcoming, arrivals, label = worker.upcoming(), dict(worker.ready), label_of(worker.policy)
        return [
            ReadyTask(task := self.graph.tasks[task_id], at := arrivals[task_id], label(task, at))
            for task_id in upcoming
            if task_id in arrivals  # else it has begun meanwhile
        ]

    @property
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""
        return self._backward.current

    @property
    @one_at_a_time
    def gradients(self) -> tuple[Tensor | None, ...]:
        """What the current task is about to get, one per input number, of the shapes in `current.inputs`: its input
        buffer after tensor and pre-hooks.

        While somebody holds one of them, the engine does not add to it in place, nor take it for a leaf's .grad.
        """
        self._backward.stopped_at()
        return self._backward.gradients

    @one_at_a_time
    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """The gradients of the current task, of the shapes in `task.inputs`.

        Raises:
            NotImplementedError: for any other task. The engine shows an input buffer only as its task starts.
        """
        about = self._task(task)
        gradients = self._backward.taken(about)
        if gradients is None:
            raise NotImplementedError(
                f"PyTorch's engine keeps to itself what waits for {self._described(about)} until that "
                'task is the current one; ts.debug(..., engine="direct") shows all input buffers'
            )
        return gradients

    @one_at_a_time
    def replace(self, gradients: Gradients | Tensor | None, task: AnyTask | None = None) -> None:
        """Gives the current task these gradients instead of `gradients`, one per input number.

        Raises:
            NotImplementedError: `task` is another than the current one.
            ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
            TypeError: one is no tensor.
        """
        backward = self._backward
        about = backward.stopped_at() if task is None else self._task(task)
        before = backward.taken(about)
        if before is None:
            raise NotImplementedError(
                f"PyTorch's engine keeps to itself what waits for {self._described(about)} until that task is the "
                'current one; ts.debug(..., engine="direct") can edit the input buffer of any ready task'
            )
        after = as_gradients(gradients)
        check_edit(self.graph, about, before, after)
        if self._worker.recorder is not None:
            self._worker.recorder.edit(about.id, before, after)
        backward.edit(about, after)

    @one_at_a_time
    def _step(self, task: AnyTask | None = None, before: int | None = None) -> Task:
        """Runs the current task and stops before the next."""
        return self._backward.step(None if task is None else self._task(task))

    @one_at_a_time
    def _next_on(self, device: str) -> Task:
        return self._backward.next_on(device)

    def result(self) -> Run:
        """What has run so far."""
        worker = self._worker
        order = tuple(worker.order)
        planned = tuple(self.planned) or order
        policy = worker.policy
        name, note = order_name(policy), note_on(policy)
        return Run(self.graph, name, "native", order, planned, worker.elapsed_ns, trace=self.trace, note=note)

    def _follow(self, policy: Policy | Choice) -> None:
        worker = self._worker
        ran = worker.order if worker.taken is None else [*worker.order, worker.taken]
        chosen = self._bound(policy, ran)
        planned = [] if is_dynamic(chosen) else schedule(self.graph, chosen, self.needed, ran, queues=self.queues)
        if planned != self.planned and in_group():
            raise PolicyError(
                f"policy {policy_name(chosen)} can't take over here: in a process group all ranks run one order, on "
                "which they agree before it begins; open the session under this policy, on every rank"
            )
        self._backward.follow(chosen, planned)

    @property
    def history(self) -> Never:
        """Raises NotImplementedError, as all that goes back."""
        raise NotImplementedError(NO_HISTORY)

    @property
    def branches(self) -> tuple[()]:
        """None, as where a `Stepper` keeps no history."""
        return ()

    def keep_history(self, budget_bytes: int | str = 0) -> Never:
        """Refused: PyTorch's own engine takes no task back. Raises NotImplementedError."""
        raise NotImplementedError(NO_HISTORY)

    def forget(self) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)

    def back(self, count: int = 1) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes on to the moment before a task, as `run_to` does. Returns the current task.

        Raises:
            NotImplementedError: the task has run, or it is a branch.
            ValueError: the task is not going to run.
        """
        if branch is None and task is None:
            raise ValueError("goto() where? Give a task")
        if branch is not None or task is None or self._task(task).id in self.order:
            raise NotImplementedError(NO_HISTORY)
        return self.run_to(task)

    def restore(self, task: AnyTask | None = None) -> Never:
        """Refused: PyTorch's own engine keeps no gradients that were replaced. Raises NotImplementedError."""
        raise NotImplementedError(
            "PyTorch's engine keeps no gradients that were replaced, so they can't be restored; use engine=\"direct\""
        )

    def compare_branches(self) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)

    def close(self) -> None:
        """Ends the session: the task that runs is the last. Lets the graph's nodes go. Does nothing a second time.

        Under fully_shard (FSDP2), FullyShardedDataParallel and DistributedDataParallel a backward that has begun runs
        to its end: the other ranks wait for it, and later steps for what happens there. From a hook it does not wait
        for the end.
        """
        self._backward.close()

    @property
    def _worker(self) -> Worker:
        return self._backward.worker


def _with_several_queues(plan: Plan, call: BackwardCall) -> Plan:
    """The plan, in the order in which devices with a queue each would start its tasks.

    Raises:
        NotImplementedError: what several queues can't be stepped with.
    """
    if is_dynamic(plan.policy):
        why = f"policy {policy_name(plan.policy)} picks as the backward runs, which needs one queue for all devices"
    elif call.create_graph:
        why = "create_graph=True numbers the graph of the backward in one thread, which needs one queue for all devices"
    elif in_group():
        why = "in a process group all ranks run one order, which needs one queue for all devices"
    elif in_backward():
        why = "this is called inside of a backward, which may have the thread of a device"
    else:
        order = schedule(plan.graph, plan.policy, plan.needed, queues="per device")
        return replace(plan, order=order)
    raise NotImplementedError(f'{why}: a session of PyTorch\'s engine takes queues="one" there')
