"""What the sessions of both engines have in common: a graph, its tasks by number, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from ...inspector.graph.graph import Graph, Task
from ..memory.footprint import Footprints
from ..orders.planning import bound
from ..orders.problem import Problem
from ..queue.policy import Choice, Policy
from ..queue.ready_queue import ReadyTask


class Closing(ABC):
    """A session that `with` closes.

    Attributes:
        graph: the graph that is run.
        footprints: what its tasks allocate, if that is known: policies that plan by memory go by it. A dry run finds it
            out, but not once tasks have run.
    """

    graph: Graph
    footprints: Footprints | None = None
    _over: str | None  # why no step is possible any more
    _needed: Collection[int] | None
    _keep_graph: bool | None = None  # None: as a backward does that is told nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def over(self) -> str | None:
        """Why no step is possible any more; None where one is, or all tasks have run."""
        return self._over

    @property
    def needed(self) -> Collection[int] | None:
        """The ids of the tasks that `inputs=` leaves to run; None: all of the graph."""
        return self._needed

    @property
    @abstractmethod
    def left(self) -> int:
        """How many tasks have not run."""

    @abstractmethod
    def close(self) -> None: ...

    def _check_open(self) -> None:
        if self._over is not None:
            raise session_over(self._over)

    def _task(self, task: Task | ReadyTask | int) -> Task:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task)

    def _bound(self, policy: Policy | Choice, ran: Sequence[int] = ()) -> Policy | Choice:
        """The policy as it picks here after these tasks."""
        problem = Problem(self.graph, self.footprints, self._needed, keep_graph=self._keep_graph, may_ask=not ran)
        chosen = bound(policy, problem, ran)
        if problem.knows_memory:
            self.footprints = problem.footprints
        return chosen


def session_over(why: str) -> RuntimeError:
    """What is raised where no step is possible any more."""
    return RuntimeError(f"this session is over ({why}); start a new one on a fresh forward with th.debug(loss)")
