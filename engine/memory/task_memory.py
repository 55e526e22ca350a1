"""The memory model of a task: what it allocates, outputs and frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...inspector.graph.graph import Graph
from ...inspector.torch_private.distributed import Bucketed
from ...inspector.torch_private.saved_variables import saved_slots
from ..execution.gradient_layouts import TensorLayout
from .baseline import Baseline
from .estimates import Estimate
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
        constant_bytes, baseline: as in `Timeline`.
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
    baseline: Baseline = field(default_factory=Baseline)

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


_WHY = (
    "{count:,} leaves have {now} .grad and had {then} in the run that was measured, of which the first is {name}: what "
    "that changes is worked out, and was not seen"
)


def for_graph(footprints: Footprints, graph: Graph) -> Footprints:
    """The footprints for a graph of the same forward, whose backward is to come: its leaves are as they are now.

    Those of a graph whose backward has run, as far as that can be told, are as they were when they were measured.
    """
    if graph is footprints.graph or graph.is_tape or footprints.keep_graph:
        return footprints
    if not any(next(saved_slots(node), None) for node in graph.nodes):  # it has run, or is from a file
        return footprints
    found = {task_id: leaf.grad is not None for task_id, leaf in graph.leaves.items()}
    known = footprints.leaves
    other = [task_id for task_id, has_grad in found.items() if task_id in known and known[task_id].has_grad != has_grad]
    if not other:
        return footprints
    task, has_grad = graph.tasks[other[0]], found[other[0]]
    now, then = ("a", "none") if has_grad else ("no", "one")
    why = _WHY.format(count=len(other), now=now, then=then, name=task.parameter or graph.describe(task.id))
    leaves = {**known, **{task_id: replace(known[task_id], has_grad=found[task_id]) for task_id in other}}
    grads = (leaf for leaf in leaves.values() if leaf.has_grad and leaf.bucketed != "view")
    baseline = footprints.baseline.with_gradients(sum(leaf.layout.nbytes for leaf in grads))
    return replace(footprints, leaves=leaves, limits=(*footprints.limits, Estimate(why)), baseline=baseline)
