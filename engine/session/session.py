"""What the sessions of both engines have in common: a backward under way, its stops, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from torch import Tensor

from ...errors import ending_where_called
from ...inspector.graph.graph import Graph, Task
from ...inspector.threads import Caller, ExclusiveUse
from ...inspector.validation import asked_in_vain
from ..memory.task_memory import Footprints
from ..planning.policy_orders import bound
from ..planning.scheduling_problem import Problem
from ..recording.recorder import Recorder
from ..recording.run import Run
from ..schedule.device_queues import Queues
from ..schedule.policy import Choice, Policy
from ..schedule.ready_queue import AnyTask, ReadyTask
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops

P = ParamSpec("P")
T = TypeVar("T")
Session = TypeVar("Session", bound="SessionBase")

_ELSEWHERE = {
    **dict.fromkeys(
        ("save_html", "save_perfetto"),
        "session.result().{name}(path) writes what has run so far, ts.profile(make_loss).{name}(path) a whole backward "
        "with its memory, and ts.deck(loss) is a deck anywhere, which has {name}",
    ),
    "save_picture": "ts.deck(loss).save_picture(path) does that anywhere, and ts.graph(loss).save_svg(path) draws the "
    "graph",
    "save": "session.save_trace(path) writes what has run so far",
    "compare": "ts.plan_order(loss) predicts the memory of several policies, ts.compare(make_loss) measures it",
    "predict_memory": "ts.plan_order(loss) and ts.simulate(ts.graph(loss)) predict it",
    "switch": 'set session.policy = "bfs", at any stop',
    "position": "len(session.order) says how many tasks have run",
    "current_task": "session.current is the task that runs next",
    "selection": "it shows no task; ts.deck(loss) is a deck anywhere, on whose page one can be selected",
    "status": "session.current is None when all have run, session.over says why no step is possible any more",
    "why_stopped": "session.stopped says why the last run ended",
    "breakpoints": "session.stops has them, and the watchpoints",
    **dict.fromkeys(
        ("engine", "elapsed_ns", "longest_queue", "queue_lengths", "to_pandas", "deck", "note", "late", "elsewhere"),
        "session.result() is a Run of what has run so far, which has {name}",
    ),
    **dict.fromkeys(
        ("peak", "peak_bytes", "timeline", "timelines", "footprints_by_device", "with_memory"),
        "a session measures no memory; ts.profile(make_loss) does, and its Run has {name}",
    ),
    **dict.fromkeys(("next", "continue_", "cont", "resume", "play"), "session.step() runs one task, session.run() all"),
    "backward": "session.run() runs all that is left of it",
}
"""What users look for in a session that a deck or a run has, or that is called otherwise here, and where that is."""


class Backward(Protocol):
    """A backward under way, whichever engine runs it.

    Attributes:
        graph: the graph that is run; without its nodes once it is over.
        needed: the ids of the tasks that run at all; None: all.
        over: why no step is possible any more.
        stops: the breakpoints and watchpoints.
        recorder: records the tasks; None: nothing is recorded.
    """

    graph: Graph
    over: str | None
    stops: Stops
    recorder: Recorder | None

    @property
    def needed(self) -> Collection[int] | None: ...

    @property
    def order(self) -> list[int]: ...

    @property
    def policy(self) -> Policy | Choice: ...

    def described(self, task_id: int) -> str: ...

    def run_to(self, task_id: int) -> None: ...

    def run_until(self, last: int | None) -> None: ...

    def stop_here(self, wait: bool) -> Stop | None: ...


class SessionTurn(ExclusiveUse):
    """The exclusive use of a session by the one verb under way.

    Attributes:
        unfinished: the verb that has begun to change the session and has neither returned nor raised; a list of one
            text, or empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unfinished: list[str] = []

    @property
    def interrupted(self) -> str | None:
        """The verb that an interrupt has ended half-way; None where none is."""
        unfinished = self.unfinished
        if not unfinished or self.holder is not None or self.unfinished is not unfinished:
            return None
        return f"interrupted in {unfinished[0]}"


class SessionBase(ABC):
    """A session that `with` closes: it has a backward, and runs it as it is told.

    Attributes:
        footprints: what its tasks allocate, if that is known: policies that plan by memory go by it. A dry run finds it
            out, but not once tasks have run.
    """

    footprints: Footprints | None = None
    _backward: Backward
    _turn: SessionTurn
    _queues: Queues
    _keep_graph: bool | None = None  # None: as a backward does that is told nothing

    if not TYPE_CHECKING:  # a name that is not there would be of any type

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return asked_in_vain(self, name, "a session", _ELSEWHERE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the session is over."""
        return self._backward.graph

    @property
    def stops(self) -> Stops:
        """The breakpoints and watchpoints."""
        return self._backward.stops

    @property
    def stopped(self) -> Stop | None:
        """Why the last run ended before its end; None if it did not."""
        return self.stops.stopped

    @property
    def over(self) -> str | None:
        """Why no step is possible any more; None where one is, or all tasks have run."""
        return self._backward.over or self._turn.interrupted

    @property
    def needed(self) -> Collection[int] | None:
        """The ids of the tasks that `inputs=` leaves to run; None: all of the graph."""
        return self._backward.needed

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return self._backward.order

    @property
    def left(self) -> int:
        """How many tasks have not run."""
        return (len(self.graph) if self.needed is None else len(self.needed)) - len(self.order)

    @property
    @abstractmethod
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""

    @abstractmethod
    def result(self) -> Run:
        """What has run so far."""

    @abstractmethod
    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, of the shapes in `task.inputs`."""

    @abstractmethod
    def replace(self, gradients: Any, task: AnyTask | None = None) -> None:
        """Puts other gradients into the input buffer of a task."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    def queues(self) -> Queues:
        """Whether all devices share "one" ready queue, or there is one "per device"."""
        return self._queues

    @abstractmethod
    def _step(self, task: AnyTask | None = None, before: int | None = None) -> Task:
        """Runs one task, by default the policy's choice, and what runs as one with it but for the task of the id
        `before`. Returns it."""

    @abstractmethod
    def _follow(self, policy: Policy | Choice) -> None:
        """Lets this policy pick from now on."""

    @abstractmethod
    def _next_on(self, device: str) -> Task:
        """The policy's choice among the ready tasks of this device."""

    def _step_on(self) -> Sequence[int]:
        """Runs one step. Gives the ids of the tasks that it ran."""
        return (self._step().id,)

    def _check_open(self) -> None:
        if (why := self.over) is not None:
            raise session_over(why)

    @property
    def _is_inside(self) -> bool:
        """Whether the calling thread is the one in which a verb runs tasks: that of hooks."""
        return (holder := self._turn.holder) is not None and holder.thread == get_ident()

    @abstractmethod
    def _let_go(self) -> None:
        """Release all that the session holds, once it is over. Does nothing a second time."""

    def _let_go_if_over(self) -> None:
        """Release what a session that is over holds, unless a verb is under way: that one does so when it ends."""
        if self.over is None:
            return
        caller = Caller("session.close()")
        if self._turn.take(caller) is None:
            try:
                self._let_go()
            finally:
                caller.ended = True

    def _task(self, task: AnyTask) -> Task:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task)

    def _described(self, task: Task) -> str:
        """The task in words, with its place in this run."""
        return self._backward.described(task.id)

    def _bound(self, policy: Policy | Choice, ran: Sequence[int] = ()) -> Policy | Choice:
        """The policy as it picks here after these tasks."""
        problem = Problem(self.graph, self.footprints, self.needed, keep_graph=self._keep_graph, may_ask=not ran)
        return self._bound_to(problem, policy, ran)

    def _bound_to(self, problem: Problem, policy: Policy | Choice, ran: Sequence[int] = ()) -> Policy | Choice:
        chosen = bound(policy, problem, ran)
        if problem.knows_memory and not problem.graph.is_tape:  # of which a deck knows more
            self.footprints = problem.footprints
        return chosen


def one_at_a_time(verb: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Decorator for verbs that change a session or need it at rest: they refuse to run while another one does, in any
    thread, and inside of one, from a hook.

    An interrupt in the middle ends the session. However the session ended, its memory is released here.
    """
    called = f"session.{verb.__name__.lstrip('_')}{'' if verb.__name__ in ('gradients', 'policy') else '()'}"

    @wraps(verb)
    def alone(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session._check_open()
        turn, caller = session._turn, Caller(called)
        try:
            if (other := turn.take(caller)) is not None:
                raise _under_way(called, other, session._is_inside)
            try:
                session._check_open()  # again: another thread may have closed it
                turn.unfinished = [called]
                found = verb(session, *args, **kwargs)
                turn.unfinished = []
                return found
            except Exception as error:
                turn.unfinished = []  # the verb has dealt with it
                caller.ended = True
                try:
                    session._let_go_if_over()
                except Exception as failed:
                    error.add_note(f"tapescope: as the session let its memory go: {type(failed).__name__}: {failed}")
                raise
            finally:
                caller.ended = True
                session._let_go_if_over()
        finally:
            caller.ended = True  # again: an interrupt may come at any line

    return alone


def _under_way(called: str, other: Caller, inside: bool) -> RuntimeError:
    if inside:
        return RuntimeError(
            f"{called} was called from inside the backward that the session runs: {other.verb} is under way; only "
            "stop() and close() may be called from a hook, a policy or a signal's handler: go on from outside when it "
            "has returned"
        )
    return RuntimeError(
        f"{called} was called while {other.verb} is under way, in another thread; only stop() and close() may be "
        "called meanwhile"
    )


def session_over(why: str) -> RuntimeError:
    """What is raised where no step is possible any more."""
    return RuntimeError(f"this session is over ({why}); start a new one on a fresh forward with ts.debug(loss)")
