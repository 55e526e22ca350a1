"""The benchmark of HIPS/autograd #219: all rules of accumulation, PyTorch and autograd against the gradient by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch
from measure import Effort, Row

from tapescope.engine.execution.accumulation_rule import GraphRule
from tapescope.engine.studies.accumulation_study import (
    BY_HAND,
    IN_PLACE,
    PYTORCH,
    STUDIED,
    AccumulationStudy,
    accumulation_study,
    save_studies,
)
from tapescope.engine.studies.comparison import GRAPH_KEPT
from tapescope.engine.studies.ready_workload import Size
from tapescope.inspector.text.sizes_and_counts import size_text

_PEAK_GOAL = 1.05
_ERROR_GOAL = 1.0  # percent
_DTYPES = (torch.float32, torch.float64)
_ROUNDS = {"fan_out": 1}  # 300 products of 1000 x 1000 each
_MOST_ROUNDS = 5


def rows(effort: Effort) -> Iterator[Row]:
    studies = []
    for name in STUDIED:
        for dtype in _DTYPES:
            rounds = min(effort.repetitions, _ROUNDS.get(name, _MOST_ROUNDS))
            size: Size = "small" if effort.tiny else "full"
            graphs = get_args(GraphRule)
            study = accumulation_study(name, size=size, dtype=dtype, graph=graphs, repetitions=rounds)
            yield from _of_study(study)
            studies.append(study)
    effort.folder.mkdir(parents=True, exist_ok=True)
    path = save_studies(studies, effort.folder / "accumulation.html")
    yield Row("accumulation: the curves over the backward", "×", outcome=f"in {path}")


def _of_study(study: AccumulationStudy) -> Iterator[Row]:
    for row, (name, *cells) in zip(study.rows, study.cells[1:], strict=True):
        goal = _PEAK_GOAL if name in (IN_PLACE, PYTORCH) else None
        peak, time = cells[0], cells[-1]
        predicted = "" if row.predicted_bytes is None else f"predicted {size_text(row.predicted_bytes)}, "
        note = f"{peak}, {predicted}average {cells[2]}, {time}"
        what = f"{study.name}: peak, {name}" if name == BY_HAND else f"{study.name}: peak, {name} / {BY_HAND}"
        yield Row(what, "×", (study.ratio(name),), goal, note=note)
    freed, kept = study[PYTORCH], study[PYTORCH + GRAPH_KEPT]
    for what, ratio in (
        ("peak", kept.peak_bytes / freed.peak_bytes),
        ("average", kept.average_bytes / freed.average_bytes),
    ):
        yield Row(f"{study.name}: {what} of PyTorch, graph kept / freed", "×", (ratio,))
    errors = [100 * abs(row.error) for row in study.rows if row.error is not None]
    yield Row(f"{study.name}: the worst of {len(errors)} predictions, off by", "%", (max(errors),), _ERROR_GOAL)
