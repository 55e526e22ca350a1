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

FIRST_LET_GO = 2**30
"""From here on the page numbers storages that were let go of: no graph keeps as many others."""

_ONLY = (
    "The plan tells the memory of the order of {order}, without retain_graph, accumulate and release. "
    "ts.plan_recompute(make_loss, policy=...) plans for another order."
)


class RecomputeContent:
    """What is known of a recomputed backward.

    Args:
        graph: with its nodes before the backward; without them all is as the plan says.
        plan: by which the forward was recomputed; None: it is not known, or none was.
        frees: the backward lets go of what nodes saved, as it does without `retain_graph`.

    Attributes:
        plan: as given.
        saves: what nodes let go of.

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
                self.saves = list(_planned_saves(plan))
        self._rows = {each.number: FIRST_LET_GO + each.storage for each in self.saves}

    def replays(self, order: Sequence[int]) -> Json | None:
        """By storage that a task makes again what that takes in this order; None without a plan."""
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
        """Whether the plan's prediction is for this order. It is for a backward that sums and frees as PyTorch does."""
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
        """The memory with the plan, event by event; None where it does not say that."""
        return (
            self.plan.timeline if isinstance(self.plan, PlannedRecompute) and self.is_predicted(order, rule) else None
        )

    def with_plan(self, schedule: Json, rule: Accumulation = PYTORCHS) -> Json:
        """A schedule with its replays and with the plan's curves: without the plan, and with it."""
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
        """Why the memory of what the plan is not for is not told; None where it may be."""
        if not isinstance(self.plan, PlannedRecompute) or not self.saves:
            return None
        return _ONLY.format(order=self.plan.order_name)


def _curve(name: str, timeline: Timeline) -> Json:
    """A level's course: `levels[i]` is the level before event i, of which the task at place k has those from
    `starts[k]` on."""
    first = timeline.starts[0]
    return {
        "name": name,
        "starts": [start - first for start in timeline.starts],
        "levels": list(timeline.levels[first:]),
    }


def _steps(name: str, levels: Sequence[int]) -> Json:
    """The same of one level a task: between two tasks it is the lower of theirs."""
    between = [min(pair) for pair in pairwise((levels[0], *levels, levels[-1]))]
    return {
        "name": name,
        "starts": list(range(0, 2 * len(levels) + 1, 2)),
        "levels": [level for pair in zip_longest(between, levels) for level in pair if level is not None],
    }


def _planned_saves(plan: RecomputePlan) -> list[DroppedSave]:
    """What a plan lets go of, where no node can tell."""
    storages = {each.number: each for each in plan.storages}
    dropped = [each for each in plan.storages if each.fate == "dropped"]
    found = [
        DroppedSave(task, slot, place, each.number, each.nbytes, None, _made_by(storages, each))
        for place, each in enumerate(dropped)
        for task, slot in each.saved_by
    ]
    return sorted(found, key=lambda each: each.task)


def _made_by(storages: Mapping[int, PlannedStorage], wanted: PlannedStorage) -> str:
    """The operations that make it again, each once, the last one first."""
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
