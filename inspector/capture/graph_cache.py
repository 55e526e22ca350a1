"""A cache of graphs with equal structure, and fast construction of their tasks and edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from torch.autograd.graph import Node

from ..graph.graph import Edge, Graph, Task
from ..graph.live_nodes import LiveNodes
from ..graph.lru_cache import Latest, LongKey
from ..graph.operations_and_calls import Facts
from ..torch_private.distributed import flat_names, has_flat_parameters, sharded_parameters
from ..torch_private.nodes import InputCheck, InputMetadata, input_metadata_of_each, leaf_of, types_of
from ..torch_private.sequence_numbers import UNNUMBERED, numbers_of

if TYPE_CHECKING:
    from ..graph.graph import TensorMeta
    from ..graph.kinds import Kind
    from ..graph.operations_and_calls import Operation, StoredOperation


Record = TypeVar("Record", Task, Edge)


class TaskDraft:
    """The fields of a `Task` under construction."""

    __slots__ = Task.__slots__

    def __init__(
        self,
        id: int,
        name: str,
        kind: Kind,
        sequence_nr: int,
        inputs: tuple[TensorMeta, ...],
        parameter: str | None,
        call: int | None,
        operation: Operation | StoredOperation | None,
        created_ns: int | None,
    ) -> None:
        self.id = id
        self.name = name
        self.kind = kind
        self.sequence_nr = sequence_nr
        self.inputs = inputs
        self.parameter = parameter
        self.call = call
        self.operation = operation
        self.created_ns = created_ns


class EdgeDraft:
    """The fields of an `Edge` under construction."""

    __slots__ = Edge.__slots__

    def __init__(self, task: int, output: int, next_task: int, input: int) -> None:
        self.task = task
        self.output = output
        self.next_task = next_task
        self.input = input


def as_records(drafts: Sequence[TaskDraft | EdgeDraft], kind: type[Record]) -> tuple[Record, ...]:
    """Turn the drafts into tasks or edges."""
    # Assigning the class is several times faster than calling the constructor of a frozen dataclass.
    for draft in drafts:
        draft.__class__ = kind  # type: ignore[assignment]
    return tuple(drafts)  # type: ignore[arg-type]


Found = dict[Node, tuple[tuple[Node | None, int], ...]]
"""The nodes of a graph with their `next_functions`."""

_MOST_NODES = 100_000  # in all cached graphs; a node needs about 500 bytes
_MOST_GRAPHS = 64
_EXTENSION_NODE = "CppFunction"


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached graph.

    Attributes:
        graph: the graph, without its nodes.
        places: for each task, the index of its node among the found nodes.
        numbered: the number of tasks with a sequence number of their own, which come first; leaves have none.
        check: checks the metadata of other nodes' inputs; None if that has to be read.
    """

    graph: Graph
    places: list[int]
    numbered: int
    check: InputCheck | None


def _weight(known: _Known) -> int:
    return max(len(known.graph), _MOST_NODES // _MOST_GRAPHS)


_known: Latest[_Known] = Latest(_MOST_NODES, _weight)
_latest: Latest[_Known] = Latest(_MOST_NODES, _weight)
"""The graph that was read last for each key, compared without the metadata of its inputs."""


class CacheKey:
    """The cache key of a graph, computed from its nodes before the graph is built.

    Attributes:
        metas: for each node, the metadata of its inputs; empty until `cached_graph` has to read it.
    """

    def __init__(self, found: Found, roots: Sequence[tuple[Node, int]]) -> None:
        self._nodes = nodes = list(found)
        self._numbers = numbers = list(numbers_of(nodes).values())
        self.metas: list[tuple[InputMetadata, ...]] = []
        places: dict[Node | None, int] = {node: place for place, node in enumerate(nodes)}
        places[None] = -1
        ends: list[Any] = list(chain.from_iterable(chain.from_iterable(found.values())))  # a node, a number, a node...
        first = next((number for number in numbers if number < UNNUMBERED), 0)
        # All C++ nodes of extensions have one type, so their names are part of the key.
        named = {kind for kind in set(map(type, nodes)) if kind.__name__ == _EXTENSION_NODE}
        names = tuple([node.name() for node in nodes if type(node) in named]) if named else ()
        self._key: LongKey | None = None  # with the metadata
        self._shape = LongKey(
            (types_of(nodes), names),
            tuple([number - first if number < UNNUMBERED else -1 for number in numbers]),
            tuple(map(len, found.values())),
            tuple(map(places.__getitem__, ends[::2])),
            tuple(ends[1::2]),
            tuple([(places[node], number) for node, number in roots]),
        )

    def cached_graph(self) -> Graph | None:
        """Return a graph of these nodes made from the cached one of equal structure, if there is one."""
        known = _latest.get(self._shape)
        if known is None or known.check is None or not known.check.holds_for(self._nodes):
            self.metas = input_metadata_of_each(self._nodes)
            try:
                self._key = LongKey(self._shape, tuple(self.metas))
            except TypeError:  # torch.SymInt has no hash
                return None
            known = _known.get(self._key)
            if known is None:
                return None
            _latest.put(self._shape, known)
        like, nodes, numbers = known.graph, self._nodes, self._numbers
        tasks = [
            TaskDraft(task.id, task.name, task.kind, numbers[place], task.inputs, None, None, None, None)
            for task, place in zip(like.tasks[: known.numbered], known.places, strict=False)
        ]
        graph = Graph(
            as_records(tasks, Task) + like.tasks[known.numbered :],
            like.edges,
            like.roots,
            nodes=LiveNodes([nodes[place] for place in known.places]),
        )
        vars(graph).update(_like=like, out_edges=like.out_edges, in_edges=like.in_edges, devices=like.devices)
        return graph

    def keep(self, graph: Graph) -> None:
        """Cache the graph that was read for this key."""
        places = {node: place for place, node in enumerate(self._nodes)}
        vars(graph)["_like"] = like = replace(graph, nodes=())
        check = InputCheck.of(self._nodes, self.metas)
        numbered = sum(task.sequence_nr < UNNUMBERED for task in graph.tasks)
        known = _Known(like, [places[node] for node in graph.nodes], numbered, check)
        assert self._key is not None, "no cached graph was found"
        _known.put(self._key, known)
        _latest.put(self._shape, known)


def cache_key(found: Found, roots: Sequence[tuple[Node, int]]) -> CacheKey | None:
    """Return the cache key of the graph of these nodes; None if the graph must not be cached.

    A graph is not cached if a capture may have records of it, if shards give it names, or if it is too large.
    """
    if len(found) > _MOST_NODES or Facts.alive() or sharded_parameters():
        return None
    if has_flat_parameters():
        leaves = (node for node in found if not found[node] and type(node).__name__ == "AccumulateGrad")
        if any(flat_names(leaf_of(node)) for node in leaves):
            return None
    return CacheKey(found, roots)


def forget_graphs() -> None:
    """Clear the cache."""
    _known.clear()
    _latest.clear()
