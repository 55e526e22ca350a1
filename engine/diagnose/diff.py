"""`ts.diff`: where two runs first differ in order, in values and in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import torch

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph, Task
from ...inspector.text.progress import telling
from ...inspector.validation import a_kind, expect, expect_number
from ..recording.run import Run
from ..recording.task_records import RecordedGradient, Trace
from .diff_gradients_and_memory import Apart, MemoryDifference, apart
from .diff_report import Difference, OrderDifference, TaskDifference
from .diff_task_matching import aligned

_Gradients = tuple[RecordedGradient | None, ...]


def diff(
    run_a: Run | Trace,
    run_b: Run | Trace,
    *,
    tolerance: float | None = None,
    names: tuple[str, str] = ("run_a", "run_b"),
) -> Difference:
    """Find where two runs first differ: in order, in values, and in memory.

    Use it for one program under two policies, on CPU and GPU, in float32 and bfloat16, or for the saved traces of two
    commits (`ts.load`). The graphs may differ in some tasks; `aligned` matches the others.

    Values are compared if both runs recorded statistics (`trace="cheap"`): norms, means, least and largest elements.
    These give a lower bound of the relative difference of two gradients, `|a - b| / max(|a|, |b|)`, see `apart`. A
    reported difference is real, but a difference may go unreported: a permutation of the elements changes no statistic.

    The default tolerance is the square root of the epsilon of the coarsest dtype among the gradients: 0.035 % for
    float32, 3.1 % for float16, 8.8 % for bfloat16. Measured on `tapescope workloads` (small, CPU), the largest
    difference between float32 and bfloat16 (autocast) is 0.3 % for gpt2, 0.1 % and 2 % for the LSTMs, 3 % for unet
    and recommender, and 8 % for the ensemble; between float32 with and without oneDNN it is below 0.0001 % for
    these. Models above the tolerance do diverge: resnet50, whose small batches make BatchNorm ill-conditioned (25
    %, and 0.5 % without oneDNN), mlp_norm, 4,000 tasks deep (92 %), and lstm_cell and unet in float16, where
    gradients underflow to zero.

    Memory is compared if both runs have a timeline (`memory=True`, `ts.profile`), on each device that both use: the
    peaks, the first task with different levels, and the storages alive at one peak only.

    Only gradients are compared, not values of the forward. An error in the forward shows at the first task that
    multiplies with its values.

    Args:
        run_a, run_b: runs, or their traces.
        tolerance: relative differences up to this one are ignored.
        names: names of the two runs in the report.

    Raises:
        TypeError: if an argument is not a run or a trace.
        ValueError: if the tolerance is not a positive number.
    """
    for run in (run_a, run_b):
        if not isinstance(run, Run | Trace):
            raise TypeError(
                f"ts.diff expects two runs or traces (from ts.backward, session.result() or ts.load), got {a_kind(run)}"
            )
    if tolerance is not None:
        expect_number(tolerance, int | float, "tolerance", "a relative difference, such as 0.01")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance must be a positive relative difference such as 0.01, got {tolerance!r}")
    expect(names, tuple | list, "names", "two texts, the names of the runs")
    if list(map(type, names)) != [str, str]:
        raise ValueError(f"names is {names!r}; expected two texts, the names of the runs")
    graphs = run_a.graph, run_b.graph
    traces = [run.trace if isinstance(run, Run) else run for run in (run_a, run_b)]
    with telling(None, "comparing runs") as tell:
        tell(f"matching {len(graphs[0]):,} and {len(graphs[1]):,} tasks")
        pairs = aligned(*graphs, (_values_of(traces[0]), _values_of(traces[1])))
    order = _first_in_order(graphs, (run_a.order, run_b.order), pairs)
    matched = set(pairs.values())
    only = (
        tuple(task for task in graphs[0].tasks if task.id not in pairs),
        tuple(task for task in graphs[1].tasks if task.id not in matched),
    )
    node_free = replace(graphs[0], nodes=()), replace(graphs[1], nodes=())  # a node would keep the tensors on its `ctx`
    memory = _memory_of(run_a, run_b, pairs)
    known = next(iter(memory), None), (_has_memory(run_a), _has_memory(run_b)), memory[1:]
    first, second = traces
    if first is None or second is None or "off" in (first.level, second.level):
        has_first, has_second = (trace is not None and trace.level != "off" for trace in traces)
        measured = has_first, has_second
        return Difference(node_free, measured, tolerance or 0.0, None, order, (), only, names, *known)
    coarsest = _coarsest(first, second)
    chosen = math.sqrt(torch.finfo(coarsest).eps) if tolerance is None else tolerance
    with telling(None, "comparing runs") as tell, collector_paused():
        tell("gradients")
        tasks = tuple(_Walk(first, second, pairs, chosen).tasks())
    dtype = coarsest if tolerance is None else None
    return Difference(node_free, (True, True), chosen, dtype, order, tasks, only, names, *known)


def _has_memory(run: Run | Trace) -> bool:
    return isinstance(run, Run) and run.timeline is not None


def _memory_of(run_a: Run | Trace, run_b: Run | Trace, pairs: dict[int, int]) -> tuple[MemoryDifference, ...]:
    """Compare the memory of the primary devices, which may differ between the runs, then of other common devices."""
    first, second = (run.timelines if isinstance(run, Run) else {} for run in (run_a, run_b))
    if not (first and second):
        return ()
    meant, others = next(iter(first)), next(iter(second))
    devices = {meant: meant if meant in second else others}
    devices.update((each, each) for each in first if each in second and each not in devices.values())
    return tuple(MemoryDifference((first[mine], second[other]), pairs) for mine, other in devices.items())


def _values_of(trace: Trace | None) -> dict[int, Hashable]:
    """Return the statistics of each task's inputs and outputs, for tasks where all are known."""
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
    """Return the coarsest real dtype among the gradients of the runs."""
    found = {form.meta.dtype for trace in traces for form in trace.table.forms}
    real = {dtype.to_real() for dtype in found if dtype.is_floating_point or dtype.is_complex}
    return max(real, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


class _Walk:
    """Compares the tasks of the first run, in its order, with the same tasks in the second run."""

    def __init__(self, first: Trace, second: Trace, pairs: dict[int, int], tolerance: float) -> None:
        self._traces = first, second
        self._pairs = pairs
        self._tolerance = tolerance
        self._given: dict[int, tuple[Apart | None, ...]] = {}
        self._small: dict[int, frozenset[int]] = {}
        self._passed: dict[int, float] = {}  # by task the difference of its inputs, used if its outputs are unknown

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
            takes, gives = _differences(*inputs), self._gives(task, other.task, *outputs)
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
        """Return the second task's outputs in the first task's order, because the factors may be swapped."""
        graphs = self._traces[0].graph, self._traces[1].graph
        mine, others = graphs[0].out_edges[task.id], graphs[1].out_edges[other.id]
        number_of = {edge.next_task: edge.output for edge in others}
        numbers = [number_of.get(self._pairs.get(edge.next_task, -1)) for edge in mine]
        outputs_of_both = sorted(edge.output for edge in mine)
        if len(mine) != len(number_of) or sorted(number for number in numbers if number is not None) != outputs_of_both:
            return outputs  # they go to other tasks, or twice to one task
        swapped = list(outputs)
        for edge, number in zip(mine, numbers, strict=True):
            if number is not None and max(number, edge.output) < len(outputs):
                swapped[edge.output] = outputs[number]
        return tuple(swapped)

    def _gives(self, task: Task, other: Task, first: _Gradients, second: _Gradients) -> tuple[Apart | None, ...]:
        """Return the differences of the outputs.

        An output that still has to be summed to the shape of the next input is not compared: only the direct engine
        records it before the sum.
        """
        found = list(_differences(first, second))
        graphs = self._traces[0].graph, self._traces[1].graph
        for edge, twin in zip(graphs[0].out_edges[task.id], graphs[1].out_edges[other.id], strict=False):
            each = found[edge.output] if edge.output == twin.output < len(found) else None
            if each is not None and each.by == "shape":
                taken = graphs[0].tasks[edge.next_task].inputs[edge.input]
                if taken.shape == graphs[1].tasks[twin.next_task].inputs[twin.input].shape:
                    found[edge.output] = None
        return tuple(found)

    def _summands(self, task: Task) -> tuple[tuple[float, ...], frozenset[int]]:
        """Return, for each input, the largest difference among its summands, and the set of small inputs."""
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


def _differences(first: _Gradients, second: _Gradients) -> tuple[Apart | None, ...]:
    """Compare gradients pairwise; return () if their numbers differ, as for the nodes of different kernels."""
    if len(first) != len(second):
        return ()
    return tuple(map(apart, first, second))


def _size(gradient: RecordedGradient | None) -> tuple[int, float]:
    """Return a gradient's number of elements and its norm."""
    statistics = None if gradient is None else gradient.statistics
    return (0, 0.0) if statistics is None else (statistics.count or 0, statistics.norm or 0.0)
