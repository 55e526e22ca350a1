"""A session of the direct engine, in which any ready task may run next and tasks can be undone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, get_args

from torch import Tensor

from ...errors import verbs_end_where_called
from ...inspector.graph.freed_nodes import begins
from ...inspector.graph.graph import Outputs, Task
from ...inspector.hips.tape import HipsTape
from ...inspector.text.sizes_and_counts import counted
from ...inspector.validation import expect, expect_callable, expect_choice
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.backward_arguments import BackwardCall
from ..execution.node_runner import Measuring, Runner
from ..execution.torch_nodes import TaskRunner
from ..execution.undo_history import BUDGET_BYTES, History, expect_budget
from ..memory.task_memory import Footprints
from ..planning.policies import find_policy, note_on, order_name
from ..planning.policy_orders import queue_maker
from ..planning.scheduling_problem import Problem
from ..recording.batch_report import Batches
from ..recording.run import Run
from ..recording.statistics import Level
from ..schedule.batch_queues import HoldingChoiceQueue, HoldingQueue
from ..schedule.device_queues import DeviceQueues, Queues, why_idle
from ..schedule.policy import AnyPolicy, Choice, Policy
from ..schedule.ready_queue import AnyTask, ReadyTask
from .batching.batch_argument import AnyBatch, check_batch
from .branches import Branch
from .compare_branches import BranchComparison
from .direct_engine import DirectBackward
from .session import SessionTurn, one_at_a_time
from .undo import Rewinder
from .verbs import Verbs, as_gradients, check_edit

if TYPE_CHECKING:
    from ..memory.measure_backward import Measurement


@verbs_end_where_called
class Stepper(Verbs):
    """A backward that runs one task at a time, on request. `ts.debug(loss)` creates one.

    It reproduces PyTorch's engine: summing of broadcast gradients, casts and their errors, accumulation in place and
    without copies, hooks on tensors, nodes, leaves and several tensors, callbacks at the end of the backward,
    checkpoints, custom Functions, compiled regions as one task, `inputs=`, double backward, anomaly mode, and freeing
    of saved tensors. The source of each rule is named where it is implemented. Under "heap" the gradients are bitwise
    equal to PyTorch's; other orders add in another order. Everything runs in the thread that calls `step`, with its
    modes and defaults; only the grad mode is the backward's own.

    Known limitations: a backward is refused, with a message, in a process with initialised torch.distributed (the C++
    hooks of DistributedDataParallel are not visible), under compiled autograd, and if gradients are nested tensors.
    Hooks registered from C++ are not seen. Hooks of a non-leaf tensor whose node receives no gradient at all are not
    called with None, unlike in PyTorch. Nested backwards, thousands deep, reach Python's recursion limit.

    Saved tensors that a node hides from Python (in CopySlices, in C++ Functions of extensions, or packed by
    `saved_tensors_hooks`, as checkpoints do) are freed after the task only if no tensor or node in the process has
    Python hooks; otherwise they are freed with the node. If the forward used several CUDA streams and was not captured,
    everything runs on the current stream, which waits for the device (`TaskStreams`). An interrupt (Ctrl-C) ends the
    session, as an exception in the user's code does.

    Args:
        tensors: the outputs where the backward starts, or a tape; or all arguments of a backward, as a `BackwardCall`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task. It picks the task unless `step` is passed
            one.
        trace: the gradient statistics to record: "off", "cheap" or "full". None records nothing.
        history: whether tasks can be undone (`back`), or the number of bytes of gradients that may be kept for that, as
            a number or "2GiB".
        accumulation: how gradients are summed, and when they are freed. Rules other than PyTorch's give the same sums,
            added in the same order, and need other memory.
        batch: "auto" runs products of several tasks as one batch where `ts.find_batches` allows it, by its rules or by
            those passed. One step then runs all tasks of a batch (`together`). Gradients are equal within rounding, and
            gradients of one batch share a storage. If hooks, watchpoints, breakpoints or a history need the single
            tasks, these run alone, and `batches` says why.
        queues: "one" ready queue for all devices, in the policy's total order, or one "per device", each sorted by the
            policy, with devices working side by side as in PyTorch's engine. Tasks still run one at a time, in the
            order in which the devices would start them according to `Problem.durations`. This order is deterministic.
            On real devices it depends on how long tasks run, and an idle device starts the first task that arrives;
            `step(device=)` lets a device run ahead. None, the default, follows PyTorch's engine: a queue for each
            device on which tasks run, so one for a graph on the CPU or on a single accelerator. With `batch=` the
            default is one queue, because the tasks of a batch leave it together.
        measuring: starts the memory measurement before the backward allocates anything; see `Measurement.begin`.

    Attributes:
        graph: the graph.
        accumulation: as passed.

    Raises:
        NotImplementedError: the backward is not supported; nothing has run.
    """

    _backward: DirectBackward

    def __init__(
        self,
        tensors: Outputs | HipsTape | BackwardCall,
        *,
        policy: AnyPolicy = "heap",
        trace: Level | None = "off",
        history: bool | int | str = False,
        accumulation: Accumulation = PYTORCHS,
        measuring: Measuring | None = None,
        batch: AnyBatch = None,
        queues: Queues | None = None,
    ) -> None:
        unbound = find_policy(policy)
        if not isinstance(history, bool):
            history = expect_budget(history, "history")
        if trace is not None:
            expect_choice(trace, get_args(Level), "trace")
        expect(accumulation, Accumulation, "accumulation", "a ts.types.Accumulation")
        if measuring is not None:
            expect_callable(measuring, 5, "measuring", "a callable that starts the memory measurement")
        check_batch(batch)
        if queues is not None:
            expect_choice(queues, get_args(Queues), "queues")
        call = BackwardCall.of(tensors)
        runner: Runner
        if isinstance(call.tensors, HipsTape):
            from .hips.runner import HipsRunner  # imports the package autograd

            runner = HipsRunner.of(call, call.tensors, measuring)
        else:
            runner = TaskRunner.of(call, measuring)
        self._keep_graph = keep_graph = runner.keep_graph
        problem = Problem(runner.graph, None, runner.needed, keep_graph=keep_graph, may_ask=True)
        self.accumulation, self._batch = accumulation, batch
        several = len(runner.graph.devices) > 1 and queues != "one"
        if several and batch is not None and queues is not None:
            raise NotImplementedError(
                'batch= needs one ready queue, and queues="per device" uses several; pass only one of the two'
            )
        self._queues: Queues = "per device" if several and batch is None else "one"
        make_queue = queue_maker(problem, self._queues)
        self._backward = DirectBackward(
            runner, self._bound_to(problem, unbound), trace, accumulation, batch, make_queue
        )
        self._creates_graph = bool(call.create_graph)
        self._backward.start(self._creates_graph)
        self._turn = SessionTurn()
        self._rewinder = Rewinder(self._backward)
        begins(self)
        if history is not False:
            self.keep_history(BUDGET_BYTES if history is True else history)

    def __repr__(self) -> str:
        state, ran = self.over or f"{len(self._backward.queue)} ready", len(self.order)
        if len(together := self.together) > 1:
            state = f"{state}, the next step runs a batch of {len(together)}"
        return f"<Stepper under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it pops; in order of arrival under a user's own policy.

        With a queue per device it lists all of them, in the order in which the devices would start the tasks.
        """
        return self._backward.queue.entries()

    @property
    def current(self) -> Task | None:
        """The task that `step()` runs next; None if all have run.

        While another thread runs tasks, this is the next ready task (a user's own policy is not called), or the running
        task if none is ready.
        """
        current = None if self._turn.is_elsewhere else self._backward.current
        # Another thread may have started a task after `is_elsewhere` was read: no task is ready, but some are left.
        return self._backward.current_meanwhile() if current is None else current

    @property
    def planned(self) -> list[int]:
        """All tasks in order: those that have run, then those to run if nothing is chosen by hand.

        Raises:
            PolicyError: a user's own policy fails to choose.
        """
        return self._backward.upcoming(meanwhile=self._turn.is_elsewhere)

    @property
    def together(self) -> list[Task]:
        """The tasks that `step()` runs next: the current task and those batched with it."""
        queue = self._backward.queue
        if queue and isinstance(queue, HoldingQueue | HoldingChoiceQueue):
            return [self.graph.tasks[task_id] for task_id in queue.next_step(ask=not self._turn.is_elsewhere)]
        return [] if (current := self.current) is None else [current]

    @property
    def batches(self) -> Batches | None:
        """The batches that have run, and those that could not with the reason; None without `batch=`."""
        backward = self._backward
        return None if self._batch is None else Batches(tuple(backward.batches), tuple(backward.fallbacks))

    @property
    @one_at_a_time
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The current task's input buffer: one gradient per input, with the shapes in `current.inputs`.

        Raises:
            RuntimeError: no task is left, or the session is over.
        """
        return self.waiting(self._picked(None))

    def _follow(self, policy: Policy | Choice) -> None:
        self._backward.follow(self._bound(policy, self.order))

    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """Return the gradients in a task's input buffer, one per input, with the shapes in `task.inputs`; None for an
        input that has not arrived.

        The tensors are the engine's own, not copies. Keeping a reference to one makes the engine add to it out of
        place. If an input buffer is a list, its current sum is computed for this call and not kept.
        """
        return self._backward.buffers.shown(self._task(task).id)

    @one_at_a_time
    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None, task: AnyTask | None = None) -> None:
        """Replace the gradients in the input buffer of a ready task.

        Args:
            gradients: one per input, with the shape, dtype and device of the gradient it replaces.
            task: the task; None for the current one.

        Raises:
            ValueError: the task is not ready; or the gradients' number, shape, dtype, device or layout differs, or an
                input that received no gradient would get one.
            TypeError: a gradient is not a tensor.
        """
        task_id, after = self._picked(task), as_gradients(gradients)
        check_edit(self.graph, self.graph.tasks[task_id], self._backward.buffers.shown(task_id), after)
        self._backward.put(task_id, after)

    @one_at_a_time
    def _step(self, task: AnyTask | None = None, before: int | None = None) -> Task:
        task_id = self._picked(task)
        self._backward.run_one(task_id, task is not None, before)
        return self.graph.tasks[task_id]

    @one_at_a_time
    def _next_on(self, device: str) -> Task:
        queue, tasks = self._backward.queue, self.graph.tasks
        if isinstance(queue, DeviceQueues):
            found = queue.choose_on(device)
        else:
            found = next((each.task.id for each in queue.entries() if str(each.task.device) == device), None)
        if found is None:
            raise ValueError(why_idle(self.graph, device, self.planned, self.order))
        return tasks[found]

    def result(self) -> Run:
        """Return a `Run` of the tasks run so far."""
        policy, order = self.picks, tuple(self.order)
        return Run(
            self.graph,
            order_name(policy),
            "direct",
            order,
            order,
            self._backward.elapsed_ns,
            self.trace,
            accumulation=self.accumulation,
            batches=self.batches,
            note=note_on(policy),
            stopped=self.stopped.text if self.stopped else "",
        )

    @property
    def history(self) -> History | None:
        """The undo history: the bytes it holds (`nbytes`) and the earliest position it can return to (`reach`); None if
        none is kept."""
        return self._rewinder.history

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The session's branches, including the current one; empty without a history."""
        return self._rewinder.branches

    @one_at_a_time
    def keep_history(self, budget_bytes: int | str = BUDGET_BYTES) -> None:
        """Start recording a history, so that tasks can be undone; does nothing if one is recorded already.

        Args:
            budget_bytes: the limit for kept gradients, a number or "2GiB". Beyond it the oldest gradients are dropped,
                and recomputed when needed.
        """
        self._rewinder.keep(budget_bytes)

    @one_at_a_time
    def forget(self) -> None:
        """Discard the history and all branches; undo can then return to this position at the earliest."""
        self._rewinder.forget()

    @one_at_a_time
    def back(self, count: int = 1) -> Task | None:
        """Undo the last `count` tasks and return the current task.

        This restores the gradients, the .grad of leaves, the queue, the policy, the trace and torch's random number
        generators. It also restores the Python state of hooks and custom Functions (`HookState`), and the buffers that
        a recomputed checkpoint writes, so that each hook finds the state it found before. Edits made before the task
        that is now current stay (`restore` undoes them); later edits are undone. The callbacks for the end of the
        backward run at each end.

        Known limitations: other side effects of hooks and custom Functions (output, files) are not undone, and happen
        again when their tasks run again.

        Raises:
            ValueError: fewer than `count` tasks can be undone.
            RuntimeError: a .grad was modified by other code since, which undo would lose; no history is kept, or the
                session is over.
        """
        return self._rewinder.back(count)

    @one_at_a_time
    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Undo or run tasks until a task is the next one, or go to the end of a branch; return the current task.

        Going to a branch undoes the tasks since it forked and runs its tasks again. The undone tasks of the current
        branch are kept until another task runs.

        Raises:
            ValueError: the task cannot be reached because it does not run or ran before the history begins; or the
                branch does not exist.
            RuntimeError: no history is kept, or the session is over.
        """
        if branch is not None:
            self._rewinder.go_to_branch(branch)
            return self._backward.current
        if task is None:
            raise ValueError("goto() needs a task or branch=")
        return self._rewinder.go_to(self._task(task).id)

    @one_at_a_time
    def restore(self, task: AnyTask | None = None) -> None:
        """Undo the edits of a task's input buffer.

        Args:
            task: the task; None for the current one.

        Raises:
            ValueError: the task's gradients were not edited.
            RuntimeError: no history is kept, or the session is over.
        """
        self._rewinder.restore(None if task is None else self._task(task).id)

    @one_at_a_time
    def compare_branches(self, footprints: Footprints | None = None) -> BranchComparison:
        """Compare the branches: their orders, the gradients of their leaves, and their predicted memory.

        Args:
            footprints: the memory that tasks allocate; None for the session's `footprints`, or if it has none, for a
                dry run, as in `ts.simulate`.
        """
        return self._rewinder.compare(self.footprints if footprints is None else footprints)

    def close(self) -> None:
        """End the session and release its input buffers and the graph's nodes; a second call does nothing.

        Called from a hook or another thread while a task runs, it ends the session after that task.
        """
        self._backward.close()
        self._release_if_over()

    def _picked(self, task: AnyTask | None) -> int:
        try:
            return self._backward.pick(None if task is None else self._task(task).id)
        except ValueError as error:
            if type(task) is int and task:  # a number of tasks at the prompt and in other debuggers
                raise ValueError(f"{error}. To run {counted(task, 'task')}, use step(count={task})") from None
            raise


def run_measured(
    call: BackwardCall,
    policy: AnyPolicy,
    trace: Level | None,
    accumulation: Accumulation,
    measurement: Measurement,
    batch: AnyBatch = None,
    queues: Queues = "one",
) -> Run:
    """Run a complete backward and measure its memory.

    A run with batches has no footprints: the memory of a batch does not predict another order.
    """
    measuring = partial(measurement.begin_stepped, accumulation)
    with Stepper(
        call, policy=policy, trace=trace, accumulation=accumulation, measuring=measuring, batch=batch, queues=queues
    ) as stepper:
        run = stepper.run()
        measurement.end()
        trees = [batch.tasks for batch in run.batches or () if batch.kind == "tree"]
        return run.with_memory(measurement.results(trees), predicts=not run.batches)
