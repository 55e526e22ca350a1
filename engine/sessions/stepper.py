"""The direct engine: a Python loop that calls one node at a time, so that any ready task may run next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from ...inspector.arguments import expect, expect_callable, expect_choice
from ...inspector.graph.graph import Edge, Graph, Outputs, Task
from ...inspector.tapes.hips_tape import HipsTape
from ..batching.group_runner import AnyBatch, check_batch, group_runner
from ..measuring.measurement import Measurement
from ..memory.accumulation import PYTORCHS, Accumulation
from ..orders.group_queues import HoldingChoiceQueue, HoldingQueue, planned_order
from ..orders.policies import find_policy, note_on, order_name
from ..orders.schedule import schedule
from ..queue.pending import dependencies
from ..queue.policy import AnyPolicy, Choice, Policy, policy_name
from ..queue.ready_queue import PolicyError, ReadyTask, ready_queue
from ..stops.stopped import Stop
from ..stops.stops import Stops
from ..tasks.backward_inputs import Inputs
from ..tasks.edits import as_gradients, check_edit
from ..tasks.history import BUDGET_BYTES, Ran, expect_budget
from ..tasks.input_buffer import InputBuffer, Waiting
from ..tasks.roots import expect_flags
from ..tasks.runner import Measuring, Runner
from ..tasks.task_runner import TaskRunner
from ..trace.batches import Batches
from ..trace.recorder import Recorder
from ..trace.run import Run
from ..trace.statistics import Level
from ..trace.trace import Trace
from ..words.phrases import counted
from .rewinding import Rewinding


class Stepper(Rewinding):
    """A backward that runs one task at a time, when told to. `th.debug(loss)` makes one.

    Reproduces PyTorch's engine (its source is named where a rule comes from): the summing of broadcast gradients, casts
    and their errors, accumulation in place and without copies, hooks on tensors, nodes, leaves and several tensors,
    callbacks for the end, checkpoints, custom Functions, compiled regions as one task, `inputs=`, graphs of the
    backward, anomaly mode, and the release of what nodes saved. Under "heap" the gradients are equal bit for bit; other
    orders add in another order. Everything runs in the thread that calls `step`, with its modes and defaults; only the
    grad mode is the backward's own.

    Known limitations. Refused, with a sentence: any backward in a process where torch.distributed is initialised (the
    C++ hooks of DistributedDataParallel can't be seen), compiled autograd, gradients that are nested tensors. Different
    from PyTorch: the hooks of a non-leaf tensor whose node gets no gradient at all are not called with None; a backward
    inside another, thousands deep, reaches Python's recursion limit. What a node keeps but hides from Python
    (CopySlices, C++ Functions of extensions, and what `saved_tensors_hooks` packed, checkpoints among them) is freed
    after its task only if no tensor or node in the process has Python hooks, and else with the node itself. Hooks
    registered from C++ are not seen. On several CUDA streams all runs on the current one. An interrupt (Ctrl-C) ends
    the session, as an exception of the user's does.

    Args:
        tensors, grad_tensors, retain_graph, create_graph, inputs: as in `torch.autograd.backward`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task; it picks when `step` is not told.
        trace: how much of the gradients' statistics is recorded: "off", "cheap" or "full". None records nothing.
        history: whether tasks can be taken back (`back`), or how many bytes of gradients may be kept for that.
        accumulation: how gradients are summed, and when they are let go. Other rules than PyTorch's give the same sums,
            added in the same order, and take other memory.
        batch: "auto" runs products of several tasks as one where `th.groups` finds that they can, by its rules or by
            those given. One step then runs all tasks of a stack (`together`). Gradients are equal within rounding, and
            those that were made together are parts of one storage. Where hooks, watchpoints, breakpoints or a history
            want the single tasks, these run by themselves, and `batches` says why.
        measuring: begins to measure the memory, before anything of the backward is made: see `Measurement.begin`.

    Attributes:
        graph: the graph that is run.
        accumulation: as given.

    Raises:
        NotImplementedError: what is refused, before anything has run.
    """

    def __init__(
        self,
        tensors: Outputs | HipsTape,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Inputs | None = None,
        *,
        policy: AnyPolicy = "heap",
        trace: Level | None = "off",
        history: bool | int = False,
        accumulation: Accumulation = PYTORCHS,
        measuring: Measuring | None = None,
        batch: AnyBatch = None,
    ) -> None:
        unbound = find_policy(policy)
        expect_flags(retain_graph, create_graph)
        if not isinstance(history, bool):
            expect_budget(history, "history")
        if trace is not None:
            expect_choice(trace, get_args(Level), "trace")
        expect(accumulation, Accumulation, "accumulation", "a th.Accumulation")
        if measuring is not None:
            expect_callable(measuring, 5, "measuring", "what begins to measure memory")
        check_batch(batch)
        create_graph = bool(create_graph)
        self._runner = runner = runner_of(tensors, grad_tensors, retain_graph, create_graph, inputs, measuring)
        self.graph: Graph = runner.graph
        self._order: list[int] = []
        self._needed, self._keep_graph = runner.needed, runner.keep_graph
        self._policy = chosen = self._bound(unbound)
        self._terms = [(0, chosen)]
        self._recorder = recorder = None if trace is None else Recorder(self.graph, chosen, trace)
        self._batches, self._fallbacks = ([], []) if recorder is None else (recorder.batches, recorder.fallbacks)
        self._groups = group_runner(batch, runner, accumulation, self._batches, self._fallbacks)
        self._queue = self._empty_queue(chosen)
        self._all_missing = dependencies(self.graph)
        self._missing = list(self._all_missing)
        self.stops = Stops(self.graph, self._needed, None if self._recorder is None else self._recorder.trace)
        runner.on_hook = None if self._recorder is None else self._recorder.hook
        self.accumulation, self._batch = accumulation, batch
        self._buffers: dict[int, InputBuffer] = {}
        self._consumed: dict[int, Waiting] = {}  # by task what had waited for it, where that is never let go
        self._given = runner.roots  # as long as the call of backward() would hold them
        self._elapsed_ns = 0
        self._running = False
        self._stopped = False
        self._over: str | None = None  # why no step is possible any more
        self._hooks = runner.hook_watch()
        with torch.set_grad_enabled(create_graph):
            gradients = runner.fitted_roots()
            for position, root in enumerate(self.graph.roots):
                self._deliver(Edge(root.task, position, root.task, root.input), gradients)
        if history is not False:
            self.keep_history(BUDGET_BYTES if history is True else history)

    def __repr__(self) -> str:
        state, ran = self._over or f"{len(self._queue)} ready", len(self.order)
        if len(together := self.together) > 1:
            state = f"{state}, the next step runs {len(together)} as one"
        return f"<Stepper under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return self._order

    @property
    def left(self) -> int:
        return (len(self.graph) if self._needed is None else len(self._needed)) - len(self.order)

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop; under a user's own policy in order of arrival."""
        return self._queue.entries()

    @property
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""
        return self.graph.tasks[self._queue.choose()] if len(self._queue) else None

    @property
    def together(self) -> list[Task]:
        """The tasks that `step()` would run now: the current one, and those that run as one with it."""
        queue = self._queue
        if queue and isinstance(queue, HoldingQueue | HoldingChoiceQueue):
            return [self.graph.tasks[task_id] for task_id in queue.next_step()]
        return [] if self.current is None else [self.current]

    @property
    def batches(self) -> Batches | None:
        """What ran as one so far, and what did not and why; None without `batch=`."""
        return None if self._batch is None else Batches(tuple(self._batches), tuple(self._fallbacks))

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get: its input buffer.

        Raises:
            RuntimeError: no task is left, or the session is over.
        """
        self._check_open()
        return self.waiting(self._queue_choice())

    @property
    def policy(self) -> str:
        """The policy's name. Another policy may be set at any stop: it takes over the queue."""
        return policy_name(self._policy)

    @policy.setter
    def policy(self, policy: AnyPolicy) -> None:
        self._check_open()
        self._take_policy(self._bound(find_policy(policy), self.order))

    @property
    def picks(self) -> Policy | Choice:
        """The policy itself, bound to this graph."""
        return self._policy

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far."""
        return None if self._recorder is None else self._recorder.trace()

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, None where nothing has come yet.

        They are the engine's own tensors, not copies. Whoever keeps one makes the engine add out of place to it. Of a
        list it is the sum as it stands, which is computed for this call and not kept.
        """
        task = self._task(task)
        buffer = self._buffers.get(task.id)
        return buffer.shown() if buffer else (None,) * len(task.inputs)

    def replace(
        self, gradients: Tensor | Sequence[Tensor | None] | None, task: Task | ReadyTask | int | None = None
    ) -> None:
        """Puts other gradients into the input buffer of a ready task, of the current one if none is given.

        Args:
            gradients: one per input number, of the same shape, dtype and device as what is there.

        Raises:
            ValueError: the task is not ready; or the gradients' number, shape, dtype, device or layout differs, or one
                is given where none came.
            TypeError: one is no tensor.
        """
        self._check_open()
        task_id = self._queue_choice() if task is None else self._ready_task(task)
        after = as_gradients(gradients)
        check_edit(self.graph, self.graph.tasks[task_id], self._buffers[task_id].shown(), after)
        self._put(task_id, after)

    def _step(self, task: Task | ReadyTask | int | None = None) -> Task:
        self._check_open()
        task_id = self._queue_choice() if task is None else self._ready_task(task)
        self.stopped = None
        self._inside(lambda: self._run_next(task_id, hooks=True, by_hand=task is not None), ends=True)
        return self.graph.tasks[task_id]

    def _step_on(self) -> Sequence[int]:
        ran = len(self.order)
        self._step()
        return self.order[ran:]

    def run(self) -> Run:
        """Runs all tasks that are left, in the policy's order; up to a breakpoint, a watchpoint's find, or `stop`."""
        self._check_open()
        self._run_until(None)
        return self.result()

    def result(self) -> Run:
        """What has run so far."""
        order = tuple(self.order)
        return Run(
            self.graph,
            order_name(self._policy),
            "direct",
            order,
            order,
            self._elapsed_ns,
            self.trace,
            accumulation=self.accumulation,
            batches=self.batches,
            note=note_on(self._policy),
        )

    def run_to(self, task: Task | ReadyTask | int) -> Task | None:
        """Runs what the policy picks before a task, which is then the current one, or up to what stops a run. Returns
        the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._check_open()
        task_id = self._task(task).id
        if task_id in self.order or not self._is_needed(task_id):
            raise ValueError(f"{self.graph.describe(task_id)} {self._why_not(task_id)}")
        self._run_until(task_id)
        return self.current

    def stop(self) -> None:
        """Makes `run` or `run_to` return before the next task: one under way, or the next. May be called from a hook,
        another thread or a signal's handler."""
        self._stopped = True

    def close(self) -> None:
        """Ends the session; lets the waiting gradients and the graph's nodes go. Does nothing a second time.

        Called from a hook or another thread while a task runs, it ends the session after that task.
        """
        self._over = self._over or "closed"
        self._stopped = True
        if not self._running:
            self._let_go()

    def _let_go(self) -> None:
        if self._history is not None and "_runner" in vars(self):
            self._runner.inside(self._free_ran, tuple)
            self._history = None
        self.stops.let_go()
        self._buffers.clear()
        self._let_go_at_end()
        self.graph = replace(self.graph, nodes=())
        self._groups = None
        vars(self).pop("_runner", None)
        vars(self).pop("_branches", None)  # their traces have the graph with its nodes
        self._queue = ready_queue(self.graph, self._policy, self.order)
        if self._recorder is not None:
            self._recorder.graph = self.graph

    def _let_go_at_end(self) -> None:
        """What lives until the backward has ended."""
        for task_id in list(self._consumed):  # in the order in which they ran
            del self._consumed[task_id]
        self._given.clear()

    def stop_here(self, wait: bool = True) -> Stop | None:
        if self._over is not None:
            return None
        if not len(self._queue):
            return self.stops.at_end(self.order)
        found = self.stops.found(wait)
        if found is not None or not self.stops.asks:
            return found
        task_id = self._queue.choose()
        return self.stops.before(task_id, self.order, lambda: self.waiting(task_id))

    def _stop_asked(self) -> bool:
        asked, self._stopped = self._stopped, False
        return asked

    def _run_until(self, last: int | None) -> None:
        def body() -> None:
            watch, stops = self._hooks, self.stops
            ask = watch is None or watch.possible()
            quiet = not stops.asks and not stops.watches
            bare = watch is not None and not ask and quiet and self._is_plain
            apart = () if self._groups is None else self._groups.tasks
            until = frozenset(apart if last is None else (*apart, last))
            queue = self._queue
            while queue and not self._stopped:
                if bare and watch is not None:
                    self._runner.run_bare(self, until, watch)
                    if not queue or self._stopped:
                        break
                task_id = queue.choose()
                if task_id == last:
                    return
                self._run_next(task_id, ask or (watch is not None and watch.registered()), last=last)
                if (stops.asks or stops.watches) and (stop := self.stop_here(wait=False)) is not None:
                    self.stopped = stop
                    return
            if self._stopped and queue:
                self.stopped = Stop("asked", None, None, "stop() was called")

        self.stopped = None
        try:
            self._inside(body, ends=True)
        finally:
            self._stopped = False

    @property
    def _is_plain(self) -> bool:
        """Whether tasks run and nothing else is done."""
        others = self._recorder, self._needed, self._history, self._runner.memory
        return all(each is None for each in others) and self.accumulation == PYTORCHS

    def _inside(self, body: Callable[[], None], ends: bool = False) -> None:
        """Runs tasks inside the graph task. After the last, the callbacks for the end of the backward are due."""

        def in_backward() -> None:
            self._runner.on_outputs = self.stops.produced if self.stops.watches else None
            if self._groups is not None and (watchpoint := self.stops.first_watch) is not None:
                self._groups.give_up_all(
                    self, lambda at: f"watchpoint {watchpoint.number} ({watchpoint.text}) looks at what {at} gives"
                )
            body()
            if ends and not len(self._queue):
                if not self.order and self._given:
                    self._runner.pass_by()
                if self._runner.memory is not None:
                    self._runner.memory.over()
                self._runner.finish(again=self._history is not None)
                self._let_go_at_end()

        started_ns = time.perf_counter_ns()
        self._running = True
        try:
            self._runner.inside(in_backward, self._upcoming)
        except PolicyError:  # no task ran: another policy may be set
            raise
        except BaseException as error:
            self._over = self._over or f"{type(error).__name__} after {len(self.order)} tasks"
            raise
        finally:
            self._running = False
            self._runner.rest()
            self._elapsed_ns += time.perf_counter_ns() - started_ns
            if self._over is not None:
                self._let_go()

    @property
    def planned(self) -> list[int]:
        """All tasks in the order in which they ran and are going to, unless something is done by hand.

        Raises:
            PolicyError: a policy of the user's own fails to choose.
        """
        return self._upcoming()

    def _upcoming(self) -> list[int]:
        """All tasks in the order in which they ran or are going to."""
        if isinstance(self._queue, HoldingQueue | HoldingChoiceQueue):
            return planned_order(self._queue, self.order, self._missing, self._needed)
        return schedule(self.graph, self._policy, self._needed, self.order)

    def _check_open(self) -> None:
        if self._running:
            raise RuntimeError(
                "a task of this session is running; only stop() and close() may be called from a hook or another "
                "thread meanwhile"
            )
        super()._check_open()

    def _queue_choice(self) -> int:
        if not len(self._queue):
            raise RuntimeError(f"no task is left: all {len(self.order)} have run")
        return self._queue.choose()

    def _ready_task(self, task: Task | ReadyTask | int) -> int:
        task_id = self._task(task).id
        if task_id not in self._queue:
            raise ValueError(f"{self.graph.describe(task_id)} is not ready: it {self._why_not(task_id)}")
        return task_id

    def _why_not(self, task_id: int) -> str:
        if not self._is_needed(task_id):
            return "is not going to run: no path leads from it to inputs="
        if self._missing[task_id]:
            return f"waits for {counted(self._missing[task_id], 'more gradient')}"
        return "has run"

    def _is_needed(self, task_id: int) -> bool:
        return self._needed is None or task_id in self._needed

    def keep_history(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._check_open()
        if (groups := self._groups) is not None:
            self._inside(lambda: groups.give_up_all(self, lambda at: f"a history takes back {at} alone"))
        super().keep_history(budget_bytes)

    keep_history.__doc__ = Rewinding.keep_history.__doc__

    def _run_next(self, task_id: int, hooks: bool, by_hand: bool = False, last: int | None = None) -> None:
        """Runs a task, and those that run as one with it."""
        if self._groups is not None and task_id in self._groups:
            self._groups.execute(self, task_id, hooks, by_hand, last)
        else:
            self._execute(task_id, hooks, by_hand)

    def _execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None:
        """Runs one task as engine.cpp's evaluate_function does. Not looking for hooks saves most of the time."""
        recorder, memory = self._recorder, self._runner.memory
        buffer = self._buffers.pop(task_id)
        self._queue.remove(task_id)
        entry = None
        try:
            if self._history is not None:
                entry = self._begin_task(task_id, buffer, by_hand)
            if memory is not None:
                memory.begin(task_id)
            if self.accumulation.keeps and not self.graph.tasks[task_id].is_leaf:
                self._consumed[task_id] = buffer.waiting()
            gradients = buffer.take()
            if memory is not None:
                memory.summed(task_id)
            if recorder is not None:
                recorder.start(task_id, gradients, by_hand)
            on_end = None if recorder is None else recorder.end
            outputs = self._runner.run(self.graph.tasks[task_id], gradients, hooks, on_end)
            self.order.append(task_id)
            for edge in self.graph.out_edges[task_id]:
                self._deliver(edge, outputs, entry)
            outputs.reverse()  # what was added to another, or goes nowhere, lives until here; the first goes first
            outputs.clear()
            if entry is not None:
                self._end_task(entry)
        except BaseException as error:
            self._fail(error, task_id)
            raise

    def _fail(self, error: BaseException, task_id: int) -> None:
        described = self.graph.describe(task_id)
        self._over = f"{type(error).__name__} in {described}"
        error.add_note(f"tapehead: raised in {described}")
        self._runner.failed(self.graph.tasks[task_id])

    def _deliver(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None = None) -> None:
        """Puts an output into the next task's buffer. The last makes it ready, also when all are undefined."""
        if self._add(edge, outputs, entry):
            key = self._queue.push(edge.next_task)
            if self._recorder is not None:
                self._recorder.arrive(edge.next_task, self._queue.label(edge.next_task), key)

    def _add(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None) -> bool:
        next_task, gradient = edge.next_task, outputs[edge.output]
        if self._needed is not None and next_task not in self._needed:
            return False
        buffer = self._buffers.get(next_task)
        if buffer is None:
            buffer = self._buffers[next_task] = self._runner.buffer(next_task, self.accumulation.accumulate)
        if entry is not None:
            entry.note(edge, buffer)
        if gradient is not None and buffer.add(edge.input, gradient):
            outputs[edge.output] = None  # the buffer alone holds it
        self._missing[next_task] -= 1
        return not self._missing[next_task]


def run_measured(
    arguments: tuple[Outputs | HipsTape, Any, bool | None, bool, Inputs | None],
    policy: AnyPolicy,
    trace: Level | None,
    accumulation: Accumulation,
    measurement: Measurement,
    batch: AnyBatch = None,
) -> Run:
    """A whole backward whose memory is measured. `arguments`: those of `torch.autograd.backward`.

    What tasks did as one says nothing about another order: such a run has no footprints.
    """
    measuring = partial(measurement.begin_stepped, accumulation)
    with Stepper(
        *arguments, policy=policy, trace=trace, accumulation=accumulation, measuring=measuring, batch=batch
    ) as stepper:
        run = stepper.run()
        measurement.end()
        trees = [batch.tasks for batch in run.batches or () if batch.kind == "tree"]
        timeline, footprints = measurement.results(trees)
        return replace(run, timeline=timeline, footprints=None if run.batches else footprints)


def runner_of(
    tensors: Outputs | HipsTape,
    grad_tensors: Any,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Inputs | None,
    measuring: Measuring | None = None,
) -> Runner:
    """The nodes below these tensors or of this tape, ready to run. Arguments as for `Stepper`, and what it raises."""
    if isinstance(tensors, HipsTape):
        from ..hips.runner import HipsRunner  # which needs the package autograd

        return HipsRunner.of(tensors, grad_tensors, retain_graph, create_graph, inputs, measuring)
    return TaskRunner.of(tensors, grad_tensors, retain_graph, create_graph, inputs, measuring)
