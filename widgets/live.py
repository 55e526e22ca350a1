"""A session as a deck needs it: it runs in the driver's thread, keeps the plan, and tells what has happened."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..engine.direct import Stepper
from ..engine.dry_run import dry_run
from ..engine.footprint import Footprints
from ..engine.policies import POLICIES, AnyPolicy, Choice, Policy, find_policy, is_dynamic, policy_name
from ..engine.run import Engine
from ..engine.schedule import schedule
from ..engine.session import NativeSession
from ..engine.simulate import simulate
from ..engine.statistics import form_of, statistics
from ..engine.timeline import Timeline
from ..engine.trace import RecordedGradient
from ..inspector.collector import collector_paused
from ..inspector.graph import Graph, Task
from ..inspector.source import Source, innermost_user_line
from .document import Document, Json, numbered, schedule_content
from .driver import Driver
from .prediction import Prediction

Status = Literal["stopped", "running", "finished", "failed", "closed"]

_OURS = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("engine", "widgets"))
_NOTED = "tapehead: raised "
_REPORT_EVERY_S = 0.1
_MOST_UNASKED = 5_000  # tasks: to ask more of them what they allocate takes more than about half a second
_LARGE = (
    "Predicting the memory of {count:,} tasks takes some {seconds:.0f} s, in which no task can run. "
    "deck.predict_memory() or %tapehead predict does it."
)
_DRY_RUN_S = 120e-6  # a task


@dataclass(frozen=True, slots=True)
class News:
    """What has changed in a live session.

    Attributes:
        position: how many tasks have run.
        current: the id of the task that runs next; None: none is left, or the policy fails to choose.
        status: see `Deck.status`.
        trouble: why it failed, in words.
        records: what was recorded of tasks since the last news, by id.
        live: the session's own schedule, where it is another than before: what has run, and what is planned.
        others: what other policies would do, where that is something else than before.
    """

    position: int
    current: int | None
    status: Status
    trouble: str = ""
    records: Json = field(default_factory=dict)
    live: Json | None = None
    others: list[Json] | None = None


class Live:
    """Runs a session task by task. All but `stop` and `close` belong in the driver's thread.

    Args:
        session: of either engine, nothing run yet.
        policy: its policy.
        title: what is run.
        retain_graph, create_graph: as given to the backward.
        tell: is called with `News`, in the driver's thread.
    """

    def __init__(
        self,
        session: Stepper | NativeSession,
        policy: AnyPolicy,
        title: str,
        retain_graph: bool,
        create_graph: bool,
        tell: Callable[[News], None],
    ) -> None:
        self.session = session
        self.driver = Driver()
        self.breakpoints: Collection[int] = ()
        self.status: Status = "stopped"
        self.trouble = ""
        self._policy = find_policy(policy)
        self._known: dict[str, Policy | Choice] = dict(POLICIES)
        self._know(self._policy)
        self._terms = [(0, self._policy)]
        self._retain_graph = retain_graph
        self._create_graph = create_graph
        self._tell = tell
        self._footprints: Footprints | None = None
        self._note = "" if self.is_small else _large(len(self.graph))
        self._reported = 0
        self._simulated: dict[str, tuple[Json, Timeline | None]] = {}
        self._timeline: Timeline | None = None
        if self.is_small:
            with suppress(Exception, SystemExit):  # the note says why there is none
                self._ask_tasks()
        with collector_paused():
            self.plan = self._planned()
            self.document = Document(self.graph, title, self.engine)
            self.document.content["keeps_graph"] = retain_graph
            self.document.content["schedules"] = [self._own_schedule(), *(self._others() if self.is_small else ())]

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the session is over."""
        return self.session.graph

    @property
    def engine(self) -> Engine:
        return "direct" if isinstance(self.session, Stepper) else "native"

    @property
    def is_small(self) -> bool:
        """Whether all that can be said of the graph ahead is said at once."""
        return len(self.graph) <= _MOST_UNASKED

    @property
    def is_current_thread(self) -> bool:
        """Whether this is the thread that runs the session, or its hooks: to wait there for a command never ends."""
        session = self.session
        return self.driver.is_current_thread or (isinstance(session, NativeSession) and session.runs_in_this_thread)

    def foresee(self) -> None:
        """Tells the other policies' schedules, which for a large graph take a while."""
        self._tell(self.news(others=self._others()))

    def predict(self) -> None:
        """Asks each task once what it would allocate. Does nothing where that is known.

        Raises:
            ValueError: that can't be, since a task has run, or since the backward gets a graph of its own.
        """
        if self._footprints is not None:
            return
        try:
            self._ask_tasks()
        finally:
            self._simulated.clear()
            self._tell(self.news(live=self._own_schedule(), others=self._others()))

    def _ask_tasks(self) -> None:
        """Never while the user's own thread may run: a dry run reads leaves' .grad and takes it away meanwhile."""
        try:
            self._footprints = self._asked()
            self._note = ""
        except BaseException as error:  # any node's own code may raise; a debugger goes on without the prediction
            self._note = f"Memory was not predicted: {_why(error, self.graph)}"
            raise

    def _asked(self) -> Footprints:
        if self.session.over is not None:
            raise ValueError(f"the session is over ({self.session.over})")
        if self.session.order:
            raise ValueError("it can only be before the first task has run")
        if self._create_graph:
            raise ValueError("with create_graph=True the backward's own graph keeps tensors of which nothing is known")
        footprints = dry_run(self.graph)
        return replace(footprints, graph=replace(footprints.graph, nodes=()))  # a prediction outlives the session

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
        if not (self._has_ended or self.driver.stop_asked):
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
        if not (self._current() == target or self.driver.stop_asked):
            self._go(None, until=target)

    def compare(self, policies: Sequence[AnyPolicy]) -> Prediction:
        """The memory from the start on under each policy.

        Raises:
            ValueError: it was not predicted; or the order of one of them is only known while the backward runs.
        """
        if not policies:
            raise ValueError("compare which policies? Give at least one")
        if self._footprints is None:
            raise ValueError(self._note)
        found = {}
        for policy in map(self.find, policies):
            if is_dynamic(policy):
                raise ValueError(
                    f"policy {policy_name(policy)} decides while the backward runs, so it has no order yet"
                )
            order = schedule(self._footprints.graph, policy, self.session.needed)
            found[policy_name(policy)] = self._simulate(order, self._footprints)
        return Prediction(found)

    def timelines(self) -> dict[str, Timeline]:
        """Memory by policy: in the live order first, then what the known policies would need. Empty: not predicted."""
        if self._timeline is None:
            return {}
        live = self._own_name
        others = {name: timeline for name, (_, timeline) in list(self._simulated.items()) if timeline is not None}
        return {live: self._timeline} | {name: each for name, each in others.items() if name != live}

    def attempt(self, command: Callable[[], object]) -> None:
        """Runs a command where nobody waits for what it raises: it is told."""
        try:
            command()
        except Exception as error:
            if self.status != "failed":
                self._tell(replace(self.news(), trouble=_in_trouble(error, self.graph)))

    def stop(self) -> None:
        """Makes what is under way end before the next task. May be called from anywhere."""
        self.driver.stop()

    def find(self, policy: AnyPolicy) -> Policy | Choice:
        """The policy that is meant: one that this session has had may be given by its name, too.

        Raises:
            ValueError, TypeError: as `find_policy`.
        """
        known = self._known.get(policy) if isinstance(policy, str) else None
        return known or find_policy(policy)

    def switch(self, policy: AnyPolicy) -> None:
        """From here on this policy picks."""
        chosen = self.find(policy)
        if chosen is self._policy and self.session.over is None:
            return
        self.session.policy = chosen
        self._policy = chosen
        self._know(chosen)
        begun = len(self._started())
        self._terms = [*(term for term in self._terms if term[0] < begun), (begun, chosen)]
        self.plan = self._planned()
        self._tell(self.news(live=self._own_schedule(), others=self._others()))

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None) -> None:
        """Puts other gradients into the current task's input buffer."""
        self.session.replace(gradients)
        self.inspect(None)

    def inspect(self, task: int | None) -> None:
        """Tells of the gradients that wait for a task that has not run, the current one if none is given."""
        found = self._waiting(task)
        if found:
            self._tell(self.news(records=found))

    def close(self, then: Callable[[], object]) -> Future[None]:
        """Ends the session after the task under way, lets the graph's nodes go, and then calls `then`.

        May be called from anywhere. What waits to begin does not begin any more.
        """
        return self.driver.finish(lambda: self._end(then))

    def _end(self, then: Callable[[], object]) -> None:
        self.session.close()
        self._footprints = self._timeline = None
        self._simulated.clear()
        self.status = "closed"
        try:
            self._tell(self.news())
        finally:
            then()

    def _go(self, count: int | None, task: Task | int | None = None, until: int | None = None) -> Task:
        session = self.session
        ran = 0
        told = time.monotonic()
        try:
            if count != 1 and session.over is None:  # the first task may take its time
                self.status = "running"
                self._tell(self.news())
            while True:
                last = session.step(task if ran == 0 else None)
                ran += 1
                current = self._current()
                if ran == count or self.driver.stop_asked or session.over is not None or self._has_ended:
                    break
                if current is not None and (current == until or current in self.breakpoints):
                    break
                if time.monotonic() - told > _REPORT_EVERY_S:
                    self._tell(self._progress())
                    told = time.monotonic()
        except BaseException as error:
            self._note_failure(error)
            raise
        self.status = "finished" if self._has_ended else "stopped"
        self._tell(self._progress())
        return last

    def _note_failure(self, error: BaseException) -> None:
        if self.status in ("failed", "closed"):
            return
        if self.session.over is None:
            self.status = "finished" if self._has_ended else "stopped"
        else:
            self.status, self.trouble = "failed", _in_trouble(error, self.graph)
        self._tell(self._progress())

    @property
    def _has_ended(self) -> bool:
        return self.session.over is None and not self.session.left

    def _current(self) -> int | None:
        try:
            current = None if self.session.over is not None else self.session.current
        except Exception:  # a user's policy fails to choose: the next step says how
            return None
        return None if current is None else current.id

    def _know(self, policy: Policy | Choice) -> None:
        self._known.setdefault(policy_name(policy), policy)

    def _planned(self) -> list[int]:
        """What has run, and the order from here on. A policy that decides as it runs has none: shown is PyTorch's."""
        session, current = self.session, self._current()
        ran = [*self._started(), *([] if current is None else [current])]
        if isinstance(session, NativeSession) and list(session.planned[: len(ran)]) == ran:
            return list(session.planned)  # a user's policy asked again might say something else
        if not is_dynamic(self._policy):
            try:
                return schedule(self.graph, self._policy, session.needed, ran)
            except Exception:  # a user's policy fails to choose: it may do better when its turn comes
                pass
        return schedule(self.graph, "heap", session.needed, ran)

    def _started(self) -> Sequence[int]:
        """What has run, and the task that raised, if one did."""
        trace = self.session.trace
        return self.session.order if trace is None else trace.order

    def _own_schedule(self) -> Json:
        trace = self.session.trace
        by_hand = () if trace is None else trace.by_hand
        content, self._timeline = self._schedule(self._policy, self.plan, by_hand)
        return content if self._own_name == policy_name(self._policy) else content | self._mixed()

    @property
    def _own_name(self) -> str:
        """What to call the session's own order: "bfs, then heap" where another policy went on."""
        names = [policy_name(policy) for _, policy in self._terms]
        return ", then ".join(name for place, name in enumerate(names) if place == 0 or names[place - 1] != name)

    def _mixed(self) -> Json:
        """The name of an order that several policies made, and the rule of the last of them."""
        begun, policy = self._terms[-1]
        rule = policy.title if isinstance(policy, Policy) else "a function of the user's chooses"
        return {"policy": self._own_name, "title": f"from task {begun + 1:,} on {rule}"}

    def _others(self) -> list[Json]:
        """What the other policies that are known would do from the start."""
        mine = self._own_name
        for name, policy in self._known.items():
            if name == mine or name in self._simulated or is_dynamic(policy):
                continue
            try:
                order = schedule(self.graph, policy, self.session.needed)
            except Exception:  # a user's policy fails to choose
                continue
            self._simulated[name] = self._schedule(policy, order)
        return [self._simulated[name][0] for name in self._known if name in self._simulated and name != mine]

    def _schedule(
        self, policy: Policy | Choice, order: Sequence[int], by_hand: Sequence[int] = ()
    ) -> tuple[Json, Timeline | None]:
        footprints, note = self._footprints, self._note
        timeline = None
        if footprints is not None:
            try:
                timeline = self._simulate(order, footprints)
            except Exception as error:  # the deck goes on without
                note = f"Memory was not predicted: {_in_words(error, self.graph)}"
        return schedule_content(self.graph, policy, order, by_hand=by_hand, timeline=timeline, note=note), timeline

    def _simulate(self, order: Sequence[int], footprints: Footprints) -> Timeline:
        return simulate(footprints.graph, order, footprints, retain_graph=self._retain_graph)

    def news(self, records: Json | None = None, live: Json | None = None, others: list[Json] | None = None) -> News:
        """How things are, with this that is new."""
        position = len(self.session.order)
        return News(position, self._current(), self.status, self.trouble, records or {}, live, others)

    def _progress(self) -> News:
        """What has run since the last news; the plan is made again where something else ran than planned."""
        trace, started, current = self.session.trace, self._started(), self._current()
        records = {} if trace is None else self.document.records(trace, range(self._reported, len(trace)))
        foreseen = [*started[self._reported :], *([] if current is None else [current])]
        live = None
        if foreseen != self.plan[self._reported : self._reported + len(foreseen)]:
            self.plan = self._planned()
            live = self._own_schedule()
        self._reported = len(started)
        return self.news(records | self._waiting(current), live)

    def _waiting(self, task: int | None) -> Json:
        """The statistics of a waiting task's input buffer, where it can be looked at."""
        session = self.session
        current = self._current()
        task = current if task is None else task
        trace = session.trace
        if task is None or current is None or trace is None or trace.level == "off":
            return {}
        if trace.columns.started_ns[self.graph.task(task).id] >= 0:
            return {}
        if isinstance(session, NativeSession) and (task != current or not session.order):
            return {}  # the engine shows what waits for the task it has taken, and takes none before the first step
        found: list[RecordedGradient | None] = []
        for gradient in session.waiting(task):
            if gradient is None:
                found.append(None)
            else:
                form = form_of(gradient)
                found.append(RecordedGradient(form.meta, form.layout, statistics(gradient, trace.level)))
        return {str(task): self.document.record(found)}


def _why(error: BaseException, graph: Graph) -> str:
    """Our own reasons are sentences without a type."""
    return numbered(str(error), graph) if type(error) is ValueError else _in_words(error, graph)


def _in_trouble(error: BaseException, graph: Graph) -> str:
    """What was raised, and the user's line that did it, if one did."""
    line = _users_line(error)
    return _in_words(error, graph) + ("" if line is None else f"\nat {line.short}")


def _in_words(error: BaseException, graph: Graph) -> str:
    """What was raised. In the words of others numbers of tasks stay as they are."""
    ours = _users_line(error) is None
    lines = "".join(traceback.format_exception_only(error)).strip().split("\n")
    return "\n".join(numbered(each, graph) if ours or each.startswith(_NOTED) else each for each in lines)


def _users_line(error: BaseException) -> Source | None:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    return innermost_user_line(frame for frame in frames if not frame.filename.startswith(_OURS))


def _large(count: int) -> str:
    return _LARGE.format(count=count, seconds=count * _DRY_RUN_S)
