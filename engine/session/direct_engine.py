"""A backward of the direct engine under way: a Python loop that calls one ready node at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.text.sizes_and_counts import counted
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.fast_loop import LoopRecorder
from ..execution.input_buffer import Waiting, alone
from ..execution.node_runner import Runner
from ..execution.pending_inputs import InputBuffers
from ..execution.saved_tensor_errors import backward_begins
from ..execution.streams import on_stream
from ..execution.undo_history import Edited, Ran
from ..planning.order_cache import CACHED_ORDERS, queue_key
from ..planning.simulate import schedule
from ..recording.batch_report import Batch, Fallback
from ..recording.fast_recorder import FastRecorder
from ..recording.recorder import Recorder
from ..recording.statistics import Level
from ..recording.trace_ready import task_range
from ..schedule.batch_queues import HoldingChoiceQueue, HoldingQueue, holding_queue, planned_order, queue_after
from ..schedule.dependencies import dependencies
from ..schedule.device_queues import AnyQueue, DeviceQueues, MakeQueue
from ..schedule.greedy_order import allowed, chosen_order
from ..schedule.policy import Choice, Policy, is_dynamic
from ..schedule.ready_queue import KeyedQueue, PolicyError, ready_queue
from .batching.batch_argument import AnyBatch
from .branches import Past
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops, session_over
from .error_notes.explain_error import explain_error

if TYPE_CHECKING:
    from .batching.run_batches import GroupRunner


class DirectBackward:
    """The backward that a `Stepper` drives: its ready queue, its input buffers, and the execution of its tasks.

    Args:
        runner: runs the nodes.
        policy: the policy, bound to the graph.
        trace, accumulation, batch: as for `Stepper`.
        make_queue: creates the ready queue if no tasks are batched.

    Attributes:
        graph: the graph; without its nodes once the backward is over.
        needed: ids of the tasks that run; None for all.
        runner: as passed; removed once the backward is over.
        order: ids of the tasks that have run.
        buffers: the input buffers.
        policy: the current policy.
        terms: every policy used so far, each with the position at which it took over.
        stops: the breakpoints and watchpoints.
        recorder: records the tasks; None if nothing is recorded.
        batches, fallbacks: the batches that have run, and those that could not run.
        groups: runs several tasks as one batch; None if each task runs alone.
        past: the history used for undo; None if none is kept.
        consumed: input buffers by task, if buffers are never released.
        over: the reason why no further step is possible; None while steps are possible.
        elapsed_ns: the time spent running.
    """

    def __init__(
        self,
        runner: Runner,
        policy: Policy | Choice,
        trace: Level | None,
        accumulation: Accumulation,
        batch: AnyBatch,
        make_queue: MakeQueue = ready_queue,
    ) -> None:
        self.runner = runner
        self.graph: Graph = runner.graph
        self.needed = runner.needed
        self.accumulation = accumulation
        self.order: list[int] = []
        self.policy = policy
        self.terms = [(0, policy)]
        self.recorder = None if trace is None else Recorder(self.graph, policy, trace)
        self.batches: list[Batch] = [] if self.recorder is None else self.recorder.batches
        self.fallbacks: list[Fallback] = [] if self.recorder is None else self.recorder.fallbacks
        self.groups: GroupRunner | None = None
        if batch is not None:
            from .batching.run_batches import group_runner  # few sessions need it

            self.groups = group_runner(batch, runner, accumulation, self.batches, self.fallbacks)
        if runner.streams is not None and not (self.groups is None and accumulation == PYTORCHS):
            runner.streams.use_one_stream()
        self._make_queue = make_queue if self.groups is None else partial(holding_queue, together=self.groups.together)
        self._queue = self._make_queue(self.graph, policy, self.order)
        self._cached_order: Sequence[int] | None = None  # while tasks run by it, the queue is not updated
        self._asked_cache = False
        self.stops = Stops(self.graph, self.needed, None if self.recorder is None else self.recorder.trace)
        self.stops.use_order(self.order)
        runner.on_hook = None if self.recorder is None else self.recorder.hook
        if self.recorder is not None and runner.memory is not None:
            self.recorder.apart = runner.memory.apart
        self.buffers = InputBuffers(self.graph, self.needed, partial(runner.buffer, accumulate=accumulation.accumulate))
        self.past: Past | None = None
        self.consumed: dict[int, Waiting] = {}
        # THPEngine_run_backward (python_engine.cpp) holds the root gradients until the engine returns. The engine
        # therefore never adds to them in place or steals them as a .grad: that needs use_count() == 1.
        self._root_gradients = runner.roots
        self.elapsed_ns = 0
        self.over: str | None = None
        self._fast_recorders: dict[int, FastRecorder] = {}  # by thread
        self._hooks = runner.hook_watch()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise the error for a session that is over if `runner` is read."""
            if name == "runner":
                raise session_over(self.over or "closed")
            raise AttributeError(name)

    def start(self, create_graph: bool) -> None:
        """Add the root gradients to the input buffers, which makes the first tasks ready."""
        backward_begins()
        with torch.set_grad_enabled(create_graph):
            # Engine::execute (engine.cpp) fits the root gradients to the roots (validate_outputs) before anything runs.
            # Several roots get theirs from a GraphRoot node; here each root's input buffer is filled directly.
            gradients = self.runner.fitted_roots()
            for position, root in enumerate(self.graph.roots):
                self.deliver(Edge(root.task, position, root.task, root.input), gradients)
        if self.runner.streams is not None:
            for task_id, buffer in self.buffers.by_task.items():
                self.runner.streams.given(task_id, buffer.shown())

    @property
    def queue(self) -> AnyQueue:
        """The ready tasks."""
        ahead = self._cached_order
        if ahead is None:
            return self._queue
        found, ran = self.queue_under(self.policy), len(self.order)
        if ran < len(ahead) and ahead[ran] in found and ahead[ran] not in self.buffers.by_task:  # it is running
            found.remove(ahead[ran])
        return found

    @queue.setter
    def queue(self, queue: AnyQueue) -> None:
        self._queue, self._cached_order = queue, None

    def begin_fast_loop(self) -> Sequence[int] | None:
        """Return the remaining tasks in order if the order cache has this graph, so that they run without the queue
        until `end_fast_loop`; otherwise None.

        Only the first call asks the cache. A later call means that the session does more than run all tasks.
        """
        order, queue = self.order, self._queue
        if self._asked_cache or type(queue) is not KeyedQueue:
            return None
        self._asked_cache = True
        if self.recorder is not None and not self.recorder.knows_labels(queue.arrived):
            return None
        key = queue_key(self.graph, self.policy)
        turns: tuple[int, ...] | None = None if key is None else CACHED_ORDERS.get(key)
        if turns is None or list(turns[: len(order)]) != order:
            return None
        self._cached_order = turns
        return turns[len(order) :]

    def end_fast_loop(self) -> None:
        """Write what the loop has recorded, and rebuild the ready queue after tasks have run without it."""
        if self.recorder is not None:
            self.recorder.write_rows()
        if self._cached_order is not None:
            all_ran = len(self.order) == len(self._cached_order)
            self.queue = (
                self._make_queue(self.graph, self.policy, self.order) if all_ran else self.queue_under(self.policy)
            )

    @property
    def current(self) -> Task | None:
        """The task that the policy picks next; None when all have run."""
        first = self.queue.first()
        return None if first is None else self.graph.tasks[first]

    def current_meanwhile(self) -> Task | None:
        """Return the current task while another thread runs tasks: the first ready task, or the running one if none is
        ready.

        A user's own policy is not called.
        """
        first, ran = self.queue.first(ask=False), list(self.order)
        needed = range(len(self.graph)) if self.needed is None else self.needed
        if first is None and self.over is None and len(ran) < len(needed):
            missing, gone = list(self.buffers.missing), frozenset(ran)
            running = (task_id for task_id in needed if not missing[task_id] and task_id not in gone)
            first = next(running, ran[-1] if ran else None)  # the last task is still delivering its outputs
        return None if first is None else self.graph.tasks[first]

    def upcoming(self, meanwhile: bool = False) -> list[int]:
        """Return all tasks in order: those that have run, then those still to run.

        Args:
            meanwhile: whether another thread is running tasks; the order is then as of the last task that ended.
        """
        graph, queue, ran, missing = self.graph, self.queue, list(self.order), self.buffers.missing
        if isinstance(queue, HoldingQueue | HoldingChoiceQueue):
            if meanwhile:  # the other thread is changing the queue, so count the dependencies anew
                missing = dependencies(graph)
                for root in graph.roots:
                    missing[root.task] -= 1
                for edge in (edge for task_id in ran for edge in graph.out_edges[task_id]):
                    missing[edge.next_task] -= 1
                found = queue_after(graph, self.policy, ran, self.needed, self._make_queue, missing)
                queue = found if isinstance(found, HoldingQueue | HoldingChoiceQueue) else queue
            return planned_order(queue, ran, missing, self.needed)
        if isinstance(queue, DeviceQueues):
            return chosen_order(graph, self.policy, allowed(graph, self.needed), ran, self._make_queue)
        return schedule(graph, self.policy, self.needed, ran)

    def described(self, task_id: int) -> str:
        """Describe a task, with its position in the run."""
        order = self.order if is_dynamic(self.policy) else self.upcoming()
        return self.graph.in_order(order).describe(task_id)

    def pick(self, task_id: int | None) -> int:
        """Return the id of a task if it is ready, or the policy's choice for None."""
        if task_id is None:
            if not len(self.queue):
                raise RuntimeError(f"no task is left: all {len(self.order)} have run")
            return self.queue.choose()
        if task_id not in self.queue:
            raise ValueError(f"{self.described(task_id)} is not ready: it {_why_not(self, task_id)}")
        return task_id

    def run_one(self, task_id: int, by_hand: bool, last: int | None = None) -> None:
        """Run a ready task and the tasks batched with it, except `last`."""

        def body() -> None:
            self.runner.retain_inputs()
            self.execute(task_id, hooks=True, by_hand=by_hand, last=last)

        self.stops.stopped = None
        self.inside(body, ends=True)

    def run_to(self, task_id: int) -> None:
        """Run tasks in the policy's order until this one is next, or until a stop."""
        if task_id in self.order or not (self.needed is None or task_id in self.needed):
            raise ValueError(f"{self.described(task_id)} {_why_not(self, task_id)}")
        self.run_until(task_id)

    def run_until(self, last: int | None) -> None:
        """Run tasks until `last` is next, a stop, or the end."""

        def body() -> None:
            if self.queue:
                self.queue.choose()  # if the policy raises, no state has changed yet
            self.runner.retain_inputs()
            watch, stops = self._hooks, self.stops
            ask = watch is None or watch.possible()
            fast = watch is not None and not ask and not stops.watchpoints
            batched = () if self.groups is None else self.groups.tasks
            until = frozenset(batched if last is None else (*batched, last))
            queue, from_start = self.queue, not self.order
            while queue and not stops.stop_asked:
                if fast and watch is not None and self.is_plain:
                    self.runner.run_fast(self, until, watch)
                    queue = self.queue
                    if not queue or stops.stop_asked:
                        break
                    if (
                        stops.breakpoints and (stop := self.stop_here(wait=False)) is not None
                    ):  # added by another thread
                        stops.stopped = stop
                        return
                task_id = queue.choose()
                if task_id == last:
                    return
                self.execute(task_id, ask or (watch is not None and watch.registered()), last=last)
                if (stops.breakpoints or stops.watchpoints) and (stop := self.stop_here(wait=False)) is not None:
                    stops.stopped = stop
                    return
            if stops.stop_asked and queue:
                stops.stopped = stops.take_request()
            elif from_start and watch is not None and type(queue) is KeyedQueue:
                key = queue_key(self.graph, self.policy)
                if key is not None and len(self.order) == len(self.graph) and key not in CACHED_ORDERS:
                    CACHED_ORDERS.put(key, tuple(self.order))

        self.stops.stopped = None
        try:
            self.inside(body, ends=True)
        finally:
            self.stops.stop_asked = False

    @property
    def is_plain(self) -> bool:
        """True if the tasks can run in the fast loop: nothing is needed beyond running and recording them."""
        recorder = self.recorder
        if recorder is not None and not (self.runner.fast_loop_records and recorder.allows_fast_loop):
            return False
        streams = self.runner.streams
        if streams is not None and streams.several:
            return False
        others = self.needed, self.past, self.runner.memory
        return all(each is None for each in others) and self.accumulation == PYTORCHS and not self.stops.breakpoints

    def loop_recorder(self) -> FastRecorder | None:
        """Return this thread's fast recorder for the tasks that run next; None if nothing is recorded."""
        if self.recorder is None:
            return None
        thread = get_ident()
        record = self._fast_recorders.get(thread)
        if record is None:
            record = self._fast_recorders[thread] = self.recorder.fast_recorder()
        record.begin()
        return record

    def stop_here(self, wait: bool) -> Stop | None:
        """Return the stop that ends a run at this position; see `Verbs.stop_here`."""
        if self.over is not None:
            return None
        if not len(self.queue):
            return self.stops.at_end(self.order)
        found = self.stops.found(wait)
        if found is not None or not self.stops.breakpoints:
            return found
        task_id = self.queue.choose()
        return self.stops.before(task_id, self.order, lambda: self.buffers.shown(task_id))

    def inside(self, body: Callable[[], None], ends: bool = False) -> None:
        """Call `body` inside the backward, in its grad mode.

        Args:
            body: the function to call.
            ends: whether to run the callbacks queued for the end of the backward if no task is left afterwards.
        """

        def in_backward() -> None:
            self.runner.on_outputs = self.stops.produced if self.stops.watchpoints else None
            if self.groups is not None and (watching := self.stops.watchpoints):
                watchpoint = watching[0]
                self.groups.dissolve_all(
                    self, lambda at: f"watchpoint {watchpoint.number} ({watchpoint.text}) reads the outputs of {at}"
                )
            body()
            if ends and not len(self.queue):
                self._end()

        started_ns = time.perf_counter_ns()
        try:
            self.runner.inside(in_backward, self.upcoming)
        except PolicyError:  # no task has run, so the session stays open for another policy
            raise
        except BaseException as error:
            self.over = self.over or f"{type(error).__name__} after {len(self.order)} tasks"
            raise
        finally:
            self.runner.rest()
            self.elapsed_ns += time.perf_counter_ns() - started_ns

    def _end(self) -> None:
        """Finish the backward after its last task."""
        if not self.order and self._root_gradients:
            self.runner.pass_by()
        if self.runner.memory is not None:
            self.runner.memory.over()
        # GraphTask::exec_post_processing (engine.cpp) calls the callbacks of queue_callback after the last node.
        self.runner.finish(again=self.past is not None)
        self._release_at_end()

    def execute(self, task_id: int, hooks: bool, by_hand: bool = False, last: int | None = None) -> None:
        """Run a task as engine.cpp's evaluate_function does, and the tasks batched with it, except `last`.

        Skipping the search for hooks (`hooks=False`) saves most of the time.
        """
        if self.groups is not None and task_id in self.groups:
            self.groups.execute(self, task_id, hooks, by_hand, last)
            return
        past, recorder, memory, streams = self.past, self.recorder, self.runner.memory, self.runner.streams
        buffer = self.buffers.by_task.pop(task_id)
        self.queue.remove(task_id)
        try:
            with nullcontext() if streams is None or not streams.several else on_stream(streams.of_task(task_id)):
                entry = None if past is None else past.begin_task(task_id, buffer, by_hand)
                if memory is not None:
                    memory.begin(task_id)
                if self.accumulation.keeps and not self.graph.tasks[task_id].is_leaf:
                    self.consumed[task_id] = buffer.waiting()
                # take() empties the buffer: a second reference would make later sums out of place (input_buffer.cpp,
                # can_accumulate_inplace: use_count() == 1).
                gradients = buffer.take()
                if memory is not None:
                    memory.summed(task_id)
                if recorder is not None:
                    recorder.start(task_id, gradients, by_hand)
                on_end = None if recorder is None else recorder.end
                with task_range(self.graph, task_id):
                    outputs = self.runner.run(self.graph.tasks[task_id], gradients, hooks, on_end)
                self.order.append(task_id)
                for edge in self.graph.out_edges[task_id]:
                    self.deliver(edge, outputs, entry)
                # The engine's std::vector frees its elements from the front, list.clear() from the end. The caching
                # allocator reuses blocks in the order in which they are freed, so free the first output first.
                outputs.reverse()
                outputs.clear()
                if past is not None and entry is not None:
                    past.end_task(entry)
        except BaseException as error:
            self.fail(error, task_id)
            raise

    def fail(self, error: BaseException, task_id: int, record: LoopRecorder | None = None) -> None:
        """Add the name of the task that raised to the error, and end the backward. `record`: the fast loop's."""
        if record is not None:
            record.failed(task_id)
        described = self.graph.describe(task_id, len(self.order))
        self.over = f"{type(error).__name__} in {described}"
        error.add_note(f"tapescope: raised in {described}")
        explain_error(error, self.graph, self.order)
        self.runner.failed(self.graph.tasks[task_id])

    def deliver(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None = None) -> None:
        """Add an output to the next task's input buffer; the last input makes the task ready, even if all are
        undefined."""
        streams = self.runner.streams
        if streams is None or not streams.several:
            ready = self.buffers.add(edge, outputs, entry)
        else:
            waits = (buffer := self.buffers.by_task.get(edge.next_task)) is not None and buffer.count(edge.input) > 0
            with on_stream(streams.hand_over(edge, outputs[edge.output], waits)):
                ready = self.buffers.add(edge, outputs, entry)
        # evaluate_function (engine.cpp) decrements the next node's dependencies for undefined gradients, too. A node
        # whose inputs are all undefined still runs.
        if ready:
            key = self.queue.push(edge.next_task)
            if self.recorder is not None:
                self.recorder.arrive(edge.next_task, self.queue.label(edge.next_task), key)
        if self.recorder is not None:
            self.recorder.unusual_tasks.add(edge.next_task)

    def put(self, task_id: int, after: Sequence[Tensor | None]) -> None:
        """Replace the gradients in a ready task's input buffer by checked ones, and record the edit."""
        buffer = self.buffers.by_task[task_id]
        before, now = buffer.shown(), tuple(after)
        if self.recorder is not None:
            self.recorder.edit(task_id, before, now)
            self.recorder.unusual_tasks.add(task_id)
        if self.past is not None:
            self.past.history.edits.append(Edited(len(self.order), task_id, before, now, buffer.waiting()))
        buffer.put(alone(now))
        if self.runner.streams is not None:
            self.runner.streams.given(task_id, now)

    def follow(self, policy: Policy | Choice) -> None:
        """Switch to another policy for the remaining tasks."""
        queue = self.queue_under(policy)
        position = len(self.order)
        if self.terms[-1][0] == position:
            self.terms.pop()
        self.terms.append((position, policy))
        self.policy, self.queue = policy, queue
        if self.recorder is not None:
            self.recorder.switch(policy)

    def queue_under(self, policy: Policy | Choice) -> AnyQueue:
        """Return the ready queue of a policy after the tasks that have run."""
        return queue_after(self.graph, policy, self.order, self.needed, self._make_queue, self.buffers.missing)

    def close(self) -> None:
        """End the backward after the running task."""
        self.over = self.over or "closed"
        self.stops.stop_asked = True

    def release(self) -> None:
        """Release the input buffers and the graph's nodes of a backward that is over.

        An interrupt may end this at any line, so it can be called again.
        """
        if "runner" not in vars(self):
            return
        past, self.past = self.past, None  # its branches' traces hold the graph and its nodes
        try:
            if past is not None:
                self.runner.inside(past.free_ran, tuple)
        finally:
            self.stops.close()
            self.buffers.close()
            self._release_at_end()
            # The user may keep the session. Without its nodes, the graph does not keep the forward's saved tensors
            # alive.
            self.graph = replace(self.graph, nodes=())
            self.groups = None
            self._make_queue = ready_queue
            self.queue = ready_queue(self.graph, self.policy, self.order)
            if self.recorder is not None:
                self.recorder.graph = self.graph
            vars(self).pop("runner", None)  # last, since its absence means that everything is released

    def _release_at_end(self) -> None:
        """Release the references that live until the end of the backward."""
        for task_id in list(self.consumed):  # in the order in which the tasks ran
            del self.consumed[task_id]
        self._root_gradients.clear()


def _why_not(backward: DirectBackward, task_id: int) -> str:
    if backward.needed is not None and task_id not in backward.needed:
        return "does not run: no path leads from it to inputs="
    if missing := backward.buffers.missing[task_id]:
        return f"waits for {counted(missing, 'more gradient')}"
    return "has run"
