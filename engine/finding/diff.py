"""`th.diff`: where two runs part first, in order, in values and in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...inspector.arguments import expect, expect_number
from ...inspector.graph.collector import collector_paused
from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.words import dtype_name
from ...inspector.shown import text_of
from ..trace.run import Run
from ..trace.trace import RecordedGradient, Trace
from ..words.findings import findings_rich, findings_text
from ..words.phrases import joined, ordinal, task_name
from ..words.sizes import percent_text
from .aligned_tasks import aligned
from .gradient_difference import EQUAL, Apart, apart
from .memory_difference import MemoryDifference

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_LEAVES = 8  # in a table; all are in `leaves`
_PASSING = frozenset({"T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Expand", "ToCopy"})
"""Between a weight and the operation that multiplies with it."""

_COMPARED = "The norms, means, least and largest elements"
"""What is compared; of two gradients that are permutations of each other all four are equal."""

_Gradients = tuple[RecordedGradient | None, ...]


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """Where two orders part: the places, and what runs there. None where a run has ended.

    Tasks that only one of the runs has are passed over; `common` have run before, the same in both.
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
        memory: how their memory differs; None where it is not known of both.
        memory_known: for each run whether its memory was measured or predicted.
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
    def differs(self) -> bool:
        """Whether order, tasks or peaks differ, or what is known of values by more than the tolerance."""
        memory = self.memory is not None and self.memory.differs
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
                'th.backward(loss, trace="cheap") records them.'
            )
            return
        first, jump = self.first_in_values, self.jump
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
            place = ordinal(first.task.places[0] + 1)
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
            yield from self.memory.sentences(self.names)
        elif any(self.memory_known):
            without = self.names[self.memory_known.index(False)]
            yield (
                f"Memory is not compared: that of {without} was not measured. "
                "th.backward(loss, memory=True) and th.profile(make_loss) do."
            )

    def _count(self) -> str:
        return f"{sum(map(_known, self.tasks)):,} gradients"

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
        """What the task is in both runs, in one phrase where that differs in its number alone."""
        mine, other = (graph.describe(task) for graph, task in zip(self.graphs, found.tasks, strict=True))
        if mine == other:
            return mine
        numbers = [f"task {task.id}" for task in found.tasks]
        same = mine.removeprefix(numbers[0]) == other.removeprefix(numbers[1])
        return f"{mine} (in {self.names[1]} {numbers[1] if same else other})"

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


def diff(
    run_a: Run | Trace,
    run_b: Run | Trace,
    *,
    tolerance: float | None = None,
    names: tuple[str, str] = ("run_a", "run_b"),
) -> Difference:
    """Where two runs part first: in order, in values, and in memory.

    For one program under two policies, on CPU and GPU, in float32 and bfloat16, or for the saved traces of two commits
    (`th.load`). Their graphs may differ in some tasks: `aligned` says which belong together.

    Values are compared where both runs recorded statistics (`trace="cheap"`): norms, means, least and largest elements.
    These give a lower bound of the relative difference of two gradients, |a - b| / max(|a|, |b|), see `apart`. So a
    difference that is found is there, but where none is found there may be one: a gradient whose elements have changed
    places passes.

    The default tolerance is the root of the epsilon of the coarsest dtype among the gradients: 0.035 % for float32,
    3.1 % for float16, 8.8 % for bfloat16. Measured on `tapehead workloads` (small, CPU), the largest difference between
    float32 and bfloat16 (autocast) is 0.3 % for gpt2, 0.1 % and 2 % for the LSTMs, 3 % for unet and recommender, and
    8 % for the ensemble; between float32 with and without oneDNN it is below 0.0001 % for these. What is over the
    tolerance does diverge: resnet50, whose small batches make BatchNorm ill-conditioned (25 %, and 0.5 % without
    oneDNN), mlp_norm, 4,000 tasks deep (92 %), and lstm_cell and unet in float16, where gradients underflow to zero.

    Memory is compared where both have a timeline (`memory=True`, `th.profile`): the peaks, where the levels part, and
    what is alive at one peak and not at the other.

    Of values the gradients alone are compared: an error of the forward shows where a task first multiplies with its
    values.

    Args:
        run_a, run_b: runs, or their traces.
        tolerance: which relative differences are not looked at.

    Raises:
        TypeError: one is no run.
        ValueError: the tolerance is not a positive number.
    """
    for run in (run_a, run_b):
        if not isinstance(run, Run | Trace):
            raise TypeError(
                f"th.diff takes two runs or traces, not a {type(run).__name__}: what th.backward returns, "
                "`session.result()`, or th.load(path) of a saved one"
            )
    if tolerance is not None:
        expect_number(tolerance, int | float, "tolerance", "a relative difference, such as 0.01")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ValueError(f"the tolerance is a relative difference, such as 0.01, not {tolerance!r}")
    expect(names, tuple | list, "names", "what the two are called, two texts")
    if list(map(type, names)) != [str, str]:
        raise ValueError(f"names is {names!r}; expected what the two are called, two texts")
    graphs = run_a.graph, run_b.graph
    traces = [run.trace if isinstance(run, Run) else run for run in (run_a, run_b)]
    pairs = aligned(*graphs, (_values_of(traces[0]), _values_of(traces[1])))
    order = _first_in_order(graphs, (run_a.order, run_b.order), pairs)
    matched = set(pairs.values())
    only = (
        tuple(task for task in graphs[0].tasks if task.id not in pairs),
        tuple(task for task in graphs[1].tasks if task.id not in matched),
    )
    bare = replace(graphs[0], nodes=()), replace(graphs[1], nodes=())  # which would keep what is on a `ctx`
    timelines = [run.timeline if isinstance(run, Run) else None for run in (run_a, run_b)]
    memory = None
    if timelines[0] is not None and timelines[1] is not None:
        memory = MemoryDifference((timelines[0], timelines[1]), pairs)
    memory_known = timelines[0] is not None, timelines[1] is not None
    first, second = traces
    if first is None or second is None or "off" in (first.level, second.level):
        has_first, has_second = (trace is not None and trace.level != "off" for trace in traces)
        measured = has_first, has_second
        return Difference(bare, measured, tolerance or 0.0, None, order, (), only, names, memory, memory_known)
    coarsest = _coarsest(first, second)
    chosen = math.sqrt(torch.finfo(coarsest).eps) if tolerance is None else tolerance
    with collector_paused():
        tasks = tuple(_Walk(first, second, pairs, chosen).tasks())
    dtype = coarsest if tolerance is None else None
    return Difference(bare, (True, True), chosen, dtype, order, tasks, only, names, memory, memory_known)


def _values_of(trace: Trace | None) -> dict[int, Hashable]:
    """By task the statistics of what it takes and gives, where all are known."""
    if trace is None or trace.level == "off":
        return {}
    found: dict[int, Hashable] = {}
    for record in trace:
        statistics = [each.statistics for each in (*record.inputs, *record.outputs) if each is not None]
        numbers = [(each.norm, each.mean, each.min, each.max) for each in statistics if each is not None]
        if len(numbers) == len(statistics):
            found[record.task.id] = frozenset(Counter(numbers).items())
    return found


def _first_in_order(
    graphs: tuple[Graph, Graph], orders: tuple[Sequence[int], Sequence[int]], pairs: dict[int, int]
) -> OrderDifference | None:
    back = {other: mine for mine, other in pairs.items()}
    common = (
        [place for place, task_id in enumerate(orders[0]) if task_id in pairs],
        [place for place, task_id in enumerate(orders[1]) if task_id in back],
    )
    for number in range(max(map(len, common))):
        places = tuple(each[number] if number < len(each) else None for each in common)
        tasks = tuple(
            None if place is None else graph.tasks[order[place]]
            for graph, order, place in zip(graphs, orders, places, strict=True)
        )
        mine, other = tasks
        if mine is None or other is None or pairs[mine.id] != other.id:
            return OrderDifference(number, (places[0], places[1]), (mine, other))
    return None


def _coarsest(*traces: Trace) -> torch.dtype:
    """Of the dtypes that the gradients have in either run."""
    found = {form.meta.dtype for trace in traces for form in trace.table.forms}
    real = {dtype.to_real() for dtype in found if dtype.is_floating_point or dtype.is_complex}
    return max(real, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


class _Walk:
    """Goes through the first run in its order, with what the second one has of the same tasks."""

    def __init__(self, first: Trace, second: Trace, pairs: dict[int, int], tolerance: float) -> None:
        self._traces = first, second
        self._pairs = pairs
        self._tolerance = tolerance
        self._given: dict[int, tuple[Apart | None, ...]] = {}
        self._small: dict[int, frozenset[int]] = {}
        self._passed: dict[int, float] = {}  # by task how far apart what it takes is, for want of its outputs

    def tasks(self) -> Iterator[TaskDifference]:
        first, second = self._traces
        for record in first:
            task = record.task
            other = second.of(self._pairs[task.id]) if task.id in self._pairs else None
            summands, small_inputs = self._summands(task)
            if other is None:
                self._passed[task.id] = max(summands, default=0.0)
                continue
            inputs = record.inputs, other.inputs
            outputs = record.outputs, self._swapped(task, other.task, other.outputs)
            takes, gives = _aparts(*inputs), self._gives(task, other.task, *outputs)
            self._given[task.id] = gives
            self._passed[task.id] = max((each.share for each in takes if each is not None), default=0.0)
            small = frozenset(
                number
                for number, found in enumerate(gives)
                if found is not None and found.share < math.inf and self._is_small(number, outputs, inputs)
            )
            self._small[task.id] = small
            places = record.place, other.place
            yield TaskDifference((task, other.task), places, takes, gives, summands, small, small_inputs)

    def _swapped(self, task: Task, other: Task, outputs: _Gradients) -> _Gradients:
        """What the second run's task gives, in the order in which the first one's gives it: factors may be swapped."""
        graphs = self._traces[0].graph, self._traces[1].graph
        mine, others = graphs[0].out_edges[task.id], graphs[1].out_edges[other.id]
        number_of = {edge.next_task: edge.output for edge in others}
        numbers = [number_of.get(self._pairs.get(edge.next_task, -1)) for edge in mine]
        outputs_of_both = sorted(edge.output for edge in mine)
        if len(mine) != len(number_of) or sorted(number for number in numbers if number is not None) != outputs_of_both:
            return outputs  # they lead elsewhere, or to one task twice
        swapped = list(outputs)
        for edge, number in zip(mine, numbers, strict=True):
            if number is not None and max(number, edge.output) < len(outputs):
                swapped[edge.output] = outputs[number]
        return tuple(swapped)

    def _gives(self, task: Task, other: Task, first: _Gradients, second: _Gradients) -> tuple[Apart | None, ...]:
        """How far apart the outputs are. One that is still to be summed to the shape in which it is taken, which the
        direct engine alone sees, is not compared."""
        found = list(_aparts(first, second))
        graphs = self._traces[0].graph, self._traces[1].graph
        for edge, twin in zip(graphs[0].out_edges[task.id], graphs[1].out_edges[other.id], strict=False):
            each = found[edge.output] if edge.output == twin.output < len(found) else None
            if each is not None and each.by == "shape":
                taken = graphs[0].tasks[edge.next_task].inputs[edge.input]
                if taken.shape == graphs[1].tasks[twin.next_task].inputs[twin.input].shape:
                    found[edge.output] = None
        return tuple(found)

    def _summands(self, task: Task) -> tuple[tuple[float, ...], frozenset[int]]:
        """For each input how far apart the gradients are that are summed into it, and which inputs are small."""
        shares = [0.0] * len(task.inputs)
        small = [True] * len(task.inputs)
        for edge in self._traces[0].graph.in_edges[task.id]:
            given = self._given.get(edge.task, ())
            found = given[edge.output] if edge.output < len(given) else None
            share = self._passed.get(edge.task, 0.0) if found is None else found.share
            is_small = edge.output in self._small.get(edge.task, ())
            small[edge.input] &= is_small
            if not is_small:
                shares[edge.input] = max(shares[edge.input], share)
        fed = {edge.input for edge in self._traces[0].graph.in_edges[task.id]}
        return tuple(shares), frozenset(number for number, is_small in enumerate(small) if is_small and number in fed)

    def _is_small(
        self, number: int, outputs: tuple[_Gradients, _Gradients], inputs: tuple[_Gradients, _Gradients]
    ) -> bool:
        given = [_size(each[number] if number < len(each) else None) for each in outputs]
        taken = [max(map(_size, each), key=lambda size: size[1], default=(0, 0.0)) for each in inputs]
        fewer = all(0 < mine[0] < other[0] for mine, other in zip(given, taken, strict=True))
        return fewer and max(norm for _, norm in given) < self._tolerance * max(norm for _, norm in taken)


def _aparts(first: _Gradients, second: _Gradients) -> tuple[Apart | None, ...]:
    """One for each gradient; none where the tasks give differently many, as other kernels' nodes do."""
    if len(first) != len(second):
        return ()
    return tuple(map(apart, first, second))


def _size(gradient: RecordedGradient | None) -> tuple[int, float]:
    """How many elements it has, and its norm."""
    statistics = None if gradient is None else gradient.statistics
    return (0, 0.0) if statistics is None else (statistics.count or 0, statistics.norm or 0.0)


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
