"""The autograd graph below one or more tensors, as plain data: `th.graph(loss)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from .kinds import Kind, kind_of
from .tape import CallRecord, Operation, Tape, operations_of
from .torch_internals import input_metadata, leaf_of

if TYPE_CHECKING:
    import graphviz

    from .source import Source

Outputs = Tensor | GradientEdge | Sequence[Tensor | GradientEdge]
Fold = Literal["repeats", "none"] | int | Collection[str]
Theme = Literal["auto", "light", "dark"]
Found = dict[Node, tuple[tuple[Node | None, int], ...]]
ParameterNames = torch.nn.Module | Mapping[str, Tensor]

_MOST_SHOWN = 20_000  # tasks: a notebook with a larger picture in it gets slow; save_svg has no such limit


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What torch knows of a gradient before it exists. `shape` is None for nested tensors, which have none."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int | None:
        """Bytes of a dense tensor of this shape."""
        return None if self.shape is None else prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        shape = "nested" if self.shape is None else "×".join(map(str, self.shape)) or "scalar"
        return f"{shape} {str(self.dtype).removeprefix('torch.')} {self.device}"


@dataclass(frozen=True, slots=True)
class Edge:
    """The gradient which `task` gives as its output number `output` goes to input number `input` of `next_task`."""

    task: int
    output: int
    next_task: int
    input: int


@dataclass(frozen=True, slots=True)
class Root:
    """Where the backward starts: input number `input` of `task` takes a given gradient."""

    task: int
    input: int


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of one module in the forward.

    `path` is the module's name below the model ("encoder.layer.3"; "" for the model itself),
    `parent` the id of the call in which this one happened, `index` counts the calls of the same module.
    """

    id: int
    path: str
    class_name: str
    parent: int | None
    index: int

    @property
    def name(self) -> str:
        """What to call it: the last part of the path, the class where the path is empty."""
        return self.path.rsplit(".", 1)[-1] or self.class_name


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a task's node keeps from the forward.

    `storage` numbers storages within one graph: equal numbers share bytes. `version` is the tensor's version counter
    when it was saved. `parameter` names it when its storage is a parameter's.
    """

    task: int
    storage: int
    storage_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    version: int
    parameter: str | None


@dataclass(frozen=True, slots=True)
class Task:
    """One node's turn in the backward.

    `inputs` describes the gradients which it takes, one per input number. `parameter` is the leaf's name, for an
    AccumulateGrad whose tensor has one. Where a capture saw the forward, `call` is the id of the innermost module call
    and `operation` the forward operation that made the node; several tasks may share one.
    """

    id: int
    name: str
    kind: Kind
    sequence_nr: int
    inputs: tuple[TensorMeta, ...]
    parameter: str | None = None
    call: int | None = None
    operation: Operation | None = None

    @property
    def source(self) -> Source | None:
        """The user's line which made the node in the forward, where a capture saw it."""
        return None if self.operation is None else self.operation.source


@dataclass(frozen=True, eq=False)
class Graph:
    """The tasks of one backward and the edges between them.

    Task ids count from 0 in order of creation: ascending sequence number, and then the AccumulateGrad tasks, whose
    sequence number is the highest there is, in the order in which the forward first used their leaf. `edges` are sorted
    by task and output. `nodes[i]` is the torch node of task i; holding it keeps the node's saved tensors alive until a
    backward frees them, as holding the loss does.
    """

    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    roots: tuple[Root, ...]
    calls: tuple[ModuleCall, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    nodes: tuple[Node, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        return (
            f"<Graph of {len(self.tasks)} tasks and {len(self.edges)} edges from {self.tasks[self.roots[0].task].name}>"
        )

    @cached_property
    def out_edges(self) -> tuple[tuple[Edge, ...], ...]:
        """For each task its edges, by output number. Outputs nobody wants have none."""
        grouped: list[list[Edge]] = [[] for _ in self.tasks]
        for edge in self.edges:
            grouped[edge.task].append(edge)
        return tuple(map(tuple, grouped))

    @cached_property
    def in_edges(self) -> tuple[tuple[Edge, ...], ...]:
        """For each task the edges that bring its gradients."""
        grouped: list[list[Edge]] = [[] for _ in self.tasks]
        for edge in self.edges:
            grouped[edge.next_task].append(edge)
        return tuple(map(tuple, grouped))

    def module(self, task: Task | int) -> str | None:
        """The path of the innermost module whose call made the task's node; None where no capture saw it."""
        call = self.tasks[task].call if isinstance(task, int) else task.call
        return None if call is None else self.calls[call].path

    def describe(self, task: Task | int) -> str:
        """The task in one phrase, as errors name it: `task 12 MmBackward0 (encoder.layer.3, model.py:120)`."""
        if isinstance(task, int):
            task = self.tasks[task]
        where = [part for part in (task.parameter, self.module(task), task.source and task.source.short) if part]
        return f"task {task.id} {task.name}" + (f" ({', '.join(where)})" if where else "")

    def to_json(self) -> str:
        """The graph as versioned JSON; see `inspector/to_json.py` for the fields."""
        from .to_json import graph_to_json

        return graph_to_json(self)

    def to_svg(self, *, fold: Fold = "repeats", theme: Theme = "auto") -> str:
        """The graph as one self-contained SVG. See `save_svg`."""
        from .svg import graph_to_svg

        return graph_to_svg(self, fold=fold, theme=theme)

    def save_svg(self, path: str | Path, *, fold: Fold = "repeats", theme: Theme = "auto") -> Path:
        """Draws the graph with tapehead's own layout.

        `fold` says which modules are drawn closed: "repeats" folds a run of equal blocks into one box ("×12"), "none"
        opens everything, a number closes the modules from that depth on (0: the outermost), and a collection of module
        paths closes those. `theme` is "light", "dark" or "auto", which follows the reader's preference.
        """
        path = Path(path)
        path.write_text(self.to_svg(fold=fold, theme=theme), encoding="utf-8")
        return path

    def to_graphviz(self) -> graphviz.Digraph:
        """The graph as a `graphviz.Digraph`, modules as clusters. Needs the `graphviz` package."""
        from .dot import graph_to_graphviz

        return graph_to_graphviz(self)

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if len(self.tasks) <= _MOST_SHOWN else None


def graph(outputs: Outputs, names: ParameterNames | None = None) -> Graph:
    """Reads the autograd graph which a backward from `outputs` would run. Nothing is executed.

    Args:
        outputs: a tensor (the loss), a `GradientEdge`, or a sequence of them.
        names: a module or a mapping of names to tensors, to name the leaves after. A capture of the forward
            (`th.capture`) supplies names, module paths, source lines and saved tensors without it.

    Raises:
        ValueError: an output has no graph: it doesn't require grad, or was computed under `torch.no_grad()`.
    """
    roots = root_edges(outputs)
    return _build(_walk([node for node, _ in roots]), roots, names)


def graph_of_nodes(nodes: Sequence[Node]) -> Graph:
    """The graph below nodes at hand, from those which no other leads to."""
    found = _walk(nodes)
    reached = {child for nexts in found.values() for child, _ in nexts}
    return _build(found, [(node, 0) for node in nodes if node not in reached], None)


def root_edges(outputs: Outputs) -> list[tuple[Node, int]]:
    """The (node, input number) pairs at which a backward from `outputs` starts."""
    if isinstance(outputs, Tensor | GradientEdge):
        outputs = [outputs]
    roots = []
    for position, output in enumerate(outputs):
        if isinstance(output, Tensor):
            if not output.requires_grad:
                raise ValueError(
                    f"output {position} (shape {tuple(output.shape)}, {output.dtype}) does not require grad and has no "
                    "grad_fn, so there is no graph below it: was it computed under torch.no_grad() or "
                    "inference_mode(), detached, or does no input of it require grad?"
                )
            output = get_gradient_edge(output)
        elif not isinstance(output, GradientEdge):
            raise TypeError(
                f"output {position} is a {type(output).__name__}; expected a torch.Tensor or a GradientEdge"
            )
        roots.append((output.node, output.output_nr))
    if not roots:
        raise ValueError("there is no output to start from: the sequence is empty")
    return roots


def _walk(starts: Iterable[Node]) -> Found:
    """All nodes below `starts` with their next functions, in an order of discovery that depends on the graph alone."""
    found: Found = {}
    stack = list(reversed(list(starts)))
    while stack:
        node = stack.pop()
        if node in found:
            continue
        nexts = found[node] = node.next_functions
        stack.extend(child for child, _ in reversed(nexts) if child is not None and child not in found)
    return found


def _number(found: Found, kinds: dict[Node, Kind]) -> dict[Node, int]:
    """Gives each node its task id, ascending in the returned dict."""
    created = [node for node in found if kinds[node] is not Kind.ACCUMULATE_GRAD]
    created.sort(key=lambda node: node._sequence_nr())
    ids = {node: task_id for task_id, node in enumerate(created)}
    for node in created:
        for child, _ in found[node]:
            if child is not None and child not in ids:
                ids[child] = len(ids)
    for node in found:  # a root which is itself a leaf has no user
        ids.setdefault(node, len(ids))
    return ids


def _leaf_namer(names: ParameterNames | None, operations: Mapping[Node, Operation]) -> Callable[[Tensor], str | None]:
    """A function from a leaf to its name: from `names`, else from the captures that saw the graph."""
    if names is not None:
        pairs = names.named_parameters() if isinstance(names, torch.nn.Module) else names.items()
        given = {id(tensor): name for name, tensor in pairs}
        return lambda leaf: given.get(id(leaf))
    tapes = list(dict.fromkeys(operation.tape for operation in operations.values()))
    return lambda leaf: next((name for tape in tapes if (name := tape.leaf_name(leaf))), None)


def _metas(node: Node, known: dict[object, TensorMeta]) -> tuple[TensorMeta, ...]:
    """The node's input metadata; equal ones are one object, since a large graph has few different ones."""
    found = []
    for facts in input_metadata(node):
        meta = known.get(facts)
        if meta is None:
            meta = known[facts] = TensorMeta(*facts)
        found.append(meta)
    return tuple(found)


def _build(found: Found, roots: list[tuple[Node, int]], names: ParameterNames | None) -> Graph:
    kinds = {node: kind_of(node) for node in found}
    ids = _number(found, kinds)
    operations = operations_of(found, ids) if Tape.alive() else {}
    calls = _Calls()
    leaf_name = _leaf_namer(names, operations)
    metas: dict[object, TensorMeta] = {}
    tasks = []
    edges = []
    for node, task_id in ids.items():
        kind = kinds[node]
        operation = operations.get(node)
        tasks.append(
            Task(
                task_id,
                node.name(),
                kind,
                node._sequence_nr(),
                _metas(node, metas),
                leaf_name(leaf_of(node)) if kind is Kind.ACCUMULATE_GRAD else None,
                calls.id_of(operation.call) if operation else None,
                operation,
            )
        )
        for output, (child, number) in enumerate(found[node]):
            if child is not None:
                edges.append(Edge(task_id, output, ids[child], number))
    return Graph(
        tasks=tuple(tasks),
        edges=tuple(edges),
        roots=tuple(Root(ids[node], number) for node, number in roots),
        calls=tuple(calls.found),
        saved=_saved_tensors(ids, kinds, operations),
        nodes=tuple(ids),
    )


class _Calls:
    """Numbers the module calls which a graph's tasks need, parents first."""

    def __init__(self) -> None:
        self.found: list[ModuleCall] = []
        self._ids: dict[CallRecord, int] = {}

    def id_of(self, record: CallRecord | None) -> int | None:
        if record is None:
            return None
        known = self._ids.get(record)
        if known is not None:
            return known
        parent = self.id_of(record.parent)  # as deep as modules are nested
        call = ModuleCall(len(self.found), record.full_path, record.module_class.__name__, parent, record.index)
        self.found.append(call)
        self._ids[record] = call.id
        return call.id


def _saved_tensors(
    ids: dict[Node, int], kinds: dict[Node, Kind], operations: dict[Node, Operation]
) -> tuple[SavedTensor, ...]:
    """What the captured nodes still hold. A CopySlices holds what the node inside it saved just before it was made."""
    saved = []
    storages: dict[int, int] = {}
    tapes = {operation.tape for operation in operations.values()}
    records = {tape: tape.saved_by_number() for tape in tapes}
    names = {tape: tape.names_of_storages() for tape in tapes}
    for node, operation in operations.items():
        tape = operation.tape
        number = node._sequence_nr()
        kept = records[tape].get(number) or (records[tape].get(number - 1) if kinds[node] is Kind.COPY_SLICES else None)
        for record in kept or ():
            tensor = record.tensor
            storage = tensor.untyped_storage()
            saved.append(
                SavedTensor(
                    ids[node],
                    storages.setdefault(storage._cdata, len(storages)),
                    storage.nbytes(),
                    tuple(tensor.shape),
                    tensor.dtype,
                    tensor.device,
                    record.version,
                    names[tape].get(storage._cdata),
                )
            )
    saved.sort(key=lambda each: each.task)
    return tuple(saved)
