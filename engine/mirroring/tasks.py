"""What a plan for mirroring means to the tasks of a backward: what each lets go of, makes again, and keeps for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...inspector.arguments import a_kind
from ...inspector.drawing.signs import AGAIN, KEPT, LET_GO, Sign
from ...inspector.graph.graph import Graph
from ...inspector.graph.words import counted
from ..words.sizes import size_text
from .modules import ms_text
from .plan import PlannedStorage, RecomputePlan
from .saves import MirroredSave


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """What a task makes again as the first that needs it.

    Attributes:
        task: its id.
        storage: the number of the storage that its node saves.
        made: all that is made for that, in order, what is only on the way included.
        kept: what these read and no node saves, so that it is kept for them alone.
        seconds: what that should take.
    """

    task: int
    storage: int
    made: tuple[PlannedStorage, ...]
    kept: tuple[PlannedStorage, ...]
    seconds: float


def planned_replays(plan: RecomputePlan, order: Iterable[int]) -> list[PlannedReplay]:
    """The replays of a backward in this order, in theirs.

    Operations took their time one by one. If the plan says what a step takes longer for all of them, each has its share
    in that.
    """
    planned = _Planned(plan)
    share = 1.0
    if plan.predicted is not None and (alone := planned.seconds):
        share = plan.predicted.replay_seconds / alone
    return [replace(each, seconds=share * each.seconds) for task in order for each in planned.run(task)]


class _Planned:
    """The storages of a plan, and which of them were made again so far."""

    def __init__(self, plan: RecomputePlan) -> None:
        self._storages = {each.number: each for each in plan.storages}
        self._there: set[int] = set()
        self._saved: dict[int, list[int]] = {}
        self._made_by: dict[int, list[PlannedStorage]] = {}
        for each in plan.storages:
            if each.is_dropped:
                self._made_by.setdefault(each.made_by, []).append(each)
            if each.fate == "dropped":
                for task in dict.fromkeys(task for task, _ in each.saved_by):
                    self._saved.setdefault(task, []).append(each.number)

    @property
    def seconds(self) -> float:
        """What all replays take, each operation by itself. One that makes several storages runs once."""
        return sum(max(each.seconds for each in made) for made in self._made_by.values())

    def run(self, task: int) -> Iterator[PlannedReplay]:
        """A task runs."""
        for number in self._saved.get(task, ()):
            made, seconds = self._make(number)
            if made:
                read = dict.fromkeys(need for each in made for need in each.inputs if need in self._storages)
                kept = [self._storages[need] for need in read if self._storages[need].fate == "newly kept"]
                yield PlannedReplay(task, number, tuple(made), tuple(kept), seconds)

    def _make(self, wanted: int) -> tuple[list[PlannedStorage], float]:
        """What has to be made for a storage, itself after what it needs, and the time."""
        made: list[PlannedStorage] = []
        seconds, ahead = 0.0, [wanted]
        while ahead:
            each = self._storages[ahead[-1]]
            missing = [] if each.number in self._there else list(self._missing(each))
            if missing:
                ahead += missing
                continue
            ahead.pop()
            if each.number in self._there:
                continue
            seconds += each.seconds
            for other in (each, *self._with(each)):
                self._there.add(other.number)
                made.append(other)
        return made, seconds

    def _missing(self, storage: PlannedStorage) -> Iterator[int]:
        for need in storage.inputs:
            if need in self._storages and self._storages[need].is_dropped and need not in self._there:
                yield need

    def _with(self, storage: PlannedStorage) -> list[PlannedStorage]:
        """What one call gives besides: its other results. Those which take longer are written into afterwards."""
        return [
            other
            for other in self._made_by[storage.made_by]
            if other.number != storage.number and other.number not in self._there and other.seconds <= storage.seconds
        ]


def mirror_signs(plan: RecomputePlan, order: Iterable[int]) -> list[Sign]:
    """What the tasks have in a picture of the graph, in this order of the backward."""
    let_go: dict[int, list[PlannedStorage]] = {}
    for each in plan.storages:
        if each.fate == "dropped":
            for task in dict.fromkeys(task for task, _ in each.saved_by):
                let_go.setdefault(task, []).append(each)
    replays: dict[int, list[PlannedReplay]] = {}
    for replay in planned_replays(plan, order):
        replays.setdefault(replay.task, []).append(replay)
    found = []
    for task, storages in sorted(let_go.items()):
        kinds, lines = [LET_GO], [f"lets go of {_many(storages, 'saved tensor')}"]
        if again := replays.get(task):
            made = [each for replay in again for each in replay.made]
            kept = list({each.number: each for replay in again for each in replay.kept}.values())
            seconds = sum(replay.seconds for replay in again)
            kinds = [AGAIN, KEPT] if kept else [AGAIN]
            lines.append(f"makes {_many(made, 'tensor')} again first, {ms_text(seconds)} planned")
            lines += [f"newly keeps {_many(kept, 'tensor')} for that"] if kept else []
        found.append(Sign(task, tuple(kinds), "\n".join(lines)))
    return found


def _many(storages: Sequence[PlannedStorage], what: str) -> str:
    """`2 tensors, 1.0 MiB`."""
    return f"{counted(len(storages), what)}, {size_text(sum(each.nbytes for each in storages))}"


def check_fits(plan: RecomputePlan, graph: Graph, saves: Iterable[MirroredSave]) -> None:
    """That a plan is that of the forward which left this graph.

    Args:
        saves: what the graph's nodes were found to have let go of; none are known of a graph without nodes.

    Raises:
        TypeError: it is no plan.
        ValueError: it is another forward's, or this one was not mirrored.
    """
    if not isinstance(plan, RecomputePlan):
        raise TypeError(f"recompute is a plan, such as ts.plan_recompute makes, not {a_kind(plan)}")
    if (other := plan.misfit(graph)) is not None:
        raise ValueError(f"recompute: the plan's figures are not for this graph: {other}; plan again for this forward")
    dropped = [each for each in plan.storages if each.fate == "dropped"]
    planned = {(each.number, task, slot): each.nbytes for each in dropped for task, slot in each.saved_by}
    if any(task >= len(graph) for _, task, _ in planned):
        raise ValueError(f"recompute: the plan is for a larger graph than this one of {len(graph):,} tasks")
    if plan.predicted is not None and len(plan.predicted.levels) != len(graph):
        raise ValueError(
            f"recompute: the plan predicts the memory of {len(plan.predicted.levels):,} tasks, this graph has "
            f"{len(graph):,}"
        )
    there = {(each.number, each.task, each.slot): each.nbytes for each in saves}
    if unplanned := there.items() - planned.items():
        (_, task, slot), _ = min(unplanned)
        raise ValueError(
            f"recompute: {graph.describe(task)} has let go of what it saved as {slot}, which this plan does not, or "
            "in another size: the forward ran by another plan, or on other data"
        )
    if graph.nodes and plan.dropped and not there:
        raise ValueError(
            "recompute: nothing that this graph saved was let go of. Run its forward in `with ts.recompute(plan):`, "
            "and look at it before its backward"
        )
