"""The memory of a backward in any order, predicted: the engine's reference counts, replayed on what tasks allocate."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from ..inspector.collector import collector_paused
from ..inspector.graph import Graph
from .dry_run import assumed_footprint, assumed_layout, dry_run
from .footprint import Footprint, Footprints, LeafState
from .footprint_program import NO_TENSOR, OUTSIDE, More, Program, compile_footprint
from .layouts import Layouts, copy_for
from .policies import AnyPolicy, Policy, find_policy, is_dynamic, policy_name
from .schedule import schedule
from .timeline import Category, Maker, Timeline

_SAVED, _FORWARD = int(Category.SAVED), int(Category.FORWARD)
_BUFFER, _GRADIENT = int(Category.BUFFER), int(Category.GRADIENT)

_NOBODY = 0  # in place of an input's number: no task takes the gradient
_NO_STORAGES: list[int] = []  # is not added to


def simulate(
    graph: Graph,
    order: AnyPolicy | Sequence[int] = "heap",
    footprints: Footprints | None = None,
    *,
    retain_graph: bool | None = None,
) -> Timeline:
    """Predicts the memory of a backward. Nothing is executed.

    The engine's rules are followed to the reference: what is summed in place and what into a new block, which gradient
    becomes a .grad without a copy, what views hold on to, when saved tensors go. Where tasks allocate what their
    footprints say, the result is the engine's, event by event; `Timeline.estimates` says what may differ.

    Args:
        graph: the graph.
        order: a policy, or the ids of the tasks in a legal order. It may leave out what a backward with `inputs=` does.
        footprints: what the tasks allocate: those of a measured run; None: `dry_run(graph)`.
        retain_graph: as in `torch.autograd.backward`; None: as in the run from which the footprints are.

    Raises:
        ValueError: the order is not legal, or that of a policy which decides while the backward runs; or the footprints
            are another graph's.
    """
    with collector_paused():
        places = _places(graph, order)
        if footprints is None:
            footprints = dry_run(graph)
        elif len(footprints.tasks) != len(graph):
            raise ValueError(f"the footprints are those of {len(footprints.tasks)} tasks; this graph has {len(graph)}")
        keep_graph = footprints.keep_graph if retain_graph is None else retain_graph
        return _Simulation(graph, footprints, keep_graph).run(places)


def _places(graph: Graph, order: AnyPolicy | Sequence[int]) -> Sequence[int]:
    """The ids of the tasks in their order, which is legal."""
    if isinstance(order, str | Policy) or callable(order):
        policy = find_policy(order)
        if is_dynamic(policy):
            raise ValueError(f"policy {policy_name(policy)} decides while the backward runs; give an order instead")
        return schedule(graph, policy)
    order = tuple(order)
    place_of = [-1] * len(graph)
    for place, task_id in enumerate(order):
        if not 0 <= task_id < len(graph):
            graph.task(task_id)  # raises
        if place_of[task_id] >= 0:
            raise ValueError(f"not a legal order: {graph.describe(task_id)} is in it twice")
        place_of[task_id] = place
    for edge in graph.edges:
        after = place_of[edge.next_task]
        if after >= 0 and not 0 <= place_of[edge.task] < after:
            first, then = graph.describe(edge.task), graph.describe(edge.next_task)
            why = f"comes before {first}" if place_of[edge.task] >= 0 else f"is in it without {first}"
            raise ValueError(f"not a legal order: {then} {why}, for whose gradient it waits")
    return order


class _Simulation:
    """A backward, replayed in numbers.

    Storages are counted from 0, tensors from 1; what is known of them is in one list per fact. The inputs of all tasks
    are counted from 1, too: `waiting` has the tensors in the input buffers.
    """

    def __init__(self, graph: Graph, footprints: Footprints, keep_graph: bool) -> None:
        self._graph = graph
        self._footprints = footprints
        self._layouts = Layouts()
        self._nbytes: list[int] = []
        self._born_as: list[int] = []
        self._uses: list[int] = []  # how many tensors, nodes and others hold each storage
        self._storage_of = [OUTSIDE]  # the first of these four is no tensor's
        self._layout_of = [-1]
        self._base_of = [NO_TENSOR]
        self._counts = [0]  # how many references there are to each tensor
        self._events: list[int] = []
        self._changes: list[tuple[int, int, Category]] = []
        self._grads: dict[int, int] = {}
        self._held: set[int] = set()  # storages that something else holds
        self._hooked: set[int] = set()  # tensors that hooks hold
        self._released: list[list[int]] = [_NO_STORAGES] * len(graph)  # by task what it lets go of at its end
        self._drifted: list[int] = []
        self._unknown: list[int] = []
        self._too_late: list[int] = []
        self._partly: list[int] = []
        self._place_of: dict[int, int] = {}
        self._is_leaf = [task.is_leaf for task in graph.tasks]
        self._number_inputs()
        self._programs = self._compile()
        self._roots = self._start(keep_graph)

    def _number_inputs(self) -> None:
        """Where in `waiting` the inputs of each task are, and which of them each of its outputs goes to."""
        graph = self._graph
        device = torch.device(self._footprints.device)
        first = list(accumulate([len(task.inputs) for task in graph.tasks], initial=1))
        self._elsewhere = {  # the inputs on another device, whose memory is not counted
            first[task.id] + number
            for task in graph.tasks
            for number, meta in enumerate(task.inputs)
            if meta.device != device
        }
        receivers: list[list[int]] = [[] for _ in graph.tasks]
        for edge in graph.edges:
            places = receivers[edge.task]
            while len(places) < edge.output:
                places.append(_NOBODY)
            places.append(first[edge.next_task] + edge.input)
        self._first_input = first
        self._receivers = receivers
        self._waiting = [NO_TENSOR] * first[-1]

    def _compile(self) -> list[Program | None]:
        """The program of each task; equal footprints share one. None for a leaf of which the rules say all."""
        known: dict[int, Program] = {}  # by id() of what the footprints keep
        equal: dict[Footprint, Program] = {}
        programs: list[Program | None] = []
        for task_id, footprint in enumerate(self._footprints.tasks):
            program = known.get(id(footprint))
            if program is None and footprint is not None:
                program = equal.get(footprint)
                if program is None:
                    program = equal[footprint] = compile_footprint(footprint, self._layouts)
                known[id(footprint)] = program
            elif footprint is None and not self._is_leaf[task_id]:
                program = compile_footprint(assumed_footprint(self._graph, task_id), self._layouts)
                self._unknown.append(task_id)
            programs.append(program)
            if program is not None:
                places = self._receivers[task_id]
                places.extend([_NOBODY] * (len(program.outputs) - len(places)))
        return programs

    def _start(self, keep_graph: bool) -> list[int]:
        """What is alive before: what the forward left, and the gradients from which the backward starts: returned."""
        start = self._footprints.start
        self._makers = [storage.made_by for storage in start]
        self._nbytes.extend([storage.nbytes for storage in start])
        self._born_as.extend([_SAVED if storage.keepers else _FORWARD for storage in start])
        self._held.update([number for number, storage in enumerate(start) if storage.held])
        released = self._released
        for number, storage in enumerate(start):
            uses = 1 if storage.held else 0
            for task_id, _ in storage.keepers:
                storages = released[task_id]
                if not storages:
                    released[task_id] = [number]
                elif storages[-1] != number:  # else it keeps it in several slots
                    storages.append(number)
                else:
                    continue
                uses += 1
            self._uses.append(uses or 1)  # if nobody is known to hold it, it stays
        if keep_graph:
            self._released = [_NO_STORAGES] * len(self._graph)
        roots = []
        for root, layout in zip(self._graph.roots, self._footprints.roots, strict=True):
            storage_number = OUTSIDE
            if layout is None:
                layout = assumed_layout(self._graph.tasks[root.task].inputs[root.input])
            else:
                storage_number = self._new_storage(layout.nbytes, _BUFFER)
                self._makers.append(Maker(None, None, None))
            tensor = self._new_tensor(storage_number, self._layouts.number(layout))
            self._counts[tensor] += 1  # the call of backward() holds it until its end
            roots.append(tensor)
        return roots

    def _new_storage(self, nbytes: int, category: int) -> int:
        self._nbytes.append(nbytes)
        self._born_as.append(category)
        self._uses.append(0)
        return len(self._nbytes) - 1

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
        """A new tensor on a block of its own, for this place in `waiting`."""
        nbytes = self._layouts.nbytes[layout]
        if not nbytes or place in self._elsewhere:
            return self._new_tensor(OUTSIDE, layout)
        storage = self._new_storage(nbytes, category)
        self._events.append(storage)
        return self._new_tensor(storage, layout)

    def _drop(self, tensor: int) -> None:
        """One reference less. With its last view its base goes, too."""
        while tensor:
            self._counts[tensor] -= 1
            if self._counts[tensor]:
                if self._counts[tensor] == 1 and tensor in self._hooked and self._storage_of[tensor] >= 0:
                    self._changes.append((len(self._events), self._storage_of[tensor], Category.HELD))
                return
            self._release(self._storage_of[tensor])
            tensor = self._base_of[tensor]

    def _release(self, storage: int) -> None:
        """One tensor or node less holds the storage."""
        if storage < 0:
            return
        self._uses[storage] -= 1
        if not self._uses[storage]:
            self._events.append(~storage)
        elif self._uses[storage] == 1 and storage < len(self._makers) and storage in self._held:
            self._changes.append((len(self._events), storage, Category.FORWARD))  # no node keeps it any more

    def _hold(self, tensor: int) -> None:
        """A hook keeps the tensor for good."""
        self._counts[tensor] += 1
        self._hooked.add(tensor)
        if self._storage_of[tensor] >= 0:
            self._held.add(self._storage_of[tensor])

    def _give(self, place: int, tensor: int) -> bool:
        """A gradient comes into an input buffer (input_buffer.cpp, accumulate). False: it was added, and is not kept.

        What waits there is added to in place if nothing else holds it, nor its storage, and if it is dense.
        """
        waits = self._waiting[place]
        if not waits:
            self._waiting[place] = tensor
            return True
        storage = self._storage_of[waits]
        alone = storage >= 0 and self._counts[waits] == 1 and self._uses[storage] == 1
        if not alone or not self._layouts.dense[self._layout_of[waits]]:
            layout = self._layouts.sum(self._layout_of[waits], self._layout_of[tensor])
            self._waiting[place] = self._allocate(layout, _BUFFER, place)
            self._drop(waits)
        return False

    def _accumulate_grad(self, task_id: int, tensor: int) -> None:
        """An AccumulateGrad gets its gradient (accumulate_grad.h): the first becomes .grad itself, or its copy does."""
        leaf = self._footprints.leaves.get(task_id)
        if leaf is None:
            leaf = LeafState(assumed_layout(self._graph.tasks[task_id].inputs[0]), has_grad=False)
        if not tensor or leaf.has_grad:
            return
        layout = self._layout_of[tensor]
        if self._counts[tensor] == 1 and self._layouts.suits(layout, leaf.layout):
            storage = self._storage_of[tensor]
            self._new_tensor(storage, layout)  # .grad, detached: no view
            if storage >= 0:
                self._changes.append((len(self._events), storage, Category.GRADIENT))
        else:
            copied = self._layouts.number(copy_for(self._layouts[layout], leaf.layout))
            storage = self._storage_of[self._allocate(copied, _GRADIENT, self._first_input[task_id])]
        if storage >= 0:
            self._grads[storage] = task_id

    def run(self, order: Sequence[int]) -> Timeline:
        """Replays the tasks in this order."""
        events, nbytes, born_as, uses = self._events, self._nbytes, self._born_as, self._uses
        storage_of, layout_of, base_of, counts = self._storage_of, self._layout_of, self._base_of, self._counts
        first_input, waiting, released, is_leaf = self._first_input, self._waiting, self._released, self._is_leaf
        receivers = self._receivers if len(order) == len(self._graph) else self._needed_receivers(order)
        programs, give, drop, append = self._programs, self._give, self._drop, events.append
        if any(program is not None and program.more and program.more.kept for program in programs):
            self._place_of = {task_id: place for place, task_id in enumerate(order)}
        before = len(nbytes)
        starts: list[int] = []
        inputs: list[int] = []
        for root, tensor in zip(self._graph.roots, self._roots, strict=True):
            if not give(first_input[root.task] + root.input, tensor):
                counts[tensor] -= 1
        # All the time goes here: what is usual is done on the spot, and methods do the rest.
        for task_id in order:
            starts.append(len(events))
            given = waiting[first_input[task_id] : first_input[task_id + 1]]
            for tensor in given:
                inputs.append(storage_of[tensor])
            numbers: Sequence[int] = ()
            program = programs[task_id]
            if program is not None:
                births, sizes, categories, holders, expected, blocks, kinds, references, bases, numbers, more = program
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
            if is_leaf[task_id]:
                self._accumulate_grad(task_id, given[0])
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
                    self._release(storage)
            spent = []  # what no buffer keeps lives until the task has ended
            for place, number in zip(receivers[task_id], numbers):  # noqa: B905
                if number >= 0:
                    tensor = first_tensor + number
                    if place and not waiting[place]:
                        waiting[place] = tensor
                    elif not place or not give(place, tensor):
                        spent.append(tensor)
            for tensor in spent:
                drop(tensor)
        starts.append(len(events))
        for tensor in self._roots:
            drop(tensor)
        return Timeline(
            self._graph,
            tuple(order),
            self._footprints.device,
            self._footprints.basis,
            array("q", events),
            array("q", starts),
            array("q", nbytes),
            array("q", born_as),
            self._changes,
            before,
            self._makers,
            {number: storage.keepers for number, storage in enumerate(self._footprints.start) if storage.keepers},
            frozenset(self._held),
            self._grads,
            array("q", inputs),
            estimates=(*self._footprints.limits, *self._estimates()),
        )

    def _needed_receivers(self, order: Sequence[int]) -> list[list[int]]:
        """The receivers where the order leaves tasks out: what would go to these goes to nobody."""
        needed = set(order)
        receivers = [list(places) for places in self._receivers]
        for edge in self._graph.edges:
            if edge.task in needed and edge.next_task not in needed:
                receivers[edge.task][edge.output] = _NOBODY
                self._partly.append(edge.task)
        return receivers

    def _outputs(self, task_id: int, more: More, given: list[int], first_storage: int) -> list[int]:
        """Makes the outputs of a task, of any kind, and holds what outlives it otherwise. -1: no gradient."""
        made: list[int] = []
        for output in more.outputs:
            tensor = NO_TENSOR
            if output is not None:
                origin, number, layout, keeps_base, held = output
                if origin == "block" or origin == "outside":
                    storage = first_storage + number if origin == "block" else OUTSIDE
                    if keeps_base:
                        base = self._new_tensor(storage, layout)
                        tensor = self._new_tensor(storage, layout, base)
                        self._counts[base] -= 1  # nothing but its view holds it
                    else:
                        tensor = self._new_tensor(storage, layout)
                else:
                    source = given[number] if origin == "input" or origin == "view" else made[number]
                    if source > NO_TENSOR:
                        if origin == "input" or origin == "output":
                            tensor = source
                            self._counts[tensor] += 1
                        else:
                            base = (self._base_of[source] or source) if keeps_base else NO_TENSOR
                            tensor = self._new_tensor(self._storage_of[source], layout, base)
                if held and tensor:
                    self._hold(tensor)
            made.append(tensor or -1)
        for block, until in more.kept:
            self._keep(task_id, first_storage + block, until)
        for number in more.held_inputs:
            if given[number]:
                self._hold(given[number])
        return made

    def _keep(self, task_id: int, storage: int, until: int) -> None:
        """A storage outlives the task that made it until another one has run, or for good."""
        self._uses[storage] += 1
        if until < 0:
            self._held.add(storage)
            return
        if self._place_of.get(until, len(self._place_of)) < self._place_of[task_id]:
            self._too_late.append(task_id)
            until = task_id
        self._released[until] = [*self._released[until], storage]

    def _compare(self, task_id: int, tensor: int, layout: int) -> None:
        """Notes a task whose input is not as it was when the footprint was seen."""
        found = self._layout_of[tensor]
        if found < 0:
            self._unknown.append(task_id)
        elif layout < 0 or self._layouts.differ(found, layout):
            self._drifted.append(task_id)

    def _estimates(self) -> Iterator[str]:
        for task_ids, what in (
            (self._drifted, "gets a gradient in another layout than was seen, and may copy it"),
            (self._unknown, "gets or gives a gradient of which nothing is known"),
            (self._too_late, "keeps what goes with a task that has run before in this order; here it goes at once"),
            (self._partly, "gives gradients that nobody needs, which PyTorch may not compute"),
        ):
            distinct = list(dict.fromkeys(task_ids))
            if distinct:
                count = f"each of {len(distinct):,} tasks" if len(distinct) > 1 else "1 task"
                yield f"{count} {what}; the first is {self._graph.describe(distinct[0])}"
