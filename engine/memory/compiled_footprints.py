"""Footprints as the simulation runs them: numbers in flat lists, which it only has to copy and to append."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..execution.gradient_layouts import Layouts, TensorLayout
from .lifetimes import Category
from .task_memory import Footprint, Footprints, Origin, TaskOutput
from .task_outputs import assumed_footprint, assumed_layout
from .timeline import Maker, lasts_with_graph

# Storages, tensors, inputs and layouts are numbers here, places in flat lists; these stand where there is none.
OUTSIDE = -1
"""Instead of a storage: its bytes are not counted, those on another device for one. Something else holds it, too, so
that nothing is added to it in place."""

NO_TENSOR = 0
"""Instead of a tensor: there is no gradient. 0 is false, and the facts at place 0 of each list are those of nothing."""

NOBODY = 0
"""Instead of the input that takes a gradient: no task does. Inputs count from 1 on, so that this is false, too."""

NO_LEAF, HAS_GRAD, AS_IT_COMES = -1, -2, -3
"""Instead of the layout of a task's leaf: the task is no AccumulateGrad; what comes is added to the .grad that is
there; what comes becomes .grad whatever its layout is (the argument of a tape)."""

NO_STORAGES: list[int] = []
"""What most tasks release at their end. All share this list, and nobody writes to it."""

_SAVED, _BUFFER, _FORWARD = int(Category.SAVED), int(Category.BUFFER), int(Category.FORWARD)
_HELD, _WORKSPACE = int(Category.HELD), int(Category.WORKSPACE)


class Program(NamedTuple):
    """A footprint in numbers, blocks counted by birth.

    Attributes:
        events: births and deaths of the blocks: `n` and `~n`.
        nbytes, born_as, uses: of each block its size, its category, and how many tensors hold it at first.
        inputs: the layouts that are expected, -1 for none.
        blocks, layouts, counts, bases: of each new tensor its block, its layout, the references to it (1), and of which
            tensor it is a view (of none).
        outputs: for each output which of the new tensors it is; -1: none.
        more: what to go by instead of the last five, where outputs are not just new tensors, or where more is kept.
    """

    events: list[int]
    nbytes: list[int]
    born_as: list[int]
    uses: list[int]
    inputs: list[int]
    blocks: list[int]
    layouts: list[int]
    counts: list[int]
    bases: list[int]
    outputs: list[int]
    more: More | None


class More(NamedTuple):
    """Of each output its origin, its number, its layout, whether it keeps its base, and whether a hook holds it."""

    outputs: list[tuple[Origin, int, int, bool, bool] | None]
    kept: list[tuple[int, int]]
    held_inputs: tuple[int, ...]


@dataclass(slots=True)
class Start:
    """What is alive as the backward starts: a fact per storage, and per tensor, the first of which is NO_TENSOR."""

    nbytes: list[int] = field(default_factory=list)
    born_as: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)  # how many tensors, nodes and others hold each storage
    makers: list[Maker] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # storages that something else holds
    lasting: set[int] = field(default_factory=set)  # storages that no task frees: those held, and those of the graph
    saved: dict[int, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    storage_of: list[int] = field(default_factory=lambda: [OUTSIDE])
    layout_of: list[int] = field(default_factory=lambda: [-1])
    counts: list[int] = field(default_factory=lambda: [0])  # how many references there are to each tensor


class Compiled:
    """All that a simulation needs and no order changes. The inputs of all tasks are counted through, from 1.

    Attributes:
        layouts: numbers for the layouts. It grows with the sums that the orders need.
        programs: by task; None for a leaf of which the rules say all. Equal footprints share one.
        unknown: the tasks whose footprints are assumed.
        first_input: by task the number of its first input, and the end of the last one's.
        receivers: by task, for each output, the number of the input that gets it.
        elsewhere: the inputs on another device, whose memory is not counted.
        input_layouts: of a tape's graph, by the number of an input its layout as a new array.
        edges: the tasks where the edges start, and those where they end.
        leaf_layouts: by task the layout of its leaf; NO_LEAF, HAS_GRAD where its gradient is added to a .grad, or
            AS_IT_COMES where it keeps any: the argument of a tape, which may be a container of arrays.
        start: what is alive before.
        roots: the tensors from which the backward starts.
        released: by task the storages which its node lets go of at its end.
        keeps: whether tasks keep blocks until others have run.
    """

    def __init__(self, footprints: Footprints) -> None:
        graph = self._graph = footprints.graph
        self.layouts = Layouts()
        device = torch.device(footprints.device)
        first = self.first_input = list(accumulate([len(task.inputs) for task in graph.tasks], initial=1))
        self.elsewhere = {
            first[task.id] + number
            for task in graph.tasks
            for number, meta in enumerate(task.inputs)
            if meta.device != device
        }
        self.edges = [edge.task for edge in graph.edges], [edge.next_task for edge in graph.edges]
        self.receivers: list[list[int]] = [[] for _ in graph.tasks]
        for edge in graph.edges:
            places = self.receivers[edge.task]
            while len(places) < edge.output:
                places.append(NOBODY)
            places.append(first[edge.next_task] + edge.input)
        self.leaf_layouts = [NO_LEAF] * len(graph)
        for task in graph.tasks:
            if task.is_leaf:
                leaf = footprints.leaves.get(task.id)
                layout = assumed_layout(task.inputs[0]) if leaf is None else leaf.layout
                has_grad = leaf is not None and leaf.keeps_none
                number = HAS_GRAD if has_grad else self.layouts.number(layout)
                self.leaf_layouts[task.id] = AS_IT_COMES if graph.is_tape else number
        self.input_layouts = {
            place: self.layouts.number(assumed_layout(meta))
            for task in graph.tasks
            if graph.is_tape
            for place, meta in enumerate(task.inputs, first[task.id])
        }
        self.unknown: list[int] = []
        self.programs = self._compile(footprints.tasks)
        self.keeps = any(program is not None and program.more and program.more.kept for program in self.programs)
        self.released: list[list[int]] = [NO_STORAGES] * len(graph)
        self.start = self._start(footprints)
        self.roots = [self._root(number, layout) for number, layout in enumerate(footprints.roots)]

    def _compile(self, footprints: tuple[Footprint | None, ...]) -> list[Program | None]:
        known: dict[int, Program] = {}  # by id() of what the footprints keep
        equal: dict[Footprint, Program] = {}
        programs: list[Program | None] = []
        for task_id, footprint in enumerate(footprints):
            program = known.get(id(footprint))
            if program is None and footprint is not None:
                program = equal.get(footprint)
                if program is None:
                    program = equal[footprint] = compile_footprint(footprint, self.layouts)
                known[id(footprint)] = program
            elif footprint is None and self.leaf_layouts[task_id] == NO_LEAF:
                program = compile_footprint(assumed_footprint(self._graph, task_id), self.layouts)
                self.unknown.append(task_id)
            programs.append(program)
            if program is not None:
                places = self.receivers[task_id]
                places.extend([NOBODY] * (len(program.outputs) - len(places)))
        return programs

    def _start(self, footprints: Footprints) -> Start:
        """What the forward left."""
        start, released = Start(), self.released
        for number, storage in enumerate(footprints.start):
            start.nbytes.append(storage.nbytes)
            start.born_as.append(_SAVED if storage.keepers else _FORWARD)
            start.makers.append(storage.made_by)
            uses = 0
            if storage.held:
                uses = 1
                start.held.add(number)
                start.lasting.add(number)
            if storage.keepers:
                start.saved[number] = storage.keepers
            for task_id, slot in storage.keepers:
                if lasts_with_graph(slot):
                    start.lasting.add(number)
                    uses += 1
                    continue
                storages = released[task_id]
                if not storages:
                    released[task_id] = [number]
                elif storages[-1] != number:  # else it keeps it in several slots
                    storages.append(number)
                else:
                    continue
                uses += 1
            start.uses.append(uses or 1)  # if nobody is known to hold it, it stays
        return start

    def _root(self, number: int, layout: TensorLayout | None) -> int:
        """The tensor of a root's gradient, which the call of backward() holds until its end."""
        start, root = self.start, self._graph.roots[number]
        start.storage_of.append(OUTSIDE if layout is None else len(start.nbytes))
        if layout is not None:
            start.nbytes.append(layout.nbytes)
            start.born_as.append(_BUFFER)
            start.makers.append(Maker(None, None, None))
            start.uses.append(1)
        else:
            layout = assumed_layout(self._graph.tasks[root.task].inputs[root.input])
        start.layout_of.append(self.layouts.number(layout))
        start.counts.append(2)
        return len(start.counts) - 1


_COMPILED: WeakKeyDictionary[Footprints, Compiled] = WeakKeyDictionary()


def compiled(footprints: Footprints) -> Compiled:
    """The footprints, compiled; once, and kept as long as they are."""
    found = _COMPILED.get(footprints)
    if found is None:
        found = _COMPILED[footprints] = Compiled(footprints)
    return found


def compile_footprint(footprint: Footprint, layouts: Layouts) -> Program:
    """The program of a footprint. Layouts that are new get a number."""
    order = [block for block in footprint.trace if block >= 0]
    rank = {block: number for number, block in enumerate(order)}
    events = [rank[event] if event >= 0 else ~rank[~event] for event in footprint.trace]
    born_as = dict.fromkeys(order, _WORKSPACE)
    for output in footprint.outputs:
        if output is not None and output.origin == "block":
            born_as[output.number] = _BUFFER
    for block, task_id in footprint.kept:
        born_as[block] = _SAVED if task_id >= 0 else _HELD
    # What nobody is said to keep goes as the task's own call ends.
    dead = {~event for event in footprint.trace if event < 0}
    events.extend(~rank[block] for block in order if born_as[block] == _WORKSPACE and block not in dead)
    outputs = [output for output in footprint.outputs if output is not None]
    numbers = {output.number: number for number, output in enumerate(outputs)}
    others = footprint.kept or footprint.held_inputs or len(numbers) < len(outputs)
    more = None
    if others or any(output.origin != "block" or output.keeps_base or output.held for output in outputs):
        more = More(
            [None if output is None else _numbered(output, rank, layouts) for output in footprint.outputs],
            [(rank[block], task_id) for block, task_id in footprint.kept],
            footprint.held_inputs,
        )
        outputs = []
    return Program(
        events,
        nbytes=[footprint.blocks[block] for block in order],
        born_as=list(born_as.values()),
        uses=[int(more is None and category == _BUFFER) for category in born_as.values()],
        inputs=[-1 if layout is None else layouts.number(layout) for layout in footprint.inputs],
        blocks=[rank[output.number] for output in outputs],
        layouts=[layouts.number(output.layout) for output in outputs],
        counts=[1] * len(outputs),
        bases=[NO_TENSOR] * len(outputs),
        outputs=[-1 if output is None else numbers[output.number] for output in footprint.outputs],
        more=more,
    )


def _numbered(output: TaskOutput, rank: dict[int, int], layouts: Layouts) -> tuple[Origin, int, int, bool, bool]:
    number = rank[output.number] if output.origin == "block" else output.number
    return output.origin, number, layouts.number(output.layout), output.keeps_base, output.held
