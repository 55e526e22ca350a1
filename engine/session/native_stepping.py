"""A backward of PyTorch's own engine under way, which stops on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ...inspector.graph.graph import Graph, Task
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.torch_private.thread_state import ThreadState
from ..execution.backward_arguments import BackwardCall
from ..recording.recorder import Recorder
from ..recording.statistics import Level
from ..schedule.policy import Choice, Policy
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops, session_over
from .engine_thread import NEVER, NEXT, Worker
from .native_engine import Plan


class NativeBackward:
    """The backward of a `NativeSession`: lets the engine's thread run, and waits until it stops or ends.

    Args:
        call: the arguments of the backward.
        plan: its graph, policy and order.
        state: the caller's thread state, which the engine's thread adopts.
        trace: as for `NativeSession`.
        given: the root gradients, which lead to the caller's part of a double backward graph.

    Attributes:
        graph: the graph; without its nodes once the backward is over.
        needed: ids of the tasks that run; None for all.
        stops: the breakpoints and watchpoints.
        recorder: records the tasks; None if nothing is recorded.
        worker: the engine's thread.
        over: the reason why no further step is possible; None while steps are possible.
    """

    worker_type: type[Worker] = Worker

    def __init__(
        self, call: BackwardCall, plan: Plan, state: ThreadState, trace: Level | None, given: tuple[Tensor | None, ...]
    ) -> None:
        plan = replace(plan, graph=plan.graph.owned())
        self.graph: Graph = plan.graph
        self.needed = plan.needed
        self._planned: Sequence[int] = plan.order
        self.recorder = recorder = None if trace is None else Recorder(self.graph, plan.policy, trace)
        self.stops = Stops(self.graph, plan.needed, None if recorder is None else recorder.trace)
        self.worker = self.worker_type(call, state, plan, recorder, self.stops)
        self.stops.use_order(self.worker.order)
        self.over: str | None = None
        self._root_gradients = given
        self._ended = False

    @property
    def planned(self) -> Sequence[int]:
        """All tasks in order, those that have run and those still to run; empty under a dynamic policy."""
        return self._planned

    def described(self, task_id: int) -> str:
        """Describe a task, with its position in the run if known."""
        return self.graph.in_order(self.planned or self.worker.order).describe(task_id)

    @property
    def policy(self) -> Policy | Choice:
        """The current policy."""
        return self.worker.policy

    @property
    def order(self) -> list[int]:
        """Ids of the tasks that have run."""
        return list(self.worker.order)

    @property
    def current(self) -> Task | None:
        """The task that runs next; None if all have run."""
        first = self.worker.first()
        return None if first is None else self.graph.tasks[first]

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The next task's input buffer, at a stop."""
        return tuple(self.worker.gradients or ())

    def check_open(self) -> None:
        if self.over is not None:
            raise session_over(self.over)

    def stopped_at(self) -> Task:
        """Start the engine if needed, and return the task before which it has stopped."""
        if not self.worker.begun:
            self._resume(NEXT)
            self.check_open()
        current = self.current
        if current is None:
            raise RuntimeError(f"no task is left: all {len(self.worker.order)} have run")
        return current

    def stop_here(self, wait: bool) -> Stop | None:
        """Return the stop that ends a run at this position; see `Verbs.stop_here`."""
        if self.current is None:
            return self.stops.at_end(self.worker.order)
        found = self.stops.found(wait)
        if found is not None or not self.stops.breakpoints:
            return found
        waiting, gradients = self.stopped_at(), self.gradients
        return self.stops.before(waiting.id, self.worker.order, lambda: gradients)

    def taken(self, task: Task) -> tuple[Tensor | None, ...] | None:
        """Return a task's input buffer if the engine has popped the task and stopped before it; otherwise None."""
        if task is not self.current:
            return None
        self.stopped_at()
        return self.gradients

    def edit(self, task: Task, gradients: tuple[Tensor | None, ...]) -> None:
        """Replace the gradients of a task that is `taken`."""
        self.worker.edit(gradients)

    def next_on(self, device: str) -> Task:
        """Return the task that a device runs next."""
        current = self.current
        if current is None or str(current.device) != device:
            described = "none" if current is None else self.described(current.id)
            raise NotImplementedError(
                f"the next task is {described}. All devices share one queue in this session, so {device} has to wait; "
                'with queues="per device" each has its own'
            )
        return current

    def step(self, task: Task | None = None) -> Task:
        """Run the current task and stop before the next one.

        Raises:
            NotImplementedError: `task` is not the current task.
        """
        if task is not None and task is not self.current:
            current = self.current
            raise NotImplementedError(
                f"the next task is {'none' if current is None else self.described(current.id)}, and PyTorch's engine "
                f'cannot run {self.described(task.id)} before it; ts.debug(..., engine="direct") can, if it is ready'
            )
        self.stopped_at()
        ran = len(self.worker.order)
        self._resume(NEXT)
        if len(self.worker.order) == ran:  # another thread has closed the session
            self.check_open()
        return self.graph.tasks[self.worker.order[ran]]

    def follow(self, policy: Policy | Choice, planned: Sequence[int]) -> None:
        """Switch to another policy, with its order of the remaining tasks."""
        worker = self.worker
        waiting = worker.upcoming()
        # A task already in the engine's heap is not moved when its number changes (engine.h, CompareNodeTaskTime is
        # only evaluated on push and pop), so the queue has to be sorted again if the order of the ready tasks changes.
        worker.follow(policy, planned)
        if worker.recorder is not None:
            worker.recorder.switch(policy, worker.taken)
        self._planned = planned
        worker.sort_again |= worker.upcoming() != waiting

    def close(self) -> None:
        """End the backward after the running task; from a hook, without waiting for the end."""
        self.over = self.over or "closed"
        self.worker.abandon()
        self.worker.join()
        self.graph = replace(self.graph, nodes=())
        self._root_gradients = ()
        # In a hook the engine still runs in this thread and uses the nodes; `Worker._main` releases them afterwards.
        if not self.worker.is_current_thread:
            self.worker.release()

    release = close

    def run_to(self, task_id: int) -> None:
        """Run until this task is next, or until a stop."""
        if task_id in self.worker.order:
            raise ValueError(f"{self.described(task_id)} has run already")
        if self.needed is not None and task_id not in self.needed:
            raise ValueError(f"{self.described(task_id)} does not run: no path leads from it to inputs=")
        self.run_until(task_id)

    def run_until(self, last: int | None) -> None:
        """Run until `last` is next, a stop, or the end."""
        worker, stops = self.worker, self.stops
        stops.stopped = None
        try:
            if last is not None:
                self.stopped_at()
            current = self.current
            if not (self._ended or stops.stop_asked or (current is not None and current.id == last)):
                self._resume(NEVER if last is None else last)
                stops.stopped = worker.stopped
                if self._ended:
                    stops.stopped = stops.at_end(worker.order)
            if stops.stopped is None and not self._ended:
                stops.stopped = stops.take_request()
        finally:
            stops.stop_asked = False

    def _resume(self, until: int) -> None:
        """Let the engine run until it stops or ends."""
        worker = self.worker
        worker.until, worker.stopped = until, None
        before = sequence_nr()
        try:
            if worker.begun:
                worker.resume()
            else:
                worker.start()
            report = worker.report()
            if report is not None:
                self._ended = True
                worker.join()
        except BaseException as interrupt:  # of the waiting thread
            self.over = f"{type(interrupt).__name__} while the backward ran"
            self.close()
            raise
        if worker.numbering is not None:
            worker.numbering.advance_caller(before)
        if report is None:
            return
        if worker.numbering is not None and not report and not worker.abandoned:
            worker.numbering.number(self.graph, self._root_gradients)
        if worker.abandoned:
            self.close()
        if report:
            self.over = f"{type(report[0]).__name__} in the backward"
            self.close()
            try:
                raise report[0]
            finally:
                del report  # the error's traceback holds this frame, which must not hold the error
