"""A mirrored backward as the deck shows it: what was let go of, what is made again and when, and the plan's curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.accumulation import PYTORCHS, Accumulation
from ..engine.mirror_plan import MirrorPlan, PlannedStorage
from ..engine.mirror_saves import MirroredSave, mirrored_saves
from ..engine.mirror_tasks import check_fits, planned_replays
from ..engine.planned_mirror import PlannedMirror
from ..engine.storage_words import joined
from ..engine.timeline import Timeline
from ..inspector.graph import Graph

Json = dict[str, Any]

FIRST_LET_GO = 2**30
"""From here on the page numbers storages that were let go of: no graph keeps as many others."""

OTHER_ORDER = (
    "The plan tells the memory of the order that it is for, {order}; th.plan_mirror(make_loss, policy=...) plans for "
    "another."
)


class MirrorContent:
    """What is known of a mirrored backward.

    Args:
        graph: with its nodes before the backward; without them all is as the plan says.
        plan: by which the forward was mirrored; None: it is not known, or none was.

    Attributes:
        saves: what nodes let go of.

    Raises:
        TypeError, ValueError: see `check_fits`.
    """

    def __init__(self, graph: Graph, plan: MirrorPlan | None = None) -> None:
        self.plan = plan
        self.saves = mirrored_saves(graph)
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

    def predicted(
        self, order: Sequence[int], rule: Accumulation = PYTORCHS, retain_graph: bool = False
    ) -> tuple[Timeline, Timeline] | None:
        """The memory without the plan and with it; None where the plan is not for this."""
        plan = self.plan
        if not isinstance(plan, PlannedMirror) or rule != PYTORCHS or retain_graph:
            return None
        return (plan.plain, plan.timeline) if tuple(order) == plan.order else None

    def with_plan(self, schedule: Json, predicted: tuple[Timeline, Timeline] | None) -> Json:
        """A schedule with its replays and with the plan's curves."""
        replays = self.replays(schedule["order"])
        added: Json = {} if replays is None else {"replays": replays}
        if predicted is not None:
            added["curves"] = [curve(name, each) for name, each in zip(CURVES, predicted, strict=True)]
        return schedule | added

    def note(self) -> str | None:
        """Why the memory of another order is not told; None where it may be."""
        if not isinstance(self.plan, PlannedMirror) or not self.saves:
            return None
        return OTHER_ORDER.format(order=self.plan.order_name)


CURVES = ("plain", "mirrored")
"""The backward without the plan, and with it."""


def curve(name: str, timeline: Timeline) -> Json:
    """A level's course: `levels[i]` is the level before event i, of which the task at place k has those from
    `starts[k]` on."""
    first = timeline.starts[0]
    return {
        "name": name,
        "starts": [start - first for start in timeline.starts],
        "levels": list(timeline.levels[first:]),
    }


def _planned_saves(plan: MirrorPlan) -> list[MirroredSave]:
    """What a plan lets go of, where no node can tell."""
    storages = {each.number: each for each in plan.storages}
    dropped = [each for each in plan.storages if each.fate == "dropped"]
    found = [
        MirroredSave(task, slot, place, each.number, each.nbytes, None, _made_by(storages, each))
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
        names.setdefault(each.operation.split(".")[1])
        for need in each.inputs:
            if need not in seen and need in storages and storages[need].is_dropped:
                seen.add(need)
                ahead.append(storages[need])
    return joined(list(names))
