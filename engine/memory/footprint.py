"""What a simulation of memory needs to know of a graph: per task what it allocates and gives, and what is alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals.ranks import Bucketed
from .layouts import TensorLayout
from .timeline import Basis, Maker

Origin = Literal["input", "view", "output", "output view", "block", "outside"]


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """What one output of a task is.

    Attributes:
        origin: "input": the very tensor that came as input `number`; "view": another tensor on that input's storage;
            "output": the same tensor as output `number`; "output view": another one on its storage; "block": a tensor
            on the block `number` of the task's own; "outside": on a storage that was there before and is not its own
            (a saved tensor, a parameter).
        number: see `origin`; of "outside" -1.
        layout: its shape and strides.
        keeps_base: it is a view in autograd's sense, which keeps its base tensor and so counts twice on its storage.
        held: a hook goes on holding it after the task; nothing else does, and it is no .grad.
    """

    origin: Origin
    number: int
    layout: TensorLayout
    keeps_base: bool
    held: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a task does with memory until its outputs are checked: before these go to the next tasks.

    Attributes:
        trace: births and deaths of the blocks which the task allocates, in order: `n` and `~n`, blocks counted from 0.
        blocks: bytes of each.
        outputs: one per entry of the node's `next_functions`.
        inputs: the layouts which its inputs had when this was seen. Where they come in another layout it may not hold.
        kept: blocks that outlive the task though no output, until another one has run: (block, id of that task). A
            checkpointed region, computed again by the first task that needs it, makes them. -1: they are not freed.
        held_inputs: the numbers of the inputs which a hook goes on holding after the task.
    """

    trace: tuple[int, ...]
    blocks: tuple[int, ...]
    outputs: tuple[TaskOutput | None, ...]
    inputs: tuple[TensorLayout | None, ...]
    kept: tuple[tuple[int, int], ...] = ()
    held_inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartStorage:
    """A storage that is alive when the backward starts, made since just before the forward.

    Attributes:
        nbytes: its size.
        keepers: the tasks whose nodes keep it, with the slots, as in `Timeline.saved`.
        held: something else keeps it, too (the user's code), so that the backward does not free it.
        made_by: what made it.
    """

    nbytes: int
    keepers: tuple[tuple[int, str], ...]
    held: bool
    made_by: Maker


@dataclass(frozen=True, slots=True)
class LeafState:
    """A leaf as the backward finds it.

    Attributes:
        layout: of the tensor.
        has_grad: whether it already has a .grad.
        counts: whether its bytes are in the levels, as the forward made it.
        bucketed: whether DistributedDataParallel copies its gradient to a bucket, which is older than the forward; with
            "view" that is its .grad then.
    """

    layout: TensorLayout
    has_grad: bool
    counts: bool = False
    bucketed: Bucketed = "no"

    @property
    def keeps_none(self) -> bool:
        """Whether its gradient goes into existing memory (a .grad, or a view of a bucket)."""
        return self.has_grad or self.bucketed == "view"


@dataclass(frozen=True, eq=False, repr=False)
class Footprints:
    """The footprints of all tasks of a graph, on one device.

    Attributes:
        graph: the graph.
        device: whose memory it is: what is on another one counts nothing.
        basis: "calibrated" by a measured run, or a "dry run" on fake tensors.
        tasks: by task id. An AccumulateGrad's is None where the engine's rules say all; elsewhere, what hooks did.
        start: what is alive when the backward starts.
        leaves: by the id of the task of each leaf.
        roots: per root of the graph the layout of its gradient; None: a gradient that was there before counts nothing.
        keep_graph: the backward frees nothing that is saved (`retain_graph=True`).
        limits: sentences on what makes any prediction from this an estimate.
        unsure: those of them that are about memory which outlives a task, so that which order needs least is not sure
            either. What a kernel takes while it runs, it takes in every order. Of a calibrated one all are.
        constant_bytes: as in `Timeline`.
        regions: of each checkpointed region the tasks of which any has it computed again, in the order in which they
            ran when this was seen. The first of them has it in its footprint.
    """

    graph: Graph
    device: str
    basis: Basis
    tasks: tuple[Footprint | None, ...]
    start: tuple[StartStorage, ...]
    leaves: Mapping[int, LeafState]
    roots: tuple[TensorLayout | None, ...]
    keep_graph: bool = False
    limits: tuple[str, ...] = field(default=())
    unsure: tuple[str, ...] = field(default=())
    regions: tuple[tuple[int, ...], ...] = ()
    constant_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.for_result)

    def __repr__(self) -> str:
        kind = "calibrated" if self.basis == "calibrated" else "a dry run"
        return f"<Footprints of {len(self.tasks):,} tasks on {self.device}, {kind}>"

    def other_openers(self, order: Sequence[int]) -> list[int]:
        """The tasks that have a checkpointed region computed again in this order, and did not when this was seen."""
        if not self.regions:
            return []
        places = {task_id: place for place, task_id in enumerate(order)}
        openers = [min(tasks, key=lambda task_id: places.get(task_id, len(places))) for tasks in self.regions]
        return [opener for opener, tasks in zip(openers, self.regions, strict=True) if opener != tasks[0]]
