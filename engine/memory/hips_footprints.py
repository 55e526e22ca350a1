"""Footprints of a tape's tasks, found before any backward. Needs the package `autograd`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ...inspector.graph.graph import TensorMeta
from ...inspector.graph.operations_and_calls import StoredOperation
from ...inspector.hips.forward_arrays import ForwardArray, forward_arrays, kept_by
from ...inspector.hips.tape import HipsTape
from ...inspector.hips.tape_nodes import RecordedNode, arrays_in, is_sparse, metas_of, owner_of, places
from ...inspector.threads import Caller, ExclusiveUse
from ...inspector.torch_private.allocators import WAITS_S
from ..execution.gradient_layouts import TensorLayout, is_dense
from .estimates import DEFINED, OF_A_TAPE, limit_sentence
from .task_memory import Footprint, Footprints, Origin, StartStorage, TaskOutput
from .task_outputs import assumed_footprint, assumed_layout
from .timeline import Maker

PYTHONS_BYTES = 16 << 10
"""The bytes that a task may need for Python's own objects besides its arrays. tracemalloc counts them as well."""

one_measurement = ExclusiveUse()
"""Lock held while tracemalloc traces. Tracing is global to the process, so ending one measurement would end another."""


def tape_footprints(tape: HipsTape) -> Footprints:
    """Return the footprints of a tape's tasks and the arrays that the forward left. No backward runs.

    For each kind of numpy's and autograd's own primitives (name, and shapes of its value and arguments), one formula is
    called on zeros, and its result is dropped. Formulas that the user defined are not called.
    """
    graph = tape.graph
    known: dict[object, Footprint] = {}
    tasks: list[Footprint | None] = []
    defined: list[int] = []
    with _tracing() as traces:
        for task, node in zip(graph.tasks, tape.nodes, strict=True):
            if task.is_leaf:
                tasks.append(None)
            elif node.is_own:
                kind = _kind(node)
                if kind not in known:
                    known[kind] = _asked(node, traces)
                tasks.append(known[kind])
            else:
                tasks.append(assumed_footprint(graph, task.id))
                defined.append(task.id)
    unsure = (limit_sentence(graph, DEFINED, defined),) if defined else ()
    roots = tuple(assumed_layout(graph.tasks[root.task].inputs[root.input]) for root in graph.roots)
    start = tuple(start_storage(left) for left in forward_arrays(tape) if left.owner.nbytes)
    return Footprints(graph, "cpu", "dry run", tuple(tasks), start, {}, roots, True, (OF_A_TAPE, *unsure), unsure)


def start_storage(left: ForwardArray) -> StartStorage:
    """Return an array of the forward as a storage alive at the start."""
    return StartStorage(left.owner.nbytes, left.keepers, not left.keepers, maker_of(left.made_by))


def maker_of(node: RecordedNode) -> Maker:
    """Return a node of the forward as the maker of an array."""
    return Maker(None, StoredOperation(node.name, node.source), "")


def indexed_output(meta: TensorMeta) -> TaskOutput:
    """Return the gradient of an index: a deferred addition to a few elements."""
    return TaskOutput("outside", -1, replace(assumed_layout(meta), sparse=True), keeps_base=False)


def footprint_of(blocks: Sequence[int], outputs: Sequence[TaskOutput | None], besides: int) -> Footprint:
    """Return the footprint of a task that allocates these blocks and `besides` bytes of workspace."""
    trace, sizes = list(range(len(blocks))), list(blocks)
    if besides > PYTHONS_BYTES:
        trace += [len(blocks), ~len(blocks)]
        sizes.append(besides)
    return Footprint(tuple(trace), tuple(sizes), tuple(outputs), ())


def _kind(node: RecordedNode) -> object:
    parents = tuple((metas_of(each.space), *places(node, each)) for each in node.parents)
    return node.name, node.argnums, metas_of(node.space), parents


def _asked(node: RecordedNode, traces: bool) -> Footprint:
    """Call a formula on zeros and return its footprint."""
    value = node.space.zeros()
    before = 0
    if traces:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
    with np.errstate(all="ignore"):
        given = list(node.vjp(value))
    highest = tracemalloc.get_traced_memory()[1] - before if traces else 0
    sources: dict[int, tuple[Origin, int]] = {
        id(owner): ("view", number)
        for number, each in enumerate(arrays_in(node.space, value))
        if (owner := owner_of(each)) is not None
    }
    kept = {id(owner_of(each)) for _, each in kept_by(node)}
    blocks: list[int] = []
    outputs: list[TaskOutput | None] = []
    for parent, gradient in zip(node.parents, given, strict=True):
        if is_sparse(gradient):
            outputs += [indexed_output(metas_of(parent.space)[place]) for place in places(node, parent)]
            continue
        arrays = list(arrays_in(parent.space, gradient))
        for array in [arrays[place] for place in places(node, parent)] if arrays else [np.zeros(0)]:
            owner = owner_of(array)
            if owner is None or not owner.nbytes or id(owner) in kept:
                origin: tuple[Origin, int] = ("outside", -1)
            elif id(owner) in sources:
                origin = sources[id(owner)]
            else:
                origin = "block", len(blocks)
                sources[id(owner)] = "output view", len(outputs)
                blocks.append(owner.nbytes)
            outputs.append(TaskOutput(*origin, _layout(array), keeps_base=False))
    return footprint_of(blocks, outputs, highest - sum(blocks))


def _layout(array: Any) -> TensorLayout:
    array = np.asarray(array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorLayout(array.shape, strides, is_dense(array.shape, strides), array.nbytes)


@contextmanager
def _tracing() -> Iterator[bool]:
    """Start tracemalloc, and yield whether its figures are ours: not if somebody else is measuring with it."""
    caller = Caller("a prediction for a tape", stays=True, is_brief=True)
    traces = False
    try:
        free = one_measurement.wait_for(caller, WAITS_S) is None
        traces = free and not tracemalloc.is_tracing()
        if traces:
            tracemalloc.start()
        yield traces
    finally:
        if traces:
            tracemalloc.stop()
        caller.ended = True
