"""The facts about a peak that hints use, and the hints as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.text.sizes_and_counts import size_text
from ..memory.categories import Category
from ..memory.storage_sentences import StorageWords
from ..memory.timeline import Storage, Timeline

if TYPE_CHECKING:
    from ...inspector.graph.operations_and_calls import Operation, StoredOperation
    from .task_records import Trace

SCALAR_BYTES = 16  # the widest scalar, complex128: nearly all programs hold the loss
COPYING = ("Clone", "ToCopy", "Copy")
VIEWING = (
    "T",
    "Transpose",
    "Permute",
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Unsqueeze",
    "Squeeze",
    "Alias",
    "AsStrided",
)


HintKind = Literal[
    "indexing",
    "float64",
    "accumulate",
    "release",
    "held by hook",
    "held output",
    "held view",
    "held on ctx",
    "copy",
    "order",
    "forward variable",
    "broadcast",
    "sum of parts",
]
"""The cause that a hint is about."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One way to lower a peak.

    Attributes:
        nbytes: the bytes of the peak that it concerns.
        fact: the finding.
        advice: the suggested change.
        kind: the cause: "indexing" (a gradient filled with zeros), "float64", "accumulate" and "release" (PyTorch's
            rules, which this backward did not follow), "held by hook" (gradients), "held output" (values that the
            program holds), "held view" (a view that keeps a larger storage), "held on ctx" (values of a custom
            Function), "copy" (saved beside its original), "order" (waiting gradients), "forward variable" (values that
            only variables of the forward keep), "broadcast" (a product that is summed at once), "sum of parts" (a loss
            whose parts could have a backward each).
    """

    nbytes: int
    fact: str
    advice: str
    kind: HintKind

    def __str__(self) -> str:
        return f"{size_text(self.nbytes)}: {self.fact}. {self.advice[:1].upper()}{self.advice[1:]}."


@dataclass(frozen=True, slots=True)
class Reference:
    """The program's reference to a storage.

    Attributes:
        text: an expression: `trainer.outputs[3]`.
        share: the share of the storage that the largest tensor with a name uses; less than 1 for views.
    """

    text: str
    share: float


@dataclass(frozen=True)
class Peak:
    """The facts about a peak that the hints use.

    Attributes:
        timeline: the memory of one backward.
        storages: the storages alive at its peak, with the category of each at that time.
        others: the known peaks under other policies, in bytes, by name.
        trace: the record of that backward or of another one of the same graph, for the number of zeros.
        phase: the phase of the peak.
        event: the event before which memory is at the peak.
        references: the program's references to the largest storages that it holds, by number.
    """

    timeline: Timeline
    storages: Sequence[tuple[Storage, Category]]
    others: Mapping[str, int] = field(default_factory=dict)
    trace: Trace | None = None
    phase: Literal["backward", "forward"] = "backward"
    event: int = 0
    references: Mapping[int, Reference] = field(default_factory=dict)

    @cached_property
    def words(self) -> StorageWords:
        return StorageWords(self.timeline, {number: each.text for number, each in self.references.items()})

    @cached_property
    def tasks_of(self) -> dict[Operation | StoredOperation, list[Task]]:
        """The tasks of each operation of the forward."""
        found: dict[Operation | StoredOperation, list[Task]] = {}
        for task in self.timeline.graph.tasks:
            if task.operation is not None and not task.is_leaf:
                found.setdefault(task.operation, []).append(task)
        return found

    def of(self, *categories: Category) -> list[Storage]:
        return [storage for storage, category in self.storages if category in categories]


def through_views(graph: Graph, edge: Edge) -> tuple[int, int]:
    """Return the task and the output to which an edge leads, through the tasks of views."""
    while graph.tasks[edge.next_task].short_name in VIEWING and len(graph.out_edges[edge.next_task]) == 1:
        (edge,) = graph.out_edges[edge.next_task]
    return edge.next_task, edge.input


def task_of(peak: Peak, storage: Storage) -> Task | None:
    task = storage.made_by.task
    return None if task is None else peak.timeline.graph.tasks[task]


def count_text(storages: Sequence[Storage], noun: str) -> str:
    return f"{len(storages):,} {noun}{'s' if len(storages) > 1 else ''}"


def is_text(storages: Sequence[Storage]) -> str:
    return "are" if len(storages) > 1 else "is"


def them_text(storages: Sequence[Storage]) -> str:
    return "them" if len(storages) > 1 else "it"
