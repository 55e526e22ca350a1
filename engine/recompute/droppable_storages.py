"""The storages of a forward: what dropping each of them saves, and what making it again takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...inspector.capture.forward_program import ForwardOperation, ForwardProgram, ForwardStorage
from ..memory.simulation import difference
from ..memory.task_memory import Footprints
from ..memory.timeline import Maker

FOR_REPLAY = "for a replay"
"""The slot of what a node keeps though its own formula does not read it: a replay of what it dropped does."""

_UNKNOWN = Maker(None, None, None)
_STATE_BYTES = 5_056  # of the CPU's generator (torch.get_rng_state)
_ALLOCATE_INSIDE = ("scaled_dot_product", "_safe_softmax")  # in aten's names
_PRODUCTS = ("mm", "mv", "dot", "linear", "convolution", "attention", "einsum", "rnn", "lstm", "gru")  # in aten's names


@dataclass(frozen=True, slots=True)
class RecomputeStorage:
    """A storage of the forward: what dropping it saves, and what computing it again takes.

    Attributes:
        nbytes: its size.
        keepers: the tasks whose nodes keep it, each once, ascending. Empty: no backward needs it itself.
        needs: the numbers of the storages that its replay reads, without itself and what was there before the forward.
        replay_ns: what its replay takes.
        extra_bytes: what its replay allocates besides and frees at once: outputs that nobody needs again.
        state_bytes: what is kept of random generators until it is replayed, so that they draw the same again.
        siblings: the numbers of other outputs of the same operation, that one call makes with it.
        start: its number among what is alive as the plain backward starts; -1: it is not.
        droppable: whether it can be computed again.
        product: whether its replay has a matrix product or a convolution in it.
        kind: equal for storages that are made in the same way, as by the layers of a stack.
        made_by: what made it.
        allocates_inside: whether the kernels of its replay take memory for themselves of which nothing is known.
    """

    nbytes: int
    keepers: tuple[int, ...]
    needs: tuple[int, ...]
    replay_ns: float
    extra_bytes: int = 0
    state_bytes: int = 0
    siblings: tuple[int, ...] = ()
    start: int = -1
    droppable: bool = True
    product: bool = False
    kind: int = 0
    made_by: Maker = _UNKNOWN
    allocates_inside: bool = False


def footprints_for(program: ForwardProgram, measured: Footprints) -> Footprints:
    """The footprints of a run of the recorded forward, `ts.profile(...).footprints`, as those of the recorded graph.

    Raises:
        ValueError: they are another graph's.
    """
    if (other := difference(program.graph, measured.graph)) is not None:
        raise ValueError(
            f"the measured run has another graph than the recorded forward: {other}. Either the forward runs other "
            "operations each time, or it takes derivatives of operations such as prod(), which torch computes in "
            "another way while operations are recorded; neither can be planned for"
        )
    return replace(measured, graph=program.graph)


def recompute_storages(
    program: ForwardProgram, footprints: Footprints, call_ns: float = 10_000.0
) -> list[RecomputeStorage]:
    """The storages of a recorded forward, found again in what a measured backward of the same forward starts with.

    What was there before the forward costs nothing to read again, and is in no `needs`. What a node keeps and the
    measured backward does not know is not dropped.

    Args:
        program: the forward.
        footprints: those of a run of it, see `footprints_for`.
        call_ns: what running an operation again takes besides the operation itself.
    """
    starts: dict[tuple[frozenset[tuple[int, str]], int], list[int]] = {}
    for number in reversed(range(len(footprints.start))):
        there = footprints.start[number]
        starts.setdefault((frozenset(there.keepers), there.nbytes), []).append(number)
    kinds: dict[object, int] = {}
    found: list[RecomputeStorage] = []
    for each in program.storages:
        made = each.made_by is not None
        matching = starts.get((frozenset(each.saved_by), each.nbytes)) if each.saved_by and made else None
        start = matching.pop() if matching else -1
        known = made and (start >= 0 or not each.saved_by) and each.device == footprints.device
        operations = [program.operations[number] for number in each.program]
        names = tuple(operation.name for operation in operations)
        siblings, extra = _made_with(program, each)
        found.append(
            RecomputeStorage(
                each.nbytes,
                tuple(sorted({task for task, _ in each.saved_by})) if start >= 0 else (),
                tuple(dict.fromkeys(read.storage for operation in operations for read in operation.reads)),
                sum(1e9 * operation.seconds + call_ns for operation in operations),
                extra,
                sum(_STATE_BYTES for operation in operations if operation.random) if each.device == "cpu" else 0,
                siblings,
                start,
                known and each.obstacle is None,
                any(product in name for name in names for product in _PRODUCTS),
                kinds.setdefault((names, each.nbytes, len(each.saved_by)), len(kinds)),
                footprints.start[start].made_by
                if start >= 0
                else Maker(None, None, operations[0].module if operations else None),
                any(map(_allocates_inside, operations)),
            )
        )
    lasting = {
        number
        for number, (each, storage) in enumerate(zip(program.storages, found, strict=True))
        if each.made_by is None or (each.saved_by and storage.start < 0)
    }
    return [
        replace(storage, needs=tuple(need for need in storage.needs if need != number and need not in lasting))
        for number, storage in enumerate(found)
    ]


def _allocates_inside(operation: ForwardOperation) -> bool:
    """Whether its kernel takes memory for itself that is not known: attention; oneDNN's products in half precision."""
    if any(inside in operation.name for inside in _ALLOCATE_INSIDE):
        return True
    half = any(read.view.dtype in (torch.bfloat16, torch.float16) for read in operation.reads)
    return half and any(product in operation.name for product in _PRODUCTS)


def _made_with(program: ForwardProgram, storage: ForwardStorage) -> tuple[tuple[int, ...], int]:
    """What else the operation that made it makes: what one call makes whole, and the bytes of the others."""
    siblings: list[int] = []
    extra = 0
    if storage.made_by is not None:
        for number, _ in program.operations[storage.made_by].makes:
            other = program.storages[number]
            if number != storage.number and not other.written_by:
                siblings.append(number)
            elif number != storage.number:
                extra += other.nbytes
    return tuple(siblings), extra
