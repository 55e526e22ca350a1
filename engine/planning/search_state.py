"""The memory state of a backward after some tasks, as a value, and the transition by one more task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..memory.compiled_footprints import (
    AS_IT_COMES,
    HAS_GRAD,
    NO_LEAF,
    NO_TENSOR,
    NOBODY,
    OUTSIDE,
    More,
    Program,
    compiled,
)
from .scheduling_problem import Problem

_FOR_GOOD = -1  # a set of all tasks, and of further ones that never run


@dataclass(slots=True)
class MemoryState:
    """The memory of a backward after some of its tasks. Immutable.

    Attributes:
        ran, ready: sets of tasks, as the bits of a number.
        level: bytes alive.
        waiting: for each input, the tensor in its buffer.
        stays: storages that are never freed and tensors (as negative numbers) that are never released, as long as other
            tensors are on their storage.
        holders: for each tensor the number of references, and for each storage the number of holders that are not
            tasks. None: not counted.
    """

    ran: int
    ready: int
    level: int
    waiting: dict[int, int]
    stays: frozenset[int]
    holders: tuple[dict[int, int], dict[int, int]] | None


class _Script(NamedTuple):
    """The effects of a task that are the same in every order.

    Attributes:
        first_block: the number of the first of its blocks.
        rise, change: bytes by which its blocks raise the level at most, and at the end.
        tensors: the tensors it makes, if `more` is None.
        gives: for each gradient, the input that receives it, or NOBODY, and its place in `tensors` or `more.outputs`.
    """

    first_block: int
    rise: int
    change: int
    tensors: list[int]
    gives: list[tuple[int, int]]
    more: More | None


class MemoryStates:
    """The states of a backward and the transitions between them, with the rules and levels of `simulate`.

    `simulate` identifies a tensor by its creation; here it is identified by its maker, independent of the order. If
    several gradients are summed in a buffer and nothing else holds the result, it is identified as their sum, because
    its block no longer matters. So states that differ only in their history are equal.

    Inputs are numbered as in `Compiled`. A task takes about ten microseconds, a state about a hundred bytes for each
    waiting gradient.
    """

    def __init__(self, problem: Problem) -> None:
        footprints = problem.footprints
        program = self._program = compiled(footprints)
        graph = self._graph = footprints.graph
        self._layouts = program.layouts
        self._tasks = problem.tasks
        self._nexts = problem.nexts
        self._awaits = [0] * len(problem.nexts)  # the predecessors of each task, as bits
        for task in problem.tasks:
            for later in problem.nexts[task]:
                self._awaits[later] |= 1 << task
        self._runs = set(problem.tasks)
        start = program.start
        self._layout_of = list(start.layout_of)
        self._storage_of = list(start.storage_of)
        self._base_of = [NO_TENSOR] * len(self._layout_of)
        self._nbytes = list(start.nbytes)
        self._numbers: dict[tuple[object, ...], int] = {}  # of tensors and blocks, by their maker
        self._sums: set[int] = set()  # tensors identified as sums
        self._keepers: dict[int, int] = {}  # for each storage, the tasks that hold it until they have run
        self._kept_by: list[list[int]] = [[] for _ in graph.tasks]
        for storage, saved in start.saved.items():
            keepers = {task for task, _ in saved}
            if storage not in start.lasting and not footprints.keep_graph and keepers <= self._runs:
                self._keep(storage, keepers)
            else:
                self._keepers[storage] = _FOR_GOOD
        takers = [-1] * program.first_input[0]
        for task, first in enumerate(program.first_input[:-1]):
            takers += [task] * (program.first_input[task + 1] - first)
        self._gives = [
            [place if place and takers[place] in self._runs else NOBODY for place in places]
            for places in program.receivers
        ]
        arrivals = Counter(place for task in self._tasks for place in self._gives[task])
        arrivals.update(self._root_inputs())
        self._summed = frozenset(place for place, count in arrivals.items() if count > 1)
        self._scripts = [
            self._script(task, does) if does is not None and task in self._runs else None
            for task, does in enumerate(program.programs)
        ]
        self._open = self._passed_on(takers)

    def _passed_on(self, takers: Sequence[int]) -> frozenset[int]:
        """Return the inputs whose tensor depends on the order: sums, and inputs that receive sums."""
        found = set(self._summed)
        stack = list(found)
        while stack:
            place = stack.pop()
            script = self._scripts[takers[place]]
            if script is None or script.more is None:
                continue
            passes: list[bool] = []
            for output in script.more.outputs:
                if output is None or output[0] == "block" or output[0] == "outside":
                    passes.append(False)
                elif output[0] == "input" or output[0] == "view":
                    passes.append(output[1] == place - self._program.first_input[takers[place]])
                else:
                    passes.append(passes[output[1]])
            for taker, number in script.gives:
                if taker and passes[number] and taker not in found:
                    found.add(taker)
                    stack.append(taker)
        return frozenset(found)

    def _root_inputs(self) -> Iterator[int]:
        for root in self._graph.roots:
            yield self._program.first_input[root.task] + root.input

    def _keep(self, storage: int, tasks: Iterable[int]) -> None:
        for task in tasks:
            keepers = self._keepers.get(storage, 0)
            if not keepers >> task & 1:
                self._keepers[storage] = keepers | 1 << task
                self._kept_by[task].append(storage)

    def _script(self, task: int, does: Program) -> _Script:
        first = len(self._nbytes)
        self._nbytes += does.nbytes
        change = rise = 0
        for event in does.events:
            change += does.nbytes[event] if event >= 0 else -does.nbytes[~event]
            rise = max(rise, change)
        tensors: list[int] = []
        numbers: Sequence[int] = does.outputs
        if does.more is None:
            made = zip(does.blocks, does.layouts, strict=True)
            tensors = [
                self._tensor((task, number), first + block, layout, NO_TENSOR)
                for number, (block, layout) in enumerate(made)
            ]
        else:
            numbers = range(len(does.more.outputs))
            for block, until in does.more.kept:
                if until in self._runs:  # a task that ran before frees it at once
                    self._keep(first + block, (task, until))
                else:
                    self._keepers[first + block] = _FOR_GOOD
        gives = [(place, number) for place, number in zip(self._gives[task], numbers, strict=False) if number >= 0]
        return _Script(first, rise, change, tensors, gives, does.more)

    def start(self) -> MemoryState:
        """Return the state before the first task."""
        ready = sum(1 << task for task in self._tasks if not self._awaits[task])
        nbytes = self._program.start.nbytes
        state = MemoryState(0, ready, sum(nbytes), {}, frozenset(), None)
        counts, uses = state.holders = self._count(state)
        for place, root in zip(self._root_inputs(), self._program.roots, strict=True):
            counts[root] += 1
            state.level += self._give(state.waiting, counts, uses, 0, place, root)[1]
        state.holders = None
        return state

    def run(self, state: MemoryState, task: int) -> tuple[MemoryState, int]:
        """Return the state after one more ready task, and the highest level within it, in bytes."""
        before, after = state.ran, state.ran | 1 << task
        counts, uses = map(dict.copy, state.holders or self._count(state))
        waiting = state.waiting.copy()
        level = highest = state.level
        storage_of, keepers, stays = self._storage_of, self._keepers, state.stays
        program, script = self._program, self._scripts[task]
        more = None if script is None else script.more
        first, end = program.first_input[task], program.first_input[task + 1]
        given = [waiting.pop(place, NO_TENSOR) for place in range(first, end)]
        if more is not None and more.held_inputs:
            stays |= {-given[number] for number in more.held_inputs if given[number]}
            for number in more.held_inputs:
                if given[number]:
                    counts[given[number]] += 1
        leaf = program.leaf_layouts[task]
        for tensor in given if leaf != NO_LEAF and leaf != HAS_GRAD else ():
            if not tensor:
                continue
            layout = self._layout_of[tensor]
            if leaf == AS_IT_COMES or (counts[tensor] == 1 and self._layouts.suits(layout, leaf)):
                storage = storage_of[tensor]
                if storage >= 0:
                    stays |= {storage}
                    uses[storage] += 1
            elif first not in program.elsewhere:
                level += self._layouts[layout].nbytes
                highest = level
        tensors: list[int] = []
        if script is not None:
            highest = max(highest, level + script.rise)
            level += script.change
            if more is None:
                tensors = script.tensors
                for tensor in tensors:
                    counts[tensor] = uses[storage_of[tensor]] = 1
            else:
                tensors, held = self._outputs(task, script.first_block, more, given, counts, uses)
                stays |= held
        for tensor in given:
            if tensor:
                level -= self._drop(counts, uses, before, tensor)
        for storage in self._kept_by[task]:
            if not keepers[storage] & ~after and not uses.get(storage):
                level -= self._nbytes[storage]
        if script is not None:
            risen, level = self._hand_out(script, tensors, waiting, counts, uses, after, level)
            highest = max(highest, risen)
        for place in self._summed & waiting.keys():
            if waiting[place] not in self._sums:
                self._rename(waiting, counts, uses, after, place)
        if stays:
            stays = frozenset(kept for kept in stays if self._in_play(counts, uses, kept))
        ready = state.ready ^ 1 << task
        for later in self._nexts[task]:
            if not self._awaits[later] & ~after:
                ready |= 1 << later
        return MemoryState(after, ready, level, waiting, stays, (counts, uses)), highest

    def _hand_out(
        self,
        script: _Script,
        tensors: list[int],
        waiting: dict[int, int],
        counts: dict[int, int],
        uses: dict[int, int],
        after: int,
        level: int,
    ) -> tuple[int, int]:
        """Pass on a task's gradients, and free tensors that no buffer keeps. Returns the highest and the last level."""
        highest = level
        spent = []
        for place, number in script.gives:
            tensor = tensors[number]
            if not tensor:
                continue
            kept = False
            if place:
                kept, grown, freed = self._give(waiting, counts, uses, after, place, tensor)
                if grown:
                    level += grown
                    highest = max(highest, level)
                    level -= freed
            if not kept:
                spent.append(tensor)
        for tensor in spent:
            level -= self._drop(counts, uses, after, tensor)
        return highest, level

    def key(self, state: MemoryState) -> object:
        """Return a key that is equal for states with the same future; nearly always one per set of tasks."""
        open_now = sorted(self._open & state.waiting.keys())
        return state.ran, state.level, state.stays, tuple([state.waiting[place] for place in open_now])

    def adds_in_place(self, state: MemoryState, place: int) -> bool:
        """Return whether the next gradient at this input needs no new block: it is the first, or is added in place."""
        counts, uses = state.holders or self._count(state)
        waits = state.waiting.get(place)
        return waits is None or self._in_place(counts, uses, state.ran, waits)

    def _in_place(self, counts: dict[int, int], uses: dict[int, int], ran: int, tensor: int) -> bool:
        storage = self._storage_of[tensor]
        alone = storage >= 0 and counts[tensor] == uses[storage] == 1 and not self._keepers.get(storage, 0) & ~ran
        return alone and self._layouts.dense[self._layout_of[tensor]]

    def _count(self, state: MemoryState) -> tuple[dict[int, int], dict[int, int]]:
        """Count references to tensors, and holders of storages other than tasks."""
        counts: dict[int, int] = dict.fromkeys(self._program.roots, 1)  # held by the call of backward()
        uses: dict[int, int] = {}
        for tensor in state.waiting.values():
            counts[tensor] = counts.get(tensor, 0) + 1
        for kept in state.stays:
            if kept < 0:
                counts[-kept] = counts.get(-kept, 0) + 1
            else:
                uses[kept] = 1
        for tensor in list(counts):
            while tensor:
                storage, base = self._storage_of[tensor], self._base_of[tensor]
                if storage >= 0:
                    uses[storage] = uses.get(storage, 0) + 1
                known = base in counts
                counts[base] = counts.get(base, 0) + 1
                tensor = NO_TENSOR if known else base
        return counts, uses

    def _tensor(self, name: tuple[object, ...], storage: int, layout: int, base: int) -> int:
        name = (*name, storage, layout, base)
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self._storage_of)
            self._storage_of.append(storage)
            self._layout_of.append(layout)
            self._base_of.append(base)
        return found

    def _sum(self, place: int, layout: int, beside: int = NO_TENSOR) -> int:
        """Return the tensor of a sum in this buffer, on a block other than that of another sum there."""
        nbytes = self._layouts.nbytes[layout]
        if not nbytes or place in self._program.elsewhere:
            return self._tensor(("sum", place), OUTSIDE, layout, NO_TENSOR)
        storage = self._block("block", place, nbytes)
        if storage == self._storage_of[beside]:
            storage = self._block("another block", place, nbytes)
        return self._tensor(("sum", place), storage, layout, NO_TENSOR)

    def _block(self, name: str, place: int, nbytes: int) -> int:
        number = self._numbers.setdefault((name, place, nbytes), len(self._nbytes))
        if number == len(self._nbytes):
            self._nbytes.append(nbytes)
        return number

    def _give(
        self, waiting: dict[int, int], counts: dict[int, int], uses: dict[int, int], ran: int, place: int, tensor: int
    ) -> tuple[bool, int, int]:
        """Pass on a gradient by the rules of `simulate`. Returns whether it is kept, and bytes allocated and freed."""
        waits = waiting.get(place)
        if waits is None:
            waiting[place] = tensor
            return True, 0, 0
        if self._in_place(counts, uses, ran, waits):
            return False, 0, 0
        total = self._sum(place, self._layouts.sum(self._layout_of[waits], self._layout_of[tensor]), waits)
        storage = self._storage_of[total]
        counts[total] = 1
        if storage >= 0:
            uses[storage] = 1
        waiting[place] = total
        return False, self._nbytes[storage] if storage >= 0 else 0, self._drop(counts, uses, ran, waits)

    def _drop(self, counts: dict[int, int], uses: dict[int, int], ran: int, tensor: int) -> int:
        """Drop a reference, and return the bytes that this frees."""
        freed = 0
        while tensor:
            counts[tensor] -= 1
            if counts[tensor]:
                break
            del counts[tensor]
            storage = self._storage_of[tensor]
            if storage >= 0:
                uses[storage] -= 1
                if not uses[storage]:
                    del uses[storage]
                    if not self._keepers.get(storage, 0) & ~ran:
                        freed += self._nbytes[storage]
            tensor = self._base_of[tensor]
        return freed

    def _outputs(
        self,
        task: int,
        first_block: int,
        more: More,
        given: list[int],
        counts: dict[int, int],
        uses: dict[int, int],
    ) -> tuple[list[int], set[int]]:
        """Return the outputs of a task, and count the references that hooks hold."""
        made: list[int] = []
        stays: set[int] = set()

        def new(name: tuple[object, ...], storage: int, layout: int, base: int) -> int:
            tensor = self._tensor(name, storage, layout, base)
            counts[tensor] = 1
            if storage >= 0:
                uses[storage] = uses.get(storage, 0) + 1
            if base:
                counts[base] = counts.get(base, 0) + 1
            return tensor

        for place, output in enumerate(more.outputs):
            if output is None:
                made.append(NO_TENSOR)
                continue
            origin, number, layout, keeps_base, held = output
            base = NO_TENSOR
            if origin == "block" or origin == "outside":
                storage = first_block + number if origin == "block" else OUTSIDE
                if keeps_base:
                    base = new((task, place, "base"), storage, layout, NO_TENSOR)
                    counts[base] = 0  # only its view holds it
                tensor = new((task, place), storage, layout, base)
            else:
                source = given[number] if origin == "input" or origin == "view" else made[number]
                if not source:
                    tensor = NO_TENSOR
                elif origin == "input" or origin == "output":
                    counts[source] += 1
                    tensor = source
                else:
                    base = (self._base_of[source] or source) if keeps_base else NO_TENSOR
                    tensor = new((task, place), self._storage_of[source], layout, base)
            if held and tensor:
                counts[tensor] += 1
                stays.add(-tensor)
            made.append(tensor)
        return made, stays

    def _rename(
        self, waiting: dict[int, int], counts: dict[int, int], uses: dict[int, int], ran: int, place: int
    ) -> None:
        """Identify the tensor in a buffer as its sum, if they are equivalent."""
        tensor = waiting[place]
        storage, layout = self._storage_of[tensor], self._layout_of[tensor]
        if self._in_place(counts, uses, ran, tensor) and self._nbytes[storage] == self._layouts.nbytes[layout]:
            del counts[tensor], uses[storage]
            total = waiting[place] = self._sum(place, layout)
            counts[total] = uses[self._storage_of[total]] = 1
            self._sums.add(total)

    def _in_play(self, counts: dict[int, int], uses: dict[int, int], kept: int) -> bool:
        """Return whether a permanent tensor still matters: it is in a buffer, or shares its storage."""
        if kept >= 0:
            return uses[kept] > 1
        storage = self._storage_of[-kept]
        return counts[-kept] > 1 or (storage >= 0 and uses[storage] > 1)
