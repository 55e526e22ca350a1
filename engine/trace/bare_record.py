"""A record of tasks that run in one loop: what `Recorder` takes down, with less looking."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from torch import Tensor

from ...inspector.graph.graph import Edge
from .bare_statistics import BareStatistics
from .trace_columns import Columns

MOST_NEW = 4096  # labels

Look = Callable[[int, Sequence[Tensor | None]], None]


class Looks(NamedTuple):
    """What looks at gradients.

    Attributes:
        took, gave: note how they look, as the recorder does.
        doubtful: tasks whose gradients may not look as the graph says.
        statistics: measures all; None: nobody does.
    """

    took: Look
    gave: Look
    doubtful: set[int]
    statistics: BareStatistics | None


class NewLabels(NamedTuple):
    """The labels of the last arrivals, None for one that follows from the task and its place among them, if they do
    (`Recorder.knows_labels`); `full` is called where there are many."""

    texts: list[str | None]
    full: Callable[[], None]
    known: Callable[[int], bool]


class BareRecord:
    """Writes what the recorder would, while one thread runs tasks without hooks.

    Args:
        edges: by task those to the next ones.
        columns: what is written to.
        thread: the number of this thread among them.
        begun: takes a task's start, and returns the first one's.
        failed: is told of the task that raises.
    """

    def __init__(
        self,
        edges: Sequence[Sequence[Edge]],
        columns: Columns,
        thread: int,
        begun: Callable[[int], int],
        looks: Looks,
        labels: NewLabels,
        failed: Callable[[int], None],
    ) -> None:
        self.failed = failed
        self._looks, self._doubtful, self._statistics = looks, looks.doubtful, looks.statistics
        self.looks_at_all = looks.statistics is not None
        self._labels, self._full, self.knows_labels = labels
        self._edges = edges
        self._thread = thread
        self._base_ns, self._begun = -1, begun
        self._threads, self._arrived, self._arrivals = columns.thread, columns.arrived, columns.arrivals
        self._order, self._started_ns, self._ended_ns = columns.order, columns.started_ns, columns.ended_ns

    def begin(self) -> None:
        """Other tasks may have run meanwhile, and code of the user's."""
        if self._statistics is not None:
            self._statistics.begin()

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        for gradient in gradients:
            if type(gradient) is not Tensor or task_id in self._doubtful:
                self._looks.took(task_id, gradients)
                break
        if self._statistics is not None:
            self._statistics.took(task_id, gradients)
        self._threads[task_id] = self._thread
        self._arrived[task_id] = len(self._arrivals)
        self._order.append(task_id)
        now = perf_counter_ns()
        if self._base_ns < 0:
            self._base_ns = self._begun(now)
        self._started_ns[task_id] = now - self._base_ns

    def end(self, task_id: int) -> None:
        self._ended_ns[task_id] = perf_counter_ns() - self._base_ns

    def gave(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None:
        if unusual or len(outputs) != len(self._edges[task_id]):
            self._looks.gave(task_id, outputs)
            self._doubtful.update([edge.next_task for edge in unusual])
        if self._statistics is not None:
            self._statistics.gave(task_id, outputs, unusual)

    def arrive(self, task_id: int, label: str | None) -> None:
        """`label`: None where the recorder knows it, see `Recorder.knows_labels`."""
        self._arrivals.append(task_id)
        self._labels.append(label)
        if len(self._labels) >= MOST_NEW:
            self._full()
