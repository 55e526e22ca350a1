"""A backward of PyTorch's own engine that stops where it is told to: `th.debug(loss, engine="native")`."""

from __future__ import annotations

import atexit
import contextvars
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Concatenate, ParamSpec, TypeVar, get_args
from weakref import finalize

from torch import Tensor

from ...inspector.arguments import expect_choice
from ...inspector.graph.graph import Graph, Outputs, Task
from ...inspector.torch_internals.modes import ThreadState
from ...inspector.torch_internals.sequence_numbers import Pin, empty_queue, sequence_nr, sort_queue_again
from ..orders.policies import find_policy, note_on, order_name
from ..orders.schedule import schedule
from ..queue.pending import Pending
from ..queue.policy import AnyPolicy, Choice, Policy, is_dynamic, policy_name
from ..queue.ready_queue import PolicyError, ReadyTask
from ..stops.stopped import Stop
from ..stops.stops import Stops
from ..tasks.backward_inputs import Inputs
from ..tasks.edits import as_gradients, check_edit
from ..tasks.task_hooks import Gradients
from ..trace.recorder import Recorder
from ..trace.run import Run
from ..trace.statistics import Level
from ..trace.trace import Trace
from .agreement import in_group
from .has_to_end import has_to_end
from .native import BackwardCall, Plan, Watch, one_queue
from .numbering import Numbering
from .one_way import OneWay

_NEVER = -1  # where to stop: nowhere
_NEXT = -2  # before whichever task comes next
_TO_THE_END_S = 60.0  # what a backward that nobody looks at any more may take


class _Abandoned(BaseException):
    """Ends the engine's run from within. Nobody but the session sees it: it is raised in a hook which C++ calls."""


HEARS_SIGNALS_S = 0.2
"""How long the main thread waits at most before it looks whether a signal has come."""


class _Worker(Watch):
    """The engine's run in a thread of its own. Refers to nothing of the session, which may be let go at any time.

    Attributes:
        stops: the breakpoints and watchpoints.
        stopped: at a stop what made it, where it was one of these.
        until: the task before which it stops, or _NEXT or _NEVER.
        stop_asked: whether it stops before whichever comes next, in any case.
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
        self.until = _NEVER
        self.stop_asked = False
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
        context = contextvars.copy_context()
        self._thread = Thread(target=context.run, args=(self._main,), name="tapehead backward", daemon=True)

    def start(self) -> None:
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
        self.until = _NEXT
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
        if self.begun and not self.is_current_thread:
            self._thread.join(timeout_s)

    def let_go(self) -> None:
        """After the run: holds nothing of the graph any more, nor what waited."""
        self.graph = replace(self.graph, nodes=())
        self.stops.let_go()
        self.ready.clear()
        self.taken = self.live = self._call = self._plan = self.gradients = self._edited = None
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
        except _Abandoned:
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
            self.reports.put(raised)

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

        with self._state.entered(), one_queue(plan):
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
            stops.produced(task_id, gradients if edited is None else edited, (), self.graph.nodes[task_id])
        return edited

    def _passes(self, task_id: int) -> bool:
        """Whether it runs on: a run never stops before the task at which it begins."""
        asked = self.stop_asked or self.until in (_NEXT, task_id)
        return not asked and (self.stopped is None or not self.order)

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        ran = len(self.order)
        super()._after(task_id, outputs, gradients)
        if self.stops.watches and len(self.order) > ran and not self.graph.tasks[task_id].is_leaf:
            self.stops.produced(task_id, gradients, outputs, self.graph.nodes[task_id])

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
            raise _Abandoned
        return gradients


_running: set[_Worker] = set()


@atexit.register
def _end_all() -> None:
    """A thread must not be in the engine when the interpreter goes."""
    for worker in list(_running):
        worker.abandon()
    for worker in list(_running):
        worker.join(timeout_s=5)


P = ParamSpec("P")
T = TypeVar("T")


def _one_at_a_time(
    verb: Callable[Concatenate[NativeSession, P], T],
) -> Callable[Concatenate[NativeSession, P], T]:
    """The verb refuses to be called from inside the backward, for which it would wait, and while another one runs."""
    called = f"session.{verb.__name__.lstrip('_')}{'' if verb.__name__ in ('gradients', 'policy') else '()'}"

    @wraps(verb)
    def alone(session: NativeSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session._check_open()
        if session._worker.is_current_thread:
            raise RuntimeError(
                f"{called} was called from inside the backward that the session runs, from a hook; call session.stop() "
                "there, and go on from outside when the run has returned"
            )
        under_way, mine = session._under_way, [called]
        try:
            if (other := under_way.setdefault("verb", mine)) is not mine:
                raise RuntimeError(
                    f"{called} was called while {other[0]} is under way, in another thread or "
                    "below a signal's handler; only stop() and close() may be called meanwhile"
                )
            return verb(session, *args, **kwargs)
        finally:
            if under_way.get("verb") is mine:
                del under_way["verb"]

    return alone


class NativeSession(OneWay):
    """A backward of PyTorch's own engine which runs one task at a time, when told to.

    The engine runs in a thread of the session's own and waits in a hook before each task at which it is to stop. All is
    as in training: hooks from C++, freeing, DistributedDataParallel. The engine has then taken the task that comes from
    its queue, and called the hooks that run before it: so the next task can't be chosen by hand, and no step taken back
    (engine="direct" can do both). Where nothing stops, nothing is handed over between threads.

    The session's thread has the caller's grad mode, inference mode, autocast, `saved_tensors_hooks`, modes of functions
    and dispatch, default device, context variables, and accelerators' streams, all as of the session's making. On
    accelerators all tasks share one queue and run in that thread.

    Known limitations. A profiler of the calling thread would not see the backward: refused. A `threading.local` of the
    user's is the session's thread's own in hooks. Warnings point to that thread. After a session that was closed before
    its end, gradients which have been accumulated stay, and callbacks for the end of the backward have not run; but
    `close` says what runs to its end.

    Args:
        tensors, grad_tensors, retain_graph, create_graph, inputs: as in `torch.autograd.backward`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        trace: what is recorded of each task, as for `th.backward`; None: nothing.

    Attributes:
        graph: the graph that is run; without its nodes once the session is closed, or over after an error.
    """

    def __init__(
        self,
        tensors: Outputs,
        grad_tensors: Gradients | Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Inputs | None = None,
        *,
        policy: AnyPolicy = "heap",
        trace: Level | None = "off",
    ) -> None:
        chosen = find_policy(policy)
        if trace is not None:
            expect_choice(trace, get_args(Level), "trace")
        call = BackwardCall.of(tensors, grad_tensors, retain_graph, create_graph, inputs)
        try:
            state = ThreadState()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a native session runs in a thread of its own, which can't be given {error}; use "
                'th.debug(..., engine="direct") or th.backward'
            ) from None
        plan = Plan.of(call, chosen).agreed()
        self.graph: Graph = plan.graph
        self._needed, self._planned = plan.needed, plan.order
        recorder = None if trace is None else Recorder(self.graph, plan.policy, trace)
        self.stops = Stops(self.graph, plan.needed, None if recorder is None else recorder.trace)
        given = (grad_tensors,) if isinstance(grad_tensors, Tensor) else call.grad_tensors or ()
        self._given: tuple[Tensor | None, ...] = tuple(given) if create_graph else ()
        self._worker = _Worker(call, state, plan, recorder, self.stops)
        self._over: str | None = None
        self._ended = False
        self._under_way: dict[str, list[str]] = {}  # what runs now, by the one key "verb": only one can put it in
        self._finalizer = finalize(self, self._worker.forget)
        self._finalizer.atexit = False  # _end_all also waits

    def __repr__(self) -> str:
        state = self._over or f"{len(self._worker.ready)} ready"
        ran = len(self._worker.order)
        return f"<NativeSession under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def left(self) -> int:
        return len(self._worker.tasks) - len(self._worker.order)

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return list(self._worker.order)

    @property
    def planned(self) -> Sequence[int]:
        """All tasks in the order in which they ran and are going to; empty under a dynamic policy."""
        return self._planned

    @property
    def runs_in_this_thread(self) -> bool:
        """Whether the calling thread is the one in which the engine runs: that of hooks, which must not wait for it."""
        return self._worker.is_current_thread

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it pops if no other task comes. The first is the current task."""
        worker = self._worker
        return [
            ReadyTask(self.graph.tasks[task_id], worker.ready[task_id], worker.label(task_id))
            for task_id in worker.upcoming()
        ]

    @property
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""
        first = self._worker.first()
        return None if first is None else self.graph.tasks[first]

    @property
    @_one_at_a_time
    def gradients(self) -> tuple[Tensor | None, ...]:
        """What the current task is about to get, one per input number: its input buffer after tensor and pre-hooks.

        While somebody holds one of them, the engine does not add to it in place, nor take it for a leaf's .grad.
        """
        self._stopped_at()
        return tuple(self._worker.gradients or ())

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients of the current task.

        Raises:
            NotImplementedError: for any other task. The engine shows an input buffer only as its task starts.
        """
        if self._task(task) is not self.current:
            raise NotImplementedError(
                f"PyTorch's engine keeps to itself what waits for {self.graph.describe(self._task(task))} until that "
                'task is the current one; th.debug(..., engine="direct") shows all input buffers'
            )
        return self.gradients

    @_one_at_a_time
    def replace(self, gradients: Gradients | Tensor | None, task: Task | ReadyTask | int | None = None) -> None:
        """Gives the current task these gradients instead of `gradients`, one per input number.

        Raises:
            NotImplementedError: `task` is another than the current one.
            ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
            TypeError: one is no tensor.
        """
        current = self._stopped_at()
        if task is not None and (wanted := self._task(task)) is not current:
            raise NotImplementedError(
                f"PyTorch's engine keeps to itself what waits for {self.graph.describe(wanted)} until that task is the "
                'current one; th.debug(..., engine="direct") can edit the input buffer of any ready task'
            )
        before = tuple(self._worker.gradients or ())
        after = as_gradients(gradients)
        check_edit(self.graph, current, before, after)
        if self._worker.recorder is not None:
            self._worker.recorder.edit(current.id, before, after)
        self._worker.edit(after)

    @_one_at_a_time
    def _step(self, task: Task | ReadyTask | int | None = None) -> Task:
        """Runs the current task and stops before the next."""
        if task is not None and (wanted := self._task(task)) is not self.current:
            raise NotImplementedError(
                f"the next task is {self._describe_current()}, and PyTorch's engine cannot run "
                f'{self.graph.describe(wanted)} before it; th.debug(..., engine="direct") can, if it is ready'
            )
        self._stopped_at()
        ran = len(self._worker.order)
        self._go_on(_NEXT)
        if len(self._worker.order) == ran:  # closed meanwhile
            self._check_open()
        return self.graph.tasks[self._worker.order[ran]]

    @_one_at_a_time
    def run(self) -> Run:
        """Runs all tasks that are left, up to a breakpoint, to what a watchpoint finds, or as `stop` says."""
        self._run_until(_NEVER)
        return self.result()

    def result(self) -> Run:
        """What has run so far."""
        worker = self._worker
        order = tuple(worker.order)
        planned = tuple(self._planned) or order
        policy = worker.policy
        name, note = order_name(policy), note_on(policy)
        return Run(self.graph, name, "native", order, planned, worker.elapsed_ns, trace=self.trace, note=note)

    @_one_at_a_time
    def run_to(self, task: Task | ReadyTask | int) -> Task | None:
        """Runs what comes before a task, which is then the current one; less where something stops it before. Returns
        the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        target = self._task(task)
        if target.id in self._worker.order:
            raise ValueError(f"{self.graph.describe(target)} has run already")
        if self._needed is not None and target.id not in self._needed:
            raise ValueError(f"{self.graph.describe(target)} is not going to run: inputs= makes it needless")
        self._run_until(target.id)
        return self.current

    def stop_here(self, wait: bool = True) -> Stop | None:
        return None if self._over is not None else self._stop_here(wait)

    @_one_at_a_time
    def _stop_here(self, wait: bool) -> Stop | None:
        if self.current is None:
            return self.stops.at_end(self._worker.order)
        found = self.stops.found(wait)
        if found is not None or not self.stops.asks:
            return found
        waiting = self._stopped_at()
        gradients = tuple(self._worker.gradients or ())
        return self.stops.before(waiting.id, self._worker.order, lambda: gradients)

    def _stop_asked(self) -> bool:
        asked, self._worker.stop_asked = self._worker.stop_asked, False
        return asked

    def stop(self) -> None:
        """Makes `run` or `run_to` return before the next task: one under way, or the next. May be called from a hook,
        another thread or a signal's handler."""
        self._worker.stop_asked = True

    @property
    def policy(self) -> str:
        """The policy's name. Another policy may be set at any stop: what comes after the current task goes by it."""
        return policy_name(self._worker.policy)

    @policy.setter
    @_one_at_a_time
    def policy(self, policy: AnyPolicy) -> None:
        worker = self._worker
        ran = worker.order if worker.taken is None else [*worker.order, worker.taken]
        chosen = self._bound(find_policy(policy), ran)
        planned = [] if is_dynamic(chosen) else schedule(self.graph, chosen, self._needed, ran)
        if planned != self._planned and in_group():
            raise PolicyError(
                f"policy {policy_name(chosen)} can't take over here: in a process group all ranks run one order, on "
                "which they agree before it begins; open the session under this policy, on every rank"
            )
        waiting = worker.upcoming()
        worker.follow(chosen, planned)
        if worker.recorder is not None:
            worker.recorder.switch(chosen, worker.taken)
        self._planned = planned
        worker.sort_again |= worker.upcoming() != waiting

    @property
    def picks(self) -> Policy | Choice:
        """The policy itself, bound to this graph."""
        return self._worker.policy

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far; None with trace=None."""
        recorder = self._worker.recorder
        return None if recorder is None else recorder.trace()

    def close(self) -> None:
        """Ends the session: the task that runs is the last. Lets the graph's nodes go. Does nothing a second time.

        Under fully_shard (FSDP2), FullyShardedDataParallel and DistributedDataParallel a backward that has begun runs
        to its end: the other ranks wait for it, and later steps for what happens there. From a hook it does not wait
        for the end.
        """
        self._over = self._over or "closed"
        self._worker.abandon()
        self._worker.join()
        self.graph = replace(self.graph, nodes=())
        self._given = ()
        if not self._worker.is_current_thread:
            self._worker.let_go()

    def _describe_current(self) -> str:
        current = self.current
        return "none" if current is None else self.graph.describe(current)

    def _stopped_at(self) -> Task:
        """The current task, before which the engine has stopped."""
        if not self._worker.begun:
            self._go_on(_NEXT)
            self._check_open()
        current = self.current
        if current is None:
            raise RuntimeError(f"no task is left: all {len(self._worker.order)} have run")
        return current

    def _run_until(self, until: int) -> None:
        """Runs to what stops it, to the task `until`, or to the end."""
        worker = self._worker
        self.stopped = None
        try:
            if until >= 0:
                self._stopped_at()
            current = self.current
            if not (self._ended or worker.stop_asked or (current is not None and current.id == until)):
                self._go_on(until)
                self.stopped = worker.stopped
                if self._ended:
                    self.stopped = self.stops.at_end(worker.order)
            if worker.stop_asked and self.stopped is None and not self._ended:
                self.stopped = Stop("asked", None, None, "stop() was called")
        finally:
            worker.stop_asked = False

    def _go_on(self, until: int) -> None:
        """Lets the engine run until it stops, or ends."""
        worker = self._worker
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
            self._over = f"{type(interrupt).__name__} while it ran"
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
            self._over = f"{type(report[0]).__name__} in the backward"
            self.close()
            try:
                raise report[0]
            finally:
                del report  # else the error would hold itself through this frame
