"""A ready queue for each device, in PyTorch's own engine: each of its threads stands still before its next task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Condition, Lock, get_ident

import torch
from torch import Tensor

from ...inspector.graph.graph import Task
from ...inspector.graph.phrases import joined
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.engine import devices_are_held, holding_devices, real_graph_task_id
from ...inspector.torch_private.engine_errors import errors_are_told, told_of_errors
from ...inspector.torch_private.thread_state import ThreadState
from ..execution.backward_arguments import BackwardCall
from ..execution.run_hooks import Gradients
from ..planning.simulate import schedule
from ..recording.recorder import Recorder
from ..schedule.device_queues import devices_in_order, why_still
from ..schedule.policy import Choice, Policy
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops
from .engine_thread import HEARS_SIGNALS_S, NEXT, Abandoned, Worker
from .native_engine import Plan, Watch
from .native_stepping import NativeBackward

_ENDS_WITHIN_S = 60.0  # what tasks under way may still take once the session is closed
_FIRST_ERROR_S = 0.05  # after an error is told of, until the engine keeps it as the first: no more than a few lines


@dataclass(eq=False, slots=True)
class Lane:
    """One device of a backward: its ready queue, and the thread which takes tasks from that.

    Attributes:
        device: its name.
        thread: which takes its tasks, once one has come.
        ready: the tasks that have got ready and have not begun.
        held: one of them, which the thread has taken and before which it stands still.
        running: the task that runs.
        gradients: what the task that is held is about to get.
        edited: what it gets instead, where somebody said so.
        goes_on: whether the thread may go on.
    """

    device: str
    thread: int | None = None
    ready: set[int] = field(default_factory=set)
    held: int | None = None
    running: int | None = None
    gradients: Gradients | None = None
    edited: tuple[Tensor | None, ...] | None = None
    goes_on: bool = False

    @property
    def stands(self) -> bool:
        """Whether nothing happens on it until somebody lets it go on, or another device brings it a task."""
        return self.held is not None or (self.running is None and not self.ready)


class Lanes(Worker):
    """The engine's run with each device's tasks in the device's own thread, and the CPU's in the worker's.

    A hook of each thread notes the task that it holds, and waits. When a task raises while another thread is held, the
    backward would wait for that one's task, and no hook be called: see `told_of_errors`. Then those that are held end
    without running.

    Attributes:
        lanes: by the device's name.
        chosen: the tasks to let go on next; None: all that are held.
        raised_in: the task that raised.
    """

    def __init__(
        self, call: BackwardCall, state: ThreadState, plan: Plan, recorder: Recorder | None, stops: Stops
    ) -> None:
        self._device_of = [str(task.device) for task in plan.graph.tasks]
        self.lanes = {device: Lane(device) for device in devices_in_order(self._device_of)}
        self.chosen: frozenset[int] | None = None
        self.raised_in: int | None = None
        self._stopped_before: int | None = None
        self._over: tuple[BaseException, ...] | None = None
        self._changed = Condition()  # of all this, and of the lanes
        self._asking = Lock()  # conditions of stops are asked one after the other
        super().__init__(call, state, plan, recorder, stops)

    def lane_of(self, task_id: int) -> Lane:
        return self.lanes[self._device_of[task_id]]

    @property
    def is_current_thread(self) -> bool:
        return super().is_current_thread or get_ident() in (lane.thread for lane in self.lanes.values())

    @property
    def held(self) -> list[int]:
        """The tasks that the engine has taken from its queues: first the one at which a run has stopped."""
        found = [lane.held for lane in self.lanes.values() if lane.held is not None]
        return sorted(found, key=lambda task_id: (task_id != self._stopped_before, self._rank[task_id]))

    def first(self) -> int | None:
        if held := self.held:
            return held[0]
        return next(iter(self.upcoming()), None)

    def upcoming(self) -> list[int]:
        held = self.held
        return held + sorted(self.ready.keys() - held, key=self._rank.__getitem__)

    def prefer(self, task_id: int) -> None:
        """Of the tasks that are held this one is the current one."""
        self._stopped_before = task_id

    def go_on(self) -> None:
        self.stay_last()
        if self.pin.disturbed:  # by another backward; what waits in the queues stays as it is
            self.pin.take_back()
        self._start_clock()
        with self._changed:
            self._stopped_before = None
            for lane in self.lanes.values():
                lane.goes_on = lane.held is not None and (self.chosen is None or lane.held in self.chosen)
            self._changed.notify_all()

    def report(self) -> tuple[BaseException, ...] | None:
        """Waits until all lanes stand still, or the run is over. Each wait is short: a signal ends none."""
        with self._changed:
            while self._over is None and not self._stands():
                self._changed.wait(HEARS_SIGNALS_S)
            if self._over is None:
                self._stop_clock()
            return self._over

    def _stands(self) -> bool:
        """Whether all threads stand still, one of them at least before a task."""
        if self.abandoned or self.raised_in is not None:
            return False
        lanes = self.lanes.values()
        return any(lane.held is not None for lane in lanes) and all(lane.stands and not lane.goes_on for lane in lanes)

    def abandon(self) -> None:
        self.abandoned = True
        self.until = NEXT
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        super().join(_ENDS_WITHIN_S if timeout_s is None else timeout_s)
        runs = self._thread is not None and self._thread.is_alive() and not self.is_current_thread
        if timeout_s is None and runs:
            running = [task_id for lane in self.lanes.values() if (task_id := lane.running) is not None]
            what = joined([self.graph.describe(task_id) for task_id in running], 3) or "a hook before a task"
            warn(f"the session is closed, but {what} has not ended for {_ENDS_WITHIN_S:.0f} s")

    def let_go(self) -> None:
        super().let_go()
        if self._over:
            self._over = ()  # its error holds what the threads' frames do
        for lane in self.lanes.values():
            lane.ready.clear()
            lane.thread = lane.held = lane.gradients = lane.edited = None

    def _ended(self, raised: tuple[BaseException, ...]) -> None:
        if self.raised_in is not None and not raised and not self.abandoned:  # another thread's end was the first
            raised = (RuntimeError(f"a task raised {self._place(None)}, and its error was lost"),)
        with self._changed:
            self._over = raised
            self._changed.notify_all()

    @contextmanager
    def _queues(self, plan: Plan) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(True))
            stack.enter_context(told_of_errors(self.graph.nodes, self._raised))
            stack.enter_context(holding_devices())
            yield

    def _raised(self, task_id: int) -> None:
        """The task has raised. A backward inside of it, or beside this one, may share the node of a leaf."""
        thread = self.lane_of(task_id).thread
        elsewhere = task_id not in self.ready if thread is None else thread != get_ident()
        if elsewhere or real_graph_task_id() == self._graph_task:
            return
        with self._changed:
            if self.raised_in is None:
                self.raised_in = task_id
            self._changed.notify_all()

    def _place(self, error: BaseException | None) -> str:
        if self.raised_in is None:
            return super()._place(error)
        begun = self.raised_in not in self.ready
        described = self.graph.in_order([*self.order, self.raised_in]).describe(self.raised_in)
        return f"in {'' if begun else 'the hooks that run before '}{described}"

    def _arrive(self, task_ids: Sequence[int]) -> None:
        super()._arrive(task_ids)
        with self._changed:
            for task_id in task_ids:
                self.lane_of(task_id).ready.add(task_id)

    def _before(self, task_id: int, gradients: Gradients) -> Gradients | None:
        if not self.owns(task_id):
            return None
        lane = self.lane_of(task_id)
        lane.thread = get_ident()
        stop = self._stop_before(task_id, gradients)
        with self._changed:
            if self._holds(task_id, stop):
                lane.held, lane.gradients = task_id, gradients
                self._changed.notify_all()
                self._changed.wait_for(lambda: lane.goes_on or self.abandoned or self.raised_in is not None)
            edited, lane.edited = lane.edited, None
            lane.held = lane.gradients = None
            lane.goes_on = False
            raised = self.raised_in is not None
            if not raised and not (self.abandoned and not self.has_to_end):
                lane.ready.discard(task_id)
                lane.running = task_id
        if raised:
            time.sleep(_FIRST_ERROR_S)
        if lane.running != task_id:
            raise Abandoned
        gradients = gradients if edited is None else edited
        self._begin(task_id, gradients)
        if self.stops.watches and self.graph.tasks[task_id].is_leaf:
            with self._asking:
                self.stops.produced(task_id, gradients, ())
        return edited

    def _stop_before(self, task_id: int, gradients: Gradients) -> Stop | None:
        stops = self.stops
        with self._asking if stops.watches or stops.asks else nullcontext():
            found = stops.found() if stops.watches else None
            if found is None and stops.asks:
                found = stops.before(task_id, self.order, lambda: tuple(gradients))
        return found

    def _holds(self, task_id: int, stop: Stop | None) -> bool:
        """Whether the thread stands still before the task; where that is what the run goes up to, all others do."""
        if self.abandoned or self.raised_in is not None:
            return False
        if task_id == self.until or (stop is not None and self.order and self.until != NEXT):
            self._stopped_before = task_id
            self.stopped = None if task_id == self.until else stop
            self.until = NEXT
        return self.until == NEXT or self.stops.stop_asked

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        if real_graph_task_id() != self._graph_task:
            return
        Watch._after(self, task_id, outputs, gradients)
        if self.stops.watches and not self.graph.tasks[task_id].is_leaf:
            with self._asking:
                self.stops.produced(task_id, gradients, outputs)
        with self._changed:
            self.lane_of(task_id).running = None
            self._changed.notify_all()


class LanesBackward(NativeBackward):
    """A backward whose devices are stepped each by itself: what a `NativeSession` with queues="per device" runs."""

    worker: Lanes

    def _worker(self, call: BackwardCall, state: ThreadState, plan: Plan, recorder: Recorder | None) -> Worker:
        return Lanes(call, state, plan, recorder, self.stops)

    @property
    def planned(self) -> Sequence[int]:
        ran = [*self.worker.order, *self.worker.held]
        if list(self._planned[: len(ran)]) != ran:
            self._planned = schedule(self.graph, self.worker.policy, self.needed, ran, queues="per device")
        return self._planned

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        current = self.current
        return () if current is None else tuple(self.worker.lane_of(current.id).gradients or ())

    def taken(self, task: Task) -> tuple[Tensor | None, ...] | None:
        if not self.worker.begun:
            self.stopped_at()
        lane = self.worker.lane_of(task.id)
        return tuple(lane.gradients or ()) if lane.held == task.id else None

    def edit(self, task: Task, gradients: tuple[Tensor | None, ...]) -> None:
        lane = self.worker.lane_of(task.id)
        lane.edited = lane.gradients = gradients

    def next_on(self, device: str) -> Task:
        if not self.worker.begun:
            self.stopped_at()
        held = self.worker.lanes[device].held
        if held is None:
            raise ValueError(why_still(self.graph, device, self.planned, self.worker.order))
        return self.graph.tasks[held]

    def step(self, task: Task | None = None) -> Task:
        """Runs the current task, or one that another device holds, and stops before that device's next."""
        current = self.stopped_at()
        if task is not None and task.id not in self.worker.held:
            held = self.worker.lane_of(task.id).held
            instead = "nothing" if held is None else self.described(held)
            raise NotImplementedError(
                f"{task.device} has taken {instead} from its queue, and PyTorch's engine cannot run "
                f'{self.described(task.id)} before it; ts.debug(..., engine="direct") can, if it is ready'
            )
        self.worker.chosen = frozenset([current.id if task is None else task.id])
        return super().step()

    def follow(self, policy: Policy | Choice, planned: Sequence[int]) -> None:
        if self.worker.begun:
            raise NotImplementedError(
                "several queues of PyTorch's engine can't be sorted again while they are worked through: set the "
                'policy before the first step, or use ts.debug(..., engine="direct"), which takes another at any stop'
            )
        super().follow(policy, planned)

    def run_until(self, last: int | None) -> None:
        self.worker.chosen = None
        if last is not None and not self.worker.begun:
            self.stopped_at()
        if last in self.worker.held:
            self.worker.prefer(last)
        super().run_until(last)

    def _go_on(self, until: int) -> None:
        if not self.worker.begun and devices_are_held():
            raise RuntimeError("another session steps the devices' own queues; close it first")
        with errors_are_told():  # while tasks run, and not while they stand still: others see it, too
            super()._go_on(until)
