"""Memory that is alive in every legal order of a backward: the basis of a lower bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..execution.gradient_layouts import copy_for
from ..memory.categories import Category
from ..memory.compiled_footprints import AS_IT_COMES, HAS_GRAD, NO_LEAF, NOBODY, Compiled, Program, compiled
from .scheduling_problem import Problem

_BUFFER, _HELD, _WORKSPACE = int(Category.BUFFER), int(Category.HELD), int(Category.WORKSPACE)
UNCOUNTED = -1  # in place of a block's number: memory from before the backward, or on another device
CALLER = -1  # in place of a task: the gradient is passed by the caller of backward()
_UNKNOWN = -1  # in place of a layout's number


@dataclass(slots=True)
class CertainBlock:
    """A block of memory, and the part of its lifetime that is the same in every order.

    The block is alive from the first of its makers until the last of its users has ended, and longer as given by
    `stays` and `held_after`.

    Attributes:
        nbytes: its size; for a sum, the smallest size possible.
        makers: the tasks that allocate it; empty if it exists from the start; for a sum see `Sum`.
        users: the tasks that read it or keep it.
        passers: tasks that return it again, so that it is still alive when their outputs arrive.
        stays: whether it is never freed.
        held_after: tasks whose hooks hold it after they have run.
        grad_bytes: bytes that stay as a .grad, either this block or a copy of it.
    """

    nbytes: int
    makers: tuple[int, ...]
    users: list[int] = field(default_factory=list)
    passers: list[int] = field(default_factory=list)
    stays: bool = False
    held_after: list[int] = field(default_factory=list)
    grad_bytes: int = 0


class Arrival(NamedTuple):
    """A gradient that arrives at an input where several are summed.

    Attributes:
        task: the task that returns it.
        block: the number of its block.
        alone: whether the next gradient may be added to it in place if it arrives first.
        only_here: whether no other arriving gradient shares its block.
    """

    task: int
    block: int
    alone: bool
    only_here: bool


class Sum(NamedTuple):
    """An input of a task at which several gradients are summed.

    Attributes:
        task: the task.
        block: the number of the sum's block.
        nbytes: the smallest size of a sum in a separate block.
        arrivals: the gradients.
    """

    task: int
    block: int
    nbytes: int
    arrivals: tuple[Arrival, ...]


@dataclass(slots=True)
class CertainMemory:
    """The memory of a backward that is the same in every order.

    Attributes:
        needs: for each task, the bytes by which the level rises within it, at least.
        keeps: for each task, the bytes it allocated that are alive when its outputs arrive at the next tasks, at least.
        blocks: the blocks by number; the blocks summed in a sum have lower numbers than the sum.
        sums: the sums by the number of their block.
    """

    needs: list[int]
    keeps: list[int]
    blocks: list[CertainBlock] = field(default_factory=list)
    sums: dict[int, Sum] = field(default_factory=dict)


class _Tensor(NamedTuple):
    """A gradient: its block, the bytes of a copy, its layout's number, and whether it may be added to in place."""

    block: int
    nbytes: int
    layout: int
    alone: bool


class CertainMemoryReader:
    """Follows each block from task to task, by the rules of `simulate`.

    These rules hold in any order:
    * A task's footprint gives its allocations, and which of its outputs are new blocks, views, or its own inputs.
    * A single gradient at an input waits there until the task has run. So a block is alive from the end of its maker
      until every task that receives it, directly or through another task, has ended.
    * If several gradients arrive at an input, the second one makes a sum: in place if nothing else holds the block,
      else in a new block. Either way nothing else holds the sum's block, so it counts in addition to all others.
    * A saved block is freed with the last task that keeps it.
    * A gradient that arrives at a leaf stays: it, or a copy, becomes the .grad.
    """

    def __init__(self, problem: Problem) -> None:
        footprints = problem.footprints
        self._graph = problem.graph
        self._program: Compiled = compiled(footprints)
        self._keep_graph = footprints.keep_graph
        self._runs = bytearray(len(self._graph))
        for task in problem.tasks:
            self._runs[task] = 1
        count = self._program.first_input[-1]
        self._arrivals: list[list[tuple[int, _Tensor]]] = [[] for _ in range(count)]
        self._content: list[_Tensor | None] = [None] * count
        self._found = CertainMemory([0] * len(self._graph), [0] * len(self._graph))
        self._ends: list[int] = []  # by block, the number of gradients on it that have arrived at their last input
        self._taker = [NOBODY]  # by input, its task
        for taker in self._graph.tasks:
            self._taker += [taker.id] * len(taker.inputs)
        self._given_to: list[tuple[Sum, list[tuple[int, _Tensor]]]] = []

    def read(self, order: list[int]) -> CertainMemory:
        """Return the certain memory, found along any legal order. O(tasks + edges + storages)."""
        self._start()
        for task in order:
            self._take(task)
            self._give(task)
        for found, arrivals in self._given_to:
            marked = []
            for giver, tensor in arrivals:
                only_here = tensor.block != UNCOUNTED and self._ends[tensor.block] == 1
                # An expanded gradient is smaller than a sum with it, so it must not stand for one.
                only_here = only_here and self._found.blocks[tensor.block].nbytes >= tensor.nbytes
                marked.append(Arrival(giver, tensor.block, tensor.alone, only_here))
            self._found.sums[found.block] = found._replace(arrivals=tuple(marked))
        return self._found

    def _new(self, nbytes: int, makers: tuple[int, ...], *, stays: bool = False) -> int:
        self._found.blocks.append(CertainBlock(nbytes, makers, stays=stays))
        self._ends.append(0)
        return len(self._ends) - 1

    def _start(self) -> None:
        start, program, runs = self._program.start, self._program, self._runs
        keepers: list[list[int]] = [[] for _ in start.nbytes]
        for task, storages in enumerate(program.released):
            for storage in storages:
                keepers[storage].append(task)
        for storage, nbytes in enumerate(start.nbytes):
            tasks = keepers[storage]
            goes = tasks and storage not in start.lasting and not self._keep_graph and all(runs[task] for task in tasks)
            block = self._new(nbytes, (), stays=not goes)  # a root's gradient has no keepers: the caller holds it
            self._found.blocks[block].users = tasks
            self._ends[block] = 2  # so that no sum treats it as its own
        for root, tensor in zip(self._graph.roots, program.roots, strict=True):
            layout = start.layout_of[tensor]
            given = _Tensor(start.storage_of[tensor], program.layouts.nbytes[layout], layout, alone=False)
            self._arrivals[program.first_input[root.task] + root.input].append((CALLER, given))

    def _take(self, task: int) -> None:
        """Process a task whose inputs have all arrived: its inputs, allocations and held tensors."""
        program, blocks = self._program, self._found.blocks
        first, end = program.first_input[task], program.first_input[task + 1]
        for place in range(first, end):
            arrivals = self._arrivals[place]
            if len(arrivals) == 1:
                self._content[place] = arrivals[0][1]
            elif arrivals:
                self._content[place] = self._sum(task, place, arrivals)
            content = self._content[place]
            if content is not None and content.block != UNCOUNTED:
                blocks[content.block].users.append(task)
        does = program.programs[task]
        copied = 0
        if program.leaf_layouts[task] != NO_LEAF:
            copied = sum(self._accumulate_grad(task, place) for place in range(first, end))
        if does is None:
            self._found.needs[task] = self._found.keeps[task] = copied
            return
        level = highest = copied
        for event in does.events:
            level += does.nbytes[event] if event >= 0 else -does.nbytes[~event]
            highest = max(highest, level)
        self._found.needs[task] = highest
        # Excludes memory kept until another task has run: that task may have run before.
        self._found.keeps[task] = copied + sum(
            nbytes for nbytes, category in zip(does.nbytes, does.born_as, strict=True) if category in (_BUFFER, _HELD)
        )
        for number in () if does.more is None else does.more.held_inputs:
            content = self._content[first + number]
            if content is not None and content.block != UNCOUNTED:
                blocks[content.block].held_after.append(task)
                self._ends[content.block] += 2

    def _sum(self, task: int, place: int, arrivals: list[tuple[int, _Tensor]]) -> _Tensor:
        """Return the content of an input after all gradients have arrived."""
        blocks, layouts = self._found.blocks, self._program.layouts
        nbytes = 0 if place in self._program.elsewhere else min(tensor.nbytes for _, tensor in arrivals)
        if not nbytes:
            return _Tensor(UNCOUNTED, nbytes, _UNKNOWN, alone=True)
        least = min([nbytes, *(blocks[tensor.block].nbytes for _, tensor in arrivals if tensor.alone)])
        block = self._new(least, ())
        self._given_to.append((Sum(task, block, nbytes, ()), arrivals))
        for giver, tensor in arrivals:
            if tensor.block != UNCOUNTED:
                self._ends[tensor.block] += 1
                if giver != CALLER:
                    blocks[tensor.block].passers.append(giver)
        found = {tensor.layout for _, tensor in arrivals}
        layout = found.pop() if len(found) == 1 else _UNKNOWN
        if layout != _UNKNOWN and layouts.sum(layout, layout) != layout:
            layout = _UNKNOWN
        return _Tensor(block, nbytes, layout, alone=True)

    def _accumulate_grad(self, task: int, place: int) -> int:
        """Process the gradient of a leaf. Returns the bytes of its copy, if it is copied in every order."""
        leaf, content = self._program.leaf_layouts[task], self._content[place]
        if content is None or leaf == HAS_GRAD:
            return 0
        layouts = self._program.layouts
        if leaf != AS_IT_COMES and content.layout != _UNKNOWN and not layouts.suits(content.layout, leaf):
            copy = copy_for(layouts[content.layout], layouts[leaf])
            nbytes = 0 if place in self._program.elsewhere else copy.nbytes
            self._new(nbytes, (task,), stays=True)
            return nbytes
        if content.block != UNCOUNTED and place not in self._program.elsewhere:
            block = self._found.blocks[content.block]
            block.grad_bytes = max(block.grad_bytes, min(block.nbytes, content.nbytes))
        return 0

    def _give(self, task: int) -> None:
        """Send the outputs of a task to their next inputs."""
        blocks, first = self._found.blocks, self._program.first_input
        passed = set()
        does = self._program.programs[task]
        if does is not None:
            made = [
                UNCOUNTED if category == _WORKSPACE else self._new(nbytes, (task,))
                for nbytes, category in zip(does.nbytes, does.born_as, strict=True)
            ]
            for place, tensor in zip(self._program.receivers[task], self._outputs(task, does, made), strict=False):
                if tensor is not None and place != NOBODY and self._runs[self._taker[place]]:
                    self._arrivals[place].append((task, tensor))
                    passed.add(tensor.block)
            for number, until in () if does.more is None else does.more.kept:
                if until >= 0 and self._runs[until]:
                    blocks[made[number]].users.append(until)
                else:
                    blocks[made[number]].stays = True
                self._ends[made[number]] += 2
        for place in range(first[task], first[task + 1]):
            content = self._content[place]
            if content is not None and content.block != UNCOUNTED and content.block not in passed:
                self._ends[content.block] += 1

    def _outputs(self, task: int, does: Program, made: list[int]) -> list[_Tensor | None]:
        """Return the tensor of each output by the rules of `simulate`; None for no gradient."""
        layouts, first = self._program.layouts, self._program.first_input[task]
        if does.more is None:
            tensors = [
                _Tensor(made[block], layouts.nbytes[layout], layout, layouts.dense[layout])
                for block, layout in zip(does.blocks, does.layouts, strict=True)
            ]
            return [None if number < 0 else tensors[number] for number in does.outputs]
        found: list[_Tensor | None] = []
        for output in does.more.outputs:
            if output is None:
                found.append(None)
                continue
            origin, number, layout, keeps_base, held = output
            tensor: _Tensor | None
            block = UNCOUNTED
            if origin == "input" or origin == "output":
                tensor = self._content[first + number] if origin == "input" else found[number]
            else:
                if origin == "block":
                    block = made[number]
                elif origin != "outside":
                    source = self._content[first + number] if origin == "view" else found[number]
                    if source is None:
                        found.append(None)
                        continue
                    block = source.block
                # A view keeps its base, which also holds the block.
                alone = block != UNCOUNTED and not keeps_base and layouts.dense[layout]
                tensor = _Tensor(block, layouts.nbytes[layout], layout, alone)
            if held and tensor is not None and tensor.block != UNCOUNTED:
                self._found.blocks[tensor.block].held_after.append(task)
                self._ends[tensor.block] += 2
            found.append(tensor)
        return found
