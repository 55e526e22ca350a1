"""The result of `ts.diff`: the first differences between two runs, as sentences and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.phrases import joined, task_name
from ...inspector.renderers import text_of
from ...inspector.text.report import findings_rich, findings_text
from ...inspector.text.sizes_and_counts import counted, dtype_name, nth, percent_text
from .diff_gradients_and_memory import EQUAL, Apart, MemoryDifference

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_LEAVES = 8  # rows of the table; `leaves` has all
_PASSING = frozenset({"T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Expand", "ToCopy"})
"""Nodes that may stand between a weight and the operation that multiplies with it."""

_SUMMED = "as for a sum over batches or elements in place of a mean"
_ALIKE = 2e-3  # relative difference of two ratios that count as one

_COMPARED = "The norms, means, least and largest elements"
"""The statistics compared. All four are equal for gradients that are permutations of each other."""


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """The first difference between two orders, ignoring tasks that only one of the runs has.

    Attributes:
        common: the number of tasks before it, the same in both.
        places: the position of the difference in each run, from 0; None if that run has ended.
        tasks: the task that each run executes there; None if that run has ended.
    """

    common: int
    places: tuple[int | None, int | None]
    tasks: tuple[Task | None, Task | None]


@dataclass(frozen=True, slots=True)
class TaskDifference:
    """The differences between a task's gradients in two runs.

    Attributes:
        tasks: the task in each run.
        places: its position in each run's order, from 0.
        takes, gives: differences by input and by output number; None if unknown.
        summands: by input number, the largest difference among the gradients that are summed into it.
        small: negligible outputs: they have fewer elements than the inputs, and their norm is below the tolerance
            times the inputs' norm. Such a sum has cancelled, and the rest may be rounding only.
        small_inputs: the inputs that are sums of negligible outputs only.
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
        """The largest difference among the inputs."""
        return max((each.share for each in self.takes if each is not None), default=0.0)


@dataclass(frozen=True, slots=True, repr=False)
class ValueDifference:
    """A gradient that differs between two runs.

    Attributes:
        task: the task that it belongs to.
        how: "gives" for an output of the task; "takes" for an input, a sum of gradients.
        number: the number of the output or input.
        apart: the difference.
        before: the largest difference among the gradients it was computed from.
    """

    task: TaskDifference
    how: Literal["gives", "takes"]
    number: int
    apart: Apart
    before: float

    def __repr__(self) -> str:
        return f"<{self.task.tasks[0]!r} {self.how}: {self.apart.by} differs by {percent_text(self.share)}>"

    @property
    def share(self) -> float:
        """The relative difference: 0.05 for 5 %."""
        return self.apart.share

    @property
    def growth(self) -> float:
        """The increase of the relative difference at this task."""
        return self.share - self.before if self.before < math.inf else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """The common factor between the gradients of two runs, from one task on.

    Attributes:
        value: the factor from the first run's gradients to the second's.
        task: the first task with it, in each run.
        is_everywhere: whether no common task is left out, so that the factor is the loss's.
    """

    value: float
    task: TaskDifference
    is_everywhere: bool


@dataclass(frozen=True, eq=False, repr=False)
class Difference:
    """The differences between two runs, displayed as a table in a notebook.

    Attributes:
        graphs: the graphs of the two runs.
        measured: whether each run has statistics of its gradients; values are compared only if both have them.
        tolerance: relative differences up to this one are ignored.
        dtype: the coarsest dtype of the gradients, which sets the default tolerance; None if one was passed.
        first_in_order: the first difference between the orders.
        tasks: the tasks that both runs executed, in the first run's order; empty if values are not compared.
        only: for each run, the tasks that only its graph has.
        names: the names of the runs.
        memory: the difference in memory on the primary device (see `Run.timeline`); None unless both are known.
        memory_known: whether each run's memory was measured or predicted.
        elsewhere: the differences in memory on the other devices that both use.
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
        """All gradients that differ at all, in the first run's order; a task's inputs before its outputs."""
        return tuple(_values(self.tasks))

    @cached_property
    def first_unequal(self) -> ValueDifference | None:
        """The first gradient whose statistics differ at all."""
        return next(iter(self.values), None)

    @cached_property
    def first_in_values(self) -> ValueDifference | None:
        """The first gradient whose statistics differ by more than the tolerance."""
        return next((each for each in self.values if each.share > self.tolerance), None)

    @cached_property
    def jump(self) -> ValueDifference | None:
        """The gradient at which the relative difference grows most, often the cause of the first large difference.

        If any other gradient differs, gradients used only by a parameter are left out. They are products with values of
        the forward, and differ whenever those values do.
        """
        flowing = [each for each in self.values if each.how == "takes" or not self._is_for_parameter(each)]
        return max(flowing or self.values, key=lambda each: each.growth, default=None)

    @cached_property
    def ratio(self) -> Ratio | None:
        """The factor between all gradients from the first difference on; None if there is no such factor."""
        first = self.first_in_values
        value = None if first is None else first.apart.ratio
        if first is None or value is None:
            return None
        graph, start = self.graphs[0], first.task.tasks[0].id
        below, todo = {start}, [start]
        while todo:
            for edge in graph.out_edges[todo.pop()]:
                if edge.next_task not in below:
                    below.add(edge.next_task)
                    todo.append(edge.next_task)
        for each in self.tasks:
            if each.tasks[0].id not in below:
                continue
            is_start = each is first.task and first.how == "gives"  # whose inputs do not differ yet
            takes = (
                found for number, found in enumerate(each.takes) if number not in each.small_inputs and not is_start
            )
            gives = (found for number, found in enumerate(each.gives) if number not in each.small)
            known = [found for found in (*takes, *gives) if found is not None and (found.share or found.ratio)]
            if any(found.ratio is None or not math.isclose(found.ratio, value, rel_tol=_ALIKE) for found in known):
                return None
        return Ratio(value, first.task, all(each.tasks[0].id in below for each in self.tasks))

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
        """The tasks of the parameters' gradients, the largest difference first."""
        leaves = [each for each in self.tasks if each.tasks[0].is_leaf and each.takes]
        return tuple(sorted(leaves, key=lambda each: (0 in each.small_inputs, -each.taken)))

    @property
    def unread(self) -> tuple[TaskDifference, ...]:
        """Tasks that are not compared because a run lacks statistics of one of their gradients."""
        return tuple(each for each in self.tasks if None in each.takes)

    @property
    def differs(self) -> bool:
        """True if orders, tasks or peaks differ, or known values differ by more than the tolerance."""
        memory = any(each.differs for each in (self.memory, *self.elsewhere) if each is not None)
        return bool(self.first_in_order or self.first_in_values or any(self.only) or memory)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in words, except those about the parameters."""
        return (
            *self._of_ratio(),
            *self._of_sums(),
            *self._of_order(),
            *self._of_values(),
            *self._of_tasks_and_memory(),
        )

    def _of_ratio(self) -> Iterator[str]:
        if self.ratio is None:
            return
        value, (one, other) = self.ratio.value, self.names
        where = "everywhere below the loss" if self.ratio.is_everywhere else "from there to the leaves"
        do = f"negate the loss of {other}"
        if not self.ratio.is_everywhere:
            do = "compare the factors in that line and in the tasks that only one run has"
        elif value > 1:
            do = f"divide the loss of {other} by {ratio_text(value)}, {_SUMMED}"
        elif value > 0:
            do = f"divide the loss of {one} by {ratio_text(1 / value)}, {_SUMMED}"
        times = "have the opposite sign" if ratio_text(value) == "-1.0" else f"are {ratio_text(value)} times as large"
        begins = f"beginning at {self._both(self.ratio.task)}"
        yield f"The gradients of {other} {times} {where}, {begins}: {do}."

    def _of_sums(self) -> Iterator[str]:
        """Yield a sentence about the first input that sums more gradients in one run than in the other."""
        for found in self.tasks:
            if found.taken <= self.tolerance:
                continue
            graphs = list(zip(self.graphs, found.tasks, strict=True))
            for number in range(len(found.takes)):
                summed = [
                    [edge.task for edge in graph.in_edges[task.id] if edge.input == number] for graph, task in graphs
                ]
                if len(summed[0]) == len(summed[1]) or not all(summed):
                    continue
                more = 0 if len(summed[0]) > len(summed[1]) else 1
                alone = {task.id for task in self.only[more]}
                named = [unique_name(self.graphs[more], task) for task in summed[more] if task in alone]
                missing = f", without that of {joined(named)}" if named else ""
                yield (
                    f"{self._both(found)} sums {counted(len(summed[0]), 'gradient')} in {self.names[0]} and "
                    f"{len(summed[1]):,} in {self.names[1]}{missing}: look for .detach(), torch.no_grad() or another "
                    f"value in the forward of {self.names[1 - more]}."
                )
                return

    def _of_order(self) -> Iterator[str]:
        first = self.first_in_order
        if first is None:
            yield f"{self.names[0]} and {self.names[1]} run their common tasks in the same order."
            return
        until = {0: "from the start", 1: "after the first task"}.get(
            first.common, f"after {first.common:,} common tasks"
        )
        does = [
            f"{name} has ended" if task is None else f"{name} runs {graph.describe(task)}"
            for name, graph, task in zip(self.names, self.graphs, first.tasks, strict=True)
        ]
        yield f"The orders differ {until}: {does[0]}, {does[1]}."

    def _of_values(self) -> Iterator[str]:
        if not all(self.measured):
            without = [name for name, measured in zip(self.names, self.measured, strict=True) if not measured]
            yield (
                f"Values are not compared: {joined(without)} {'has' if len(without) == 1 else 'have'} no statistics "
                "of gradients. "
                'ts.backward(loss, trace="cheap") records them.'
            )
            return
        if self.unread:
            yield (
                f"The gradients of {len(self.unread):,} of {counted(len(self.tasks), 'task')} cannot be read, and are "
                "not compared."
            )
        first, jump = self.first_in_values, self.jump
        known = sum(map(_known, self.tasks))
        if jump is None and not known:
            return
        if jump is None:
            yield (
                f"{_COMPARED} of all {known:,} gradients are equal to the last digit. "
                "They cannot tell whether the gradients themselves are equal."
            )
            return
        if first is None:
            largest = max(self.values, key=lambda each: each.share)
            yield (
                f"{_COMPARED} of all {known:,} gradients agree within the tolerance; the largest difference, "
                f"{percent_text(largest.share)}, is at {self._both(largest.task)}. "
                "The gradients themselves may differ by more."
            )
        else:
            place = nth(first.task.places[0] + 1)
            yield f"Values first differ at the {place} of {len(self.graphs[0]):,} tasks: {self._said(first)}."
            if jump is first:
                yield "The difference grows most at this task."
            else:
                yield f"Leaving out parameter gradients, the difference grows most here: {self._said(jump)}."
            if "gives" in (first.how, jump.how):
                yield "A task's outputs also depend on its saved tensors, which are not compared."
        tolerance = percent_text(self.tolerance)
        if self.dtype is None:
            yield f"The tolerance is {tolerance}, as passed."
        else:
            name = dtype_name(self.dtype)
            yield f"The tolerance, {tolerance}, is the square root of the epsilon of {name}, the coarsest dtype."

    def _of_tasks_and_memory(self) -> Iterator[str]:
        for name, tasks in zip(self.names, self.only, strict=True):
            if tasks:
                kinds = Counter(map(task_name, tasks))
                shown = joined([f"{count:,} × {kind}" if count > 1 else kind for kind, count in kinds.most_common()])
                yield f"Only {name} has {shown}."
        if self.memory is not None:
            yield from self.memory.sentences(self.names, bool(self.elsewhere))
            for each in self.elsewhere:
                yield from each.sentences(self.names, True)
        elif any(self.memory_known):
            without = self.names[self.memory_known.index(False)]
            yield (
                f"Memory is not compared because the memory of {without} was not measured. "
                "ts.backward(loss, memory=True) and ts.profile(make_loss) measure it."
            )

    def _said(self, value: ValueDifference) -> str:
        """Return a clause about one gradient that differs."""
        found, apart = value.task, value.apart
        mine, other = map(_value, (apart.first, apart.second))
        first, second = self.names
        numbers = f"{apart.by} {mine} in {first}, {other} in {second}"
        if apart.by in ("missing", "shape"):
            turned = apart.by == "shape" and sorted(mine.split("×")) == sorted(other.split("×"))
            numbers = f"{'transposed, ' if turned else ''}{mine} in {first}, {other} in {second}"
        elif apart.by in ("NaN", "infinite"):
            numbers = f"{mine} {apart.by} in {first}, {other} in {second}"
        elif apart.by in ("least", "largest"):
            numbers = f"{apart.by} element {mine} in {first}, {other} in {second}"
        differs = f"differs by {percent_text(value.share)}" if value.share < math.inf else "is not the same"
        if apart.ratio is not None and apart.ratio > 0:
            numbers += f", {ratio_text(apart.ratio)} times as large"
        before = f"differ by at most {percent_text(value.before)}" if value.before else "have equal statistics"
        if value.how == "takes":
            count = len([edge for edge in self.graphs[0].in_edges[found.tasks[0].id] if edge.input == value.number])
            if not count:
                return f"the gradient with which {self._both(found)} starts {differs} ({numbers})"
            gradient = f"the sum of {count:,} gradients" if count > 1 else "the gradient"
            summands = "the summands" if count > 1 else "although the outputs before it"
            return f"{gradient} received by {self._both(found)} {differs} ({numbers}); {summands} {before}"
        outputs = len({edge.output for edge in self.graphs[0].out_edges[found.tasks[0].id]})
        which = f"output {value.number}" if outputs > 1 else "its output"
        return f"the inputs of {self._both(found)} {before}; {which} {differs} ({numbers})"

    def _both(self, found: TaskDifference) -> str:
        """Describe the task in both runs, in one phrase if only its position differs."""
        pairs = list(zip(self.graphs, found.tasks, found.places, strict=True))
        mine, other = (graph.describe(task, place) for graph, task, place in pairs)
        if mine == other:
            return mine
        same = len({graph.describe(task) for graph, task, _ in pairs}) == 1
        return f"{mine} (in {self.names[1]} {nth(found.places[1] + 1) if same else other})"

    @cached_property
    def cells(self) -> list[list[str]]:
        """The parameters' gradients that differ, as rows of text, the headings first."""
        rows = [["gradient of", "difference", "in", *self.names]]
        differing = [each for each in self.leaves if each.taken]
        for each in differing[:_MOST_LEAVES]:
            found = each.takes[0] or EQUAL
            share = "too small to tell" if 0 in each.small_inputs else percent_text(found.share)
            leaf = each.tasks[0].parameter or self.graphs[0].describe(each.tasks[0])
            rows.append([leaf, share, found.by, *map(_value, (found.first, found.second))])
        return rows

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per task that both runs executed, for `pandas.DataFrame(difference.records())`."""
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
            *(
                [f"The table has the {_MOST_LEAVES} parameters with the largest differences; {more:,} more differ."]
                * (more > 0)
            ),
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


def ratio_text(ratio: float) -> str:
    """Return a factor: `4.0`, `0.25`, `-1.0`."""
    nearest = round(ratio)
    return f"{nearest}.0" if nearest and math.isclose(ratio, nearest, rel_tol=_ALIKE) else f"{ratio:.3g}"


def _known(task: TaskDifference) -> bool:
    return any(each is not None for each in (*task.takes, *task.gives))


def _value(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
