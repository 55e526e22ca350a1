"""`ts.orders.unpack_order`: the order in which a backward will unpack saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.freed_nodes import begun_by_session
from ...inspector.graph.graph import Graph, Outputs, unique_name
from ...inspector.graph.kinds import Kind
from ...inspector.graph.operations_and_calls import Operation, resolve_sources
from ...inspector.graph.phrases import joined, module_title
from ...inspector.graph.source_lines import Source
from ...inspector.text.report import ShownAsFindings
from ...inspector.text.sizes_and_counts import counted, dtype_name, nth, shape_text, size_text
from ...inspector.torch_private.saved_variables import first_freed, hides_saved, packed_slots, saved_slots
from ...inspector.torch_private.tensors import is_number, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..schedule.policy import AnyPolicy, is_dynamic, policy_name
from .policies import find_policy
from .simulate import schedule

_MOST_ROWS = 40  # rows of a displayed table; records() has all
_MOST_TEXT = 40  # characters of a pack hook's result
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _gone() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Unpack:
    """A saved tensor that a backward will unpack.

    Attributes:
        place: the place of its task in the order, from 0.
        task: the id of the task whose node saved it.
        slot: its name in the node: "self", "result", "mat2", ...; "tensors" for a custom Function.
        shape, dtype: shape and dtype of the tensor; None if a hook packed it, because only unpacking reveals them. The
            shape of a nested tensor is None.
        packed_as: a description of the pack hook's result; None if the tensor is not packed.
        module: the path of the innermost module whose call created the node; None without a capture.
        source: the user's line that created the node.
    """

    place: int
    task: int
    slot: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    packed_as: str | None
    module: str | None
    source: Source | None
    _packed: Callable[[], object] = field(default=_gone, repr=False, compare=False)

    @property
    def nbytes(self) -> int | None:
        """Bytes of a dense tensor of this shape; None if the shape is unknown."""
        return None if self.shape is None or self.dtype is None else prod(self.shape) * self.dtype.itemsize

    @property
    def packed(self) -> object:
        """The pack hook's result, such as a handle, as long as something else keeps it alive.

        None if nothing was packed, and for tuples, lists and dicts, which do not support weak references.
        """
        return self._packed()


@dataclass(frozen=True, eq=False, repr=False)
class UnpackOrder(ShownAsFindings):
    """The order in which a backward unpacks saved tensors. In a notebook it displays a table.

    Attributes:
        graph: the graph, without its nodes.
        policy: the policy's name.
        rows: the saved tensors in the order in which they are unpacked. Those of one task are unpacked together when it
            runs; the order among them is up to its code.
        hidden: the ids of tasks whose saved tensors Python cannot see, in execution order: CopySlices, and C++ nodes of
            extensions.
        inside: the ids of tasks that run a nested backward, whose saved tensors are not listed: reentrant checkpoints,
            and compiled regions that save more than their node shows.
    """

    graph: Graph
    policy: str
    rows: tuple[Unpack, ...]
    hidden: tuple[int, ...]
    inside: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Unpack]:
        return iter(self.rows)

    def __getitem__(self, place: int) -> Unpack:
        return self.rows[place]

    @property
    def tasks(self) -> tuple[int, ...]:
        """The ids of the tasks that unpack, in execution order."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    @cached_property
    def packed_order(self) -> tuple[int, ...] | None:
        """The ids of the same tasks in the order in which their tensors were packed.

        A node saves its tensors when it is created. Sequence numbers give the order of creation within one thread; for
        a forward in several threads, the times of a capture do. None for several threads without a capture.
        """
        tasks = [self.graph.tasks[task_id] for task_id in self.tasks]
        operations = [task.operation for task in tasks]
        created = [each.created_ns for each in operations if isinstance(each, Operation)]
        if len(created) == len(tasks):
            of_task = dict(zip(self.tasks, created, strict=True))
            return tuple(task.id for task in sorted(tasks, key=lambda task: (of_task[task.id], task.sequence_nr)))
        numbers = [task.sequence_nr for task in self.graph.tasks]
        leaves = [task.is_leaf for task in self.graph.tasks]
        for edge in self.graph.edges:
            if not leaves[edge.next_task] and numbers[edge.task] <= numbers[edge.next_task]:
                return None  # within a thread, a consumer is newer than the producer
        return tuple(task.id for task in sorted(tasks, key=lambda task: task.sequence_nr))

    @cached_property
    def out_of_order(self) -> tuple[Unpack, int] | None:
        """The first tensor not unpacked in reverse packing order, and the id of the task that would have been next.

        None if all are in reverse order, or if the packing order is unknown.
        """
        packed = self.packed_order
        if packed is None:
            return None
        for task_id, expected in zip(self.tasks, reversed(packed), strict=True):
            if task_id != expected:
                return next(row for row in self.rows if row.task == task_id), expected
        return None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result as sentences."""
        tasks, describe = self.tasks, self.graph.describe
        if not self.rows:
            found = ["No node of this graph has a saved tensor that Python can see."]
        else:
            known = [row.nbytes for row in self.rows if row.nbytes is not None]
            sizes = f", {size_text(sum(known))} in all" if len(known) == len(self.rows) else ""
            found = [
                f"Under {self.policy}, {counted(len(tasks), 'task')} of {len(self.graph):,} "
                f"{'unpacks' if len(tasks) == 1 else 'unpack'} {counted(len(self.rows), 'saved tensor')}{sizes}."
            ]
            if self.packed_order is None:
                found.append(
                    "The packing order is unknown: the forward ran in several threads, and sequence numbers are "
                    "counted per thread."
                )
            elif self.out_of_order is None:
                found.append("They are unpacked in exactly the reverse of the packing order.")
            else:
                row, expected = self.out_of_order
                found.append(
                    f"The first one that is not in reverse packing order: {describe(row.task)}, the "
                    f"{nth(tasks.index(row.task) + 1)} to unpack, before {describe(expected)}, which was packed later."
                )
        if len(self.rows) > len(tasks):
            found.append("The tensors of one task are unpacked together; their order is up to the task's code.")
        if packed := sum(row.packed_as is not None for row in self.rows):
            which = "1 of them was" if packed == 1 else f"{packed:,} of them were"
            which = "All were" if packed == len(self.rows) > 1 else which
            found.append(
                f"{which} packed by saved_tensors_hooks, so their shapes are unknown until the unpack hook runs."
            )
        if self.hidden:
            names = joined([unique_name(self.graph, task) for task in self.hidden])
            found.append(f"Python cannot see the saved tensors of these tasks, so they are not listed: {names}.")
        if self.inside:
            names = joined([unique_name(self.graph, task) for task in self.inside])
            found.append(f"Tensors unpacked inside these tasks are not listed: {names}.")
        return tuple(found)

    @cached_property
    def cells(self) -> list[list[str]]:
        """The table as text cells, headings first; at most 40 rows."""
        rows = [["place", "task", "saved as", "tensor", "bytes", "module", "line"]]
        for row in self.rows[:_MOST_ROWS]:
            rows.append(
                [
                    f"{row.place + 1:,}",
                    f"{row.task} {self.graph.tasks[row.task].name}",
                    row.slot,
                    f"packed: {row.packed_as}"
                    if row.dtype is None
                    else f"{shape_text(row.shape)} {dtype_name(row.dtype)}",
                    "–" if row.nbytes is None else size_text(row.nbytes),
                    "–" if row.module is None else module_title(self.graph, row.module),
                    row.source.short if row.source else "–",
                ]
            )
        if len(self.rows) > _MOST_ROWS:
            rows.append(["", f"and {len(self.rows) - _MOST_ROWS:,} more", "", "", "", "", ""])
        return rows

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per saved tensor, for `pandas.DataFrame(order.records())`."""
        return [
            {
                "place": row.place,
                "task": row.task,
                "name": self.graph.tasks[row.task].name,
                "slot": row.slot,
                "shape": row.shape,
                "dtype": row.dtype,
                "nbytes": row.nbytes,
                "packed_as": row.packed_as,
                "module": row.module,
                "source": row.source and row.source.short,
            }
            for row in self.rows
        ]

    right = ("place", "bytes")
    __repr__ = ShownAsFindings.__str__


def unpack_order(loss_or_graph: Outputs | Graph, policy: AnyPolicy = "heap") -> UnpackOrder:
    """Return the order in which a backward will unpack saved tensors under a policy. Nothing runs, not even hooks.

    PyTorch does not specify the order in which `saved_tensors_hooks` unpack (PR #198016): it is the order in which the
    tasks run. A policy plans that order, so the order of unpacking is known before the backward:

        >>> import torch, tapescope as ts
        >>> x = torch.ones(3, requires_grad=True)
        >>> order = ts.orders.unpack_order(x.exp().sin().sum(), "heap")
        >>> [(order.graph.tasks[row.task].short_name, row.slot, row.nbytes) for row in order]
        [('Sin', 'self', 12), ('Exp', 'result', 12)]
        >>> order.out_of_order is None
        True

    For a forward in one thread, HEAP unpacks in exactly the reverse of the packing order, because a node is newer than
    the nodes whose results it uses. A state that later operations read again is therefore unpacked twice, far apart.
    `ts.orders.check_order` finds where a chain of states is broken, and `ts.orders.constrained` returns a policy that
    keeps it. `Unpack.packed` is the pack hook's own handle, from which the chain can be built.

    Args:
        loss_or_graph: the loss, as for `ts.graph`, or a graph.
        policy: as in `ts.backward`.

    Known limitations: saved tensors of `CopySlices` and of C++ nodes of extensions are not listed, nor those unpacked
    inside a reentrant checkpoint. In a checkpointed region (`use_reentrant=False`), the first task that unpacks
    recomputes the region. A Python number (`x * 2`), which a node saves as a tensor, is left out, because no hook
    receives it; a bool (`x * True`) is listed. A listed tensor may never be unpacked, as in a custom Function whose
    backward does not read `ctx.saved_tensors`.

    Raises:
        ValueError: the policy decides while the backward runs; or the graph is from a file and has no nodes.
        RuntimeError: a backward has freed the saved tensors of a task, so this one cannot run.
    """
    graph = loss_or_graph if isinstance(loss_or_graph, Graph) else graph_of(loss_or_graph)
    chosen = find_policy(policy)
    if is_dynamic(chosen):
        raise ValueError(
            f"policy {policy_name(chosen)} decides while the backward runs, so its order cannot be planned"
        )
    _assert_has_nodes(graph)
    order = schedule(graph, chosen)
    for task_id in order:  # one by one: another backward may have freed only the nodes that it shares with this graph
        if first_freed([graph.nodes[task_id]]) is not None:
            task = graph.describe(task_id)
            freed = (
                f"a backward has freed the saved tensors of {task}, so they cannot be unpacked; compute the loss again"
            )
            raise RuntimeError("; ".join([freed, *begun_by_session(graph)]))
    rows: list[Unpack] = []
    with collector_paused():
        resolve_sources(task.operation for task in graph.tasks if isinstance(task.operation, Operation))
        for place, task_id in enumerate(order):
            rows.extend(_rows(graph, place, task_id))
    hidden = tuple(task_id for task_id in order if hides_saved(graph.nodes[task_id]))
    inside = tuple(task_id for task_id in order if graph.tasks[task_id].kind is Kind.CHECKPOINT)
    return UnpackOrder(replace(graph, nodes=()), policy_name(chosen), tuple(rows), hidden, inside)


def _assert_has_nodes(graph: Graph) -> None:
    if not graph.nodes:
        raise ValueError(f"{graph.why_no_nodes}, so its saved tensors are unknown; pass the loss")


def _rows(graph: Graph, place: int, task_id: int) -> Iterator[Unpack]:
    node, task = graph.nodes[task_id], graph.tasks[task_id]
    if task.is_leaf:
        return
    module = graph.module(task)
    for slot in saved_slots(node):
        with unobserved():
            if is_number(slot.tensor):
                continue
        shape = None if slot.tensor.is_nested else tuple(slot.tensor.shape)
        yield Unpack(place, task_id, slot.name, shape, slot.tensor.dtype, None, module, task.source)
    for name, packed in packed_slots(node):
        said, still = _packed_text(packed), _watched(packed)
        yield Unpack(place, task_id, name, None, None, said, module, task.source, still)


def tensor_text(tensor: Tensor) -> str:
    """`4×8 float32`."""
    shape = None if tensor.is_nested else tuple(tensor.shape)
    return f"{shape_text(shape)} {dtype_name(tensor.dtype)}"


def _packed_text(packed: object) -> str:
    """Describe the result of a pack hook without running the user's code."""
    name = type(packed).__name__
    if isinstance(packed, Tensor):
        return f"{name} {tensor_text(packed)}"
    if type(packed) in _PLAIN:
        text = repr(packed)
        return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."
    if type(packed) in (tuple, list):
        return f"{name} of {len(packed)}"  # type: ignore[arg-type]
    return name


def _watched(packed: object) -> Callable[[], object]:
    """Return a function that returns the pack hook's result, or None once nothing else keeps the result alive. A report
    must not keep saved tensors alive.
    """
    if type(packed) in _PLAIN:
        return lambda: packed
    try:
        return ref(packed)
    except TypeError:
        return _gone


class SavedBy:
    """Finds the tasks whose nodes saved a tensor. The first call reads all saved tensors of the graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._packed: dict[int, None] = {}  # tasks with a pack hook's result in which no tensor is visible

    def tasks(self, tensor: Tensor) -> frozenset[int]:
        """Return the ids of the tasks whose node saved this tensor, or a view of all its elements (its transpose).

        A tensor packed by `saved_tensors_hooks` is found if the pack hook returned the tensor itself, or a tuple, a
        list, a dict or an object with an attribute that contains it.

        Raises:
            ValueError: no task is known to have saved it, or the graph has no nodes.
        """
        _assert_has_nodes(self._graph)
        found = self._tasks.get(_elements_of(tensor))
        if found is not None:
            return frozenset(found)
        unknown = f"no task of this graph is known to unpack this tensor of {tensor_text(tensor)}"
        if not self._packed:
            raise ValueError(
                f"{unknown}: nothing saved it, or a backward has freed what was saved; name a task, a module or a line "
                "instead"
            )
        tasks = joined([unique_name(self._graph, task) for task in self._packed])
        raise ValueError(
            f"{unknown}: {tasks} {'keep' if len(self._packed) > 1 else 'keeps'} results of saved_tensors_hooks in "
            "which it cannot be recognised; name the tasks instead, for example by `Unpack.packed` of "
            "ts.orders.unpack_order(loss)"
        )

    @cached_property
    def _tasks(self) -> dict[Hashable, set[int]]:
        found: dict[Hashable, set[int]] = {}
        with collector_paused():
            for task_id, node in enumerate(self._graph.nodes):
                if self._graph.tasks[task_id].is_leaf:
                    continue
                for slot in saved_slots(node):
                    found.setdefault(_elements_of(slot.tensor), set()).add(task_id)
                for _, packed in packed_slots(node):
                    tensors = list(_tensors_in(packed))
                    for tensor in tensors:
                        found.setdefault(_elements_of(tensor), set()).add(task_id)
                    if not tensors:
                        self._packed[task_id] = None
        return found


def _elements_of(tensor: Tensor) -> Hashable:
    """Return a key that is equal for two tensors with the same elements: their storage, and the range and number of
    elements in it."""
    storage = None if tensor.layout is not torch.strided or tensor.is_nested else storage_of(tensor)
    if storage is None:
        return id(tensor)  # a node returns the user's own object
    first = int(tensor.storage_offset())
    steps = [(int(size), int(stride)) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    last = first + sum((size - 1) * stride for size, stride in steps)
    return storage.address, tensor.dtype, first, last, prod(size for size, _ in steps)


def _tensors_in(packed: object) -> Iterator[Tensor]:
    """Yield the tensors in a pack hook's result that are visible without running its code."""
    if isinstance(packed, Tensor):
        yield packed
        return
    parts: Any = ()
    if isinstance(packed, tuple | list):
        parts = packed
    elif isinstance(packed, Mapping):
        parts = packed.values() if type(packed) is dict else ()
    else:
        parts = getattr(packed, "__dict__", {}).values()
    yield from (part for part in list(parts) if isinstance(part, Tensor))
