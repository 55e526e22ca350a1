"""How a deck's backward is run, from Python."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...engine.queue.policy import AnyPolicy
from ...engine.queue.ready_queue import AnyTask, ReadyTask
from ...engine.sessions.branch_comparison import BranchComparison
from ...engine.sessions.verbs import expect_no_count
from ...engine.trace.run import Run
from ...front_door import verbs_end_where_called
from ...inspector.graph.graph import Task
from .deck_traits import DeckTraits


@verbs_end_where_called
class Stepping(DeckTraits):
    """The verbs that run tasks, take them back, and say which policy picks. Each waits until it is done."""

    def step(self, task: AnyTask | None = None, *, count: int = 1, device: str | torch.device | None = None) -> Task:
        """Runs one task, or `count`: the given one (with the direct engine any ready task), or the policy's choice;
        with `device` its choice among the ready tasks of that device.

        Stops early at what stops a run. Returns the last task that ran.

        Raises:
            ValueError: the given task is not ready; or the device stands still, and which task it waits for.
            NotImplementedError: the native engine can't run that task next.
            RuntimeError: no task is left, or the session is over. And what the task itself raises.
        """
        if device is not None and task is not None:
            raise ValueError("step() runs either a task or a device's next one: give one of the two")
        expect_no_count(self._live.session.graph, task)
        return self._asking.ask(lambda: self._live.running.step(count, None if task is None else _task(task), device))

    def run(self) -> Run:
        """Runs to the next breakpoint, to what a watchpoint finds, or to the end. Returns what has run so far.

        Raises:
            RuntimeError: the session is over. And what a task raises.
        """

        def run() -> Run:
            self._live.running.run()
            return self._live.session.result()

        return self._asking.ask(run)

    def run_to(self, task: AnyTask) -> Task | None:
        """Runs what comes before a task, or up to what stops a run. Returns the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._asking.ask(lambda: self._live.running.run_to(_task(task)))
        return self.current

    def step_over(self) -> Task | None:
        """Runs until all tasks of the current task's innermost module call have run, the calls in it included; one task
        in the outermost call, and where no capture saw one. Stops early at what stops a run. Returns the current task.

        Raises:
            RuntimeError: no task is left, or the session is over. And what a task raises.
        """
        self._asking.ask(self._live.running.step_over)
        return self.current

    def step_out(self) -> Task | None:
        """The same for the call around it: at the top to the end."""
        self._asking.ask(lambda: self._live.running.step_over(out=1))
        return self.current

    def stop(self) -> None:
        """Makes what runs, or waits to, end before the next task. May be called from anywhere, hooks included."""
        self._live.stop()

    def back(self, count: int = 1) -> Task | None:
        """Takes back the last tasks that ran: their gradients wait again, leaves' .grad is what it was. Returns the
        current task. What is then done differently begins a new branch, see `branches`.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which can't.
            ValueError: fewer tasks have run than that, or history does not reach so far.
            RuntimeError: the session is over.
        """
        return self._moved(lambda: self._live.running.jump(lambda session: session.back(count)))

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes to where a task is the current one, back or on; or to where a branch was left. Returns the current task.

        Raises:
            NotImplementedError: with PyTorch's engine one can only go on.
            ValueError: the task is not going to run, or history does not reach so far; or there is no such branch.
            RuntimeError: the session is over.
        """
        if (task is None) == (branch is None):
            raise ValueError("goto takes either a task or branch=, the number of a branch")
        return self._moved(lambda: self._live.running.goto(None if task is None else _task(task), branch))

    def compare_branches(self) -> BranchComparison:
        """What the branches made differently: their orders, their gradients, and the memory they would take.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which has none.
        """
        return self._asking.ask(self._live.compare_branches)

    def switch(self, policy: AnyPolicy) -> None:
        """Lets another policy pick from here on: a name, a `Policy` or a callable.

        Raises:
            ValueError: no policy has this name.
        """
        self._asking.ask(lambda: self._live.switch(policy))

    def predict_memory(self) -> None:
        """Asks each task what it would allocate, as `ts.simulate` does, for the memory of all policies.

        Done unasked, before `ts.debug` returns, on graphs of up to 5,000 tasks.

        Raises:
            ValueError: that can't be: a task has run already, or the backward gets a graph of its own.
        """
        self._asking.ask(self._live.predict)

    def _moved(self, command: Callable[[], object]) -> Task | None:
        self._asking.ask(command)
        return self.current


def _task(task: Task | ReadyTask | int) -> Task | int:
    return task.task if isinstance(task, ReadyTask) else task
