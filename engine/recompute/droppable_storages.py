"""The storages of a forward: the memory saved by dropping each of them, and the cost of recomputing it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...inspector.capture.forward_program import ForwardOperation, ForwardProgram, ForwardStorage
from ..memory.task_memory import Footprints, difference
from ..memory.timeline import Maker

FOR_RECOMPUTATION = "for recomputation"
"""The slot name of a storage that a node keeps only because recomputation reads it."""

_UNKNOWN = Maker(None, None, None)
_STATE_BYTES = 5_056  # of the state of the CPU's generator (torch.get_rng_state)
_ALLOCATE_INSIDE = ("scaled_dot_product", "_safe_softmax")  # parts of ATen operator names
_PRODUCTS = (
    "mm",
    "mv",
    "dot",
    "linear",
    "convolution",
    "attention",
    "einsum",
    "rnn",
    "lstm",
    "gru",
)  # parts of ATen names


@dataclass(frozen=True, slots=True)
class RecomputeStorage:
    """A storage of the forward, with the memory saved by dropping it and the cost of recomputing it.

    Attributes:
        nbytes: its size.
        keepers: ids of the tasks whose nodes save it, ascending and distinct; empty if no node saves it.
        needs: numbers of the storages that its recomputation reads, except itself and those from before the forward.
        replay_ns: time of its recomputation.
        extra_bytes: memory that its recomputation allocates and frees at once, for outputs that are not needed again.
        state_bytes: size of the random generator's state that is kept until it is recomputed.
        siblings: numbers of the other outputs of the same operation; one call computes them all.
        start: its number among the storages alive when the plain backward starts; -1 if it is not alive then.
        droppable: whether it can be recomputed.
        product: whether its recomputation runs a matrix product or a convolution.
        kind: equal for storages that are computed in the same way, such as those of the layers of a stack.
        made_by: the task or module that made it.
        allocates_inside: whether the kernels of its recomputation allocate workspace of unknown size.
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
    """Return footprints measured in a run of the forward (`ts.profile(...).footprints`) for the recorded graph.

    Raises:
        ValueError: if they belong to a different graph.
    """
    if (other := difference(program.graph, measured.graph)) is not None:
        raise ValueError(
            f"the graph of the measured run differs from that of the recorded forward: {other}. Either the forward "
            "runs different operations each time, or it differentiates operations such as prod(), which torch computes "
            "differently while operations are recorded; neither can be planned"
        )
    return replace(measured, graph=program.graph)


def recompute_storages(
    program: ForwardProgram, footprints: Footprints, call_ns: float = 10_000.0
) -> list[RecomputeStorage]:
    """Return the storages of a recorded forward, matched with the storages a measured backward of it starts with.

    Storages from before the forward cost nothing to read again and are in no `needs`. A storage that a node saves but
    that the measured backward does not contain is not droppable.

    Args:
        program: the recorded forward.
        footprints: the footprints of a run of it; see `footprints_for`.
        call_ns: time to run an operation again in addition to the operation itself.
    """
    # Both runs number their storages differently. The slots that save a storage, and its size, identify it in both.
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
    # These are alive throughout the backward, so recomputation may read them at no cost in memory.
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
    """Return whether its kernel allocates unknown workspace: attention, or a product in half precision with oneDNN."""
    if any(inside in operation.name for inside in _ALLOCATE_INSIDE):
        return True
    half = any(read.view.dtype in (torch.bfloat16, torch.float16) for read in operation.reads)
    return half and any(product in operation.name for product in _PRODUCTS)


def _made_with(program: ForwardProgram, storage: ForwardStorage) -> tuple[tuple[int, ...], int]:
    """Return the storages computed by the same call, and the bytes of those that later operations also write to."""
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
