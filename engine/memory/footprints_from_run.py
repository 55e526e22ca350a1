"""Footprints of the tasks of a measured backward, from which other orders can be predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...inspector.graph.kinds import Kind
from ...inspector.text.sizes_and_counts import counted
from ..execution.find_hooks import TensorHooks
from ..execution.gradient_layouts import TensorLayout
from .build_timeline import HIDDEN, Kinds, Lives, Measured, forward_maker
from .categories import Category
from .estimates import Estimate
from .simulation import simulated
from .task_boundaries import Seen
from .task_memory import Footprint, Footprints, LeafState, Origin, StartStorage, TaskOutput
from .task_spans import Turn
from .timeline import Timeline


def footprints_of(
    measured: Measured,
    lives: Lives,
    kinds: Kinds,
    timeline: Timeline,
    leaves: Mapping[int, LeafState],
    given: Sequence[bool],
) -> Footprints:
    """Read the footprints from a measurement.

    Args:
        measured, lives, kinds, timeline: the measurement.
        leaves: by the id of a leaf's task, its state before the backward.
        given: per root, whether the caller passed its gradient.
    """
    found = _Reader(measured, lives, kinds, timeline, leaves, given).footprints()
    if found.limits:
        return found
    rule = measured.accumulation
    again = simulated(measured.graph, timeline.order, found, accumulation=rule)
    ours, theirs = (list(zip(each.task_peaks, _counts(each), strict=True)) for each in (timeline, again))
    if ours == theirs and timeline.end_bytes == again.end_bytes:
        return found
    differences = (place for place, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if mine != other)
    place = next(differences, len(ours))
    # Outside influence: a hook that frees a tensor another one kept, or a node that frees saved tensors while it runs.
    where = measured.graph.describe(timeline.order[place], place) if place < len(timeline.order) else "the end"
    limit = f"from {where} on, the prediction of the measured order differs from the measurement"
    return replace(found, limits=(Estimate(limit),))  # other orders may be off in either direction


def _counts(timeline: Timeline) -> list[int]:
    """Return the number of events of each place."""
    return [end - start for start, end in pairwise(timeline.starts)]


@dataclass(eq=False)
class _Reader:
    """The arguments of `footprints_of`, and the findings so far."""

    measured: Measured
    lives: Lives
    kinds: Kinds
    timeline: Timeline
    leaves: Mapping[int, LeafState]
    given: Sequence[bool]

    def __post_init__(self) -> None:
        self._limits: dict[str, None] = {}
        self._layouts: dict[tuple[object, ...], TensorLayout] = {}
        self._footprints: dict[Footprint, Footprint] = {}  # equal ones are shared, so each is compiled once
        self._holders: list[int] = []  # the tasks whose inputs or outputs stay held
        self._first_use: dict[int, int] = {}  # by storage: the place of the first task that received it
        for place, turn in enumerate(self.lives.turns):
            for number in turn.inputs:
                self._first_use.setdefault(number, place)

    def footprints(self) -> Footprints:
        graph, timeline = self.measured.graph, self.timeline
        if self.measured.create_graph:
            self._limits["the backward built a graph (create_graph=True), which keeps gradients"] = None
        tasks: list[Footprint | None] = [None] * len(graph)
        if len(self.lives.turns) < len(graph):
            self._limits["the measured backward skipped tasks (inputs=), and the tensors that only they need"] = None
        for place, turn in enumerate(self.lives.turns):
            if turn.visit.opaque:
                self._limit(turn, "receives or returns a tensor whose storage cannot be read (nested, or a subclass)")
            elif any(seen is not None and seen.stored >= 0 for seen in (*turn.visit.inputs, *turn.visit.outputs)):
                self._limit(turn, "receives or returns a sparse gradient, whose parts count as one block")
            elif graph.tasks[turn.visit.task].kind is Kind.COMPILED:
                self._limit(turn, "is a compiled region, which may free its inputs and saved tensors while it runs")
            tasks[turn.visit.task] = self._footprint(place, turn)
        self._limit_hidden()
        self._limit_held()
        start = tuple(
            StartStorage(
                timeline.nbytes[number], timeline.saved.get(number, ()), number in timeline.held, timeline.maker(number)
            )
            for number in timeline.alive(timeline.starts[0])
            if timeline.born_as[number] != Category.BUFFER  # a root's gradient
        )
        return Footprints(
            graph,
            timeline.device,
            "calibrated",
            tuple(tasks),
            start,
            self.leaves,
            self._roots(),
            self.measured.keep_graph,
            tuple(map(Estimate, self._limits)),
            regions=tuple(self._regions()),
        )

    def _regions(self) -> Iterator[tuple[int, ...]]:
        """Yield `Footprints.regions`."""
        places = {turn.visit.task: place for place, turn in enumerate(self.lives.turns)}
        for tasks in self.measured.kept.openers:
            ran = [task for task in tasks if task in places]
            if len(ran) > 1:
                yield tuple(sorted(ran, key=places.__getitem__))

    def _limit_hidden(self) -> None:
        """Add a limit for hidden saved tensors. This order shows only the last task that kept a storage; other tasks
        may have kept it as well."""
        measured, lives = self.measured, self.lives
        found = []
        for number, keepers in self.kinds.saved.items():
            hidden = [task for task, slot in keepers if slot == HIDDEN]
            if not hidden or lives.births[number] >= lives.first:
                continue
            birth = lives.births[number]
            maker = forward_maker(measured, birth).operation
            own = maker is not None and maker is measured.graph.tasks[hidden[0]].operation
            if set(measured.kept.hidden.get(lives.rows[birth].address, ())) != set(hidden) and not own:
                found.append(hidden[0])
        if found:
            self._limits[
                f"Python cannot see all tasks that save {counted(len(found), 'storage')}: in this order, "
                f"{measured.graph.describe(found[0])}{' and others' if len(set(found)) > 1 else ''} ran last; in "
                "another order, another task may be the last to hold them"
            ] = None

    def _limit_held(self) -> None:
        """Add a limit for tensors that hooks or custom Functions hold. Those of retain_grad() are the same in any
        order."""
        if not self._holders:
            return
        hooks = TensorHooks(self.measured.graph.nodes)
        for task_id in dict.fromkeys(self._holders):
            if {hook.kind for hook in hooks.of(task_id)} != {"retain_grad"}:
                task = self.measured.graph.describe(task_id)
                self._limits[
                    f"a hook or a custom Function keeps a gradient that {task} receives or returns: in another order "
                    "it may keep another one"
                ] = None
                return

    def _limit(self, turn: Turn, what: str) -> None:
        self._limits[f"{self.measured.graph.describe(turn.visit.task)} {what}"] = None

    def _roots(self) -> tuple[TensorLayout | None, ...]:
        found: list[TensorLayout | None] = []
        inputs = {turn.visit.task: turn.visit.inputs for turn in self.lives.turns}
        for root, given in zip(self.measured.graph.roots, self.given, strict=True):
            seen = inputs[root.task][root.input] if root.task in inputs else None
            meta = self.measured.graph.tasks[root.task].inputs[root.input]
            counts = not given and str(meta.device) == self.measured.device
            found.append(seen.layout if counts and seen is not None else None)
        return tuple(found)

    def _footprint(self, place: int, turn: Turn) -> Footprint | None:
        lives = self.lives
        leaf = self.measured.graph.tasks[turn.visit.task].is_leaf
        grad = turn.visit.grad
        state = self.leaves.get(turn.visit.task)  # None for a leaf without a storage: a nested tensor
        grows = state is not None and state.has_grad and grad is not None and grad.stored >= 0
        trace: list[int] = []
        blocks: dict[int, int] = {}  # by storage
        sizes: list[int] = []
        for row in range(lives.first + turn.summed, lives.first + turn.ended):
            number = lives.numbers[row]
            if number < 0 or (leaf and number == turn.grad and not grows):
                continue
            if lives.births[number] == row:
                blocks[number] = len(sizes)
                sizes.append(lives.rows[row].nbytes)
                trace.append(blocks[number])
            elif number in blocks:
                trace.append(~blocks[number])
        if leaf and not trace:
            return None
        outputs = tuple(self._outputs(turn, blocks))
        given = {output.number for output in outputs if output is not None and output.origin == "block"}
        kept = []
        for number, block in blocks.items():
            death = lives.deaths[number]
            if ~block in trace or block in given:
                continue
            freed_at = len(lives.turns) if death is None else lives.place_of(death)
            if freed_at == place:
                trace.append(~block)
            else:
                freed_in = lives.turns[freed_at].visit.task if freed_at < len(lives.turns) else -1
                kept.append((block, freed_in))
                if freed_in not in self.measured.kept.regions:  # a nested region is recomputed with the outer one
                    self._holders.append(turn.visit.task)
            if number in turn.inputs:
                self._limit(turn, "runs on a gradient with which a hook replaced the original one")
        held = tuple(  # if several tasks receive it in turn, it is not known which one's hook
            index
            for index, number in enumerate(turn.inputs)
            if number in self.kinds.held and self._first_use[number] == place
        )
        if held or any(output is not None and output.held for output in outputs):
            self._holders.append(turn.visit.task)
        inputs = tuple(None if seen is None else self._layout(seen) for seen in turn.visit.inputs)
        footprint = Footprint(tuple(trace), tuple(sizes), outputs, inputs, tuple(kept), held)
        return self._footprints.setdefault(footprint, footprint)

    def _layout(self, seen: Seen) -> TensorLayout:
        key = (seen.shape, seen.strides, seen.itemsize, seen.stored, seen.wraps)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = seen.layout
        return found

    def _outputs(self, turn: Turn, blocks: dict[int, int]) -> list[TaskOutput | None]:
        found: list[TaskOutput | None] = []
        origins = _Origins(turn.visit.inputs)
        for index, (seen, number) in enumerate(zip(turn.visit.outputs, turn.outputs, strict=True)):
            if seen is None:
                found.append(None)
                continue
            origin = origins.of(seen, blocks.get(number, -1))
            origins.gave(index, seen)
            held = number in self.kinds.held and number not in self._first_use
            if seen.is_view and not seen.address:
                self._limit(turn, "returns an empty view, whose base is not known")
            found.append(TaskOutput(*origin, self._layout(seen), seen.is_view, held))
        return found


class _Origins:
    """The origins of a task's outputs, see `TaskOutput.origin`. Lookups are by address, as a task may have many."""

    def __init__(self, inputs: Sequence[Seen | None]) -> None:
        self._inputs: dict[int, int] = {}  # by identity, the first such input
        self._input_storages: dict[int, int] = {}  # by address
        self._outputs: dict[int, int] = {}
        self._output_storages: dict[int, int] = {}
        for index, each in enumerate(inputs):
            if each is not None:
                self._inputs.setdefault(each.identity, index)
                self._input_storages.setdefault(each.address, index)

    def gave(self, index: int, seen: Seen) -> None:
        """Register an output before the next ones are looked up."""
        self._outputs.setdefault(seen.identity, index)
        self._output_storages.setdefault(seen.address, index)

    def of(self, seen: Seen, block: int) -> tuple[Origin, int]:
        if seen.identity in self._inputs:
            return "input", self._inputs[seen.identity]
        if seen.identity in self._outputs:
            return "output", self._outputs[seen.identity]
        if seen.address and block >= 0 and seen.address in self._output_storages:
            return "output view", self._output_storages[seen.address]
        if seen.address and seen.address in self._input_storages:
            return "view", self._input_storages[seen.address]
        return ("block", block) if block >= 0 else ("outside", -1)
