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
from ..schedule.device_queues import DeviceQueues, Queues, why_still
from ..schedule.policy import AnyPolicy, Choice, Policy
from ..schedule.ready_queue import AnyTask, ReadyTask
from .batching.run_batches import AnyBatch, check_batch
from .branches import Branch
from .compare_branches import BranchComparison
from .direct_engine import DirectBackward
from .session import SessionTurn, one_at_a_time
from .undo import Rewinder
from .verbs import Verbs, as_gradients, check_edit

if TYPE_CHECKING:
    from ..memory.measurement import Measurement


@verbs_end_where_called
class Stepper(Verbs):
    """A backward that runs one task at a time, when told to. `ts.debug(loss)` makes one.

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
    registered from C++ are not seen. Of a forward on several CUDA streams that no capture saw, all runs on the current
    one, which waits for the device (`TaskStreams`). An interrupt (Ctrl-C) ends the session, as an exception of the
    user's does.

    Args:
        tensors: the outputs where the backward starts, or a tape; or all its arguments, as a `BackwardCall`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task; it picks when `step` is not told.
        trace: how much of the gradients' statistics is recorded: "off", "cheap" or "full". None records nothing.
        history: whether tasks can be taken back (`back`), or how many bytes of gradients may be kept for that,
            a number or "2GiB".
        accumulation: how gradients are summed, and when they are let go. Other rules than PyTorch's give the same sums,
            added in the same order, and take other memory.
        batch: "auto" runs products of several tasks as one where `ts.find_batches` finds that they can, by its rules or
            by those given. One step then runs all tasks of a stack (`together`). Gradients are equal within rounding,
            and those that were made together are parts of one storage. Where hooks, watchpoints, breakpoints or a
            history want the single tasks, these run by themselves, and `batches` says why.
        queues: "one" ready queue for all devices, in the policy's total order; or one "per device", which the policy
            sorts each by itself, and which are worked through side by side as in PyTorch's engine. Tasks then still run
            one at a time, in the order in which the devices would start them by `Problem.durations`. That order is
            certain, where on real devices it depends on how long tasks take, and an idle device takes the first task
            that comes; `step(device=)` lets a device go ahead. None, the default, is what PyTorch's engine does: a
            queue for each device on which tasks run, so one for a graph on the CPU, or on one accelerator alone; with
            `batch=`, whose tasks leave a queue together, one.
        measuring: begins to measure the memory, before anything of the backward is made: see `Measurement.begin`.

    Attributes:
        graph: the graph that is run.
        accumulation: as given.

    Raises:
        NotImplementedError: what is refused, before anything has run.
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
            expect_callable(measuring, 5, "measuring", "what begins to measure memory")
        check_batch(batch)
        if queues is not None:
            expect_choice(queues, get_args(Queues), "queues")
        call = BackwardCall.of(tensors)
        runner: Runner
        if isinstance(call.tensors, HipsTape):
            from .hips.runner import HipsRunner  # which needs the package autograd

            runner = HipsRunner.of(call, call.tensors, measuring)
        else:
            runner = TaskRunner.of(call, measuring)
        self._keep_graph = keep_graph = runner.keep_graph
        problem = Problem(runner.graph, None, runner.needed, keep_graph=keep_graph, may_ask=True)
        self.accumulation, self._batch = accumulation, batch
        several = len(runner.graph.devices) > 1 and queues != "one"
        if several and batch is not None and queues is not None:
            raise NotImplementedError(
                'batch= takes several tasks from one ready queue at once, and queues="per device" has several; use one '
                "of the two"
            )
        self._queues: Queues = "per device" if several and batch is None else "one"
        make_queue = queue_maker(problem, self._queues)
        self._backward = DirectBackward(
            runner, self._bound_to(problem, unbound), trace, accumulation, batch, make_queue
        )
        self._backward.start(bool(call.create_graph))
        self._turn = SessionTurn()
        self._rewinder = Rewinder(self._backward)
        begins(self)
        if history is not False:
            self.keep_history(BUDGET_BYTES if history is True else history)

    def __repr__(self) -> str:
        state, ran = self.over or f"{len(self._backward.queue)} ready", len(self.order)
        if len(together := self.together) > 1:
            state = f"{state}, the next step runs {len(together)} as one"
        return f"<Stepper under {self.policy}: {ran} of {ran + self.left} tasks have run, {state}>"

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop; under a user's own policy in order of arrival. With a
        queue per device all of them, in the order in which the devices would start the tasks."""
        return self._backward.queue.entries()

    @property
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run.

        While another thread runs tasks: the next ready task, without asking a user's own policy, or the running task if
        none is ready.
        """
        current = None if self._turn.is_elsewhere else self._backward.current
        # Another thread may have begun a task after `is_elsewhere` was read: no task is ready, but some are left.
        return self._backward.current_meanwhile() if current is None else current

    @property
    def planned(self) -> list[int]:
        """All tasks in the order in which they ran and are going to, unless something is done by hand.

        Raises:
            PolicyError: a policy of the user's own fails to choose.
        """
        return self._backward.upcoming(meanwhile=self._turn.is_elsewhere)

    @property
    def together(self) -> list[Task]:
        """The tasks that `step()` would run now: the current one, and those that run as one with it."""
        queue = self._backward.queue
        if queue and isinstance(queue, HoldingQueue | HoldingChoiceQueue):
            return [self.graph.tasks[task_id] for task_id in queue.next_step(ask=not self._turn.is_elsewhere)]
        return [] if (current := self.current) is None else [current]

    @property
    def batches(self) -> Batches | None:
        """What ran as one so far, and what did not and why; None without `batch=`."""
        backward = self._backward
        return None if self._batch is None else Batches(tuple(backward.batches), tuple(backward.fallbacks))

    @property
    @one_at_a_time
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get, its input buffer, of the shapes in `current.inputs`.

        Raises:
            RuntimeError: no task is left, or the session is over.
        """
        return self.waiting(self._picked(None))

    def _follow(self, policy: Policy | Choice) -> None:
        self._backward.follow(self._bound(policy, self.order))

    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, of the shapes in `task.inputs`; None where
        nothing has come yet.

        They are the engine's own tensors, not copies. Whoever keeps one makes the engine add out of place to it. Of a
        list it is the sum as it stands, which is computed for this call and not kept.
        """
        return self._backward.buffers.shown(self._task(task).id)

    @one_at_a_time
    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None, task: AnyTask | None = None) -> None:
        """Puts other gradients into the input buffer of a ready task, of the current one if none is given.

        Args:
            gradients: one per input number, of the same shape, dtype and device as what is there.

        Raises:
            ValueError: the task is not ready; or the gradients' number, shape, dtype, device or layout differs, or one
                is given where none came.
            TypeError: one is no tensor.
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
            raise ValueError(why_still(self.graph, device, self.planned, self.order))
        return tasks[found]

    def _step_on(self) -> Sequence[int]:
        ran = len(self.order)
        self._step()
        return self.order[ran:]

    def result(self) -> Run:
        """What has run so far."""
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
        )

    @property
    def history(self) -> History | None:
        """What going back takes (`nbytes`), and how far one can go (`reach`); None where no history is kept."""
        return self._rewinder.history

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The ways in which the session went, the current one included. Empty without a history."""
        return self._rewinder.branches

    @one_at_a_time
    def keep_history(self, budget_bytes: int | str = BUDGET_BYTES) -> None:
        """From here on tasks can be taken back. Does nothing where they can already.

        Args:
            budget_bytes: for gradients, a number or "2GiB": beyond it the oldest are computed again when needed.
        """
        self._rewinder.keep(budget_bytes)

    @one_at_a_time
    def forget(self) -> None:
        """Lets go all that is kept for going back: from here on one can go back to here. Branches go, too."""
        self._rewinder.forget()

    @one_at_a_time
    def back(self, count: int = 1) -> Task | None:
        """Takes so many tasks back. Returns the current task.

        Gradients, .grad of leaves, the queue, the policy, the trace and torch's random numbers are then as they were,
        and so is what hooks and custom Functions keep in Python (`HookState`), and the buffers that a checkpointed
        region writes when it is computed again: each call of a hook finds what it found before. What was edited before
        the task that is now the current one stays edited (`restore` undoes that); later edits are undone. Callbacks for
        the end of the backward run at each end.

        Known limitations. What hooks and custom Functions did besides (printed, wrote) stays done, and is done again
        when their tasks run again.

        Raises:
            ValueError: not so many tasks can be taken back.
            RuntimeError: a .grad was changed by something else since, which would be lost; no history is kept, or the
                session is over.
        """
        return self._rewinder.back(count)

    @one_at_a_time
    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes to the moment before a task, back or on; or to the end of a branch, whose tasks run again from where it
        parted. Returns the current task. What was taken back of the current branch is kept until something else runs.

        Raises:
            ValueError: the task can't be reached: it is not going to run, or ran before the history begins; there is no
                such branch.
            RuntimeError: no history is kept, or the session is over.
        """
        if branch is not None:
            self._rewinder.go_to_branch(branch)
            return self._backward.current
        if task is None:
            raise ValueError("goto() where? Give a task, or branch=")
        return self._rewinder.go_to(self._task(task).id)

    @one_at_a_time
    def restore(self, task: AnyTask | None = None) -> None:
        """Puts the gradients that came to a task into its buffer again, the current task if none is given.

        Raises:
            ValueError: they were not edited.
            RuntimeError: no history is kept, or the session is over.
        """
        self._rewinder.restore(None if task is None else self._task(task).id)

    @one_at_a_time
    def compare_branches(self, footprints: Footprints | None = None) -> BranchComparison:
        """How the branches differ: in order, in the gradients of leaves, and in the memory that they would take.

        Args:
            footprints: what tasks allocate, where that is known; else each is asked, as `ts.simulate` does.
        """
        return self._rewinder.compare(footprints)

    def close(self) -> None:
        """Ends the session; lets the waiting gradients and the graph's nodes go. Does nothing a second time.

        Called from a hook or another thread while a task runs, it ends the session after that task.
        """
        self._backward.close()
        self._let_go_if_over()

    def _let_go(self) -> None:
        self._backward.let_go()

    def _picked(self, task: AnyTask | None) -> int:
        return self._backward.pick(None if task is None else self._task(task).id)


def run_measured(
    call: BackwardCall,
    policy: AnyPolicy,
    trace: Level | None,
    accumulation: Accumulation,
    measurement: Measurement,
    batch: AnyBatch = None,
    queues: Queues = "one",
) -> Run:
    """A whole backward whose memory is measured.

    What tasks did as one says nothing about another order: such a run has no footprints.
    """
    measuring = partial(measurement.begin_stepped, accumulation)
    with Stepper(
        call, policy=policy, trace=trace, accumulation=accumulation, measuring=measuring, batch=batch, queues=queues
    ) as stepper:
        run = stepper.run()
        measurement.end()
        trees = [batch.tasks for batch in run.batches or () if batch.kind == "tree"]
        return run.with_memory(measurement.results(trees), predicts=not run.batches)
