"""Statistics of gradients whose tasks run in one loop: no tensor is measured twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ...inspector.graph.graph import Edge, Graph
from ...inspector.torch_internals.modes import dispatch_mode_is_on
from .statistics import Level, form_of, measure, numbers_at_once
from .statistics_table import StatisticsTable
from .trace_columns import NONE, Columns


class BareStatistics:
    """Measures what tasks take and give, while one thread runs them without hooks.

    What a task gives is what the next one takes, where nothing else goes there: both have one row then.

    Args:
        graph: the graph that is run.
        level: of the statistics.
        table, columns: what is written to.
    """

    def __init__(self, graph: Graph, level: Level, table: StatisticsTable, columns: Columns) -> None:
        self._level = level
        self._table = table
        self._columns = columns
        self._edges = graph.out_edges
        coming = [len(edges) for edges in graph.in_edges]
        for root in graph.roots:
            coming[root.task] += 1
        self._takes_one = [count == 1 == len(task.inputs) for count, task in zip(coming, graph.tasks, strict=True)]
        self._rows: dict[int, int] = {}  # by task that waits: of its one gradient
        self._forms: dict[tuple[torch.Size, torch.dtype], int] = {}
        self._at_once = False

    def begin(self) -> None:
        """Nothing is known of what waits."""
        self._rows.clear()
        # Else each measurement needs a context of its own, see `measure`.
        self._at_once = not torch.is_grad_enabled() and not dispatch_mode_is_on()

    def took(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        row = self._rows.pop(task_id, None)
        self._columns.input_row[task_id] = self._measured(gradients) if row is None else row

    def gave(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None:
        """`unusual`: the edges on which something else goes than was given."""
        row = self._columns.output_row[task_id] = self._measured(outputs)
        output = 0
        for edge in self._edges[task_id]:
            while output < edge.output:
                row += outputs[output] is not None
                output += 1
            if self._takes_one[edge.next_task] and edge not in unusual:
                self._rows[edge.next_task] = row

    def _measured(self, gradients: Sequence[Tensor | None]) -> int:
        """Where the gradients' statistics begin in the table."""
        first, table, level = len(self._table), self._table, self._level
        for gradient in gradients:
            if gradient is None:
                continue
            numbers = numbers_at_once(gradient, level) if self._at_once else None
            if numbers is None:
                table.add([measure(gradient, level)])
                continue
            shape_and_dtype = gradient.shape, gradient.dtype
            form = self._forms.get(shape_and_dtype)
            if form is None:
                form = self._forms[shape_and_dtype] = table.form_number(form_of(gradient))
            table.add_numbers(form, numbers)
        return NONE if len(table) == first else first
