"""The thread in which PyTorch's engine runs a backward that can be stopped."""

from __future__ import annotations

import atexit
import contextvars
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import current_thread

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.graph.kinds import Kind, kind_of
from ...inspector.threads import DaemonThread
from ...inspector.torch_private.sequence_numbers import (
    Pin,
    current_number,
    empty_queue,
    make_numbers,
    sequence_nr,
    set_numbers,
    sort_queue_again,
)
from ...inspector.torch_private.thread_state import ThreadState
from ..execution.backward_arguments import BackwardCall
from ..execution.run_hooks import Gradients
from ..recording.recorder import Recorder
from ..schedule.ddp_buckets import buckets_of, is_reduced
from ..schedule.dependencies import Pending
from ..schedule.fsdp_stages import is_sharded
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops
from .native_engine import Plan, Watch, one_queue


def has_to_end(graph: Graph) -> bool:
    """Return whether this is a backward of `fully_shard` (FSDP2), FullyShardedDataParallel or DistributedDataParallel.

    These finish their step in callbacks that the engine calls only if nothing has raised. Without them parameters stay
    gathered, so that later steps reduce nothing, and a reducer waits for its remaining buckets.
    """
    return is_sharded(graph) or (is_reduced() and bool(buckets_of(graph)))


class Numbering:
    """Renumbers the graph of a double backward, as if its nodes were created in the caller's thread.

    Sequence numbers are counted per thread (function.h: at::sequence_number::get_and_increment), and PyTorch's engine
    runs the highest number first. With this thread's numbers, nodes of the backward would seem older than the
    forward's, and second derivatives would be summed in another order.

    Attributes:
        begin, end: this thread's next number when it last continued, and when it stopped.
    """

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._spans: list[tuple[int, int, int]] = []

    def advance_caller(self, caller: int) -> None:
        """Advance the numbers of the caller's thread by those this thread has used; `caller` is the caller's number
        before. Called in the caller's thread."""
        self._spans.append((self.begin, self.end, caller))
        make_numbers(max(0, caller + self.end - self.begin - sequence_nr()))

    def number(self, graph: Graph, given: Iterable[Tensor | None]) -> None:
        """Renumber the nodes created by the backward, as far as they are reachable from the leaves' gradients.

        Args:
            graph: the graph of the backward.
            given: the root gradients, whose graph belongs to the caller.
        """
        known = set(graph.nodes)
        stack = [each.grad_fn for each in given if each is not None]
        while stack:
            node = stack.pop()
            if node is not None and node not in known:
                known.add(node)
                stack += [child for child, _ in node.next_functions]
        stack = [leaf.grad.grad_fn for leaf in graph.leaves.values() if leaf.grad is not None]
        while stack:
            node = stack.pop()
            if node is None or node in known:
                continue
            known.add(node)
            stack += [child for child, _ in node.next_functions]
            if kind_of(node) is not Kind.ACCUMULATE_GRAD:
                number = current_number(node)
                spans = self._spans
                moved = next((at + number - first for first, end, at in spans if first <= number < end), number)
                set_numbers([node], [moved])


NEVER = -1  # do not stop
NEXT = -2  # stop before the next task
HEARS_SIGNALS_S = 0.2
"""The longest wait of the main thread between two checks for signals."""

_TO_THE_END_S = 60.0  # time limit for the end of a backward whose session was freed


class Abandoned(BaseException):
    """Ends the engine's run from inside a hook that C++ calls; only the session sees it."""


class Worker(Watch):
    """The engine's run in a separate thread. It holds no reference to the session, which may be freed at any time.

    Attributes:
        stops: the breakpoints and watchpoints.
        stopped: the breakpoint's or watchpoint's stop, at a stop caused by one.
        until: the task before which to stop, or NEXT or NEVER.
        begun: whether the thread has started to run.
        gradients: at a stop, the next task's input buffer after the hooks that run before it.
        reports: receives None at each stop, and at the end a tuple with the exception raised, or an empty one.
        numbering: renumbers the nodes created with create_graph.
        has_to_end: whether the run continues to its end even if abandoned.
    """

    def __init__(
        self, call: BackwardCall, state: ThreadState, plan: Plan, recorder: Recorder | None, stops: Stops
    ) -> None:
        super().__init__(plan, recorder)
        self._plan: Plan | None = plan
        self.stops = stops
        self.stopped: Stop | None = None
        self.until = NEVER
        self.begun = False
        self.numbering = Numbering() if call.create_graph else None
        self.gradients: Gradients | None = None
        self.sort_again = False
        self.reports: SimpleQueue[tuple[BaseException, ...] | None] = SimpleQueue()
        self._clock: tuple[int, int | None] = (0, None)  # time run before the last stop, and start of the present run
        self._call: BackwardCall | None = call
        self._state = state
        self._edited: tuple[Tensor | None, ...] | None = None
        self.abandoned = False
        self.has_to_end = has_to_end(plan.graph)
        self._go: SimpleQueue[None] = SimpleQueue()
        # A new thread has an empty context, but hooks must see the caller's context variables.
        self._context = contextvars.copy_context()
        self._thread: DaemonThread | None = None  # created by `start`: until it runs, a thread object holds this worker

    def start(self) -> None:
        self._thread = DaemonThread(partial(self._context.run, self._main), "tapescope backward")
        self._thread.start()
        self.begun = True

    @property
    def is_current_thread(self) -> bool:
        return current_thread() is self._thread

    @property
    def elapsed_ns(self) -> int:
        """Time it has run up to now, without stops; any thread may read it."""
        ran_ns, since_ns = self._clock
        return ran_ns if since_ns is None else ran_ns + time.perf_counter_ns() - since_ns

    def _note_time(self, runs: bool) -> None:
        """Record that the run starts or continues (`runs`), or that it stops or ends."""
        if self.numbering is not None and runs:
            self.numbering.begin = sequence_nr()
        elif self.numbering is not None:
            self.numbering.end = sequence_nr()
        self._clock = (self.elapsed_ns, time.perf_counter_ns() if runs else None)

    def resume(self) -> None:
        """Let the engine run from a stop to the next one."""
        self._go.put(None)

    def edit(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Replace the next task's gradients at a stop."""
        self._edited = self.gradients = gradients

    def abandon(self) -> None:
        """End the run before the next task, or let it run to its end if it has to.

        This does not wait, and may be called from anywhere.
        """
        self.abandoned = True
        self.until = NEXT
        self._go.put(None)

    def forget(self) -> None:
        """Abandon the run of a session that was freed; wait for it if it has to end, since the next step needs what it
        frees."""
        self.abandon()
        if self.has_to_end:
            self.join(_TO_THE_END_S)

    def report(self) -> tuple[BaseException, ...] | None:
        """Wait for the next report.

        A signal that arrives just before a wait, or in another thread, does not end the wait, and Ctrl-C would have no
        effect. So each wait is short and repeated.
        """
        while True:
            with suppress(Empty):
                return self.reports.get(timeout=HEARS_SIGNALS_S)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread. One that has not started, after an interrupt during `start`, ends on its own."""
        if self.begun and self._thread is not None and not self.is_current_thread:
            self._thread.join(timeout_s)

    def release(self) -> None:
        """Release the graph and the gradients after the run."""
        self.graph = replace(self.graph, nodes=())
        self.stops.close()
        self.ready.clear()
        self.taken = self.live = self._tensor_hooks = self._call = self._plan = self.gradients = self._edited = None
        self.pin = Pin([])
        self._pending = Pending(self.graph, frozenset())
        if self.recorder is not None:
            self.recorder.graph = self.graph

    def _main(self) -> None:
        self.begun = True
        raised: tuple[BaseException, ...] = ()
        self._note_time(runs=True)
        _running.add(self)
        try:
            if not self.abandoned:
                self._run()
        # After an error the thread's ready queue keeps the remaining tasks, with their gradients, until its next
        # backward.
        except Abandoned:
            empty_queue()
        except BaseException as error:
            empty_queue()
            raised = (error,)
        finally:
            self._note_time(runs=False)
            self._call = self.gradients = self._edited = None
            if raised or self.abandoned:
                self.release()
            _running.discard(self)
            self._ended(raised)
            raised = ()  # the error's traceback holds this frame, which must not hold the error

    def _ended(self, raised: tuple[BaseException, ...]) -> None:
        """Report the end of the run."""
        self.reports.put(raised)

    def _queues(self, plan: Plan) -> AbstractContextManager[object]:
        """Return the context in which the engine runs: one queue for all devices."""
        return one_queue(plan.devices != {"cpu"})

    def _run(self) -> None:
        call, plan = self._call, self._plan
        assert call is not None and plan is not None, "a worker runs once"

        def run() -> None:
            with self:
                try:
                    call.run()
                except Exception as error:
                    self.explain(error)
                    raise

        # GraphTask (graph_task.h) captures the thread-local state of the thread that calls Engine::execute, which is
        # this one. So the caller's modes are entered here.
        with self._state.entered(), self._queues(plan):
            self.pin.during(run)

    def _before(self, task_id: int, gradients: Gradients) -> Gradients | None:
        if not self.owns(task_id):
            return None
        stops = self.stops
        self.stopped = stops.found() if stops.watchpoints else None
        if self.stopped is None and stops.breakpoints:
            self.stopped = stops.before(task_id, self.order, lambda: tuple(gradients))
        asked = stops.stop_asked or self.until in (NEXT, task_id)
        if not asked and (self.stopped is None or not self.order):  # a run never stops before its own first task
            self.stopped = None
        else:
            gradients = self._stop(task_id, gradients)
        self._begin(task_id, gradients)
        edited, self._edited = self._edited, None
        if (
            stops.watchpoints and self.graph.tasks[task_id].is_leaf
        ):  # before AccumulateGrad steals it and hooks modify it as .grad
            stops.produced(task_id, gradients if edited is None else edited, ())
        return edited

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        ran = len(self.order)
        super()._after(task_id, outputs, gradients)
        if self.stops.watchpoints and len(self.order) > ran and not self.graph.tasks[task_id].is_leaf:
            self.stops.produced(task_id, gradients, outputs)

    def _stop(self, task_id: int, gradients: Gradients) -> Gradients:
        if self.abandoned:
            return self._abandoned_before(gradients)
        self.take(task_id)
        self.gradients = gradients
        # call_function (engine.cpp) calls pre-hooks in the thread that popped the task, before the node runs. Waiting
        # in this pre-hook therefore stops the engine; get() releases the GIL.
        self._note_time(runs=False)
        self.reports.put(None)
        self._go.get()
        self._note_time(runs=True)
        gradients, self.gradients = self.gradients, None
        if self.abandoned:
            return self._abandoned_before(gradients)
        self.move_hooks_last()
        if self.pin.disturbed:  # another backward renumbered shared leaves during the stop
            self.pin.take_back()
            self.sort_again = True
        if self.sort_again:
            self.sort_again = False
            # The engine's heap compares tasks only on push and pop (engine.h, CompareNodeTaskTime). Tasks of a nested
            # backward have a higher reentrant depth and pop first, which sorts the waiting tasks by their new numbers.
            # The current task is not among them, because ReadyQueue::pop has removed it.
            sort_queue_again(len(self.ready) - 1)
        return gradients

    def _abandoned_before(self, gradients: Gradients) -> Gradients:
        # python_hook.cpp rethrows the exception in C++, which ends the graph task before the node runs.
        if not self.has_to_end:
            raise Abandoned
        return gradients


_running: set[Worker] = set()


@atexit.register
def _end_all() -> None:
    """End all runs: a thread must not be inside the engine when the interpreter exits."""
    for worker in list(_running):
        worker.abandon()
    for worker in list(_running):
        worker.join(timeout_s=5)
