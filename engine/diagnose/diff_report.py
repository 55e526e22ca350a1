"""What `ts.diff` finds: where two runs part, in sentences and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.phrases import joined, task_name
from ...inspector.renderers import text_of
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted, dtype_name, nth, percent_text
from .diff_gradients_and_memory import EQUAL, Apart, MemoryDifference

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_LEAVES = 8  # in a table; all are in `leaves`
_PASSING = frozenset({"T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Expand", "ToCopy"})
"""Between a weight and the operation that multiplies with it."""

_COMPARED = "The norms, means, least and largest elements"
"""What is compared; of two gradients that are permutations of each other all four are equal."""


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """Where two orders part. Tasks that only one of the runs has are passed over.

    Attributes:
        common: how many tasks have run before, the same in both.
        places: for each run the place where they part, from 0; None where it has ended.
        tasks: for each run the task that it runs there; None where it has ended.
    """

    common: int
    places: tuple[int | None, int | None]
    tasks: tuple[Task | None, Task | None]


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """How far apart a task's gradients are in two runs.

    Attributes:
        tasks: what it is in each run. `places`: when it ran, from 0.
        takes, gives: by input and output number; None where it is not known.
        summands: by input number the largest difference among the gradients of which the input is the sum.
        small: the outputs that are next to nothing: fewer elements than the task takes, and a norm below the tolerance
            of what it takes. Such a sum has cancelled, and what is left may be rounding alone.
        small_inputs: the inputs that are sums of nothing else.
    """

    tasks: tuple[Task, Task]
    places: tuple[int, int]
    takes: tuple[Apart | None, ...]
    gives: tuple[Apart | None, ...]
    summands: tuple[float, ...]
    small: frozenset[int]
    small_inputs: frozenset[int]

    @property
    def taken(self) -> float:
        """The largest difference of what it takes."""
        return max((each.share for each in self.takes if each is not None), default=0.0)


@dataclass(frozen=True, slots=True, repr=False)
class ValueDifference:
    """A gradient that is apart in two runs.

    Attributes:
        task: whose it is.
        how: "gives": the task itself made it. "takes": it is a sum, of gradients that the task takes.
        number: of the output, or input.
        apart: how far.
        before: how far apart what it is made of was.
    """

    task: TaskDifference
    how: Literal["gives", "takes"]
    number: int
    apart: Apart
    before: float

    def __repr__(self) -> str:
        return f"<what {self.task.tasks[0]!r} {self.how}, {percent_text(self.share)} apart by {self.apart.by}>"

    @property
    def share(self) -> float:
        """How far, as a relative difference: 0.05 for 5 %."""
        return self.apart.share

    @property
    def growth(self) -> float:
        """By how much the relative difference grows here."""
        return self.share - self.before if self.before < math.inf else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Difference:
    """Where two runs part. In a notebook it shows itself.

    Attributes:
        graphs: of the two runs.
        measured: for each run whether it has statistics of its gradients; values are compared if both have.
        tolerance: relative differences up to this one, as far as they are known, are not looked at.
        dtype: the coarsest of the gradients', from which the tolerance comes; None where it was given.
        first_in_order: the first place at which the orders part.
        tasks: the tasks that both have run, in the first run's order; empty where values are not compared.
        only: for each run the tasks that its graph alone has.
        names: what to call the runs.
        memory: how their memory differs; None where it is not known of both. Of several devices that of the one which
            is meant, see `Run.timeline`.
        memory_known: for each run whether its memory was measured or predicted.
        elsewhere: the same of the other devices that both have.
    """

    graphs: tuple[Graph, Graph]
    measured: tuple[bool, bool]
    tolerance: float
    dtype: torch.dtype | None
    first_in_order: OrderDifference | None
    tasks: tuple[TaskDifference, ...]
    only: tuple[tuple[Task, ...], tuple[Task, ...]]
    names: tuple[str, str] = ("run_a", "run_b")
    memory: MemoryDifference | None = None
    memory_known: tuple[bool, bool] = (False, False)
    elsewhere: tuple[MemoryDifference, ...] = ()

    @cached_property
    def values(self) -> tuple[ValueDifference, ...]:
        """All gradients that differ at all, in the first run's order; sums before what is made of them."""
        return tuple(_values(self.tasks))

    @cached_property
    def first_unequal(self) -> ValueDifference | None:
        """The first gradient whose statistics differ at all."""
        return next(iter(self.values), None)

    @cached_property
    def first_in_values(self) -> ValueDifference | None:
        """The first gradient whose statistics are further apart than the tolerance."""
        return next((each for each in self.values if each.share > self.tolerance), None)

    @cached_property
    def jump(self) -> ValueDifference | None:
        """Where the relative difference grows most: the culprit, where the first one is only the last straw.

        What goes to a parameter and nowhere else is not asked, if anything else differs: that is multiplied with values
        of the forward, and is apart if these are, wherever that comes from.
        """
        flowing = [each for each in self.values if each.how == "takes" or not self._is_for_parameter(each)]
        return max(flowing or self.values, key=lambda each: each.growth, default=None)

    def _is_for_parameter(self, value: ValueDifference) -> bool:
        graph = self.graphs[0]
        edges = [edge for edge in graph.out_edges[value.task.tasks[0].id] if edge.output == value.number]
        while len(edges) == 1:
            task = graph.tasks[edges[0].next_task]
            if task.is_leaf:
                return True
            if task.short_name not in _PASSING:
                return False
            edges = list(graph.out_edges[task.id])
        return False

    @cached_property
    def leaves(self) -> tuple[TaskDifference, ...]:
        """The parameters' gradients, those that are seen to be furthest apart first."""
        leaves = [each for each in self.tasks if each.tasks[0].is_leaf and each.takes]
        return tuple(sorted(leaves, key=lambda each: (0 in each.small_inputs, -each.taken)))

    @property
    def unread(self) -> tuple[TaskDifference, ...]:
        """Tasks that are not compared because a run has no statistics of one of their gradients."""
        return tuple(each for each in self.tasks if None in each.takes)

    @property
    def differs(self) -> bool:
        """Whether order, tasks or peaks differ, or what is known of values by more than the tolerance."""
        memory = any(each.differs for each in (self.memory, *self.elsewhere) if each is not None)
        return bool(self.first_in_order or self.first_in_values or any(self.only) or memory)

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is to say, but for the parameters."""
        return (*self._of_order(), *self._of_values(), *self._of_tasks(), *self._of_memory())

    def _of_order(self) -> Iterator[str]:
        first = self.first_in_order
        if first is None:
            yield f"{self.names[0]} and {self.names[1]} run the tasks that both have in the same order."
            return
        until = {0: "from the start", 1: "after the first task"}.get(
            first.common, f"after {first.common:,} common tasks"
        )
        does = [
            f"{name} has ended" if task is None else f"{name} runs {graph.describe(task)}"
            for name, graph, task in zip(self.names, self.graphs, first.tasks, strict=True)
        ]
        yield f"In order they part {until}: {does[0]}, {does[1]}."

    def _of_values(self) -> Iterator[str]:
        if not all(self.measured):
            without = [name for name, measured in zip(self.names, self.measured, strict=True) if not measured]
            yield (
                f"Values are not compared: there are no statistics of the gradients of {joined(without)}. "
                'ts.backward(loss, trace="cheap") records them.'
            )
            return
        if self.unread:
            yield (
                f"The gradients of {len(self.unread):,} of {counted(len(self.tasks), 'task')} cannot be read, and are "
                "not compared."
            )
        first, jump = self.first_in_values, self.jump
        if jump is None and not self._known_count():
            return
        if jump is None:
            yield (
                f"{_COMPARED} of all {self._count()} are equal to the last digit. "
                "Whether the gradients themselves are, these can't tell."
            )
            return
        if first is None:
            largest = max(self.values, key=lambda each: each.share)
            yield (
                f"{_COMPARED} of all {self._count()} agree within the tolerance; the largest difference, "
                f"{percent_text(largest.share)}, is at {self._both(largest.task)}. "
                "The gradients themselves may be further apart, which these can't tell."
            )
        else:
            place = nth(first.task.places[0] + 1)
            yield f"In values they part at the {place} of {len(self.graphs[0]):,} tasks: {self._said(first)}."
            if jump is first:
                yield "Nowhere does the difference grow more."
            else:
                yield f"In what flows on, the difference grows most here: {self._said(jump)}."
            if "gives" in (first.how, jump.how):
                yield "What a task gives depends on what its node saved in the forward, too: that is not compared."
        yield self._of_tolerance()

    def _of_tolerance(self) -> str:
        if self.dtype is None:
            return f"The tolerance, {percent_text(self.tolerance)}, was given."
        name = dtype_name(self.dtype)
        return (
            f"The tolerance, {percent_text(self.tolerance)}, is the root of the epsilon of {name}, the coarsest dtype."
        )

    def _of_tasks(self) -> Iterator[str]:
        for name, tasks in zip(self.names, self.only, strict=True):
            if tasks:
                kinds = Counter(map(task_name, tasks))
                shown = joined([f"{count:,} × {kind}" if count > 1 else kind for kind, count in kinds.most_common()])
                yield f"Only {name} has {shown}."

    def _of_memory(self) -> Iterator[str]:
        if self.memory is not None:
            yield from self.memory.sentences(self.names, bool(self.elsewhere))
            for each in self.elsewhere:
                yield from each.sentences(self.names, True)
        elif any(self.memory_known):
            without = self.names[self.memory_known.index(False)]
            yield (
                f"Memory is not compared: that of {without} was not measured. "
                "ts.backward(loss, memory=True) and ts.profile(make_loss) do."
            )

    def _known_count(self) -> int:
        return sum(map(_known, self.tasks))

    def _count(self) -> str:
        return f"{self._known_count():,} gradients"

    def _said(self, value: ValueDifference) -> str:
        """The story of one gradient."""
        found, apart = value.task, value.apart
        mine, other = map(_value, (apart.first, apart.second))
        first, second = self.names
        numbers = f"{apart.by} {mine} in {first}, {other} in {second}"
        if apart.by in ("missing", "shape"):
            numbers = f"{mine} in {first}, {other} in {second}"
        elif apart.by in ("NaN", "infinite"):
            numbers = f"{mine} {apart.by} in {first}, {other} in {second}"
        elif apart.by in ("least", "largest"):
            numbers = f"{apart.by} element {mine} in {first}, {other} in {second}"
        is_apart = f"{percent_text(value.share)} apart" if value.share < math.inf else "not the same"
        before = f"{percent_text(value.before)} apart at most" if value.before else "equal"
        before += " by what was compared"
        if value.how == "takes":
            count = len([edge for edge in self.graphs[0].in_edges[found.tasks[0].id] if edge.input == value.number])
            if not count:
                return f"the gradient with which {self._both(found)} starts is {is_apart} ({numbers})"
            a_sum = f"the sum of {count:,} gradients that comes" if count > 1 else "the gradient that comes"
            each = "each of them is" if count > 1 else "though what was given is"
            return f"{a_sum} to {self._both(found)} is {is_apart} ({numbers}), {each} {before}"
        outputs = len({edge.output for edge in self.graphs[0].out_edges[found.tasks[0].id]})
        which = f"output {value.number}" if outputs > 1 else "its output"
        return f"what {self._both(found)} takes is {before}, {which} is {is_apart} ({numbers})"

    def _both(self, found: TaskDifference) -> str:
        """What the task is in both runs, in one phrase where that differs in its place alone."""
        pairs = list(zip(self.graphs, found.tasks, found.places, strict=True))
        mine, other = (graph.describe(task, place) for graph, task, place in pairs)
        if mine == other:
            return mine
        same = len({graph.describe(task) for graph, task, _ in pairs}) == 1
        return f"{mine} (in {self.names[1]} {nth(found.places[1] + 1) if same else other})"

    @cached_property
    def cells(self) -> list[list[str]]:
        """The parameters' gradients that differ, as a table of text, its headings first."""
        rows = [["gradient of", "apart", "by", *self.names]]
        differing = [each for each in self.leaves if each.taken]
        for each in differing[:_MOST_LEAVES]:
            found = each.takes[0] or EQUAL
            share = "too small to tell" if 0 in each.small_inputs else percent_text(found.share)
            values = [
                f"{value:.4g}" if isinstance(value, float) else str(value) for value in (found.first, found.second)
            ]
            rows.append([self._leaf(each), share, found.by, *values])
        return rows

    def _leaf(self, found: TaskDifference) -> str:
        return found.tasks[0].parameter or self.graphs[0].describe(found.tasks[0])

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per task that both have run, for `pandas.DataFrame(difference.records())`."""
        return [
            {
                "task": each.tasks[0].id,
                "task_b": each.tasks[1].id,
                "name": each.tasks[0].name,
                "name_b": each.tasks[1].name,
                "parameter": each.tasks[0].parameter,
                "module": self.graphs[0].module(each.tasks[0]),
                "source": each.tasks[0].source and each.tasks[0].source.short,
                "source_b": each.tasks[1].source and each.tasks[1].source.short,
                "place": each.places[0],
                "place_b": each.places[1],
                "takes": each.taken if _known(each) else None,
                "gives": max((output.share for output in each.gives if output is not None), default=None),
            }
            for each in self.tasks
        ]

    def __repr__(self) -> str:
        return findings_text(self._all_sentences(), self.cells, self.cells[0][1:2] + self.cells[0][3:])

    def __rich__(self) -> RenderableType:
        return findings_rich(self._all_sentences(), self.cells, self.cells[0][1:2] + self.cells[0][3:])

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells, self._all_sentences(), self.cells[0][1:2] + self.cells[0][3:])

    def _all_sentences(self) -> tuple[str, ...]:
        more = len([each for each in self.leaves if each.taken]) - _MOST_LEAVES
        return (
            *self.sentences,
            *([f"Of the parameters the {_MOST_LEAVES} furthest apart; +{more:,} more."] * (more > 0)),
        )


def _values(tasks: Sequence[TaskDifference]) -> Iterator[ValueDifference]:
    for task in tasks:
        for number, found in enumerate(task.takes):
            if found is not None and found.share > task.summands[number] and number not in task.small_inputs:
                yield ValueDifference(task, "takes", number, found, task.summands[number])
        before = max(
            (
                found.share
                for number, found in enumerate(task.takes)
                if found is not None and number not in task.small_inputs
            ),
            default=0.0,
        )
        for number, found in enumerate(task.gives):
            if found is not None and found.share and number not in task.small:
                yield ValueDifference(task, "gives", number, found, before)


def _known(task: TaskDifference) -> bool:
    return any(each is not None for each in (*task.takes, *task.gives))


def _value(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
