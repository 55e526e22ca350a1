"""What a plan means for each task: what it drops, recomputes and keeps, and how long the replays took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...inspector.drawing.annotations import AGAIN, KEPT, LET_GO, Sign
from ...inspector.graph.graph import Graph, TensorMeta
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import counted, size_text
from ...inspector.torch_private.saved_variables import packed_slots
from ...inspector.validation import a_kind
from .module_table import ms_text

if TYPE_CHECKING:
    from .plan import PlannedStorage, RecomputePlan
    from .replay_operations import Bytes, ReplayTally


@dataclass(frozen=True, slots=True)
class DroppedSave:
    """A saved tensor that is made again when its task runs.

    Attributes:
        task, slot: which node saves it, and under what name.
        storage: numbers storages within one graph; number: the storage's in the plan; nbytes: its size.
        meta: shape, type and device of the tensor; None: not known.
        made_by: what makes it again, with what has to be made for that: `gelu`, `gelu and addmm`.
    """

    task: int
    slot: str
    storage: int
    number: int
    nbytes: int
    meta: TensorMeta | None
    made_by: str


def dropped_saves(graph: Graph) -> list[DroppedSave]:
    """What was let go of and is not there again, in order of task. Empty where the forward was not recomputed."""
    from .replay_operations import Saved

    numbers: dict[Bytes, int] = {}
    found = []
    for task, node in enumerate(graph.nodes):
        for slot, packed in packed_slots(node):
            if not isinstance(packed, Saved) or packed.bytes.storage is not None:
                continue
            meta = TensorMeta(packed.view.shape, packed.view.dtype, graph.tasks[task].device)
            number = numbers.setdefault(packed.bytes, len(numbers))
            found.append(
                DroppedSave(task, slot, number, packed.bytes.number, packed.bytes.nbytes, meta, _made_by(packed.bytes))
            )
    return found


def _made_by(wanted: Bytes) -> str:
    """The operations, each once, the last one first."""
    names: dict[str, None] = {}
    seen, ahead = {wanted}, [wanted]
    while ahead:
        each = ahead.pop(0)
        for call in each.calls or ():
            names.setdefault(str(call.operator).split(".")[1])
            for other, *_ in call.parts:
                if other is not None and other.storage is None and other not in seen:
                    seen.add(other)
                    ahead.append(other)
    return joined(list(names))


class ReplayClock:
    """Tells what the tasks of a recomputed backward made again, and in what time, as they run one after the other.

    Args:
        graph: nothing of it has run yet.
    """

    def __init__(self, graph: Graph) -> None:
        from .replay_operations import Saved

        found: dict[int, ReplayTally] = {}
        for node in graph.nodes:
            for _, packed in packed_slots(node):
                if isinstance(packed, Saved):
                    found[id(packed.bytes.tally)] = packed.bytes.tally
        self._tallies = list(found.values())
        self._last = self._now()

    def lap(self) -> tuple[int, float] | None:
        """How many storages were made again since the last time, and the seconds that took; None: none was."""
        if not self._tallies:
            return None
        (storages, seconds), self._last = self._last, self._now()
        made = self._last[0] - storages
        return (made, self._last[1] - seconds) if made else None

    def _now(self) -> tuple[int, float]:
        return sum(each.storages for each in self._tallies), sum(each.seconds for each in self._tallies)


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


def recompute_signs(plan: RecomputePlan, order: Iterable[int]) -> list[Sign]:
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


def check_fits(plan: RecomputePlan, graph: Graph, saves: Iterable[DroppedSave]) -> None:
    """That a plan is that of the forward which left this graph.

    Args:
        saves: what the graph's nodes were found to have let go of; none are known of a graph without nodes.

    Raises:
        TypeError: it is no plan.
        ValueError: it is another forward's, or this one was not recomputed.
    """
    from .plan import RecomputePlan

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
