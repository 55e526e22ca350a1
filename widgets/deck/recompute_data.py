"""Recomputation in the deck: dropped saved tensors, the tasks that recompute them, and the curves of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any

from ...engine.execution.accumulation_rule import PYTORCHS, Accumulation
from ...engine.memory.timeline import Timeline
from ...engine.planning.simulate import schedule
from ...engine.recompute.module_table import operation_name
from ...engine.recompute.plan import PlannedStorage, RecomputePlan
from ...engine.recompute.plan_by_task import DroppedSave, check_fits, dropped_saves, planned_replays
from ...engine.recompute.planned_recompute import PlannedRecompute
from ...inspector.graph.graph import Graph
from ...inspector.graph.phrases import joined

Json = dict[str, Any]

FIRST_DROPPED = 2**30
"""The page's number of the first dropped storage; no graph has so many other storages."""

_ONLY = (
    "The plan predicts memory only for the order of {order}, without retain_graph, accumulate and release. "
    "ts.plan_recompute(make_loss, policy=...) plans for another order."
)


class RecomputeContent:
    """The dropped tensors of a graph, and the predictions of its plan.

    Args:
        graph: the graph. With its nodes, before the backward, these show what was dropped; without, the plan does.
        plan: the plan that the forward ran under; None if unknown or without a plan.
        frees: whether the backward frees saved tensors, as it does without `retain_graph`.

    Attributes:
        plan: the plan.
        saves: the dropped saved tensors.

    Raises:
        TypeError, ValueError: see `check_fits`.
    """

    def __init__(self, graph: Graph, plan: RecomputePlan | None = None, frees: bool = True) -> None:
        self.plan = plan
        self._frees = frees
        self._graph = replace(graph, nodes=())
        self.saves = dropped_saves(graph)
        if plan is not None:
            check_fits(plan, graph, self.saves)
            if not graph.nodes:
                storages = {each.number: each for each in plan.storages}
                dropped = [each for each in plan.storages if each.fate == "dropped"]
                planned = [
                    DroppedSave(task, slot, place, each.number, each.nbytes, None, _made_by(storages, each))
                    for place, each in enumerate(dropped)
                    for task, slot in each.saved_by
                ]
                self.saves = sorted(planned, key=lambda each: each.task)
        self._rows = {each.number: FIRST_DROPPED + each.storage for each in self.saves}

    def replays(self, order: Sequence[int]) -> Json | None:
        """Return the recomputations of a backward in this order, as columns; None without a plan."""
        if self.plan is None or not self.saves:
            return None
        found = [each for each in planned_replays(self.plan, order) if each.storage in self._rows]
        return {
            "task": [each.task for each in found],
            "storage": [self._rows[each.storage] for each in found],
            "count": [len(each.made) for each in found],
            "bytes": [sum(made.nbytes for made in each.made) for each in found],
            "ns": [round(1e9 * each.seconds) for each in found],
            "kept": [len(each.kept) for each in found],
            "kept_bytes": [sum(kept.nbytes for kept in each.kept) for each in found],
        }

    def is_predicted(self, order: Sequence[int], rule: Accumulation = PYTORCHS) -> bool:
        """Return whether the plan predicts this order; it assumes that gradients are summed and freed as in PyTorch."""
        return self._frees and rule == PYTORCHS and self._order == tuple(order)

    @cached_property
    def _order(self) -> tuple[int, ...] | None:
        plan = self.plan
        if plan is None or plan.predicted is None:
            return None
        if plan.planned_order is not None:
            return plan.planned_order.tasks
        return plan.order if isinstance(plan, PlannedRecompute) else tuple(schedule(self._graph, "heap"))

    def timeline(self, order: Sequence[int], rule: Accumulation = PYTORCHS) -> Timeline | None:
        """Return the predicted memory with the plan, event by event; None if it is not predicted."""
        return (
            self.plan.timeline if isinstance(self.plan, PlannedRecompute) and self.is_predicted(order, rule) else None
        )

    def with_plan(self, schedule: Json, rule: Accumulation = PYTORCHS) -> Json:
        """Return a schedule with its recomputations and the predicted memory curves, without and with the plan."""
        replays = self.replays(schedule["order"])
        added: Json = {} if replays is None else {"replays": replays}
        plan = self.plan
        if plan is not None and plan.predicted is not None and self.is_predicted(schedule["order"], rule):
            if isinstance(plan, PlannedRecompute):
                added["curves"] = [_curve("plain", plan.plain), _curve("planned", plan.timeline)]
            else:
                predicted = plan.predicted
                added["curves"] = [_steps("plain", predicted.plain_levels), _steps("planned", predicted.levels)]
        return schedule | added

    def note(self) -> str | None:
        """Return why other orders have no predicted memory; None if they may have one."""
        if not isinstance(self.plan, PlannedRecompute) or not self.saves:
            return None
        return _ONLY.format(order=self.plan.order_name)


def _curve(name: str, timeline: Timeline) -> Json:
    """Return a memory curve: `levels[i]` is the level before event i, and task k has the events from `starts[k]` on."""
    first = timeline.starts[0]
    return {
        "name": name,
        "starts": [start - first for start in timeline.starts],
        "levels": list(timeline.levels[first:]),
    }


def _steps(name: str, levels: Sequence[int]) -> Json:
    """Return a memory curve from one level per task; between two tasks the level is the lower of theirs."""
    between = [min(pair) for pair in pairwise((levels[0], *levels, levels[-1]))]
    return {
        "name": name,
        "starts": list(range(0, 2 * len(levels) + 1, 2)),
        "levels": [level for pair in zip_longest(between, levels) for level in pair if level is not None],
    }


def _made_by(storages: Mapping[int, PlannedStorage], wanted: PlannedStorage) -> str:
    """Join the names of the operations that recompute a storage, each once, the last operation first."""
    names: dict[str, None] = {}
    seen, ahead = {wanted.number}, [wanted]
    while ahead:
        each = ahead.pop(0)
        names.setdefault(operation_name(each.operation))
        for need in each.inputs:
            if need not in seen and need in storages and storages[need].is_dropped:
                seen.add(need)
                ahead.append(storages[need])
    return joined(list(names))
