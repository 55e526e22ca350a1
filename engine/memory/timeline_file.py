"""Timelines as columns in files."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from ...inspector.graph.graph import Graph
from ...inspector.graph.graph_file import AnyOperation, Table, device_of, read_operations, write_operations
from ...inspector.graph.json_file import ColumnWriter, Section
from ..execution.accumulation_rule import PYTORCHS, Accumulate, Accumulation, Release
from .baseline import Baseline
from .categories import Category
from .estimates import Direction, Estimate, direction_of
from .timeline import Basis, BlockLevels, Listed, Maker, Timeline

_EXACT = 2**53  # from here on, JavaScript's numbers are not exact integers
_MOST = 2**63
_LISTED = ("listed_place", "listed_storage", "listed_task", "listed_input")
_FORMER = {"parameter": "unknown"}  # older files list this category, with no storage in it


def write_timeline(writer: ColumnWriter, timeline: Timeline, order: Sequence[int]) -> None:
    """Write the entries of an object, with the meanings given in `Timeline`:

    - `device`, `basis`, `estimates`, `before`, `events`, `starts`, `nbytes`, `inputs`, `event_ns`: as there. `order` is
      null if it is the run's. `held`: sorted.
    - `directions`: by estimate "at least", "at most" or "unknown"; missing in older files.
    - `categories`: their names. `born_as`: by storage an index into them.
    - By change: `change_event`, `change_storage`, `change_category`.
    - By maker: `maker_task`, or -1; `maker_module`, an index into `modules`, or -1; `maker_operation`, or -1: the
      operations of the graph's tasks count first, in order of task, each once, and then those of `operation_name`,
      `operation_names`, `operation_source` and `sources`, which are as in the graph. `maker_variable`, an index into
      `variables`, or -1; missing in older files.
    - By keeper: `saved_storage`, `saved_task`, `saved_slot`, an index into `slots`.
    - By gradient: `grad_storage`, `grad_task`.
    - `task_ns`: as there; missing if it was not recorded.
    - `accumulate`, `release`: as in `Accumulation`; missing if they are PyTorch's, "inplace" and "eager".
    - By gradient in a list, missing if there is none: `listed_place`, `listed_storage`, `listed_task`, `listed_input`.
    - `constant_bytes`: as there; missing if it is 0.
    - By kind of memory from before: `baseline_kind` and `baseline_bytes`; missing if there was none.
    - `event_places`: as there; missing if tasks ran one after the other.
    - `blocks`: null or missing, or an object: by place `requested`, `allocated`, `reserved`; and `peak_before`.
    """
    writer.value("device", timeline.device)
    writer.value("basis", timeline.basis)
    writer.value("estimates", timeline.estimates)
    writer.value("directions", [direction_of([each]) for each in timeline.estimates])
    if timeline.order == tuple(order):
        writer.value("order", None)
    else:
        writer.column("order", timeline.order)
    writer.value("before", timeline.before)
    for name in ("events", "starts", "nbytes", "inputs", "event_ns"):
        writer.column(name, getattr(timeline, name))
    writer.value("categories", [category.name.lower() for category in Category])
    writer.column("born_as", map(int, timeline.born_as))
    writer.column("change_event", (event for event, _, _ in timeline.changes))
    writer.column("change_storage", (number for _, number, _ in timeline.changes))
    writer.column("change_category", (int(category) for _, _, category in timeline.changes))
    _write_makers(writer, timeline)
    slots = Table[str]()
    kept = [(number, task, slot) for number, keepers in timeline.saved.items() for task, slot in keepers]
    writer.column("saved_storage", (number for number, _, _ in kept))
    writer.column("saved_task", (task for _, task, _ in kept))
    writer.column("saved_slot", (slots.number(slot) for _, _, slot in kept))
    writer.column("slots", slots)
    writer.column("held", sorted(timeline.held))
    writer.column("grad_storage", timeline.grads)
    writer.column("grad_task", timeline.grads.values())
    write_accumulation(writer, timeline.accumulation)
    if timeline.task_ns:
        writer.column("task_ns", timeline.task_ns)
    if timeline.event_places:
        writer.column("event_places", timeline.event_places)
    if timeline.constant_bytes:
        writer.value("constant_bytes", timeline.constant_bytes)
    if parts := timeline.baseline.parts:
        writer.column("baseline_kind", parts)
        writer.column("baseline_bytes", parts.values())
    if timeline.listed:
        for number, name in enumerate(_LISTED):
            writer.column(name, (each[number] for each in timeline.listed))
    if timeline.blocks is None:
        writer.value("blocks", None)
    else:
        with writer.object("blocks"):
            for name in ("requested", "allocated", "reserved"):
                writer.column(name, getattr(timeline.blocks, name))
            writer.value("peak_before", timeline.blocks.peak_before)


def write_accumulation(writer: ColumnWriter, accumulation: Accumulation) -> None:
    if accumulation != PYTORCHS:
        writer.value("accumulate", accumulation.accumulate)
        writer.value("release", accumulation.release)


def read_accumulation(section: Section) -> Accumulation:
    """Read the rule for summing and freeing gradients from an object written by `write_accumulation`."""
    if "accumulate" not in section:
        return PYTORCHS
    return Accumulation(
        section.one_of("accumulate", get_args(Accumulate)), section.one_of("release", get_args(Release))
    )


def _write_makers(writer: ColumnWriter, timeline: Timeline) -> None:
    makers, modules, operations = timeline.makers, Table[str](), Table[AnyOperation]()
    variables = Table[str]()
    known = _operations(timeline.graph)
    for operation in known:
        operations.number(operation)
    writer.column("maker_task", (-1 if maker.task is None else maker.task for maker in makers))
    writer.column("maker_module", (-1 if each.module is None else modules.number(each.module) for each in makers))
    writer.column("modules", modules)
    writer.column(
        "maker_operation", (-1 if each.operation is None else operations.number(each.operation) for each in makers)
    )
    write_operations(writer, list(operations)[len(known) :])
    writer.column("maker_variable", (variables.number(each.variable) if each.variable else -1 for each in makers))
    writer.column("variables", variables)


def _operations(graph: Graph) -> list[AnyOperation]:
    return list(dict.fromkeys(task.operation for task in graph.tasks if task.operation is not None))


def read_timeline(section: Section, graph: Graph, order: array[int]) -> Timeline:
    """Read the timeline of a run of this graph, in this order, from its columns.

    Raises:
        ValueError: If the columns are not a valid timeline; the message names the column.
    """
    tasks = len(graph)
    if "order" in section:
        order = section.integers("order", tasks, distinct=True)
    device = str(device_of(section, "device", section.text("device")))
    basis: Basis = section.one_of("basis", get_args(Basis))
    nbytes = section.integers("nbytes", _EXACT, code="q")
    if sum(nbytes) >= _MOST:
        raise section.wrong("nbytes", f"sum to {sum(nbytes)} bytes, more than any memory")
    count = len(nbytes)
    events = section.integers("events", count, low=-count, code="q")
    before = section.number("before", high=count + 1)
    births, deaths = _lives(section, events, before, count)
    starts = section.integers("starts", len(events) + 1, length=len(order) + 1, code="q")
    if any(start > end for start, end in pairwise(starts)):
        raise section.wrong("starts", "is not in ascending order")
    categories = _categories(section)
    born_as = section.integers("born_as", len(categories), length=count)
    slots = section.texts("slots")
    saved_storage = section.integers("saved_storage", count)
    saved_task = section.integers("saved_task", tasks, length=len(saved_storage))
    saved_slot = section.integers("saved_slot", len(slots), length=len(saved_storage))
    saved: dict[int, list[tuple[int, str]]] = {}
    for number, task, slot in zip(saved_storage, saved_task, saved_slot, strict=True):
        saved.setdefault(number, []).append((task, slots[slot]))
    grad_storage = section.integers("grad_storage", count, distinct=True)
    grad_task = section.integers("grad_task", tasks, length=len(grad_storage))
    wanted = sum(len(graph.tasks[task].inputs) for task in order)
    inputs = section.integers("inputs", count, low=-1, code="q")
    event_ns = section.integers("event_ns", _MOST, low=-_MOST, code="q")
    for name, column, length in (("inputs", inputs, wanted), ("event_ns", event_ns, len(events))):
        if len(column) not in (0, length):
            raise section.wrong(name, f"must have 0 or {length} entries, has {len(column)}")
    task_ns = places = array("q")
    if "task_ns" in section:
        task_ns = section.integers("task_ns", _MOST, low=-_MOST, length=2 * len(order), code="q")
    if "event_places" in section:
        places = section.integers("event_places", len(order) + 1, low=-1, length=len(events), code="q")
    constant_bytes = section.number("constant_bytes", high=_EXACT) if "constant_bytes" in section else 0
    return Timeline(
        graph,
        tuple(order),
        device,
        basis,
        events,
        starts,
        nbytes,
        array("b", (categories[number] for number in born_as)),
        _changes(section, categories, births, deaths),
        before,
        _makers(section, graph, count),
        {number: tuple(keepers) for number, keepers in saved.items()},
        frozenset(section.integers("held", count, distinct=True)),
        dict(zip(grad_storage, grad_task, strict=True)),
        inputs,
        event_ns,
        _read_estimates(section),
        _blocks(section.section("blocks"), len(order)) if "blocks" in section else None,
        read_accumulation(section),
        _read_listed(section, graph, order, count) if _LISTED[0] in section else (),
        task_ns=task_ns,
        event_places=places,
        constant_bytes=constant_bytes,
        baseline=_read_baseline(section) if "baseline_kind" in section else Baseline(),
    )


def _read_baseline(section: Section) -> Baseline:
    kinds = section.texts("baseline_kind")
    sizes = section.integers("baseline_bytes", _EXACT, length=len(kinds), code="q")
    return Baseline(dict(zip(kinds, sizes, strict=True)))


def _read_estimates(section: Section) -> tuple[Estimate, ...]:
    reasons = section.texts("estimates")
    directions = section.texts("directions") if "directions" in section else ["unknown"] * len(reasons)
    if len(directions) != len(reasons) or not set(directions) <= set(get_args(Direction)):
        raise section.wrong("directions", f"must have one of {', '.join(get_args(Direction))} for each estimate")
    return tuple(map(Estimate, reasons, directions))  # type: ignore[arg-type]


def _read_listed(section: Section, graph: Graph, order: Sequence[int], count: int) -> tuple[Listed, ...]:
    places = section.integers("listed_place", len(order))
    storages, tasks = (
        section.integers(name, limit, length=len(places))
        for name, limit in (("listed_storage", count), ("listed_task", len(graph)))
    )
    inputs = section.integers("listed_input", _EXACT, length=len(places), code="q")
    place_of = {task: place for place, task in enumerate(order)}
    for place, task, given in zip(places, tasks, inputs, strict=True):
        if given >= len(graph.tasks[task].inputs):
            raise section.wrong("listed_input", f"has {given}, for a task with {len(graph.tasks[task].inputs)} inputs")
        if place_of.get(task, -1) <= place:
            raise section.wrong("listed_task", f"has {task}, which does not run after place {place}")
    return tuple(zip(places, storages, tasks, inputs, strict=True))


def _blocks(section: Section, places: int) -> BlockLevels:
    requested, allocated, reserved = (
        section.integers(name, _EXACT, length=places, code="q") for name in ("requested", "allocated", "reserved")
    )
    for name, column in (("requested", requested), ("allocated", allocated)):
        if any(nbytes > held for nbytes, held in zip(column, reserved, strict=True)):
            raise section.wrong(name, "has more bytes than `reserved`")
    return BlockLevels(requested, allocated, reserved, section.number("peak_before", high=_EXACT))


def _lives(section: Section, events: array[int], before: int, count: int) -> tuple[array[int], dict[int, int]]:
    """Return the events of each storage's allocation and free: each is allocated once, in order, and freed at most
    once."""
    births = array("q", [-1] * before)
    deaths: dict[int, int] = {}
    for event, number in enumerate(events):
        if number == len(births):
            births.append(event)
        elif number < 0 and ~number < len(births) and ~number not in deaths:
            deaths[~number] = event
        else:
            raise section.wrong("events", f"has an invalid allocation or free at index {event}: {number}")
    if len(births) != count:
        raise section.wrong("events", f"must allocate {count} storages with those from before, allocates {len(births)}")
    return births, deaths


def _categories(section: Section) -> list[Category]:
    try:
        return [Category[_FORMER.get(name, name).upper()] for name in section.texts("categories")]
    except KeyError as error:
        raise section.wrong("categories", f"has one that this version does not know: {error!s:.80}") from None


def _changes(
    section: Section, categories: Sequence[Category], births: array[int], deaths: dict[int, int]
) -> tuple[tuple[int, int, Category], ...]:
    count = len(births)
    storages = section.integers("change_storage", count)
    events = section.integers("change_event", _MOST, length=len(storages), code="q")
    changed = section.integers("change_category", len(categories), length=len(storages))
    last, end = 0, count + len(deaths)
    for event, number in zip(events, storages, strict=True):
        if event < last:
            raise section.wrong("change_event", "is not in ascending order")
        if not births[number] < event <= deaths.get(number, end):
            raise section.wrong("change_event", f"has a change of storage {number} at {event}, when it is not alive")
        last = event
    return tuple(
        (event, number, categories[category]) for event, number, category in zip(events, storages, changed, strict=True)
    )


def _makers(section: Section, graph: Graph, count: int) -> tuple[Maker, ...]:
    operations = [*_operations(graph), *read_operations(section)]
    modules = section.texts("modules")
    tasks = section.integers("maker_task", len(graph), low=-1)
    module_of = section.integers("maker_module", len(modules), low=-1, length=len(tasks))
    operation_of = section.integers("maker_operation", len(operations), low=-1, length=len(tasks))
    variables = section.texts("variables") if "variables" in section else []
    variable_of: Sequence[int] = [-1] * len(tasks)
    if "maker_variable" in section:
        variable_of = section.integers("maker_variable", len(variables), low=-1, length=len(tasks))
    if len(tasks) > count:
        raise section.wrong("maker_task", f"has {len(tasks)} entries, more than there are storages")
    return tuple(
        Maker(
            None if task < 0 else task,
            None if operation < 0 else operations[operation],
            None if module < 0 else modules[module],
            "" if variable < 0 else variables[variable],
        )
        for task, module, operation, variable in zip(tasks, module_of, operation_of, variable_of, strict=True)
    )
