"""The benchmark of PyTorch PR #4746: its workloads in its three orders, time and peak against HEAP."""

from __future__ import annotations

from collections.abc import Iterator

from measure import Effort, Row

from tapescope.engine.studies.order_study import WORKLOADS_STUDIED, order_study
from tapescope.engine.studies.studied_orders import StudiedWorkload

_PEAK_GOALS = {("linear50", "bfs"): 15.0}
_MAKESPAN_GOAL = 1.2
_MOST = 12  # repetitions


def rows(effort: Effort) -> Iterator[Row]:
    names = ("linear50", "two_devices") if effort.tiny else WORKLOADS_STUDIED
    study = order_study(names, repetitions=min(effort.repetitions, _MOST))
    for row in study.rows:
        for policy in study.others:
            yield from _against_heap(row, policy)
        if row.makespans is not None:
            yield from _against_bfs(row)
    for name, why in study.refused.items():
        yield Row(name, "×", outcome=why)


def _against_heap(row: StudiedWorkload, policy: str) -> Iterator[Row]:
    mine, heap = (row.comparison[each] for each in (policy, "heap"))
    values = tuple(over / under for over, under in zip(mine.times_ns, heap.times_ns, strict=True))
    yield Row(f"{row.name}: time, {policy} / heap", "×", values)
    goal = _PEAK_GOALS.get((row.name, policy))
    yield Row(f"{row.name}: peak, {policy} / heap", "×", (row.peak_ratio(policy, "heap"),), goal, at_least=True)


def _against_bfs(row: StudiedWorkload) -> Iterator[Row]:
    """Simulate the workload for which creation order is slow on two devices."""
    bfs = row.makespan_ns("bfs")
    for policy in ("dfs", "heap"):
        span = row.makespan_ns(policy)
        assert bfs is not None and span is not None
        what = f"{row.name}: makespan on {row.devices}, {policy} / bfs"
        yield Row(what, "×", (span / bfs,), _MAKESPAN_GOAL, at_least=True)
