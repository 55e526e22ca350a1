"""Prediction of a backward's memory in any order: a replay of the engine's reference counts on tasks' footprints."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph
from ...inspector.graph.lru_cache import LongKey
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.gradient_layouts import copy_for
from ..schedule.greedy_order import legal_order
from .categories import Category
from .category_levels import with_names
from .compiled_footprints import (
    AS_IT_COMES,
    HAS_GRAD,
    NO_LEAF,
    NO_STORAGES,
    NO_TENSOR,
    NOBODY,
    OUTSIDE,
    Compiled,
    More,
    compiled,
)
from .estimates import OF_SHAPES, Direction, Estimate
from .task_memory import Footprints
from .timeline import Listed, Timeline

_BUFFER, _GRADIENT = int(Category.BUFFER), int(Category.GRADIENT)


def simulated(
    graph: Graph,
    order: Sequence[int],
    footprints: Footprints,
    keep_graph: bool | None = None,
    accumulation: Accumulation = PYTORCHS,
) -> Timeline:
    """Predict the memory of a backward in one order; the latest predictions for the footprints' own graph are cached.

    Args:
        graph: the graph of the footprints, or one of the same forward.
        order: the ids of the tasks. It may skip the tasks that a backward with `inputs=` skips.
        footprints: the footprints of the tasks.
        keep_graph: whether no saved tensor is freed; None for the value in the footprints.
        accumulation: the rule by which gradients are summed.

    Raises:
        ValueError: If the order is not legal.
        TypeError: If an id in it is not an integer.
    """
    with collector_paused():
        program = compiled(footprints)
        order = legal_order(graph, order, program.edges)
        keep = footprints.keep_graph if keep_graph is None else keep_graph

        def run() -> Timeline:
            if accumulation != PYTORCHS:
                return _OtherRule(graph, footprints, program, keep, accumulation).run(order)
            of_tape = graph.is_tape and OF_SHAPES not in footprints.limits
            return (_OfTape if of_tape else _Simulation)(graph, footprints, program, keep).run(order)

        if graph is not footprints.graph:
            return run()
        return program.timelines.of(LongKey(order, keep, accumulation), run)


class _Simulation:
    """A backward, replayed on numbers.

    Storages are numbered from 0, tensors from 1, with one list per fact about them. `waiting` has the tensors in the
    input buffers.
    """

    accumulation = PYTORCHS
    _begin: Callable[[int, list[int]], None] | None = None  # called with a task and its inputs before it runs

    def __init__(self, graph: Graph, footprints: Footprints, program: Compiled, keep_graph: bool) -> None:
        self._graph = graph
        self._footprints = footprints
        self._program = program
        self._layouts = program.layouts
        start = program.start
        self._nbytes = start.nbytes.copy()
        self._born_as = start.born_as.copy()
        self._uses = start.uses.copy()
        self._held = start.held.copy()
        self._storage_of = start.storage_of.copy()
        self._layout_of = start.layout_of.copy()
        self._counts = start.counts.copy()
        self._base_of = [NO_TENSOR] * len(self._counts)  # the base of each tensor that is a view
        self._waiting = [NO_TENSOR] * program.first_input[-1]
        self._released = program.released
        self._freed_unseen = footprints.keep_graph and not keep_graph
        if keep_graph:
            self._released = [NO_STORAGES] * len(graph)
        elif program.keeps:
            self._released = program.released.copy()
        self._events: list[int] = []
        self._changes: list[tuple[int, int, Category]] = []
        self._grads: dict[int, int] = {}
        self._hooked: set[int] = set()  # tensors that hooks hold
        # HIPS autograd adds in place only to these. If only shapes are known, planners use PyTorch's rule.
        self._sums: set[int] | None = set() if graph.is_tape and OF_SHAPES not in footprints.limits else None
        self._drifted: list[int] = []
        self._drifted_bytes = 0
        self._unknown: list[int] = []
        self._too_late: list[int] = []
        self._partly: list[int] = []
        self._place_of: dict[int, int] = {}
        self._listed: list[Listed] = []

    def _new_tensor(self, storage: int, layout: int, base: int = NO_TENSOR) -> int:
        self._storage_of.append(storage)
        self._layout_of.append(layout)
        self._base_of.append(base)
        self._counts.append(1)
        if storage >= 0:
            self._uses[storage] += 1
        if base:
            self._counts[base] += 1
        return len(self._storage_of) - 1

    def _allocate(self, layout: int, category: int, place: int) -> int:
        """Return a new tensor on a new block, for this place in `waiting`."""
        nbytes = self._layouts.nbytes[layout]
        if not nbytes or place in self._program.elsewhere:
            return self._new_tensor(OUTSIDE, layout)
        storage = len(self._nbytes)
        self._nbytes.append(nbytes)
        self._born_as.append(category)
        self._uses.append(0)
        self._events.append(storage)
        return self._new_tensor(storage, layout)

    def _drop(self, tensor: int) -> None:
        """Drop a reference to a tensor. Dropping the last one also drops a reference to its base."""
        while tensor:
            self._counts[tensor] -= 1
            if self._counts[tensor]:
                if self._counts[tensor] == 1 and tensor in self._hooked and self._storage_of[tensor] >= 0:
                    self._changes.append((len(self._events), self._storage_of[tensor], Category.HELD))
                return
            self._release(self._storage_of[tensor])
            tensor = self._base_of[tensor]

    def _release(self, storage: int) -> None:
        """Drop a tensor's or node's hold on a storage."""
        if storage < 0:
            return
        self._uses[storage] -= 1
        if not self._uses[storage]:
            self._events.append(~storage)
        elif self._uses[storage] == 1 and storage < len(self._program.start.nbytes) and storage in self._held:
            self._changes.append((len(self._events), storage, Category.FORWARD))  # no node keeps it any more

    def _hold(self, tensor: int) -> None:
        """Record that a hook keeps the tensor."""
        self._counts[tensor] += 1
        self._hooked.add(tensor)
        if self._storage_of[tensor] >= 0:
            self._held.add(self._storage_of[tensor])

    def _give(self, place: int, tensor: int) -> bool:
        """Add a gradient to an input buffer (input_buffer.cpp, accumulate). Return False if it was summed and not kept.

        The waiting gradient is added to in place if nothing else holds it or its storage, and it is dense.
        """
        waits = self._waiting[place]
        if not waits:
            self._waiting[place] = tensor
            return True
        storage = self._storage_of[waits]
        # can_accumulate_inplace tests the references of the tensor and of its storage. A view keeps its base, which is
        # a second reference to the storage, so the first sum into a view is out of place.
        alone = storage >= 0 and self._counts[waits] == 1 and self._uses[storage] == 1
        alone = alone and (self._sums is None or waits in self._sums)
        if not alone or not self._layouts.dense[self._layout_of[waits]]:
            layout = self._layouts.sum(self._layout_of[waits], self._layout_of[tensor])
            self._waiting[place] = self._allocate(layout, _BUFFER, place)
            if self._sums is not None:
                self._sums.add(self._waiting[place])
            self._drop(waits)
        return False

    def _accumulate_grad(self, task_id: int, tensor: int) -> None:
        """Run an AccumulateGrad (accumulate_grad.h): the first gradient, or a copy of it, becomes .grad."""
        leaf = self._program.leaf_layouts[task_id]
        if not tensor or leaf == HAS_GRAD:
            return
        layout = self._layout_of[tensor]
        # accumulate_grad.h, case 1.1: only the references of the tensor count here, not those of its storage.
        if leaf == AS_IT_COMES or (self._counts[tensor] == 1 and self._layouts.suits(layout, leaf)):
            storage = self._storage_of[tensor]
            if storage >= 0:
                self._uses[storage] += 1
                self._changes.append((len(self._events), storage, Category.GRADIENT))
        else:
            copied = self._layouts.number(copy_for(self._layouts[layout], self._layouts[leaf]))
            storage = self._storage_of[self._allocate(copied, _GRADIENT, self._program.first_input[task_id])]
        if storage >= 0:
            self._grads[storage] = task_id

    def run(self, order: Sequence[int]) -> Timeline:
        """Replay the tasks in this order."""
        program = self._program
        receivers = program.receivers if len(order) == len(self._graph) else self._needed_receivers(order)
        if program.keeps:
            self._place_of = {task_id: place for place, task_id in enumerate(order)}
        self._prepare(order, receivers)
        before = len(self._nbytes)
        for root, tensor in zip(self._graph.roots, program.roots, strict=True):
            if not self._give(program.first_input[root.task] + root.input, tensor):
                self._counts[tensor] -= 1
        starts, inputs = self._replay(order, receivers)
        starts.append(len(self._events))
        self._end()
        # The argument tuples of run_backward hold the root gradients until it returns, so they are freed last.
        for tensor in program.roots:
            self._drop(tensor)
        return self._timeline(order, before, starts, inputs)

    def _replay(self, order: Sequence[int], receivers: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Run the tasks; return the event at which each starts, and the storages of its inputs. The hot loop."""
        events, nbytes, born_as, uses = self._events, self._nbytes, self._born_as, self._uses
        storage_of, layout_of, base_of, counts = self._storage_of, self._layout_of, self._base_of, self._counts
        program, waiting, released = self._program, self._waiting, self._released
        first_input, programs, leaf_layouts = program.first_input, program.programs, program.leaf_layouts
        give, drop, release, begin, append = self._give, self._drop, self._release, self._begin, events.append
        starts, inputs, spent = list[int](), list[int](), list[int]()
        for task_id in order:
            starts.append(len(events))
            given = waiting[first_input[task_id] : first_input[task_id + 1]]
            if begin is not None:
                begin(task_id, given)
            for tensor in given:  # a comprehension would be a call for each task
                inputs.append(storage_of[tensor])
            numbers: Sequence[int] = ()
            does = programs[task_id]
            if does is not None and does.more is not None:
                for number in does.more.held_inputs:
                    if given[number]:
                        self._hold(given[number])
            if leaf_layouts[task_id] != NO_LEAF:  # before the rest: a copy's scratch memory, hooks
                for tensor in given:
                    self._accumulate_grad(task_id, tensor)
            if does is not None:
                births, sizes, categories, holders, expected, blocks, kinds, references, bases, numbers, more = does
                for tensor, layout in zip(given, expected):  # noqa: B905  (strict= costs time)
                    if layout_of[tensor] != layout:
                        self._compare(task_id, tensor, layout)
                first_storage, first_tensor = len(nbytes), len(counts)
                for event in births:
                    append(event + first_storage if event >= 0 else event - first_storage)
                nbytes += sizes
                born_as += categories
                uses += holders
                if more is None:
                    for block in blocks:
                        storage_of.append(first_storage + block)
                    layout_of += kinds
                    counts += references
                    base_of += bases
                else:
                    first_tensor, numbers = 0, self._outputs(task_id, more, given, first_storage)
            # evaluate_function (engine.cpp) frees the inputs after the call, then saved tensors, then queues outputs.
            for tensor in given:
                storage = storage_of[tensor]
                if storage >= 0 and uses[storage] == 1 and counts[tensor] == 1 and not base_of[tensor]:
                    append(~storage)
                elif tensor:
                    drop(tensor)
            for storage in released[task_id]:
                if uses[storage] == 1:
                    append(~storage)
                else:
                    release(storage)
            # An output that is added to a sum is not moved into the buffer: evaluate_function's local list keeps it.
            for place, number in zip(receivers[task_id], numbers):  # noqa: B905
                if number >= 0:
                    tensor = first_tensor + number
                    if place and not waiting[place]:
                        waiting[place] = tensor
                    elif not place or not give(place, tensor):
                        spent.append(tensor)
            for tensor in spent:
                drop(tensor)
            spent.clear()
        return starts, inputs

    def _timeline(self, order: Sequence[int], before: int, starts: list[int], inputs: list[int]) -> Timeline:
        """Return the timeline of the replay; `before` storages were alive at the start of the backward."""
        found = Timeline(
            self._graph,
            tuple(order),
            self._footprints.device,
            self._footprints.basis,
            array("q", self._events),
            array("q", starts),
            array("q", self._nbytes),
            array("q", self._born_as),
            self._changes,
            before,
            self._program.start.makers,
            self._program.start.saved,
            frozenset(self._held),
            self._grads,
            array("q", inputs),
            constant_bytes=self._footprints.constant_bytes,
            baseline=self._footprints.baseline,
            estimates=(*self._footprints.limits, *self._estimates(order)),
            accumulation=self.accumulation,
            listed=tuple(self._listed),
            unsure_bytes=self._drifted_bytes,
        )
        if self.accumulation != PYTORCHS:
            found = with_names(found)
        if found.basis == "calibrated" and found.estimates and found.workspace_share:
            said = f"{found.workspace_share:.1%} of the peak is workspace as it was in the measured run"
            share = Estimate(said, found.direction or "unknown")
            found = replace(found, estimates=(*found.estimates, share))
        return found

    def _prepare(self, order: Sequence[int], receivers: Sequence[Sequence[int]]) -> None:
        """Prepare, before the first task."""

    def _end(self) -> None:
        """Finish, after the last task."""

    def _needed_receivers(self, order: Sequence[int]) -> list[list[int]]:
        """Return the receivers for an order that skips tasks: outputs for these have none."""
        needed = set(order)
        receivers = [list(places) for places in self._program.receivers]
        for edge in self._graph.edges:
            if edge.task in needed and edge.next_task not in needed:
                receivers[edge.task][edge.output] = NOBODY
                self._partly.append(edge.task)
        return receivers

    def _outputs(self, task_id: int, more: More, given: list[int], first_storage: int) -> list[int]:
        """Create the outputs of a task (-1 for no gradient), and hold blocks that outlive it in other ways."""
        storage_of, base_of, counts = self._storage_of, self._base_of, self._counts
        made: list[int] = []
        for output in more.outputs:
            if output is None:
                made.append(-1)
                continue
            origin, number, layout, keeps_base, held = output
            base = NO_TENSOR
            if origin == "block" or origin == "outside":
                storage = first_storage + number if origin == "block" else OUTSIDE
                if keeps_base:
                    base = self._new_tensor(storage, layout)
                    counts[base] -= 1  # only its view holds it
            else:
                source = given[number] if origin == "input" or origin == "view" else made[number]
                if source <= NO_TENSOR:
                    made.append(-1)
                    continue
                if origin == "input" or origin == "output":
                    counts[source] += 1
                    made.append(source)
                    if held:
                        self._hold(source)
                    continue
                storage = storage_of[source]
                if keeps_base:
                    base = base_of[source] or source
            made.append(self._new_tensor(storage, layout, base))
            if held:
                self._hold(made[-1])
        for block, until in more.kept:
            self._keep(task_id, first_storage + block, until)
        return made

    def _keep(self, task_id: int, storage: int, until: int) -> None:
        """Keep a storage beyond the task that allocated it, until another task has run or to the end."""
        self._uses[storage] += 1
        if until < 0:
            self._held.add(storage)
            return
        if self._place_of.get(until, len(self._place_of)) < self._place_of[task_id]:
            self._too_late.append(task_id)
            until = task_id
        self._released[until] = [*self._released[until], storage]

    def _compare(self, task_id: int, tensor: int, layout: int) -> None:
        """Record a task whose input layout differs from that in its footprint."""
        found = self._layout_of[tensor]
        if found < 0:
            self._unknown.append(task_id)
        elif layout < 0 or self._layouts.differ(found, layout):
            self._drifted.append(task_id)
            self._drifted_bytes += self._layouts.nbytes[found]

    def _estimates(self, order: Sequence[int]) -> Iterator[Estimate]:
        if self._freed_unseen:
            yield Estimate(
                "the measured run retained its graph, so other holders of saved tensors are not known",
                "at least",
            )
        again = "recomputes a checkpointed region, which another task recomputed in the measured run"
        late = "keeps a block until a task that runs earlier in this order; it is freed immediately here"
        directed: tuple[tuple[Sequence[int], str, Direction], ...] = (
            (self._drifted, "receives a gradient in another layout than in its footprint, and may copy it", "unknown"),
            ([*self._program.unknown, *self._unknown], "receives or returns an unknown gradient", "unknown"),
            (self._footprints.other_openers(order), again, "unknown"),
            (self._too_late, late, "at least"),
            (self._partly, "returns gradients that no task needs, which PyTorch may not compute", "at most"),
        )
        for task_ids, what, direction in directed:
            distinct = list(dict.fromkeys(task_ids))
            if distinct:
                count = f"each of {len(distinct):,} tasks" if len(distinct) > 1 else "1 task"
                yield Estimate(f"{count} {what}; the first is {self._graph.describe(distinct[0])}", direction)


_TO_COME = -1  # in `waiting`: nothing has arrived yet, and the first may be the gradient of an index


class _OfTape(_Simulation):
    """Simulation of a tape of HIPS autograd, where the gradient of an index adds to zeros of the full size."""

    def _prepare(self, order: Sequence[int], receivers: Sequence[Sequence[int]]) -> None:
        self._places: dict[int, range] = {}  # by place in `waiting`: all places of the same task
        first = self._program.first_input
        footprints = self._footprints.tasks
        for edge in self._graph.edges:
            does = footprints[edge.task]
            output = None if does is None else does.outputs[edge.output]
            if output is not None and output.layout.sparse:
                places = range(first[edge.next_task], first[edge.next_task + 1])
                for place in places:
                    self._places[place] = places
                    self._waiting[place] = _TO_COME

    def _give(self, place: int, tensor: int) -> bool:
        if place not in self._places:
            return super()._give(place, tensor)
        if self._layouts[self._layout_of[tensor]].sparse:
            for each in self._places[place]:
                self._become_sum(each)
            return False
        if self._waiting[place] == _TO_COME:
            self._waiting[place] = tensor
            return True
        return super()._give(place, tensor)

    def _become_sum(self, place: int) -> None:
        """Replace the waiting gradient by an array that can be added to: zeros, or a copy of it."""
        assert self._sums is not None
        waits = self._waiting[place]
        if waits not in self._sums:
            self._waiting[place] = self._allocate(self._program.input_layouts[place], _BUFFER, place)
            self._sums.add(self._waiting[place])
            self._drop(max(waits, NO_TENSOR))


_IN_A_LIST = -1  # in `waiting`: gradients for this input are kept in a list


class _OtherRule(_Simulation):
    """Simulation with another rule than PyTorch's for summing or freeing gradients."""

    def __init__(
        self, graph: Graph, footprints: Footprints, program: Compiled, keep_graph: bool, accumulation: Accumulation
    ) -> None:
        super().__init__(graph, footprints, program, keep_graph)
        self.accumulation = accumulation
        self._lists: dict[int, list[int]] = {}  # by place in `waiting`
        self._inputs: dict[int, tuple[int, int]] = {}  # by place in `waiting`: the task, and its input
        self._consumed: list[int] = []
        self._place = -1

    def _prepare(self, order: Sequence[int], receivers: Sequence[Sequence[int]]) -> None:
        if not self.accumulation.lists:
            return
        first = self._program.first_input
        arrivals = Counter(place for task_id in order for place in receivers[task_id])
        arrivals.update(first[root.task] + root.input for root in self._graph.roots)
        for task_id in order:
            for place in range(first[task_id], first[task_id + 1]):
                if arrivals[place] > 1:
                    self._waiting[place] = _IN_A_LIST
                    self._lists[place] = []
                    self._inputs[place] = task_id, place - first[task_id]

    def _give(self, place: int, tensor: int) -> bool:
        waits = self._waiting[place]
        if waits == _IN_A_LIST:
            self._lists[place].append(tensor)
            if self._place >= 0 and self._storage_of[tensor] >= 0:
                self._listed.append((self._place, self._storage_of[tensor], *self._inputs[place]))
            return True
        if not waits or self.accumulation.accumulate == "inplace":
            return super()._give(place, tensor)
        layout = self._layouts.sum(self._layout_of[waits], self._layout_of[tensor])
        self._waiting[place] = self._allocate(layout, _BUFFER, place)
        self._drop(waits)
        return False

    def _begin(self, task_id: int, given: list[int]) -> None:
        """Sum the lists, and keep holding the inputs of the task if they are never freed."""
        self._place += 1
        keeps = self.accumulation.keeps and self._program.leaf_layouts[task_id] == NO_LEAF
        first = self._program.first_input[task_id]
        for number, tensor in enumerate(given):
            if not tensor:
                continue
            contributions = self._lists[first + number] if tensor == _IN_A_LIST else [tensor]
            given[number] = self._total(first + number, contributions)
            if len(contributions) == 1 and keeps:
                self._counts[given[number]] += 1  # for the task itself
            if keeps:
                self._consumed.extend(contributions)
            elif len(contributions) > 1:
                for each in contributions:
                    self._drop(each)

    def _total(self, place: int, tensors: list[int]) -> int:
        """Return the sum of a list: a new tensor for the first two, to which the others are added in place."""
        if len(tensors) < 2:
            return tensors[0] if tensors else NO_TENSOR
        first, second = (self._layout_of[tensor] for tensor in tensors[:2])
        return self._allocate(self._layouts.sum(first, second), _BUFFER, place)

    def _end(self) -> None:
        for tensor in self._consumed:
            self._drop(tensor)
