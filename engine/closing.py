"""What the sessions of both engines have in common: a graph, its tasks by number, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from types import TracebackType
from typing import Self

from ..inspector.graph import Graph, Task
from .ready_queue import ReadyTask


class Closing(ABC):
    """A session that `with` closes.

    Attributes:
        graph: the graph that is run.
    """

    graph: Graph
    _over: str | None  # why no step is possible any more
    _needed: Collection[int] | None

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


def session_over(why: str) -> RuntimeError:
    """What is raised where no step is possible any more."""
    return RuntimeError(f"this session is over ({why}); start a new one on a fresh forward with th.debug(loss)")
