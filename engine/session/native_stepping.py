"""A backward of PyTorch's own engine under way, which stops where it is told to."""

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
from .breakpoints.stop_list import Stops
from .engine_thread import NEVER, NEXT, Worker
from .native_engine import Plan
from .session import session_over


class NativeBackward:
    """What a `NativeSession` runs: lets the engine's thread go on, and waits until it stops or ends.

    Args:
        call: the backward.
        plan: in which order.
        state: what the thread has of its maker's.
        trace: as for `NativeSession`.
        given: the gradients of the roots that number the graph of the backward.

    Attributes:
        graph: the graph; without its nodes once it is over.
        needed: the ids of the tasks that run at all; None: all.
        stops: the breakpoints and watchpoints.
        recorder: records the tasks; None: nothing is recorded.
        worker: the thread.
        over: why no step is possible any more.
    """

    def __init__(
        self, call: BackwardCall, plan: Plan, state: ThreadState, trace: Level | None, given: tuple[Tensor | None, ...]
    ) -> None:
        plan = replace(plan, graph=plan.graph.owned())
        self.graph: Graph = plan.graph
        self.needed = plan.needed
        self._planned: Sequence[int] = plan.order
        self.recorder = recorder = None if trace is None else Recorder(self.graph, plan.policy, trace)
        self.stops = Stops(self.graph, plan.needed, None if recorder is None else recorder.trace)
        self.worker = self._worker(call, state, plan, recorder)
        self.stops.speak_of(self.worker.order)
        self.over: str | None = None
        self._given = given
        self._ended = False

    def _worker(self, call: BackwardCall, state: ThreadState, plan: Plan, recorder: Recorder | None) -> Worker:
        return Worker(call, state, plan, recorder, self.stops)

    @property
    def planned(self) -> Sequence[int]:
        """All tasks in the order in which they ran and are going to; empty under a dynamic policy."""
        return self._planned

    def described(self, task_id: int) -> str:
        """A task in words, with its place among those that ran and are going to, where that is known."""
        return self.graph.in_order(self.planned or self.worker.order).describe(task_id)

    @property
    def policy(self) -> Policy | Choice:
        """The policy that picks."""
        return self.worker.policy

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return list(self.worker.order)

    @property
    def current(self) -> Task | None:
        """The task that runs next; None when all have run."""
        first = self.worker.first()
        return None if first is None else self.graph.tasks[first]

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """At a stop the input buffer of the task to come."""
        return tuple(self.worker.gradients or ())

    def check_open(self) -> None:
        if self.over is not None:
            raise session_over(self.over)

    def stopped_at(self) -> Task:
        """The current task, before which the engine has stopped."""
        if not self.worker.begun:
            self._go_on(NEXT)
            self.check_open()
        current = self.current
        if current is None:
            raise RuntimeError(f"no task is left: all {len(self.worker.order)} have run")
        return current

    def stop_here(self, wait: bool) -> Stop | None:
        """What stops a run here; see `Verbs.stop_here`."""
        if self.current is None:
            return self.stops.at_end(self.worker.order)
        found = self.stops.found(wait)
        if found is not None or not self.stops.asks:
            return found
        waiting, gradients = self.stopped_at(), self.gradients
        return self.stops.before(waiting.id, self.worker.order, lambda: gradients)

    def taken(self, task: Task) -> tuple[Tensor | None, ...] | None:
        """What a task is about to get, if the engine has taken it from its queue and stands before it."""
        if task is not self.current:
            return None
        self.stopped_at()
        return self.gradients

    def edit(self, task: Task, gradients: tuple[Tensor | None, ...]) -> None:
        """A task that is `taken` gets these."""
        self.worker.edit(gradients)

    def next_on(self, device: str) -> Task:
        """The task that this device runs next."""
        current = self.current
        if current is None or str(current.device) != device:
            described = "none" if current is None else self.described(current.id)
            raise NotImplementedError(
                f"the next task is {described}, and this session has one queue for all devices, so {device} has to "
                'wait; queues="per device" gives each its own'
            )
        return current

    def step(self, task: Task | None = None) -> Task:
        """Runs the current task and stops before the next.

        Raises:
            NotImplementedError: this task is another.
        """
        if task is not None and task is not self.current:
            current = self.current
            raise NotImplementedError(
                f"the next task is {'none' if current is None else self.described(current.id)}, and PyTorch's engine "
                f'cannot run {self.described(task.id)} before it; ts.debug(..., engine="direct") can, if it is ready'
            )
        self.stopped_at()
        ran = len(self.worker.order)
        self._go_on(NEXT)
        if len(self.worker.order) == ran:  # closed meanwhile
            self.check_open()
        return self.graph.tasks[self.worker.order[ran]]

    def follow(self, policy: Policy | Choice, planned: Sequence[int]) -> None:
        """From here on this one picks, which plans this order."""
        worker = self.worker
        waiting = worker.upcoming()
        worker.follow(policy, planned)
        if worker.recorder is not None:
            worker.recorder.switch(policy, worker.taken)
        self._planned = planned
        worker.sort_again |= worker.upcoming() != waiting

    def close(self) -> None:
        """Ends it: the task that runs is the last. From a hook it does not wait for the end."""
        self.over = self.over or "closed"
        self.worker.abandon()
        self.worker.join()
        self.graph = replace(self.graph, nodes=())
        self._given = ()
        if not self.worker.is_current_thread:
            self.worker.let_go()

    def run_to(self, task_id: int) -> None:
        """Runs what comes before this task, or up to what stops a run."""
        if task_id in self.worker.order:
            raise ValueError(f"{self.described(task_id)} has run already")
        if self.needed is not None and task_id not in self.needed:
            raise ValueError(f"{self.described(task_id)} is not going to run: inputs= makes it needless")
        self.run_until(task_id)

    def run_until(self, last: int | None) -> None:
        """Runs up to this task, to what stops a run, or to the end."""
        worker, stops = self.worker, self.stops
        stops.stopped = None
        try:
            if last is not None:
                self.stopped_at()
            current = self.current
            if not (self._ended or stops.stop_asked or (current is not None and current.id == last)):
                self._go_on(NEVER if last is None else last)
                stops.stopped = worker.stopped
                if self._ended:
                    stops.stopped = stops.at_end(worker.order)
            if stops.stopped is None and not self._ended:
                stops.stopped = stops.asked()
        finally:
            stops.stop_asked = False

    def _go_on(self, until: int) -> None:
        """Lets the engine run until it stops, or ends."""
        worker = self.worker
        worker.until, worker.stopped = until, None
        before = sequence_nr()
        try:
            if worker.begun:
                worker.go_on()
            else:
                worker.start()
            report = worker.report()
            if report is not None:
                self._ended = True
                worker.join()
        except BaseException as interrupt:  # of the one who waits
            self.over = f"{type(interrupt).__name__} while it ran"
            self.close()
            raise
        if worker.numbering is not None:
            worker.numbering.went_on(before)
        if report is None:
            return
        if worker.numbering is not None and not report and not worker.abandoned:
            worker.numbering.number(self.graph, self._given)
        if worker.abandoned:
            self.close()
        if report:
            self.over = f"{type(report[0]).__name__} in the backward"
            self.close()
            try:
                raise report[0]
            finally:
                del report  # else the error would hold itself through this frame
