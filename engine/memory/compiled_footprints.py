"""Footprints compiled for the simulation: flat lists of numbers, which it only copies and appends."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from ...inspector.graph.kinds import Kind
from ...inspector.graph.lru_cache import Latest
from ..execution.gradient_layouts import Layouts, TensorLayout
from .categories import Category
from .task_memory import Footprint, Footprints, Origin, TaskOutput
from .task_outputs import assumed_footprint, assumed_layout
from .timeline import Maker, Timeline, lasts_with_graph

# Storages, tensors, inputs and layouts are indices into flat lists; these constants stand for a missing one.
OUTSIDE = -1
"""In place of a storage whose bytes are not counted, such as one on another device. It counts as held by something
else, so gradients are never added to it in place."""

NO_TENSOR = 0
"""Stands for a missing gradient. It is false, and entry 0 of each list of facts is a placeholder."""

NOBODY = 0
"""Stands for the input that receives a gradient if no task does. It is false, as inputs count from 1."""

NO_LEAF, HAS_GRAD, AS_IT_COMES = -1, -2, -3
"""In place of the layout of a task's leaf: the task is not an AccumulateGrad; the gradient is added to an existing
.grad; the gradient becomes .grad in any layout (the argument of a tape)."""

NO_STORAGES: list[int] = []
"""The storages that most tasks release at their end: none. All share this list, and nothing writes to it."""

_MOST_EVENTS = 100_000  # of all cached timelines; an event takes up to 300 bytes
_LEAST_EVENTS = 10_000  # counted for each, which limits their number

_SAVED, _BUFFER, _FORWARD = int(Category.SAVED), int(Category.BUFFER), int(Category.FORWARD)
_HELD, _WORKSPACE = int(Category.HELD), int(Category.WORKSPACE)


class Program(NamedTuple):
    """A footprint in numbers, with blocks numbered in the order in which they are allocated.

    Attributes:
        events: allocations (`n`) and frees (`~n`) of the blocks.
        nbytes, born_as, uses: the size of each block, its category, and the number of tensors that first hold it.
        inputs: the expected layouts, -1 for none.
        blocks, layouts, counts, bases: for each new tensor its block, its layout, the number of references to it (1),
            and its base tensor (none).
        outputs: the new tensor that each output is; -1 for none.
        more: replaces the last five if some outputs are not new tensors or the task keeps more.
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
    """For each output its origin, number and layout, whether it keeps its base, and whether a hook holds it."""

    outputs: list[tuple[Origin, int, int, bool, bool] | None]
    kept: list[tuple[int, int]]
    held_inputs: tuple[int, ...]


@dataclass(slots=True)
class Start:
    """The storages and tensors alive at the start of the backward, one list per fact; tensor 0 is NO_TENSOR."""

    nbytes: list[int] = field(default_factory=list)
    born_as: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)  # the number of tensors, nodes and others that hold each storage
    makers: list[Maker] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # storages that something else holds
    lasting: set[int] = field(default_factory=set)  # storages that no task frees: those held, and the graph's
    saved: dict[int, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    storage_of: list[int] = field(default_factory=lambda: [OUTSIDE])
    layout_of: list[int] = field(default_factory=lambda: [-1])
    counts: list[int] = field(default_factory=lambda: [0])  # the number of references to each tensor


class Compiled:
    """The inputs of a simulation that are the same in every order. Inputs of all tasks are numbered through, from 1.

    Attributes:
        layouts: the numbers of the layouts; sums of gradients in some order may add more.
        programs: by task; None for a leaf if the engine's rules determine it fully. Equal footprints share one.
        unknown: the tasks whose footprints are assumed.
        first_input: the number of each task's first input, followed by the end of the last task's inputs.
        receivers: for each task and output, the number of the input that receives it.
        elsewhere: the inputs on another device, whose memory is not counted.
        input_layouts: for a tape's graph, the layout of each input as a new array.
        edges: the tasks where the edges start, and those where they end.
        leaf_layouts: the layout of each task's leaf; NO_LEAF; HAS_GRAD if its gradient is added to a .grad; or
            AS_IT_COMES if it accepts any layout: the argument of a tape, which may be a container of arrays.
        start: the storages alive at the start.
        roots: the tensors from which the backward starts.
        released: the storages that each task's node releases at its end.
        keeps: whether tasks keep blocks until others have run.
        timelines: the latest predictions, by order, whether the graph is kept, and rule of accumulation.
    """

    def __init__(self, footprints: Footprints) -> None:
        graph = self._graph = footprints.graph
        self.timelines: Latest[Timeline] = Latest(_MOST_EVENTS, lambda found: max(len(found.events), _LEAST_EVENTS))
        self.layouts = Layouts()
        device = torch.device(footprints.device)
        first = self.first_input = list(accumulate([len(task.inputs) for task in graph.tasks], initial=1))
        self.elsewhere: set[int] = set()
        if {meta.device for task in graph.tasks for meta in task.inputs} != {device}:
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
        is_tape, leaf_kind = graph.is_tape, Kind.ACCUMULATE_GRAD
        self.leaf_layouts = [NO_LEAF] * len(graph)
        for task in graph.tasks:
            if task.kind is leaf_kind:
                leaf = footprints.leaves.get(task.id)
                layout = assumed_layout(task.inputs[0]) if leaf is None else leaf.layout
                has_grad = leaf is not None and leaf.keeps_none
                number = HAS_GRAD if has_grad else self.layouts.number(layout)
                self.leaf_layouts[task.id] = AS_IT_COMES if is_tape else number
        self.input_layouts = {
            place: self.layouts.number(assumed_layout(meta))
            for task in (graph.tasks if is_tape else ())
            for place, meta in enumerate(task.inputs, first[task.id])
        }
        self.unknown: list[int] = []
        self.programs = self._compile(footprints.tasks)
        self.keeps = any(program is not None and program.more and program.more.kept for program in self.programs)
        self.released: list[list[int]] = [NO_STORAGES] * len(graph)
        self.start = self._start(footprints)
        self.roots = [self._root(number, layout) for number, layout in enumerate(footprints.roots)]

    def _compile(self, footprints: tuple[Footprint | None, ...]) -> list[Program | None]:
        known: dict[int, Program] = {}  # by the id() of objects that the footprints keep alive
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
                if unread := len(program.outputs) - len(places):
                    places.extend([NOBODY] * unread)
        return programs

    def _start(self, footprints: Footprints) -> Start:
        """Return the storages that the forward left."""
        start, released, storages_left = Start(), self.released, footprints.start
        start.nbytes = [storage.nbytes for storage in storages_left]
        start.born_as = [_SAVED if storage.keepers else _FORWARD for storage in storages_left]
        start.makers = [storage.made_by for storage in storages_left]
        lasts = cache(lasts_with_graph)  # few slots have distinct names
        for number, storage in enumerate(storages_left):
            uses = 0
            if storage.held:
                uses = 1
                start.held.add(number)
                start.lasting.add(number)
            if keepers := storage.keepers:
                start.saved[number] = keepers
            for task_id, slot in keepers:
                if lasts(slot):
                    start.lasting.add(number)
                    uses += 1
                    continue
                storages = released[task_id]
                if not storages:
                    released[task_id] = [number]
                elif storages[-1] != number:  # one node may keep it in several slots
                    storages.append(number)
                else:
                    continue
                uses += 1
            start.uses.append(uses or 1)  # without a known holder it is never freed
        return start

    def _root(self, number: int, layout: TensorLayout | None) -> int:
        """Return the tensor of a root's gradient, which the call of backward() holds until it returns."""
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
    """Return the footprints compiled; cached as long as they live."""
    found = _COMPILED.get(footprints)
    if found is None:
        found = _COMPILED[footprints] = Compiled(footprints)
    return found


def compile_footprint(footprint: Footprint, layouts: Layouts) -> Program:
    """Compile a footprint. New layouts get a number."""
    order = [block for block in footprint.trace if block >= 0]
    rank = {block: number for number, block in enumerate(order)}
    events = [rank[event] if event >= 0 else ~rank[~event] for event in footprint.trace]
    born_as = dict.fromkeys(order, _WORKSPACE)
    for output in footprint.outputs:
        if output is not None and output.origin == "block":
            born_as[output.number] = _BUFFER
    for block, task_id in footprint.kept:
        born_as[block] = _SAVED if task_id >= 0 else _HELD
    # A block that nothing is known to keep is freed when the task's own call returns.
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
