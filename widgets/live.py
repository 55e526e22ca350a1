"""A session as a deck needs it: it runs in the driver's thread, keeps the plan, and tells what has happened."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..engine.direct import Stepper
from ..engine.dry_run import dry_run
from ..engine.footprint import Footprints
from ..engine.policies import POLICIES, AnyPolicy, Choice, Policy, find_policy, is_dynamic, policy_name
from ..engine.ready_queue import PolicyError
from ..engine.schedule import schedule
from ..engine.session import NativeSession
from ..engine.simulate import simulate
from ..engine.statistics import form_of, statistics
from ..engine.timeline import Timeline
from ..engine.trace import RecordedGradient
from ..inspector.graph import Task
from .document import Document, Json, schedule_content
from .driver import Driver
from .prediction import Prediction

_REPORT_EVERY_S = 0.1
_MOST_PREDICTED = 10_000  # tasks: asking more of them takes more than about a second
PREDICTING = "Memory is being predicted: each task is asked once what it will allocate, without running it."
_LARGE = (
    "Predicting the memory of {count:,} tasks takes some {seconds:.0f} s, in which no task can run. "
    "deck.predict_memory() does it."
)


@dataclass(frozen=True, slots=True)
class News:
    """What has changed in a live session.

    Attributes:
        position: how many tasks have run.
        current: the id of the task that runs next; None: none is left.
        status: "stopped", "running", "finished", "failed" or "closed".
        trouble: why it failed, in words.
        records: what was recorded of tasks since the last news, by id.
        schedules: the page's schedules, where they are others than before, the live one first.
    """

    position: int
    current: int | None
    status: str
    trouble: str = ""
    records: Json = field(default_factory=dict)
    schedules: list[Json] | None = None


class Live:
    """Runs a session task by task. All but `stop` and `close` belong in the driver's thread.

    Args:
        session: of either engine, nothing run yet.
        policy: its policy.
        title: what is run.
        retain_graph: as given to the backward.
        tell: is called with `News`, in the driver's thread.
    """

    def __init__(
        self,
        session: Stepper | NativeSession,
        policy: AnyPolicy,
        title: str,
        retain_graph: bool,
        tell: Callable[[News], None],
    ) -> None:
        self.session = session
        self.graph = session.graph
        self.driver = Driver()
        self.breakpoints: Collection[int] = ()
        self.status = "stopped"
        self.trouble = ""
        self.engine = "direct" if isinstance(session, Stepper) else "native"
        self._policy = find_policy(policy)
        self._retain_graph = retain_graph
        self._tell = tell
        self._footprints: Footprints | None = None
        self._note = PREDICTING if len(self.graph) <= _MOST_PREDICTED else _large(len(self.graph))
        self._reported = 0
        self._by_hand: list[int] = []
        self._switched_at = 0
        self._stop_asked = False
        self.plan: list[int] = []
        self._simulated: dict[str, Json] = {}
        self._replan()
        self.document = Document(self.graph, title, "direct" if isinstance(session, Stepper) else "native")
        self.document.content["schedules"] = self.schedules()

    @property
    def predicts_unasked(self) -> bool:
        return len(self.graph) <= _MOST_PREDICTED

    def schedules(self) -> list[Json]:
        """The live schedule, and what other policies would do from the start."""
        live = self._schedule(self._policy, self.plan, self._by_hand)
        for name in POLICIES:
            if name not in self._simulated and name != policy_name(self._policy):
                order = schedule(self.graph, name, self.session.needed)
                self._simulated[name] = self._schedule(POLICIES[name], order)
        return [live, *(each for name, each in self._simulated.items() if name != live["policy"])]

    def _schedule(self, policy: Policy | Choice, order: Sequence[int], by_hand: Sequence[int] = ()) -> Json:
        timeline = None
        if self._footprints is not None:
            timeline = simulate(self.graph, order, self._footprints, retain_graph=self._retain_graph)
        return schedule_content(self.graph, policy, order, by_hand=by_hand, timeline=timeline, note=self._note)

    def _replan(self) -> None:
        """The order from here on. A policy that decides as it runs has none: it is shown as PyTorch would run it."""
        ran = self.session.order
        if isinstance(self.session, NativeSession) and self.session.current is not None:
            ran = [*ran, self.session.current.id]  # the engine has taken it
        policy: AnyPolicy = "heap" if is_dynamic(self._policy) else self._policy
        try:
            self.plan = schedule(self.graph, policy, self.session.needed, ran)
        except PolicyError:
            self.plan = schedule(self.graph, "heap", self.session.needed, ran)

    def predict(self) -> None:
        """Asks each task once what it would allocate. Only possible before the first has run."""
        try:
            if self.session.order:
                self._note = "Memory was not predicted: it can only be before the first task has run."
            else:
                self._footprints = dry_run(self.graph)
        except Exception as error:  # any node's own code may raise; a debugger goes on without the prediction
            self._note = f"Memory could not be predicted: {type(error).__name__}: {error}"
        self._simulated.clear()
        self._tell(self._news(schedules=self.schedules()))

    def step(self, count: int = 1, task: Task | int | None = None) -> Task:
        """Runs so many tasks, or this one. Returns the last. Stops early at a breakpoint, or where `stop` asks for it.

        Raises:
            ValueError, NotImplementedError, RuntimeError: as `Stepper.step` and `NativeSession.step`.
        """
        if count < 1:
            raise ValueError(f"step({count}): the number of tasks to run must be at least 1")
        return self._go(count, task)

    def run(self) -> None:
        """Runs up to the next breakpoint, or the end."""
        if self.session.current is not None:
            self._go(None)

    def run_to(self, task: Task | int) -> None:
        """Runs what comes before a task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        target = self.graph.task(task).id
        needed = self.session.needed
        if target in set(self.session.order):
            raise ValueError(f"{self.graph.describe(target)} has run already")
        if needed is not None and target not in needed:
            raise ValueError(f"{self.graph.describe(target)} is not going to run: inputs= makes it needless")
        if self._current() != target:
            self._go(None, until=target)

    def compare(self, policies: Sequence[AnyPolicy]) -> Prediction:
        """The memory from the start on under each policy.

        Raises:
            ValueError: it was not predicted; or the order of one of them is only known while the backward runs.
        """
        if self._footprints is None:
            raise ValueError(self._note)
        found = {}
        for policy in map(find_policy, policies):
            if is_dynamic(policy):
                raise ValueError(
                    f"policy {policy_name(policy)} decides while the backward runs, so it has no order yet"
                )
            order = schedule(self.graph, policy, self.session.needed)
            found[policy_name(policy)] = simulate(self.graph, order, self._footprints, retain_graph=self._retain_graph)
        return Prediction(found)

    def timelines(self) -> dict[str, Timeline]:
        """Memory by policy: in the live order first, then what the known policies would need. Empty: not predicted."""
        footprints, live = self._footprints, policy_name(self._policy)
        if footprints is None:
            return {}
        orders = {live: self.plan}
        for name in POLICIES:
            if name != live:
                orders[name] = schedule(self.graph, name, self.session.needed)
        return {
            name: simulate(self.graph, order, footprints, retain_graph=self._retain_graph)
            for name, order in orders.items()
        }

    def attempt(self, command: Callable[[], object]) -> None:
        """Runs a command of the page's, where nobody waits for what it raises: it is told."""
        try:
            command()
        except Exception as error:
            if self.status != "failed":
                self._tell(replace(self._news(), trouble=_in_words(error)))

    def stop(self) -> None:
        """Makes what is under way end before the next task. May be called from anywhere."""
        self._stop_asked = True

    def switch(self, policy: AnyPolicy) -> None:
        """From here on this policy picks."""
        chosen = find_policy(policy)
        self.session.policy = chosen
        self._policy = chosen
        self._replan()
        self._tell(self._news(schedules=self.schedules()))

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None) -> None:
        """Puts other gradients into the current task's input buffer."""
        self.session.replace(gradients)
        self.inspect(None)

    def inspect(self, task: int | None) -> None:
        """Tells of the gradients that wait for a task that has not run."""
        found = self._waiting(task)
        if found:
            self._tell(self._news(records=found))

    def close(self) -> None:
        """Ends the session after the task under way. May be called from anywhere."""
        self._stop_asked = True
        self.session.close()
        self.status = "closed" if self.status in ("stopped", "running") else self.status
        self._tell(self._news())

    def _go(self, count: int | None, task: Task | int | None = None, until: int | None = None) -> Task:
        session = self.session
        self._stop_asked = False
        ran = 0
        told = time.monotonic()
        if task is not None:
            self._by_hand.append(self.graph.task(task).id)
        self.status = "running"
        if count != 1:  # the first task may take its time
            self._tell(self._news())
        try:
            while True:
                last = session.step(task if ran == 0 else None)
                ran += 1
                current = self._current()
                if current is None or self._stop_asked or ran == count or current == until:
                    break
                if current in self.breakpoints:
                    break
                if time.monotonic() - told > _REPORT_EVERY_S:
                    self._tell(self._news(**self._progress()))
                    told = time.monotonic()
        except BaseException as error:
            self._note_failure(error, task)
            raise
        self.status = "stopped" if current is not None else "finished"
        self._tell(self._news(**self._progress()))
        return last

    def _note_failure(self, error: BaseException, task: Task | int | None) -> None:
        if task is not None and self._by_hand and self._by_hand[-1] not in self.session.order:
            self._by_hand.pop()
        if self.session.over is not None:
            self.status, self.trouble = "failed", _in_words(error)
        else:
            self.status = "stopped"
        self._tell(self._news(**self._progress()))

    def _current(self) -> int | None:
        if self.session.over is not None:
            return None
        current = self.session.current
        return None if current is None else current.id

    def _news(self, records: Json | None = None, schedules: list[Json] | None = None) -> News:
        position = len(self.session.order)
        return News(position, self._current(), self.status, self.trouble, records or {}, schedules)

    def _progress(self) -> dict[str, Any]:
        """What has run since the last news; the plan is made again where something else ran than planned."""
        session = self.session
        order = session.order
        trace = session.trace
        records = {} if trace is None else self.document.records(trace, range(self._reported, len(trace)))
        schedules = None
        current = self._current()
        planned = self.plan[self._reported : len(order) + (current is not None)]
        executed = [*order[self._reported :], *([] if current is None else [current])]
        self._reported = len(order)
        if executed != planned and session.over is None:
            self._replan()
            schedules = self.schedules()
        if current is not None:
            records |= self._waiting(current)
        self.document.content["records"] |= records
        return {"records": records, "schedules": schedules}

    def _waiting(self, task: int | None) -> Json:
        """The statistics of a waiting task's input buffer, where it can be looked at."""
        session = self.session
        current = self._current()
        task = current if task is None else task
        trace = session.trace
        if task is None or current is None or trace is None or trace.level == "off":
            return {}
        if isinstance(session, NativeSession) and (task != current or not session.order):
            return {}
        if self.graph.tasks[task].id in trace.order:
            return {}
        level = trace.level
        found = []
        for gradient in session.waiting(task):
            if gradient is None:
                found.append(None)
            else:
                form = form_of(gradient)
                found.append(RecordedGradient(form.meta, form.layout, statistics(gradient, level)))
        return {str(task): self.document.record(found)}


def _in_words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _large(count: int) -> str:
    return _LARGE.format(count=count, seconds=count * 120e-6)
