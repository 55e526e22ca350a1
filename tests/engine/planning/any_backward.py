"""Backwards from random footprints: all that a task can do with memory, more often than in real ones."""

from __future__ import annotations

import random

import torch

from tapescope.engine.execution.gradient_layouts import TensorLayout, contiguous
from tapescope.engine.memory.task_memory import Footprint, Footprints, LeafState, StartStorage, TaskOutput
from tapescope.engine.memory.timeline import Maker
from tapescope.inspector.graph.graph import Edge, Graph, Root, Task, TensorMeta
from tapescope.inspector.graph.kinds import Kind

_SIDES = (4, 8, 16)


def random_backward(seed: int, most: int = 8) -> Footprints:
    """The footprints of up to so many tasks, which share, sum, steal, keep and hold whatever there is."""
    draw = random.Random(seed)
    count = draw.randint(4, most)
    leaves = draw.randint(1, count // 2)
    inputs = [[draw.choice(_SIDES) for _ in range(1 if task < leaves else draw.randint(1, 2))] for task in range(count)]
    tasks = tuple(
        Task(
            number,
            *(("AccumulateGrad", Kind.ACCUMULATE_GRAD) if number < leaves else ("F", Kind.CPP)),
            number,
            tuple(TensorMeta((side, side), torch.float32, torch.device("cpu")) for side in sides),
        )
        for number, sides in enumerate(inputs)
    )
    takers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for task in range(count - 1):
        for number in range(len(inputs[task])):
            for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
                takers[draw.randint(max(leaves, task + 1), count - 1)].append((task, number))
    edges = tuple(Edge(task, output, *taker) for task, taken in enumerate(takers) for output, taker in enumerate(taken))
    does = [_does(draw, task, inputs, takers[task], count) if task >= leaves else None for task in range(count)]
    start = tuple(
        StartStorage(
            64 * draw.randint(1, 40),
            tuple((task, "self") for task in sorted(draw.sample(range(leaves, count), draw.randint(1, 2)))),
            draw.random() < 0.1,
            Maker(None, None, None),
        )
        for _ in range(draw.randint(0, 3))
        if count - leaves >= 2
    )
    return Footprints(
        Graph(tasks, edges, (Root(count - 1, 0),)),
        "cpu",
        "calibrated",
        tuple(does),
        start,
        {task: LeafState(_layout(draw, inputs[task][0], 0.2), draw.random() < 0.2) for task in range(leaves)},
        (_layout(draw, inputs[-1][0], 0.0) if draw.random() < 0.5 else None,),
        draw.random() < 0.1,
    )


def _layout(draw: random.Random, side: int, turned: float) -> TensorLayout:
    layout = contiguous((side, side), 4)
    return TensorLayout((side, side), (1, side), True, layout.nbytes) if draw.random() < turned else layout


def _does(
    draw: random.Random, task: int, inputs: list[list[int]], takers: list[tuple[int, int]], count: int
) -> Footprint:
    outputs: list[TaskOutput] = []
    blocks: list[int] = []
    for taker, number in takers:
        side = inputs[taker][number]
        layout = _layout(draw, side, 0.1)
        alike = [place for place, its in enumerate(inputs[task]) if its == side]
        before = [place for place, output in enumerate(outputs) if output.layout.shape == (side, side)]
        kind = draw.random()
        if kind < 0.2 and alike:
            outputs.append(TaskOutput("input", draw.choice(alike), contiguous((side, side), 4), keeps_base=False))
        elif kind < 0.3:
            outputs.append(
                TaskOutput("view", draw.randrange(len(inputs[task])), layout, keeps_base=draw.random() < 0.5)
            )
        elif kind < 0.4 and before:
            same = draw.choice(before)
            outputs.append(TaskOutput("output", same, outputs[same].layout, keeps_base=False))
        elif kind < 0.5 and outputs:
            outputs.append(
                TaskOutput("output view", draw.randrange(len(outputs)), layout, keeps_base=draw.random() < 0.5)
            )
        elif kind < 0.55:
            expanded = TensorLayout((side, side), (0, 0), False, layout.nbytes)
            outputs.append(TaskOutput("outside", -1, expanded, keeps_base=False))
        else:
            outputs.append(TaskOutput("block", len(blocks), layout, draw.random() < 0.2, draw.random() < 0.05))
            blocks.append(layout.nbytes * (2 if draw.random() < 0.15 else 1))
    trace = list(range(len(blocks)))
    if draw.random() < 0.4:  # what it needs for itself
        blocks.append(64 * draw.randint(1, 40))
        place = draw.randint(0, len(trace))
        trace[place:place] = [len(blocks) - 1, ~(len(blocks) - 1)]
    kept: tuple[tuple[int, int], ...] = ()
    if draw.random() < 0.1:
        trace.append(len(blocks))
        kept = ((len(blocks), draw.choice([-1, *range(count)])),)
        blocks.append(64 * draw.randint(1, 40))
    held = (0,) if draw.random() < 0.05 else ()
    return Footprint(tuple(trace), tuple(blocks), tuple(outputs), (), kept, held)
