"""What the nodes of a mirrored forward save that was let go of, found without making it again; the time of replays."""

from __future__ import annotations

from dataclasses import dataclass

from ...inspector.graph.graph import Graph, TensorMeta
from ...inspector.torch_internals.saved import packed_slots
from ..words.phrases import joined
from .replay import Bytes, ReplayTally, Saved


@dataclass(frozen=True, slots=True)
class MirroredSave:
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


def mirrored_saves(graph: Graph) -> list[MirroredSave]:
    """What was let go of and is not there again, in order of task. Empty where the forward was not mirrored."""
    numbers: dict[Bytes, int] = {}
    found = []
    for task, node in enumerate(graph.nodes):
        for slot, packed in packed_slots(node):
            if not isinstance(packed, Saved) or packed.bytes.storage is not None:
                continue
            meta = TensorMeta(packed.view.shape, packed.view.dtype, graph.tasks[task].device)
            number = numbers.setdefault(packed.bytes, len(numbers))
            found.append(
                MirroredSave(task, slot, number, packed.bytes.number, packed.bytes.nbytes, meta, _made_by(packed.bytes))
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
    """Tells what the tasks of a mirrored backward made again, and in what time, as they run one after the other.

    Args:
        graph: nothing of it has run yet.
    """

    def __init__(self, graph: Graph) -> None:
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
