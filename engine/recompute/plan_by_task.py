"""A recompute plan by task: the tensors each task drops, recomputes and keeps, and the measured recompute times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...inspector.drawing.annotations import DROPPED, KEPT, RECOMPUTED, Sign
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
    """A dropped saved tensor, which is recomputed when its task runs.

    Attributes:
        task, slot: the task whose node saves it, and the name it is saved under.
        storage: a number for its storage within the graph.
        number: the number of its storage in the plan.
        nbytes: the size of the storage.
        meta: shape, type and device of the tensor; None if unknown.
        made_by: the operations that recompute it, such as `gelu and addmm`.
    """

    task: int
    slot: str
    storage: int
    number: int
    nbytes: int
    meta: TensorMeta | None
    made_by: str


def dropped_saves(graph: Graph) -> list[DroppedSave]:
    """Return the dropped tensors that have not been recomputed yet, ordered by task; empty without a plan."""
    from .replay_operations import Saved

    numbers: dict[Bytes, int] = {}
    found = []
    for task, node in enumerate(graph.nodes):
        for slot, packed in packed_slots(node):
            # The first recomputation sets the storage: from then on the tensor is not dropped any more.
            if not isinstance(packed, Saved) or packed.bytes.storage is not None:
                continue
            meta = TensorMeta(packed.view.shape, packed.view.dtype, graph.tasks[task].device)
            number = numbers.setdefault(packed.bytes, len(numbers))
            found.append(
                DroppedSave(task, slot, number, packed.bytes.number, packed.bytes.nbytes, meta, _made_by(packed.bytes))
            )
    return found


def _made_by(wanted: Bytes) -> str:
    """Join the names of the operations that recompute a storage, each once, the last operation first."""
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
    """Measures what each task of a backward recomputes, while the tasks run one after the other.

    Args:
        graph: the graph, before any of it has run.
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
        """Return the number of storages recomputed since the last call and the time in seconds, or None if none."""
        if not self._tallies:
            return None
        (storages, seconds), self._last = self._last, self._now()
        made = self._last[0] - storages
        return (made, self._last[1] - seconds) if made else None

    def _now(self) -> tuple[int, float]:
        return sum(each.storages for each in self._tallies), sum(each.seconds for each in self._tallies)


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """The recomputation of one storage, in the first task that needs it.

    Attributes:
        task: the id of the task.
        storage: the number of the storage that its node saves.
        made: all storages recomputed for it, in order, intermediate ones included.
        kept: newly kept storages that the recomputation reads.
        seconds: the predicted time.
    """

    task: int
    storage: int
    made: tuple[PlannedStorage, ...]
    kept: tuple[PlannedStorage, ...]
    seconds: float


def planned_replays(plan: RecomputePlan, order: Iterable[int]) -> list[PlannedReplay]:
    """Return the recomputations of a backward in the given order of tasks.

    If the plan predicts the recompute time of a step, it is distributed in proportion to the times of the operations.
    """
    planned = _Planned(plan)
    share = 1.0
    if plan.predicted is not None and (alone := planned.seconds):
        share = plan.predicted.replay_seconds / alone
    return [replace(each, seconds=share * each.seconds) for task in order for each in planned.run(task)]


class _Planned:
    """The storages of a plan, and the ones recomputed so far."""

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
        """The time of all recomputed operations; an operation with several outputs runs once."""
        return sum(max(each.seconds for each in made) for made in self._made_by.values())

    def run(self, task: int) -> Iterator[PlannedReplay]:
        """Run a task: yield the recomputations it triggers."""
        for number in self._saved.get(task, ()):
            made, seconds = self._make(number)
            if made:
                read = dict.fromkeys(need for each in made for need in each.inputs if need in self._storages)
                kept = [self._storages[need] for need in read if self._storages[need].fate == "newly kept"]
                yield PlannedReplay(task, number, tuple(made), tuple(kept), seconds)

    def _make(self, wanted: int) -> tuple[list[PlannedStorage], float]:
        """Return the storages to recompute for one storage, inputs first, and the total time."""
        made: list[PlannedStorage] = []
        # A stack instead of recursion, because chains of dropped storages can be thousands long.
        seconds, ahead = 0.0, [wanted]
        while ahead:
            each = self._storages[ahead[-1]]
            if each.number in self._there:
                ahead.pop()
                continue
            dropped = [need for need in each.inputs if need in self._storages and self._storages[need].is_dropped]
            if missing := [need for need in dropped if need not in self._there]:
                ahead += missing
                continue
            ahead.pop()
            seconds += each.seconds
            # The same call recomputes its other outputs. Those with a larger time are left out: later operations write
            # to them, too.
            others = [
                other
                for other in self._made_by[each.made_by]
                if other.number not in self._there and other.seconds <= each.seconds and other.number != each.number
            ]
            for other in (each, *others):
                self._there.add(other.number)
                made.append(other)
        return made, seconds


def recompute_signs(plan: RecomputePlan, order: Iterable[int]) -> list[Sign]:
    """Return the signs at the tasks in a picture of the graph, for a backward in this order."""
    dropped: dict[int, list[PlannedStorage]] = {}
    for each in plan.storages:
        if each.fate == "dropped":
            for task in dict.fromkeys(task for task, _ in each.saved_by):
                dropped.setdefault(task, []).append(each)
    replays: dict[int, list[PlannedReplay]] = {}
    for replay in planned_replays(plan, order):
        replays.setdefault(replay.task, []).append(replay)
    found = []
    for task, storages in sorted(dropped.items()):
        kinds, lines = [DROPPED], [f"drops {_many(storages, 'saved tensor')}"]
        if again := replays.get(task):
            made = [each for replay in again for each in replay.made]
            kept = list({each.number: each for replay in again for each in replay.kept}.values())
            seconds = sum(replay.seconds for replay in again)
            kinds = [RECOMPUTED, KEPT] if kept else [RECOMPUTED]
            lines.append(f"recomputes {_many(made, 'tensor')} first, in {ms_text(seconds)} as planned")
            lines += [f"newly keeps {_many(kept, 'tensor')} for that"] if kept else []
        found.append(Sign(task, tuple(kinds), "\n".join(lines)))
    return found


def _many(storages: Sequence[PlannedStorage], what: str) -> str:
    """Return count and size, such as `2 tensors, 1.0 MiB`."""
    return f"{counted(len(storages), what)}, {size_text(sum(each.nbytes for each in storages))}"


def check_fits(plan: RecomputePlan, graph: Graph, saves: Iterable[DroppedSave]) -> None:
    """Check that the forward that built this graph ran under the plan.

    Args:
        plan: the plan.
        graph: the graph.
        saves: the dropped tensors found in its nodes; empty for a graph without nodes.

    Raises:
        TypeError: if it is not a plan.
        ValueError: if the plan is for a different forward, or the forward did not run under it.
    """
    from .plan import RecomputePlan

    if not isinstance(plan, RecomputePlan):
        raise TypeError(f"recompute must be a plan from ts.plan_recompute, got {a_kind(plan)}")
    if (other := plan.misfit(graph)) is not None:
        raise ValueError(f"recompute: the plan is for a different graph: {other}; plan again for this forward")
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
            f"recompute: {graph.describe(task)} has dropped `{slot}`, which this plan keeps or has in another size: "
            "the forward ran under a different plan or on different data"
        )
    # Without nodes nothing can be read from the graph; after the backward everything has been recomputed.
    if graph.nodes and plan.dropped and not there:
        raise ValueError(
            "recompute: this graph has dropped no saved tensors. Run its forward in `with ts.recompute(plan):`, and "
            "open it before its backward"
        )
