"""Find tasks that can swap places without changing the memory of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product

from ..memory.compiled_footprints import AS_IT_COMES, HAS_GRAD, NO_LEAF, NOBODY, compiled
from ..memory.task_memory import TaskOutput
from ..memory.task_outputs import assumed_footprint
from .scheduling_problem import Problem

_MOST_FORMS = 4  # if more forms arrive at one input, its tasks are assumed not to commute

_Form = tuple[int, bool]
"""The form of a gradient: the number of its layout, and whether it fills its block."""

_Origin = int | tuple[str, int]
"""The origin of a tensor or block: an input of the task, or the task itself."""


class Commuting:
    """Finds tasks whose order has lasting effects: on which block a sum is, and whether a gradient or a copy is .grad.

    As long as gradients fill their blocks, and gradients that are summed have the same layout, there are no such
    effects: the bytes alive after a set of tasks do not depend on their order. This is different if a gradient is part
    of a larger block, or expanded from a smaller one. If it is added to in place or stolen, it keeps that block;
    otherwise it is copied. Which of these happens depends on which others hold the block and which gradient arrives
    first. The affected tasks are found from the footprints alone, conservatively.

    Attributes:
        tame: for each task, whether it is not affected.
        ends_alike: whether the affected tasks leave the same memory after they have run, in any order.
        rivals: for each task, the inputs it adds to, each with the other tasks (as bits) that add to it and may run
            before or after this one; only inputs with such tasks.
        loose: the inputs that may get a gradient that others also hold, or that cannot be added to in place.
    """

    def __init__(self, problem: Problem) -> None:
        footprints = self._footprints = problem.footprints
        program = self._program = compiled(footprints)
        first = self._first = program.first_input
        self._layouts = program.layouts
        runs = frozenset(problem.tasks)
        order, before, after = _in_order(problem)
        takers = [task for task in range(len(footprints.graph)) for _ in range(first[task], first[task + 1])]
        self._gives = [
            [place if place and takers[place - first[0]] in runs else NOBODY for place in places]
            for places in program.receivers
        ]
        self._arrivals: dict[int, list[set[_Form]]] = defaultdict(list)
        self._forms: dict[int, set[_Form]] = defaultdict(set)
        self._givers: dict[int, list[int]] = defaultdict(list)
        self._wild: set[int] = set()  # inputs
        self.loose: set[int] = set()
        for root, tensor in zip(footprints.graph.roots, program.roots, strict=True):
            place = first[root.task] + root.input
            self._givers[place].append(-1)
            self.loose.add(place)  # the caller holds it
            storage, layout = program.start.storage_of[tensor], program.start.layout_of[tensor]
            fills_block = storage >= 0 and program.start.nbytes[storage] == self._layouts.nbytes[layout]
            self._arrivals[place].append({(layout, fills_block)})
        for task in order:
            for place in filter(None, self._gives[task]):
                self._givers[place].append(task)
        self.rivals: list[list[tuple[int, int]]] = [[] for _ in before]
        for place, givers in self._givers.items():
            everyone = sum({1 << task for task in givers if task >= 0})
            for task in set(givers) - {-1}:
                others = everyone & ~(before[task] | after[task] | 1 << task)
                if others:
                    self.rivals[task].append((place, others))
        contested = {place for rivals in self.rivals for place, _ in rivals}
        self._blocks, self._tensors = _Partition(), _Partition()  # of inputs whose gradients may share memory
        for task in order:
            for place in range(first[task], first[task + 1]):
                self._meet(place, place in contested)
            self._give(task)
        for task in order:
            leaf = program.leaf_layouts[task]
            if leaf not in (NO_LEAF, HAS_GRAD, AS_IT_COMES) and self._tensors.shared(first[task]):
                for layout, fills_block in self._forms[first[task]]:
                    if not fills_block and self._layouts.suits(layout, leaf):
                        self._wild.add(first[task])
        wild = set(map(self._blocks.find, self._wild))
        self.tame = [
            wild.isdisjoint(map(self._blocks.find, [*range(first[task], first[task + 1]), *filter(None, gives)]))
            for task, gives in enumerate(self._gives)
        ]
        self.ends_alike = not any(self._leaves_behind(task) for task in order if not self.tame[task])

    def _meet(self, place: int, contested: bool) -> None:
        """Decide whether the order of the gradients that arrive at an input matters, and the forms of their sums."""
        arrivals, layouts = self._arrivals[place], self._layouts
        forms = self._forms[place] = set[_Form]().union(*arrivals)
        if len(arrivals) < 2:
            return
        if len(forms) > _MOST_FORMS:
            self._wild.add(place)
            return
        firsts = forms if contested else arrivals[0]  # otherwise the first one is known
        added = forms if contested else set[_Form]().union(*arrivals[1:])
        sums = {layouts.sum(first, other) for (first, _), (other, _) in product(firsts, added)}
        kept = {
            (layout, fills_block) for layout, fills_block in firsts if layouts.dense[layout]
        }  # if nothing else holds them
        ends = sums | {layout for layout, _ in kept}
        partial = not all(fills_block for _, fills_block in kept)
        if contested:  # two that cannot be added to in place need one new block, one of them none
            loose = [place for place in arrivals if any(not layouts.dense[layout] for layout, _ in place)]
            partial = partial or len(loose) > 1
        differ = len({layouts.nbytes[layout] for layout, _ in forms}) > 1 or not all(layouts.dense[sum] for sum in sums)
        differ = differ or (len(ends) > 1 and self._layout_matters(place))
        if (partial or differ) and (contested or self._blocks.shared(place)):
            self._wild.add(place)
        self._forms[place] = kept | {(layout, True) for layout in sums}

    def _leaves_behind(self, task: int) -> bool:
        """Return whether a gradient that the task gets may stay alive."""
        footprint = self._footprints.tasks[task]
        held = footprint is not None and (
            footprint.held_inputs or any(each and each.held for each in footprint.outputs)
        )
        return bool(held) or self._program.leaf_layouts[task] not in (NO_LEAF, HAS_GRAD)

    def _layout_matters(self, place: int) -> bool:
        """Return whether the task that reads it depends on its layout, or returns the same tensor."""
        task = bisect_right(self._first, place) - 1
        footprint = self._footprints.tasks[task]
        if self._program.leaf_layouts[task] != NO_LEAF:
            return self._program.leaf_layouts[task] != HAS_GRAD
        number = place - self._first[task]
        return footprint is not None and any(
            output is not None and output.origin == "input" and output.number == number for output in footprint.outputs
        )

    def _give(self, task: int) -> None:
        """Derive the outputs of a task from its inputs, as far as these are known."""
        graph, gives = self._footprints.graph, self._gives[task]
        footprint = self._footprints.tasks[task]
        if footprint is None:
            if self._program.leaf_layouts[task] != NO_LEAF:
                return
            footprint = assumed_footprint(graph, task)
        kept = {("block", block) for block, _ in footprint.kept}
        shares = Counter(
            output.number for output in footprint.outputs if output is not None and output.origin == "block"
        )
        passed = {output.number for output in footprint.outputs if output is not None and "output" in output.origin}
        known: list[tuple[_Origin, _Origin, set[_Form]]] = []
        taken: dict[_Origin, int] = {}
        for number, output in enumerate(footprint.outputs):
            if output is None:
                known.append((("nothing", number), ("nothing", number), set()))
                continue
            known.append(self._output(task, number, output, footprint.blocks, known))
            block, tensor, forms = known[-1]
            place = gives[number] if number < len(gives) else NOBODY
            if not place:
                continue
            self._arrivals[place].append(forms)
            own = output.origin == "block" and shares[output.number] == 1 and number not in passed and block not in kept
            if not own or output.keeps_base or output.held or not output.layout.dense:
                self.loose.add(place)
            if block in kept:
                self._wild.add(place)  # its block is held until an unrelated task has run
            for partition, origin in ((self._blocks, block), (self._tensors, tensor)):
                partition.join(origin if isinstance(origin, int) else taken.setdefault(origin, place), place)

    def _output(
        self,
        task: int,
        number: int,
        output: TaskOutput,
        blocks: Sequence[int],
        known: Sequence[tuple[_Origin, _Origin, set[_Form]]],
    ) -> tuple[_Origin, _Origin, set[_Form]]:
        """Return an output's block, its tensor, and its forms."""
        layout, own = self._layouts.number(output.layout), ("tensor", number)
        if output.origin == "block":
            return ("block", output.number), own, {(layout, blocks[output.number] == output.layout.nbytes)}
        if output.origin == "outside":
            return ("outside", number), own, {(layout, False)}
        if output.origin == "input" or output.origin == "view":
            place = self._first[task] + output.number
            source: tuple[_Origin, _Origin, set[_Form]] = place, place, self._forms[place]
        else:
            source = known[output.number]
        if output.origin == "input" or output.origin == "output":
            return source
        nbytes = self._layouts.nbytes
        return (
            source[0],
            own,
            {(layout, fills_block and nbytes[viewed] == nbytes[layout]) for viewed, fills_block in source[2]},
        )


class _Partition:
    """Disjoint sets of numbers, which can be joined."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, number: int) -> int:
        """Return the representative of a number's set."""
        parents = self._parents
        root = number
        while (parent := parents.get(root, root)) != root:
            root = parent
        while number != root:
            parents[number], number = root, parents.get(number, root)
        return root

    def join(self, one: int, other: int) -> None:
        if one != other:
            one, other = self.find(one), self.find(other)
            self._parents[other] = self._parents[one] = one

    def shared(self, number: int) -> bool:
        """Return whether the number's set has other members."""
        return number in self._parents


def _in_order(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """Return a legal order, and for each task the sets of its ancestors and descendants."""
    before, after, missing = [0] * len(problem.nexts), [0] * len(problem.nexts), list(problem.waits)
    order = [task for task in problem.tasks if not missing[task]]
    for task in order:
        for later in problem.nexts[task]:
            before[later] |= before[task] | 1 << task
            missing[later] -= 1
            if not missing[later]:
                order.append(later)
    for task in reversed(order):
        for later in problem.nexts[task]:
            after[task] |= after[later] | 1 << later
    return order, before, after
