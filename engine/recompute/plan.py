"""A recompute plan: which storages to drop and recompute, and the order it was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ...errors import verbs_end_where_called
from ...inspector.capture.forward_program import ForwardOperation, ForwardProgram, ForwardStorage
from ...inspector.capture.operator_traits import allocates_only
from ...inspector.files import atomic_write, load_file, path_of
from ...inspector.graph.graph import Graph
from ...inspector.graph.graph_file import Table
from ...inspector.graph.json_file import ColumnWriter, Section, read_section
from ...inspector.text.sizes_and_counts import size_text
from ..schedule.policy import Policy

if TYPE_CHECKING:
    from ..planning.scheduling_problem import Problem


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """An order of one graph's tasks.

    Attributes:
        name: the name of the policy that planned it.
        tasks: the ids of the tasks, in order.
        graph: the `graph_digest` of the graph.
    """

    name: str
    tasks: tuple[int, ...]
    graph: str

    @property
    def policy(self) -> Policy:
        """The policy that runs a backward in this order. It raises ValueError on another graph."""
        return Policy(f"planned {self.name}", f"{self.name}, planned with recomputation", plan=self._plan)

    def _plan(self, problem: Problem, ran: Sequence[int]) -> list[int]:
        graph = problem.graph
        if graph_digest(graph) != self.graph:
            why = f"it has {len(self.tasks):,} tasks, this graph has {len(graph):,}"
            if len(self.tasks) == len(graph):
                why = "its tasks, edges or sizes differ"
            raise ValueError(f"this order was planned for a different graph: {why}; plan again with ts.plan_recompute")
        gone, runs = set(ran), set(problem.tasks)
        return [*ran, *(task for task in self.tasks if task in runs and task not in gone)]


def graph_digest(graph: Graph) -> str:
    """Return 16 hexadecimal digits that are equal for graphs with equal tasks, edges and roots."""
    found = hashlib.sha256()
    for task in graph.tasks:
        found.update(f"{task.name} {task.inputs}\n".encode())
    for edge in graph.edges:
        found.update(f"{edge.task} {edge.output} {edge.next_task} {edge.input}\n".encode())
    found.update(repr(graph.roots).encode())
    return found.hexdigest()[:16]


FORMAT = "tapescope.mirror"
VERSION = 2

_MOST = 2**53  # integers up to here are exact in every JSON reader
_LARGEST = 2**28  # bytes of a file

# Files store a fate by its place here: keep the order.
Fate = Literal["dropped", "intermediate", "kept", "newly kept"]


@dataclass(frozen=True, slots=True)
class PlannedStorage:
    """A storage of the forward, and what the plan does with it.

    Attributes:
        number: its number in the recorded program.
        nbytes: its size.
        fate: one of

            - "dropped": saved by nodes; the plan drops it, and it is recomputed when the first of them runs;
            - "intermediate": not saved by a node, but recomputed as an input of others;
            - "kept": saved by nodes and kept;
            - "newly kept": not saved by a node, but kept after the forward as an input of recomputation.
        made_by: the index of the operation that made it among the plan's operations; -1 if it is not one of them.
        output: the output of that operation it came from, as in `ForwardStorage`.
        operation: the name of that operation, such as "aten.mul.Tensor".
        module: the path of the module that made it.
        saved_by: the (task, slot) pairs that save it.
        inputs: numbers of the storages made by the forward that its recomputation reads.
        seconds: time of its recomputation, without that of its inputs.
        obstacle: the reason why it cannot be dropped, as in `ForwardStorage`.
    """

    number: int
    nbytes: int
    fate: Fate
    made_by: int
    output: int
    operation: str
    module: str | None
    saved_by: tuple[tuple[int, str], ...]
    inputs: tuple[int, ...]
    seconds: float
    obstacle: str | None

    @property
    def is_dropped(self) -> bool:
        """True if the plan drops it, and recomputes it."""
        return self.fate in ("dropped", "intermediate")


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """The predicted memory and time of a step under a plan.

    Attributes:
        plain_levels, levels: highest memory in bytes at each position of the backward's order, without and with the
            plan.
        plain_seconds: time of a step without the plan, forward and backward.
        replay_seconds: time of recomputation in a step.
        recording_seconds: time that recording operations adds to the forward.
    """

    plain_levels: tuple[int, ...]
    levels: tuple[int, ...]
    plain_seconds: float
    replay_seconds: float
    recording_seconds: float

    @property
    def plain_peak_bytes(self) -> int:
        """The peak of the backward without the plan."""
        return max(self.plain_levels, default=0)

    @property
    def peak_bytes(self) -> int:
        """The peak of the backward with the plan."""
        return max(self.levels, default=0)

    @property
    def seconds(self) -> float:
        """The time of a step with the plan, including recomputation and recording."""
        return self.plain_seconds + self.replay_seconds + self.recording_seconds


@verbs_end_where_called
@dataclass(frozen=True, eq=False, repr=False)
class RecomputePlan:
    """The storages that a forward drops and recomputes: `with ts.recompute(plan): loss = model(x)`.

    Attributes:
        fingerprint: the fingerprint of the planned forward, as in `ForwardProgram`.
        operations: the names of its operations, except those in custom Functions and under no_grad.
        storages: the storages made by the forward that are saved, dropped or newly kept, by number.
        predicted: the predicted memory and time, if known.
        planned_order: the order of the backward that the prediction is for; None for PyTorch's own.
    """

    fingerprint: str
    operations: tuple[str, ...]
    storages: tuple[PlannedStorage, ...]
    predicted: PlanPrediction | None = None
    planned_order: GraphOrder | None = None

    @staticmethod
    def of(program: ForwardProgram, drop: Collection[int], predicted: PlanPrediction | None = None) -> RecomputePlan:
        """Return the plan that drops the given storages.

        The inputs of their recomputation are kept unless they are also dropped. A storage is ignored if no node saves
        it and no dropped storage is recomputed from it.

        Args:
            program: the recorded forward.
            drop: numbers of storages of the program.
            predicted: the prediction to store in the plan.

        Raises:
            ValueError: if a storage cannot be recomputed; the message says why.
        """
        for number in drop:
            if not 0 <= number < len(program.storages):
                raise ValueError(f"unknown storage {number}; expected a number from 0 to {len(program.storages) - 1}")
            if (obstacle := program.storages[number].obstacle) is not None:
                raise ValueError(f"{_described(program, number)} cannot be recomputed, since {obstacle}; keep it")
        dropped = _needed(program, drop)
        planned = [each for each in program.operations if each.with_gradients]
        places = {each.number: place for place, each in enumerate(planned)}
        read = {each for number in dropped for each in program.inputs_of(number)} - dropped
        storages = []
        for storage in program.storages:
            made_by = storage.made_by
            saved = bool(storage.saved_by)
            if made_by is None or not (saved or storage.number in dropped or storage.number in read):
                continue
            storages.append(
                PlannedStorage(
                    storage.number,
                    storage.nbytes,
                    _FATES[storage.number in dropped, saved],
                    places.get(made_by, -1),
                    storage.output,
                    filled_by(program, storage).name,
                    program.operations[made_by].module,
                    storage.saved_by,
                    tuple(
                        each for each in program.inputs_of(storage.number) if program.storages[each].made_by is not None
                    ),
                    program.seconds_of(storage.number),
                    storage.obstacle,
                )
            )
        return RecomputePlan(program.fingerprint, tuple(each.name for each in planned), tuple(storages), predicted)

    def misfit(self, graph: Graph) -> str | None:
        """Return why the prediction does not apply to this graph; None if it does, or if that is unknown."""
        return None

    def __repr__(self) -> str:
        return f"<RecomputePlan: {self}>"

    def __str__(self) -> str:
        count = sum(each.fate == "dropped" for each in self.storages)
        saved = sum(bool(each.saved_by) for each in self.storages)
        if not count:
            return "nothing is dropped"
        said = (
            f"{count:,} of {saved:,} saved storages are dropped, {size_text(self.dropped_bytes)}; "
            f"{size_text(self.newly_kept_bytes)} newly kept"
        )
        if self.predicted is not None:
            before, after = self.predicted.plain_peak_bytes, self.predicted.peak_bytes
            said += f"; predicted peak {size_text(after)} instead of {size_text(before)}"
        if self.planned_order is not None:
            said += f"; for the order of {self.planned_order.name}: ts.backward(loss, policy=plan.policy)"
        return said

    @property
    def policy(self) -> str | Policy:
        """The policy for `ts.backward(loss, policy=plan.policy)`; "heap" if plain `loss.backward()` will do."""
        return "heap" if self.planned_order is None else self.planned_order.policy

    @cached_property
    def dropped(self) -> frozenset[int]:
        """The numbers of the storages that are dropped, intermediate ones included."""
        return frozenset(each.number for each in self.storages if each.is_dropped)

    @property
    def dropped_bytes(self) -> int:
        """Bytes of saved storages that are dropped."""
        return sum(each.nbytes for each in self.storages if each.fate == "dropped")

    @property
    def newly_kept_bytes(self) -> int:
        """Bytes of storages that are kept only for recomputation."""
        return sum(each.nbytes for each in self.storages if each.fate == "newly kept")

    @property
    def replay_seconds(self) -> float:
        """Time of recomputation in a step, if each dropped storage is recomputed once."""
        return sum(each.seconds for each in self.storages if each.is_dropped)

    def fits(self, program: ForwardProgram) -> bool:
        """Return whether the plan was made for this forward: equal operations on equal sizes."""
        return self.fingerprint == program.fingerprint

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON for `RecomputePlan.load`. An existing file is replaced once everything is written."""
        with atomic_write(path) as file:
            _write(ColumnWriter(lambda text: file.write(text.encode("ascii"))), self)
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> RecomputePlan:
        """Read a plan that `save` wrote. Loading executes no code from the file.

        Raises:
            ValueError: if the file is not a saved plan, is truncated or inconsistent, or is from a newer tapescope.
            OSError: if it cannot be read.
        """
        path = path_of(path, "RecomputePlan.load")
        return load_file(path, "a plan", _LARGEST, lambda content: _read(read_section(content)))


_FATES: dict[tuple[bool, bool], Fate] = {
    (True, True): "dropped",
    (True, False): "intermediate",
    (False, True): "kept",
    (False, False): "newly kept",
}
"""The fate of a storage, by whether it is dropped and whether a node saves it."""


def filled_by(program: ForwardProgram, storage: ForwardStorage) -> ForwardOperation:
    """Return the operation that fills a storage: for a dropout mask `bernoulli_`, not the `empty_like` before it."""
    operations = [program.operations[number] for number in storage.program]
    return next((each for each in operations if not allocates_only(each.name)), operations[0])


def _described(program: ForwardProgram, number: int) -> str:
    """Return `storage 12 (8.0 MiB of aten.mul.Tensor, layers.0, model.py:12)`."""
    storage = program.storages[number]
    if storage.made_by is None:
        return f"storage {number} ({size_text(storage.nbytes)})"
    operation = program.operations[storage.made_by]
    where = [each for each in (operation.module, operation.source and operation.source.short) if each]
    return f"storage {number} ({', '.join([f'{size_text(storage.nbytes)} of {operation.name}', *where])})"


def _needed(program: ForwardProgram, drop: Iterable[int]) -> set[int]:
    """Return the storages to drop that nodes save, and those needed to recompute these."""
    wanted = set(drop)
    found: set[int] = set()
    # Only nodes start a recomputation: a dropped storage that none of theirs needs would never be recomputed.
    ahead = [number for number in wanted if program.storages[number].saved_by]
    while ahead:
        number = ahead.pop()
        if number not in found:
            found.add(number)
            ahead += [each for each in program.inputs_of(number) if each in wanted]
    return found


def _write(writer: ColumnWriter, plan: RecomputePlan) -> None:
    """Write a plan as one JSON object with `format`, `version`, `fingerprint`, and:

    - `names` of operations; `operations`: indices into `names`; `modules`: paths.
    - For each storage: `operation` (an index into `names`), `number`, `nbytes`, `fate` (an index into Fate), `made_by`,
      `output`, `module` (an index or -1), `seconds`, `obstacle` ("" for none).
    - For each saved slot: `saved_storage` (an index into the storages), `saved_task`, `saved_slot`.
    - For each input of a recomputation: `input_of` (an index into the storages), `input`.
    - `predicted`: null, or an object with the fields of `PlanPrediction`.
    - `order`: null, or an object with the fields of `GraphOrder`. Files of version 1 have no order.
    """
    names, modules = Table[str](), Table[str]()
    storages = plan.storages
    with writer.object():
        writer.value("format", FORMAT)
        writer.value("version", VERSION)
        writer.value("fingerprint", plan.fingerprint)
        writer.column("operations", [names.number(each) for each in plan.operations])
        writer.column("operation", [names.number(each.operation) for each in storages])
        writer.column("names", names)
        for name in ("number", "nbytes", "made_by", "output"):
            writer.column(name, (getattr(each, name) for each in storages))
        writer.column("fate", (get_args(Fate).index(each.fate) for each in storages))
        writer.column("module", [-1 if each.module is None else modules.number(each.module) for each in storages])
        writer.column("modules", modules)
        writer.floats("seconds", (each.seconds for each in storages))
        writer.column("obstacle", (each.obstacle or "" for each in storages))
        saved = [(place, *keeper) for place, each in enumerate(storages) for keeper in each.saved_by]
        writer.column("saved_storage", (place for place, _, _ in saved))
        writer.column("saved_task", (task for _, task, _ in saved))
        writer.column("saved_slot", (slot for _, _, slot in saved))
        inputs = [(place, number) for place, each in enumerate(storages) for number in each.inputs]
        writer.column("input_of", (place for place, _ in inputs))
        writer.column("input", (number for _, number in inputs))
        if plan.predicted is None:
            writer.value("predicted", None)
        else:
            with writer.object("predicted"):
                writer.column("plain_levels", plan.predicted.plain_levels)
                writer.column("levels", plan.predicted.levels)
                for name in ("plain_seconds", "replay_seconds", "recording_seconds"):
                    writer.floats(name, [getattr(plan.predicted, name)])
        if plan.planned_order is None:
            writer.value("order", None)
        else:
            with writer.object("order"):
                writer.value("name", plan.planned_order.name)
                writer.value("graph", plan.planned_order.graph)
                writer.column("tasks", plan.planned_order.tasks)


def _read(section: Section) -> RecomputePlan:
    section.check_format(FORMAT, VERSION)
    names = section.texts("names")
    operations = tuple(names[each] for each in section.integers("operations", len(names)))
    numbers = section.integers("number", _MOST, distinct=True, code="q")
    count = len(numbers)
    nbytes = section.integers("nbytes", _MOST, length=count, code="q")
    made_by = section.integers("made_by", len(operations), low=-1, length=count)
    made = section.integers("operation", len(names), length=count)
    output = section.integers("output", _MOST, low=-1, length=count, code="q")
    fate = section.integers("fate", len(get_args(Fate)), length=count)
    modules = section.texts("modules")
    module = section.integers("module", len(modules), low=-1, length=count)
    seconds = section.floats("seconds", count)
    obstacle = section.texts("obstacle")
    if len(obstacle) != count:
        raise section.wrong("obstacle", f"has {len(obstacle)} entries, not {count}")
    saved = section.integers("saved_storage", count)
    task = section.integers("saved_task", _MOST, length=len(saved), code="q")
    slot = section.texts("saved_slot")
    if len(slot) != len(saved):
        raise section.wrong("saved_slot", f"has {len(slot)} entries, not {len(saved)}")
    saved_by: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for place, keeper in zip(saved, zip(task, slot, strict=True), strict=True):
        saved_by[place].append(keeper)
    input_of = section.integers("input_of", count)
    read = section.integers("input", _MOST, length=len(input_of), code="q")
    inputs: list[list[int]] = [[] for _ in range(count)]
    for place, number in zip(input_of, read, strict=True):
        inputs[place].append(number)
    storages = tuple(
        PlannedStorage(
            numbers[place],
            nbytes[place],
            get_args(Fate)[fate[place]],
            made_by[place],
            output[place],
            names[made[place]],
            None if module[place] < 0 else modules[module[place]],
            tuple(saved_by[place]),
            tuple(inputs[place]),
            seconds[place],
            obstacle[place] or None,
        )
        for place in range(count)
    )
    for each in storages:
        if each.is_dropped and (each.obstacle is not None or each.made_by < 0):
            raise section.wrong("fate", f"drops storage {each.number}, which cannot be recomputed")
    predicted = _read_prediction(section.section("predicted")) if "predicted" in section else None
    order = None
    if "order" in section:
        stored = section.section("order")
        tasks = stored.integers("tasks", _MOST, distinct=True, code="q")
        order = GraphOrder(stored.text("name"), tuple(tasks), stored.text("graph"))
    if order is not None and predicted is not None and len(order.tasks) != len(predicted.levels):
        raise section.wrong(
            "order", f"has {len(order.tasks)} tasks, but the prediction has {len(predicted.levels)} levels"
        )
    return RecomputePlan(section.text("fingerprint"), operations, storages, predicted, order)


def _read_prediction(section: Section) -> PlanPrediction:
    levels = section.integers("levels", _MOST, code="q")
    return PlanPrediction(
        tuple(section.integers("plain_levels", _MOST, length=len(levels), code="q")),
        tuple(levels),
        *(section.floats(name, 1)[0] for name in ("plain_seconds", "replay_seconds", "recording_seconds")),
    )
