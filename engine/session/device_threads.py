"""A ready queue per device in PyTorch's own engine: each device's thread stops before its next task."""

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
from ...inspector.torch_private.engine_errors import task_errors_reported, watching_task_errors
from ...inspector.torch_private.thread_state import ThreadState
from ..execution.backward_arguments import BackwardCall
from ..execution.run_hooks import Gradients
from ..planning.simulate import schedule
from ..recording.recorder import Recorder
from ..schedule.device_queues import devices_in_order, why_idle
from ..schedule.policy import Choice, Policy
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops
from .engine_thread import HEARS_SIGNALS_S, NEXT, Abandoned, Worker
from .native_engine import Plan, Watch
from .native_stepping import NativeBackward

_ENDS_WITHIN_S = 60.0  # time limit for running tasks once the session is closed
# GraphTask::set_exception (engine.cpp) keeps only the first error (future_completed_.exchange(true)). A held thread
# waits this long before it raises `Abandoned`, so that the task's own error is stored first.
_FIRST_ERROR_S = 0.05


@dataclass(eq=False, slots=True)
class Lane:
    """One device of a backward: its ready queue, and the engine thread that pops tasks from it.

    Attributes:
        device: its name.
        thread: id of the thread, once it has run a task.
        ready: the tasks that are ready and have not started.
        held: the task that the thread has popped and before which it waits.
        running: the task that is running.
        gradients: the input buffer of the held task.
        edited: the gradients that replace it, if edited.
        may_resume: whether the thread may continue.
    """

    device: str
    thread: int | None = None
    ready: set[int] = field(default_factory=set)
    held: int | None = None
    running: int | None = None
    gradients: Gradients | None = None
    edited: tuple[Tensor | None, ...] | None = None
    may_resume: bool = False


class Lanes(Worker):
    """The engine's run with each device's tasks in the device's own thread, and the CPU's in the worker's thread.

    A hook in each thread records the task the thread holds, and waits. If a task raises while another thread is held,
    the engine waits for that thread's task without calling a hook; see `watching_task_errors`. The held tasks then end
    without running.

    Attributes:
        lanes: the lanes by device name.
        chosen: the held tasks that may continue next; None for all.
        raised_in: the task that raised.
        stopped_before: the held task at which the last run has stopped, which is the current one.
    """

    def __init__(
        self, call: BackwardCall, state: ThreadState, plan: Plan, recorder: Recorder | None, stops: Stops
    ) -> None:
        self._device_of = [str(task.device) for task in plan.graph.tasks]
        self.lanes = {device: Lane(device) for device in devices_in_order(self._device_of)}
        self.chosen: frozenset[int] | None = None
        self.raised_in: int | None = None
        self.stopped_before: int | None = None
        self._over: tuple[BaseException, ...] | None = None
        self._changed = Condition()  # guards these fields and the lanes
        self._asking = Lock()  # one thread at a time evaluates breakpoints and watchpoints
        super().__init__(call, state, plan, recorder, stops)

    def lane_of(self, task_id: int) -> Lane:
        return self.lanes[self._device_of[task_id]]

    @property
    def is_current_thread(self) -> bool:
        return super().is_current_thread or get_ident() in (lane.thread for lane in self.lanes.values())

    @property
    def held(self) -> list[int]:
        """The tasks that the engine has popped from its queues, the one at which a run has stopped first."""
        found = [lane.held for lane in self.lanes.values() if lane.held is not None]
        return sorted(found, key=lambda task_id: (task_id != self.stopped_before, self._rank[task_id]))

    def first(self) -> int | None:
        if held := self.held:
            return held[0]
        return next(iter(self.upcoming()), None)

    def upcoming(self) -> list[int]:
        held = self.held
        return held + sorted(self.ready.keys() - held, key=self._rank.__getitem__)

    def resume(self) -> None:
        self.move_hooks_last()
        if self.pin.disturbed:  # another backward renumbered shared leaves; queued tasks keep their places
            self.pin.take_back()
        self._note_time(runs=True)
        with self._changed:
            self.stopped_before = None
            for lane in self.lanes.values():
                lane.may_resume = lane.held is not None and (self.chosen is None or lane.held in self.chosen)
            self._changed.notify_all()

    def report(self) -> tuple[BaseException, ...] | None:
        """Wait until all lanes have stopped or the run is over. Each wait is short, because a signal does not end a
        wait."""
        with self._changed:
            while self._over is None and not self._have_stopped():
                self._changed.wait(HEARS_SIGNALS_S)
            if self._over is None:
                self._note_time(runs=False)
            return self._over

    def _have_stopped(self) -> bool:
        """Return whether all threads have stopped, at least one of them before a task."""
        if self.abandoned or self.raised_in is not None:
            return False
        held = False
        for lane in self.lanes.values():
            held = held or lane.held is not None
            # A device without a ready task is idle until another device makes one of its tasks ready.
            if lane.may_resume or (lane.held is None and (lane.running is not None or lane.ready)):
                return False
        return held

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
            names = joined([self.graph.describe(task_id) for task_id in running], 3) or "a hook before a task"
            warn(f"the session is closed, but {names} has not ended within {_ENDS_WITHIN_S:.0f} s")

    def release(self) -> None:
        super().release()
        if self._over:
            self._over = ()  # the error's traceback holds the threads' frames
        for lane in self.lanes.values():
            lane.ready.clear()
            lane.thread = lane.held = lane.gradients = lane.edited = None

    def _ended(self, raised: tuple[BaseException, ...]) -> None:
        if self.raised_in is not None and not raised and not self.abandoned:  # another thread ended first
            raised = (RuntimeError(f"a task raised {self._place(None)}, and its error was lost"),)
        with self._changed:
            self._over = raised
            self._changed.notify_all()

    @contextmanager
    def _queues(self, plan: Plan) -> Iterator[None]:
        with ExitStack() as stack:
            # With multithreading, Engine::ready_queue (engine.cpp) gives each device its queue and thread. These
            # threads belong to the process, so other backwards must not wait behind a held task.
            stack.enter_context(torch.autograd.set_multithreading_enabled(True))
            stack.enter_context(watching_task_errors(self.graph.nodes, self._raised))
            stack.enter_context(holding_devices())
            yield

    def _raised(self, task_id: int) -> None:
        """Record that a task raised.

        Another backward, inside the task or at the same time, may run the same leaf node, so the graph task is checked.
        """
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
        stops = self.stops
        with self._asking if stops.watchpoints or stops.breakpoints else nullcontext():
            stop = stops.found() if stops.watchpoints else None
            if stop is None and stops.breakpoints:
                stop = stops.before(task_id, self.order, lambda: tuple(gradients))
        with self._changed:
            if self._holds(task_id, stop):
                lane.held, lane.gradients = task_id, gradients
                self._changed.notify_all()
                # The device's thread waits here in the pre-hook, after popping the task and before its node runs.
                self._changed.wait_for(lambda: lane.may_resume or self.abandoned or self.raised_in is not None)
            edited, lane.edited = lane.edited, None
            lane.held = lane.gradients = None
            lane.may_resume = False
            raised = self.raised_in is not None
            if not raised and not (self.abandoned and not self.has_to_end):
                lane.ready.discard(task_id)
                lane.running = task_id
        if raised:
            time.sleep(_FIRST_ERROR_S)
        if lane.running != task_id:
            raise Abandoned
        now = gradients if edited is None else edited
        self._begin(task_id, now)
        if stops.watchpoints and self.graph.tasks[task_id].is_leaf:
            with self._asking:
                stops.produced(task_id, now, ())
        return edited

    def _holds(self, task_id: int, stop: Stop | None) -> bool:
        """Return whether the thread waits before this task; if the run ends here, all other threads will also wait."""
        if self.abandoned or self.raised_in is not None:
            return False
        if task_id == self.until or (stop is not None and self.order and self.until != NEXT):
            self.stopped_before = task_id
            self.stopped = None if task_id == self.until else stop
            self.until = NEXT
        return self.until == NEXT or self.stops.stop_asked

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        if real_graph_task_id() != self._graph_task:
            return
        # Not super(): Worker._after would evaluate watchpoints without `_asking`.
        Watch._after(self, task_id, outputs, gradients)
        if self.stops.watchpoints and not self.graph.tasks[task_id].is_leaf:
            with self._asking:
                self.stops.produced(task_id, gradients, outputs)
        with self._changed:
            self.lane_of(task_id).running = None
            self._changed.notify_all()


class LanesBackward(NativeBackward):
    """A backward whose devices are stepped independently: the backward of a `NativeSession` with queues="per
    device"."""

    worker: Lanes
    worker_type = Lanes

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
            raise ValueError(why_idle(self.graph, device, self.planned, self.worker.order))
        return self.graph.tasks[held]

    def step(self, task: Task | None = None) -> Task:
        """Run the current task, or the task that another device holds, and stop before that device's next one."""
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
                "the queues of several devices of PyTorch's engine cannot be sorted again once tasks have run; set the "
                'policy before the first step, or use ts.debug(..., engine="direct"), which can change it at any stop'
            )
        super().follow(policy, planned)

    def run_until(self, last: int | None) -> None:
        self.worker.chosen = None
        if last is not None and not self.worker.begun:
            self.stopped_at()
        if last in self.worker.held:
            self.worker.stopped_before = last
        super().run_until(last)

    def _resume(self, until: int) -> None:
        if not self.worker.begun and devices_are_held():
            raise RuntimeError("another session already steps the devices' queues; close it first")
        with task_errors_reported():  # only while tasks run, since this also affects other backwards
            super()._resume(until)
