"""The memory model of a task: what it allocates, outputs and frees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...inspector.graph.graph import Graph, Task
from ...inspector.torch_private.distributed import Bucketed
from ...inspector.torch_private.saved_variables import saved_slots
from ..execution.gradient_layouts import TensorLayout
from .baseline import Baseline
from .estimates import Estimate
from .timeline import Basis, Maker

Origin = Literal["input", "view", "output", "output view", "block", "outside"]


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """One output of a task.

    Attributes:
        origin: "input": the same tensor as input `number`; "view": another tensor on that input's storage; "output":
            the same tensor as output `number`; "output view": another tensor on its storage; "block": a tensor on the
            block `number`, which the task allocated; "outside": a tensor on an older storage (a saved tensor, a
            parameter).
        number: see `origin`; -1 for "outside".
        layout: its shape and strides.
        keeps_base: whether it is a view in autograd's sense. A view keeps its base tensor, so its storage has two
            references.
        held: whether only a hook holds it after the task; it is not a .grad.
    """

    origin: Origin
    number: int
    layout: TensorLayout
    keeps_base: bool
    held: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a task allocates and frees until its outputs are checked, before they reach the next tasks.

    Attributes:
        trace: allocations (`n`) and frees (`~n`) of the task's blocks in order, blocks numbered from 0.
        blocks: the bytes of each block.
        outputs: one per entry of the node's `next_functions`.
        inputs: the layouts of its inputs when this was recorded. In other layouts the footprint may differ.
        kept: (block, task id) for blocks that are not outputs but outlive the task until that other task has run; -1 if
            they are not freed. A checkpointed region, recomputed by the first task that needs it, allocates such
            blocks.
        held_inputs: the numbers of the inputs that a hook holds after the task.
    """

    trace: tuple[int, ...]
    blocks: tuple[int, ...]
    outputs: tuple[TaskOutput | None, ...]
    inputs: tuple[TensorLayout | None, ...]
    kept: tuple[tuple[int, int], ...] = ()
    held_inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StartStorage:
    """A storage that is alive when the backward starts and was allocated since just before the forward.

    Attributes:
        nbytes: its size.
        keepers: the tasks whose nodes keep it, with the slots, as in `Timeline.saved`.
        held: whether something else, such as user code, holds it, so that the backward does not free it.
        made_by: its maker.
    """

    nbytes: int
    keepers: tuple[tuple[int, str], ...]
    held: bool
    made_by: Maker


@dataclass(frozen=True, slots=True)
class LeafState:
    """A leaf just before the backward.

    Attributes:
        layout: its layout.
        has_grad: whether it already has a .grad.
        counts: whether its bytes are in the levels, because the forward created it.
        bucketed: whether DistributedDataParallel copies its gradient to a bucket allocated before the forward; with
            "view" the .grad is a view of the bucket.
    """

    layout: TensorLayout
    has_grad: bool
    counts: bool = False
    bucketed: Bucketed = "no"

    @property
    def keeps_none(self) -> bool:
        """True if the gradient is written to existing memory: a .grad, or a view of a bucket."""
        return self.has_grad or self.bucketed == "view"


@dataclass(frozen=True, eq=False, repr=False)
class Footprints:
    """The footprints of all tasks of a graph, on one device.

    Attributes:
        graph: the graph.
        device: the device; memory on others is not counted.
        basis: "calibrated" by a measured run, or a "dry run" on fake tensors.
        tasks: by task id. None for an AccumulateGrad if the engine's rules determine it fully; otherwise the work of
            its hooks.
        start: the storages alive when the backward starts.
        leaves: by the id of each leaf's task.
        roots: the layout of each root's gradient; None for an older gradient, which does not count.
        keep_graph: whether the backward frees no saved tensors (`retain_graph=True`).
        limits: the reasons why any prediction from these is an estimate.
        unsure: those limits that concern memory which outlives a task, so the order with the lowest peak is uncertain,
            too. A kernel's workspace is the same in every order. For calibrated footprints, all limits.
        constant_bytes, baseline: as in `Timeline`.
        regions: for each checkpointed region, the tasks that trigger its recomputation, in the order in which they ran
            when this was recorded. The first of them has the recomputation in its footprint.
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
        """Return the tasks that trigger a recomputation in this order and did not when this was recorded."""
        if not self.regions:
            return []
        places = {task_id: place for place, task_id in enumerate(order)}
        openers = [min(tasks, key=lambda task_id: places.get(task_id, len(places))) for tasks in self.regions]
        return [opener for opener, tasks in zip(openers, self.regions, strict=True) if opener != tasks[0]]


_WHY = (
    "{count:,} leaves have {now} .grad and had {then} in the measured run (the first is {name}): the effect is "
    "computed, not measured"
)


_WATCHED = {"ReshapeAliasBackward0": "ViewBackward0", "CtcLossBackward1": "CtcLossBackward0"}
"""Nodes of reshape() and the CTC loss that depend on whether a mode is active during the forward."""


def kind_of(task: Task) -> str:
    """Return a task's name, the same for the two nodes that an operation creates with and without an active mode."""
    return _WATCHED.get(task.name, task.name)


def difference(graph: Graph, other: Graph) -> str | None:
    """Return how another graph differs from this one; None if it is that of the same forward, run again."""
    if graph is other:
        return None
    if len(graph) != len(other):
        return f"that graph has {len(other):,} tasks, this one has {len(graph):,}"
    if (graph.edges, graph.roots) != (other.edges, other.roots):
        return "the tasks of that graph depend on each other differently"
    for task, its in zip(graph.tasks, other.tasks, strict=True) if graph.tasks is not other.tasks else ():
        if (kind_of(task), task.inputs) != (kind_of(its), its.inputs):
            return f"in that graph, {graph.describe(task)} is {other.describe(its)} or receives other gradients"
    return None


def for_graph(footprints: Footprints, graph: Graph) -> Footprints:
    """Return the footprints for a graph of the same forward before its backward, with its leaves as they are now.

    If the graph's backward seems to have run, return the footprints with the leaves as they were when measured.
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
