"""The base class of both engines' sessions: a backward under way, its stops, and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from torch import Tensor

from ...errors import ending_where_called
from ...inspector.graph.graph import Graph, Task
from ...inspector.threads import Caller, ExclusiveUse
from ...inspector.validation import raise_no_attribute
from ..memory.task_memory import Footprints
from ..planning.policy_orders import bound
from ..planning.scheduling_problem import Problem
from ..recording.run import Run
from ..schedule.device_queues import Queues
from ..schedule.policy import Choice, Policy
from ..schedule.ready_queue import AnyTask, ReadyTask
from .breakpoints.breakpoints import Stop
from .breakpoints.stop_list import Stops, session_over

if TYPE_CHECKING:
    from .direct_engine import DirectBackward
    from .native_stepping import NativeBackward

P = ParamSpec("P")
T = TypeVar("T")
Session = TypeVar("Session", bound="SessionBase")

_ELSEWHERE = {
    **dict.fromkeys(
        ("save_html", "save_perfetto"),
        "session.result().{name}(path) writes the tasks run so far, ts.profile(make_loss).{name}(path) a complete "
        "backward with its memory, and a deck, ts.deck(loss), has {name} also outside of notebooks",
    ),
    "save_picture": "ts.deck(loss).save_picture(path) saves one also outside of notebooks, and "
    "ts.graph(loss).save_svg(path) draws the graph",
    "save": "session.save_trace(path) writes the tasks run so far",
    "compare": "ts.plan_order(loss) predicts the memory of several policies, ts.compare(make_loss) measures it",
    "predict_memory": "ts.plan_order(loss) and ts.simulate(ts.graph(loss)) predict the memory",
    "switch": 'set session.policy = "bfs", at any stop',
    "position": "len(session.order) is the number of tasks that have run",
    "current_task": "session.current is the task that runs next",
    "selection": "a session displays no tasks; a task can be selected on the page of a deck, ts.deck(loss)",
    "status": "session.current is None when all tasks have run, session.over says why no further step is possible",
    "why_stopped": "session.stopped says why the last run ended",
    "breakpoints": "session.stops lists the breakpoints and watchpoints",
    **dict.fromkeys(
        (
            "engine",
            "elapsed_ns",
            "longest_queue",
            "queue_lengths",
            "report",
            "slowest",
            "to_pandas",
            "deck",
            "note",
            "late",
            "elsewhere",
        ),
        "session.result() is a Run of the tasks run so far, which has {name}",
    ),
    **dict.fromkeys(
        ("peak", "peak_bytes", "timeline", "timelines", "footprints_by_device", "with_memory"),
        "a session does not measure memory; ts.profile(make_loss) does, and its Run has {name}",
    ),
    **dict.fromkeys(
        ("next", "continue_", "cont", "resume", "play"), "session.step() runs one task, session.run() all of them"
    ),
    "backward": "session.run() runs the remaining tasks",
}
"""Hints for attributes that decks or runs have but sessions do not, or that have another name in a session."""


class SessionTurn(ExclusiveUse):
    """The lock that gives one verb at a time the use of a session.

    Attributes:
        unfinished: the verb that has begun to change the session and has neither returned nor raised, as a list of one
            name; empty if there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unfinished: list[str] = []

    @property
    def interrupted(self) -> str | None:
        """The message for a verb that an interrupt ended half-way; None if no verb was interrupted."""
        unfinished = self.unfinished
        if not unfinished or self.holder is not None or self.unfinished is not unfinished:
            return None
        return f"interrupted in {unfinished[0]}"


class SessionBase(ABC):
    """Base class of sessions: runs a backward step by step, and closes it at the end of a `with` block.

    Attributes:
        footprints: the memory that its tasks allocate, used by policies that plan by memory; None until known. A dry
            run computes it, but only before the first task.
    """

    footprints: Footprints | None = None
    _backward: DirectBackward | NativeBackward
    _turn: SessionTurn
    _queues: Queues
    _creates_graph = False
    _keep_graph: bool | None = None  # None: the default of `backward`

    if not TYPE_CHECKING:  # otherwise type checkers accept any attribute name

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return raise_no_attribute(self, name, "a session", _ELSEWHERE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def graph(self) -> Graph:
        """The graph; without its nodes once the session is over."""
        return self._backward.graph

    @property
    def stops(self) -> Stops:
        """The breakpoints and watchpoints."""
        return self._backward.stops

    @property
    def stopped(self) -> Stop | None:
        """The reason why the last run ended before its end; None if it reached the end."""
        return self.stops.stopped

    @property
    def over(self) -> str | None:
        """The reason why no further step is possible; None if one is, or if all tasks have run."""
        return self._backward.over or self._turn.interrupted

    @property
    def needed(self) -> Collection[int] | None:
        """Ids of the tasks that run with `inputs=`; None for all tasks of the graph."""
        return self._backward.needed

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return self._backward.order

    @property
    def left(self) -> int:
        """The number of tasks that have not run."""
        return (len(self.graph) if self.needed is None else len(self.needed)) - len(self.order)

    @property
    @abstractmethod
    def current(self) -> Task | None:
        """The task that `step()` runs next; None if all have run."""

    @abstractmethod
    def result(self) -> Run:
        """Return a `Run` of the tasks run so far."""

    @abstractmethod
    def waiting(self, task: AnyTask) -> tuple[Tensor | None, ...]:
        """Return the gradients in a task's input buffer, with the shapes in `task.inputs`."""

    @abstractmethod
    def replace(self, gradients: Any, task: AnyTask | None = None) -> None:
        """Replace the gradients in a task's input buffer."""

    @abstractmethod
    def close(self) -> None: ...

    @property
    def queues(self) -> Queues:
        """ "one" if all devices share a ready queue, "per device" if each has its own."""
        return self._queues

    @abstractmethod
    def _step(self, task: AnyTask | None = None, before: int | None = None) -> Task:
        """Run one task, by default the policy's choice, and the tasks batched with it; return the task.

        Args:
            task: the task to run; None for the policy's choice.
            before: id of a task of the same batch that is not run with it.
        """

    @abstractmethod
    def _follow(self, policy: Policy | Choice) -> None:
        """Switch to another policy for the remaining tasks."""

    @abstractmethod
    def _next_on(self, device: str) -> Task:
        """Return the policy's choice among the ready tasks of a device."""

    def _check_open(self) -> None:
        if (why := self.over) is not None:
            raise session_over(why)

    @property
    def _is_inside(self) -> bool:
        """True if the calling thread is running a verb's tasks, as the thread of a hook is."""
        return (holder := self._turn.holder) is not None and holder.thread == get_ident()

    def _release_if_over(self) -> None:
        """Release the memory of a session that is over, unless a verb is running; that verb does it when it ends."""
        if self.over is None:
            return
        caller = Caller("session.close()")
        if self._turn.take(caller) is None:
            try:
                self._backward.release()
            finally:
                caller.ended = True

    def _task(self, task: AnyTask) -> Task:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task)

    def _described(self, task: Task) -> str:
        """Describe a task, with its position in the run."""
        return self._backward.described(task.id)

    def _bound(self, policy: Policy | Choice, ran: Sequence[int] = ()) -> Policy | Choice:
        """Return the policy bound to this graph, after the tasks in `ran`."""
        problem = Problem(self.graph, self.footprints, self.needed, keep_graph=self._keep_graph, may_ask=not ran)
        return self._bound_to(problem, policy, ran)

    def _bound_to(self, problem: Problem, policy: Policy | Choice, ran: Sequence[int] = ()) -> Policy | Choice:
        chosen = bound(policy, problem, ran)
        if problem.knows_memory and not problem.graph.is_tape:  # a deck has better footprints of a tape
            self.footprints = problem.footprints
        return chosen


def one_at_a_time(verb: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Decorate a verb that changes a session or needs it at rest, so that only one such verb runs at a time.

    The verb raises if another verb is running in any thread, or if a hook of the backward calls it. An interrupt in the
    middle ends the session. However the session ends, its memory is released here.
    """
    called = f"session.{verb.__name__.lstrip('_')}{'' if verb.__name__ in ('gradients', 'policy') else '()'}"

    @wraps(verb)
    def alone(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        session._check_open()
        turn, caller = session._turn, Caller(called)
        try:
            # `take` is atomic (dict.setdefault under the GIL). Testing and then setting a flag would let two threads'
            # verbs run at once, which loses gradients.
            if (other := turn.take(caller)) is not None:
                raise _under_way(called, other, session._is_inside)
            try:
                session._check_open()  # again, since another thread may have closed the session before `take`
                turn.unfinished = [called]
                found = verb(session, *args, **kwargs)
                turn.unfinished = []
                return found
            except Exception as error:
                turn.unfinished = []  # the verb ended by an error, not by an interrupt
                caller.ended = True
                try:
                    session._release_if_over()
                except Exception as failed:
                    error.add_note(
                        f"tapescope: releasing the session's memory also failed: {type(failed).__name__}: {failed}"
                    )
                raise
            finally:
                caller.ended = True
                session._release_if_over()
        finally:
            caller.ended = True  # again, since an interrupt may end the inner `finally` at any line

    return alone


def _under_way(called: str, other: Caller, inside: bool) -> RuntimeError:
    if inside:
        return RuntimeError(
            f"{called} was called from inside the backward that the session runs, while {other.verb} is running; "
            "a hook, a policy or a signal handler may call only stop() and close(). Call it after the verb has returned"
        )
    return RuntimeError(
        f"{called} was called while another thread runs {other.verb}; only stop() and close() may be called at the "
        "same time"
    )
