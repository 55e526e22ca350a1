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
    set_number,
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
    """Whether it is a backward of `fully_shard` (FSDP2), FullyShardedDataParallel or DistributedDataParallel.

    These end their step in callbacks at the end of the backward, which the engine calls if nothing is raised. Else
    parameters stay gathered, so that later steps reduce nothing, and a reducer waits for the rest of its buckets.
    """
    return is_sharded(graph) or (is_reduced() and bool(buckets_of(graph)))


class Numbering:
    """The sequence numbers of each thread count by themselves, and PyTorch's engine runs the later node first: in the
    graph of the backward it would take nodes of our thread for older than the forward's, and second derivatives would
    be added in another order.

    Attributes:
        begin, end: what our thread's numbers were when it last went on, and when it stopped.
    """

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._spans: list[tuple[int, int, int]] = []

    def went_on(self, caller: int) -> None:
        """In the caller's thread, whose number was `caller`: ours has stopped. Its numbers are the caller's next."""
        self._spans.append((self.begin, self.end, caller))
        make_numbers(max(0, caller + self.end - self.begin - sequence_nr()))

    def number(self, graph: Graph, given: Iterable[Tensor | None]) -> None:
        """The backward has ended: numbers what it made, as far as the gradients of leaves lead there.

        Args:
            given: the gradients with which it began, whose graph is the caller's.
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
                set_number(node, self._callers(current_number(node)))

    def _callers(self, number: int) -> int:
        for begin, end, caller in self._spans:
            if begin <= number < end:
                return caller + number - begin
        return number


NEVER = -1  # where to stop: nowhere
NEXT = -2  # before whichever task comes next
HEARS_SIGNALS_S = 0.2
"""How long the main thread waits at most before it looks whether a signal has come."""

_TO_THE_END_S = 60.0  # what a backward that nobody looks at any more may take


class Abandoned(BaseException):
    """Ends the engine's run from within. Nobody but the session sees it: it is raised in a hook which C++ calls."""


class Worker(Watch):
    """The engine's run in a thread of its own. Refers to nothing of the session, which may be let go at any time.

    Attributes:
        stops: the breakpoints and watchpoints.
        stopped: at a stop what made it, where it was one of these.
        until: the task before which it stops, or NEXT or NEVER.
        begun: whether its thread was seen to run.
        gradients: at a stop the input buffer of the task to come, after the hooks that run before it.
        reports: None at each stop; at the end a tuple with what was raised, or nothing.
        numbering: numbers what it makes, with create_graph.
        has_to_end: whether it runs to its end even if it is abandoned, once begun.
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
        self._clock: tuple[int, int | None] = (0, None)  # how long it ran until it last stood still, and since when
        self._call: BackwardCall | None = call
        self._state = state
        self._edited: tuple[Tensor | None, ...] | None = None
        self.abandoned = False
        self.has_to_end = has_to_end(plan.graph)
        self._go: SimpleQueue[None] = SimpleQueue()
        self._context = contextvars.copy_context()
        self._thread: DaemonThread | None = None  # before it runs it would hold this

    def start(self) -> None:
        self._thread = DaemonThread(partial(self._context.run, self._main), "tapescope backward")
        self._thread.start()
        self.begun = True

    @property
    def is_current_thread(self) -> bool:
        return current_thread() is self._thread

    @property
    def elapsed_ns(self) -> int:
        """The time it has run up to now, stops left out. May be asked for from anywhere."""
        ran_ns, since_ns = self._clock
        return ran_ns if since_ns is None else ran_ns + time.perf_counter_ns() - since_ns

    def _start_clock(self) -> None:
        if self.numbering is not None:
            self.numbering.begin = sequence_nr()
        self._clock = (self.elapsed_ns, time.perf_counter_ns())

    def _stop_clock(self) -> None:
        if self.numbering is not None:
            self.numbering.end = sequence_nr()
        self._clock = (self.elapsed_ns, None)

    def go_on(self) -> None:
        """At a stop: lets the engine run until the next one."""
        self._go.put(None)

    def edit(self, gradients: tuple[Tensor | None, ...]) -> None:
        """At a stop: the task to come gets these."""
        self._edited = self.gradients = gradients

    def abandon(self) -> None:
        """Ends the run before the next task, at the latest, or lets it run to its end if it has to.

        Does not wait; may be called from anywhere.
        """
        self.abandoned = True
        self.until = NEXT
        self._go.put(None)

    def forget(self) -> None:
        """The same for a session that was let go. What has to end is waited for: the next step needs what it frees."""
        self.abandon()
        if self.has_to_end:
            self.join(_TO_THE_END_S)

    def report(self) -> tuple[BaseException, ...] | None:
        """Waits for the next report.

        A signal which comes just before a wait, or to another thread, does not end it: Ctrl-C would do nothing. So the
        wait is short, and begun again.
        """
        while True:
            with suppress(Empty):
                return self.reports.get(timeout=HEARS_SIGNALS_S)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the thread. One that was not seen to run, after an interrupt of its start, ends by itself."""
        if self.begun and self._thread is not None and not self.is_current_thread:
            self._thread.join(timeout_s)

    def let_go(self) -> None:
        """After the run: holds nothing of the graph any more, nor what waited."""
        self.graph = replace(self.graph, nodes=())
        self.stops.let_go()
        self.ready.clear()
        self.taken = self.live = self._tensor_hooks = self._call = self._plan = self.gradients = self._edited = None
        self.pin = Pin([])
        self._pending = Pending(self.graph, frozenset())
        if self.recorder is not None:
            self.recorder.graph = self.graph

    def _main(self) -> None:
        self.begun = True
        raised: tuple[BaseException, ...] = ()
        self._start_clock()
        _running.add(self)
        try:
            if not self.abandoned:
                self._run()
        except Abandoned:
            empty_queue()
        except BaseException as error:
            empty_queue()
            raised = (error,)
        finally:
            self._stop_clock()
            self._call = self.gradients = self._edited = None
            if raised or self.abandoned:
                self.let_go()
            _running.discard(self)
            self._ended(raised)
            raised = ()  # an error would hold itself through this frame, and the graph through others

    def _ended(self, raised: tuple[BaseException, ...]) -> None:
        """The run is over."""
        self.reports.put(raised)

    def _queues(self, plan: Plan) -> AbstractContextManager[object]:
        """What the engine has for queues meanwhile."""
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

        with self._state.entered(), self._queues(plan):
            self.pin.during(run)

    def _before(self, task_id: int, gradients: Gradients) -> Gradients | None:
        if not self.owns(task_id):
            return None
        stops = self.stops
        self.stopped = stops.found() if stops.watches else None
        if self.stopped is None and stops.asks:
            self.stopped = stops.before(task_id, self.order, lambda: tuple(gradients))
        if self._passes(task_id):
            self.stopped = None
        else:
            gradients = self._stop(task_id, gradients)
        self._begin(task_id, gradients)
        edited, self._edited = self._edited, None
        if stops.watches and self.graph.tasks[task_id].is_leaf:  # .grad takes it, and hooks may change it there
            stops.produced(task_id, gradients if edited is None else edited, ())
        return edited

    def _passes(self, task_id: int) -> bool:
        """Whether it runs on: a run never stops before the task at which it begins."""
        asked = self.stops.stop_asked or self.until in (NEXT, task_id)
        return not asked and (self.stopped is None or not self.order)

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        ran = len(self.order)
        super()._after(task_id, outputs, gradients)
        if self.stops.watches and len(self.order) > ran and not self.graph.tasks[task_id].is_leaf:
            self.stops.produced(task_id, gradients, outputs)

    def _stop(self, task_id: int, gradients: Gradients) -> Gradients:
        if self.abandoned:
            return self._abandoned_before(gradients)
        self.take(task_id)
        self.gradients = gradients
        self._stop_clock()
        self.reports.put(None)
        self._go.get()
        self._start_clock()
        gradients, self.gradients = self.gradients, None
        if self.abandoned:
            return self._abandoned_before(gradients)
        self.stay_last()
        if self.pin.disturbed:  # by another backward, while this one stood still
            self.pin.take_back()
            self.sort_again = True
        if self.sort_again:
            self.sort_again = False
            sort_queue_again(len(self.ready) - 1)
        return gradients

    def _abandoned_before(self, gradients: Gradients) -> Gradients:
        if not self.has_to_end:
            raise Abandoned
        return gradients


_running: set[Worker] = set()


@atexit.register
def _end_all() -> None:
    """A thread must not be in the engine when the interpreter goes."""
    for worker in list(_running):
        worker.abandon()
    for worker in list(_running):
        worker.join(timeout_s=5)
