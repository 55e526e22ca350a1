"""The cost of measuring the memory of a step, and of predicting that of an order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import torch
from measure import Effort, Row, ratios, repeated, seconds
from torch import Tensor

import tapescope as ts
from tapescope.engine.execution.gradient_layouts import contiguous
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.task_memory import Footprint, Footprints, LeafState, StartStorage, TaskOutput
from tapescope.engine.memory.timeline import Maker
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.graph import Edge, Graph, Root, Task, TensorMeta
from tapescope.inspector.graph.kinds import Kind

_LAYOUT = contiguous((16, 16), 4)
_META = TensorMeta((16, 16), torch.float32, torch.device("cpu"))


def rows(effort: Effort) -> Iterator[Row]:
    knobs = {"batch": 2, "pixels": 64} if effort.tiny else {"batch": 8, "pixels": 64}
    model, make_loss = workload("resnet50").build(**knobs)

    def timed(step: Callable[[], object]) -> Callable[[], float]:
        def once() -> float:
            model.zero_grad(set_to_none=True)
            return seconds(step)

        return once

    plain = timed(lambda: make_loss().backward())

    def ratio(what: str, step: Callable[[], object], goal: float | None = None) -> Row:
        return Row(f"{what} / a plain step, ResNet-50", "×", ratios(timed(step), plain, effort.repetitions), goal)

    def recorded() -> float:
        """The forward and the backward of ts.profile, without what it makes of the recording."""
        forward: list[float] = []

        def timed_loss() -> Tensor:
            losses: list[Tensor] = []
            forward.append(seconds(lambda: losses.append(make_loss())))
            return losses.pop()

        model.zero_grad(set_to_none=True)
        return ts.profile(timed_loss).elapsed_ns / 1e9 + forward[0]

    values = ratios(recorded, plain, effort.repetitions)
    yield Row("ts.profile: the step while recorded / a plain step, ResNet-50", "×", values, 1.3)
    yield ratio("ts.profile, all in all", lambda: ts.profile(make_loss), 1.3)
    yield ratio("ts.backward(memory=True), forward included", lambda: ts.backward(make_loss(), memory=True), 1.3)
    _, small = workload("mlp_norm").build(layers=2 if effort.tiny else 500)
    yield from _predictions("mlp_norm", ts.profile(small), effort)
    many = 2000 if effort.tiny else 1_000_000
    for shape, graph, footprints in (("in a chain", *chain(many)), ("that all wait for one leaf", *fan(many))):
        order = array("q", reversed(range(len(graph))))
        values = repeated(lambda graph=graph, order=order, found=footprints: ts.simulate(graph, order, found), 1)
        yield Row(f"ts.simulate: {many:,} tasks {shape}", "s", values, 5.0)


def _predictions(name: str, run: ts.Run, effort: Effort) -> Iterator[Row]:
    tasks = len(run.graph)
    order, footprints = run.order, run.footprints

    def each(call: Callable[[], object]) -> tuple[float, ...]:
        return tuple(value / tasks * 1e6 for value in repeated(call, effort.repetitions))

    yield Row(f"ts.simulate: a task, {name}", "µs", each(lambda: ts.simulate(run.graph, order, footprints)), 5.0)
    _, make_loss = workload(name).build(layers=2 if effort.tiny else 500)
    graph = ts.graph(make_loss())
    yield Row(f"dry run: a task, {name}", "µs", each(lambda: dry_run(graph)))


def chain(tasks: int) -> tuple[Graph, Footprints]:
    """Each task gives one new gradient to the one before it, and keeps one tensor."""
    graph = Graph(
        tuple(Task(number, "MulBackward0", Kind.CPP, number, (_META,)) for number in range(tasks)),
        tuple(Edge(number, 0, number - 1, 0) for number in range(1, tasks)),
        (Root(tasks - 1, 0),),
    )
    does = Footprint((0,), (_LAYOUT.nbytes,), (TaskOutput("block", 0, _LAYOUT, keeps_base=False),), (_LAYOUT,))
    start = tuple(
        StartStorage(_LAYOUT.nbytes, ((number, "self"),), False, Maker(None, None, None)) for number in range(tasks)
    )
    return graph, Footprints(graph, "cpu", "calibrated", (does,) * tasks, start, {}, (_LAYOUT,))


def fan(tasks: int) -> tuple[Graph, Footprints]:
    """Return a graph whose last task passes its gradient to all others, each of which passes one to the leaf."""
    leaf, root = 0, tasks - 1
    middle = range(1, root)
    graph = Graph(
        (
            Task(leaf, "torch::autograd::AccumulateGrad", Kind.ACCUMULATE_GRAD, 2**64 - 1, (_META,)),
            *(Task(number, "MulBackward0", Kind.CPP, number, (_META,)) for number in middle),
            Task(root, "StackBackward0", Kind.CPP, root, (_META,)),
        ),
        (
            *(Edge(number, 0, leaf, 0) for number in middle),
            *(Edge(root, output, number, 0) for output, number in enumerate(middle)),
        ),
        (Root(root, 0),),
    )
    does = Footprint((0,), (_LAYOUT.nbytes,), (TaskOutput("block", 0, _LAYOUT, keeps_base=False),), (_LAYOUT,))
    views = tuple(TaskOutput("view", 0, _LAYOUT, keeps_base=True) for _ in middle)
    footprints = (None, *(does for _ in middle), Footprint((), (), views, (_LAYOUT,)))
    return graph, Footprints(graph, "cpu", "calibrated", footprints, (), {leaf: LeafState(_LAYOUT, False)}, (_LAYOUT,))
