"""Tasks and edges of a graph, made by the thousand.

To make an instance of a frozen dataclass takes five times as long as of any other: it sets each attribute by a call. A
draft has the same attributes and is not frozen; once it is filled in, it is made what it stands for (`__class__`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph import Edge, Task

if TYPE_CHECKING:
    from .facts import Operation, StoredOperation
    from .graph import TensorMeta
    from .kinds import Kind


class TaskDraft:
    """What is going to be a `Task`."""

    __slots__ = Task.__slots__

    def __init__(
        self,
        id: int,
        name: str,
        kind: Kind,
        sequence_nr: int,
        inputs: tuple[TensorMeta, ...],
        parameter: str | None,
        call: int | None,
        operation: Operation | StoredOperation | None,
    ) -> None:
        self.id = id
        self.name = name
        self.kind = kind
        self.sequence_nr = sequence_nr
        self.inputs = inputs
        self.parameter = parameter
        self.call = call
        self.operation = operation


class EdgeDraft:
    """What is going to be an `Edge`."""

    __slots__ = Edge.__slots__

    def __init__(self, task: int, output: int, next_task: int, input: int) -> None:
        self.task = task
        self.output = output
        self.next_task = next_task
        self.input = input


def as_tasks(drafts: list[TaskDraft]) -> tuple[Task, ...]:
    """The tasks that these have been drafts of."""
    for draft in drafts:
        draft.__class__ = Task  # type: ignore[assignment]
    return tuple(drafts)  # type: ignore[arg-type]


def as_edges(drafts: list[EdgeDraft]) -> tuple[Edge, ...]:
    """The edges that these have been drafts of."""
    for draft in drafts:
        draft.__class__ = Edge  # type: ignore[assignment]
    return tuple(drafts)  # type: ignore[arg-type]
