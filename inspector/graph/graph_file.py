"""The format of graphs in files: columns for everything except the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import torch

from ..text.sizes_and_counts import dtype_name
from .graph import Edge, Graph, ModuleCall, Root, Task, TensorMeta
from .json_file import ColumnWriter, Section
from .kinds import Kind
from .operations_and_calls import StoredOperation
from .paths_and_repeats import ranks_of
from .source_lines import Source

if TYPE_CHECKING:
    from .operations_and_calls import Operation

_MOST = 2**31 - 1
_MOST_TASKS = 2**22  # each needs about 200 bytes as Python objects, but as little as 12 in a file
_MOST_EDGES = 2**23
_MOST_OUTPUTS = 1_000_000  # per node; a larger number is invalid, and would need too much memory
_EXACT = 2**53  # JavaScript's numbers are not exact from here on
_ANY_DTYPE = "any dtype"
_DTYPES = {name: found for name, found in vars(torch).items() if isinstance(found, torch.dtype)}

Entry = TypeVar("Entry", bound=Hashable)


@dataclass(frozen=True, slots=True)
class StoredSource(Source):
    """A source line as it was when the graph was saved. The file itself is not read."""

    text: str | None

    def code(self, before: int = 0, after: int = 0) -> tuple[str, ...]:
        """Return only the line itself, since its neighbours were not saved."""
        return () if self.text is None else (self.text,)


AnyOperation: TypeAlias = "Operation | StoredOperation"


class Table(Generic[Entry]):
    """A table that numbers its distinct entries in order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[Entry, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.numbers)

    def number(self, entry: Entry) -> int:
        return self.numbers.setdefault(entry, len(self.numbers))


def write_graph(writer: ColumnWriter, graph: Graph) -> None:
    """Write a graph as the entries of a JSON object:

    - By task: `name`, an index into `names`; `kind`, into `kinds` (see `Kind`); `sequence_nr`, a string where
      JavaScript has no such integer; `created_ns`, as in `Task`, or -1, missing if unknown for all tasks; `inputs`,
      into `input_lists`, whose entries are indices into `metas`: [shape or null for a nested tensor, dtype, device],
      and "any dtype" where the gradient is not cast; `call`, into `calls`, or -1; `operation`, or -1.
    - `parameters`: [task, name] for each AccumulateGrad whose leaf has a name.
    - By operation: `operation_name`, an index into `operation_names`; `operation_source`, into `sources`, or -1.
      `sources`: [file, line, function, the line's text or null].
    - By edge, sorted by task and output: `edge_task`, `edge_output`, `edge_next_task`, `edge_input`.
    - `roots`: [task, input]. `calls`: [path, class, parent or null, index]. `raised`: a text, or null.
    """
    names, kinds = Table[str](), Table[Kind]()
    metas, input_lists = Table[TensorMeta](), Table[tuple[int, ...]]()
    operations = Table[AnyOperation]()
    tasks = graph.tasks
    writer.column("name", (names.number(task.name) for task in tasks))
    writer.column("names", names)
    writer.column("kind", (kinds.number(task.kind) for task in tasks))
    writer.column("kinds", (kind.value for kind in kinds))
    numbers = (task.sequence_nr for task in tasks)
    writer.column("sequence_nr", (number if number < _EXACT else str(number) for number in numbers))
    if any(task.created_ns is not None for task in tasks):
        writer.column("created_ns", (-1 if task.created_ns is None else task.created_ns for task in tasks))
    writer.column("inputs", (input_lists.number(tuple(map(metas.number, task.inputs))) for task in tasks))
    writer.column("input_lists", input_lists)
    writer.column("metas", map(meta_fields, metas))
    writer.column("call", (-1 if task.call is None else task.call for task in tasks))
    writer.column("operation", (-1 if task.operation is None else operations.number(task.operation) for task in tasks))
    writer.column("parameters", ([task.id, task.parameter] for task in tasks if task.parameter is not None))
    write_operations(writer, operations)
    writer.column("edge_task", (edge.task for edge in graph.edges))
    writer.column("edge_output", (edge.output for edge in graph.edges))
    writer.column("edge_next_task", (edge.next_task for edge in graph.edges))
    writer.column("edge_input", (edge.input for edge in graph.edges))
    writer.column("roots", ([root.task, root.input] for root in graph.roots))
    writer.column("calls", ([call.path, call.class_name, call.parent, call.index] for call in graph.calls))
    writer.value("raised", graph.raised)


def write_operations(writer: ColumnWriter, operations: Iterable[AnyOperation]) -> None:
    """Write the columns of operations described in `write_graph`."""
    names, sources = Table[str](), Table[Source]()
    operations = list(operations)
    writer.column("operation_name", (names.number(operation.name) for operation in operations))
    writer.column("operation_names", names)
    found = [operation.source for operation in operations]
    writer.column("operation_source", (-1 if source is None else sources.number(source) for source in found))
    writer.column("sources", ([each.file, each.line, each.function, next(iter(each.code()), None)] for each in sources))


def read_graph(section: Section) -> Graph:
    """Read a graph from its columns, without nodes.

    Raises:
        ValueError: A column is invalid; the message names it.
    """
    metas = [meta_of(section, "metas", row) for row in section.rows("metas")]
    input_lists = [_indices(section, "input_lists", row, metas) for row in section.rows("input_lists")]
    calls = tuple(_call(section, number, row) for number, row in enumerate(section.rows("calls")))
    tasks = _tasks(section, input_lists, len(calls))
    edges = _edges(section, tasks)
    roots = tuple(_root(section, row, tasks) for row in section.rows("roots"))
    if not roots:
        raise section.wrong("roots", "is empty")
    if len(ranks_of(len(tasks), ((edge.task, edge.next_task) for edge in edges))[1]) != len(tasks):
        raise section.wrong("edge_next_task", "leads back to an earlier task: the edges form a cycle")
    return Graph(tasks, edges, roots, calls, raised=section.text("raised") if "raised" in section else None)


def meta_fields(meta: TensorMeta) -> list[Any]:
    """Return the fields of a gradient's metadata for a file."""
    return [meta.shape, dtype_name(meta.dtype), str(meta.device), *([_ANY_DTYPE] if meta.any_dtype else [])]


def meta_of(section: Section, key: str, row: Any) -> TensorMeta:
    """Return the metadata with these fields."""
    any_dtype = isinstance(row, list) and row[3:] == [_ANY_DTYPE]
    shape, dtype, device = _fields(section, key, row[:3] if any_dtype else row, 3)
    if shape is not None and not (isinstance(shape, list) and all(_is_count(size) for size in shape)):
        raise section.wrong(key, f"has an invalid shape: {shape!r:.80}")
    if not (isinstance(dtype, str) and dtype in _DTYPES):  # reading an attribute of torch may import a module
        raise section.wrong(key, f"has a dtype that torch {torch.__version__} does not have: {dtype!r:.80}")
    sizes = None if shape is None else tuple(shape)
    return TensorMeta(sizes, _DTYPES[dtype], device_of(section, key, device), any_dtype)


def device_of(section: Section, key: str, device: Any) -> torch.device:
    """Return the device with this name."""
    if isinstance(device, str):  # a number would be looked up among the accelerators of this machine
        with suppress(RuntimeError):
            return torch.device(device)
    raise section.wrong(key, f"has a device that torch {torch.__version__} does not have: {device!r:.80}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _fields(section: Section, key: str, row: Any, count: int) -> list[Any]:
    if not isinstance(row, list) or len(row) != count:
        raise section.wrong(key, f"has an entry that does not have {count} fields: {row!r:.80}")
    return row


def _indices(section: Section, key: str, row: Any, entries: list[TensorMeta]) -> tuple[TensorMeta, ...]:
    if not isinstance(row, list) or not all(_is_count(each) and each < len(entries) for each in row):
        raise section.wrong(key, f"has an index that is out of range: {row!r:.80}")
    return tuple(entries[each] for each in row)


def _call(section: Section, number: int, row: Any) -> ModuleCall:
    path, class_name, parent, index = _fields(section, "calls", row, 4)
    if not (isinstance(path, str) and isinstance(class_name, str) and _is_count(index)):
        raise section.wrong("calls", f"has an entry of other types: {row!r:.80}")
    if parent is not None and not (_is_count(parent) and parent < number):
        raise section.wrong("calls", f"has a parent that is not an earlier call: {row!r:.80}")
    return ModuleCall(number, path, class_name, parent, index)


def _root(section: Section, row: Any, tasks: tuple[Task, ...]) -> Root:
    task, number = _fields(section, "roots", row, 2)
    if not (_is_count(task) and _is_count(number) and task < len(tasks) and number < len(tasks[task].inputs)):
        raise section.wrong("roots", f"has an index that is out of range: {row!r:.80}")
    return Root(task, number)


def _source(section: Section, row: Any) -> StoredSource:
    file, line, function, text = _fields(section, "sources", row, 4)
    texts = isinstance(file, str) and isinstance(function, str) and (text is None or isinstance(text, str))
    if not (texts and _is_count(line)):
        raise section.wrong("sources", f"has an entry of other types: {row!r:.80}")
    return StoredSource(file, line, function, text)


def read_operations(section: Section) -> list[StoredOperation]:
    """Read the operations written by `write_operations`."""
    sources = [_source(section, row) for row in section.rows("sources")]
    names = section.texts("operation_names")
    name_of = section.integers("operation_name", len(names))
    source_of = section.integers("operation_source", len(sources), low=-1, length=len(name_of))
    return [
        StoredOperation(names[name], None if source < 0 else sources[source])
        for name, source in zip(name_of, source_of, strict=True)
    ]


def _sequence_numbers(section: Section, count: int) -> list[int]:
    if (entries := section.count("sequence_nr")) not in (-1, count):
        raise section.wrong("sequence_nr", f"has {entries} entries, not {count}")
    found = section.rows("sequence_nr")
    if len(found) != count:
        raise section.wrong("sequence_nr", f"has {len(found)} entries, not {count}")
    if not all(type(each) is int or (isinstance(each, str) and each.isdecimal() and len(each) < 21) for each in found):
        raise section.wrong("sequence_nr", "has an entry that is not an integer")
    numbers = list(map(int, found))
    if numbers and not (min(numbers) >= 0 and max(numbers) < 2**64):
        raise section.wrong("sequence_nr", "has an entry that is not from 0 to 2**64 - 1")
    return numbers


def _tasks(section: Section, input_lists: list[tuple[TensorMeta, ...]], calls: int) -> tuple[Task, ...]:
    names = section.texts("names")
    try:
        kinds = [Kind(kind) for kind in section.texts("kinds")]
    except ValueError as error:
        raise section.wrong("kinds", f"has an unknown kind: {error!s:.80}") from None
    operations = read_operations(section)
    name = section.integers("name", len(names))
    count = len(name)
    if count > _MOST_TASKS:
        raise section.wrong("name", f"has {count:,} tasks; at most {_MOST_TASKS:,} are read")
    parameters: dict[int, str] = {}
    for row in section.rows("parameters"):
        task, parameter = _fields(section, "parameters", row, 2)
        if not (_is_count(task) and task < count and isinstance(parameter, str)):
            raise section.wrong("parameters", f"has an entry that is not a task and a name: {row!r:.80}")
        parameters[task] = parameter
    times: Sequence[int] = [-1] * count
    if "created_ns" in section:
        times = section.integers("created_ns", 2**63, low=-1, length=count, code="q")
    columns = zip(
        name,
        section.integers("kind", len(kinds), length=count),
        _sequence_numbers(section, count),
        section.integers("inputs", len(input_lists), length=count),
        section.integers("call", calls, low=-1, length=count),
        section.integers("operation", len(operations), low=-1, length=count),
        times,
        strict=True,
    )
    return tuple(
        Task(
            number,
            names[name],
            kinds[kind],
            sequence_nr,
            input_lists[inputs],
            parameters.get(number),
            None if call < 0 else call,
            None if operation < 0 else operations[operation],
            None if created_ns < 0 else created_ns,
        )
        for number, (name, kind, sequence_nr, inputs, call, operation, created_ns) in enumerate(columns)
    )


def _edges(section: Section, tasks: tuple[Task, ...]) -> tuple[Edge, ...]:
    from_task = section.integers("edge_task", len(tasks))
    count = len(from_task)
    if count > _MOST_EDGES:
        raise section.wrong("edge_task", f"has {count:,} edges; at most {_MOST_EDGES:,} are read")
    columns = (
        from_task,
        section.integers("edge_output", _MOST_OUTPUTS, length=count),
        section.integers("edge_next_task", len(tasks), length=count),
        section.integers("edge_input", _MOST, length=count),
    )
    edges = tuple(map(Edge, *columns))
    last = (-1, -1)
    for edge in edges:
        if (edge.task, edge.output) <= last:
            raise section.wrong("edge_output", f"is not sorted by task and output at {edge}")
        if edge.input >= len(tasks[edge.next_task].inputs):
            raise section.wrong("edge_input", f"leads to an input that does not exist: {edge}")
        last = edge.task, edge.output
    return edges
