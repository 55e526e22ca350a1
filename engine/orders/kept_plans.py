"""Plans that are kept: of one kind of graph a training loop makes many, and plans once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from .problem import Problem

_MOST = 64  # of each kind

V = TypeVar("V")


class Latest(Generic[V]):
    """The latest of what was found, by key. Threads may share it.

    Args:
        most: how much is kept,
        weigh: by what each counts.
    """

    def __init__(self, most: int = _MOST, weigh: Callable[[V], int] = lambda found: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._found: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> V | None:
        """What is kept by this key, if anything."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: Hashable, found: V) -> None:
        """Keeps this by the key, in the place of what was there."""
        with self._lock:
            self._found[key] = found
            self._found.move_to_end(key)
            while sum(map(self._weigh, self._found.values())) > self._most:
                self._found.popitem(last=False)

    def of(self, key: Hashable, find: Callable[[], V]) -> V:
        """What is kept by this key; what `find` gives, and from now on kept, if there is nothing."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        found = find()  # may take seconds: nobody else waits for it
        self.put(key, found)
        return found

    def clear(self) -> None:
        with self._lock:
            self._found.clear()


_plans: Latest[tuple[int, ...]] = Latest()


def kept_plan(
    name: str, planner: Callable[[Problem, Sequence[int]], list[int]], problem: Problem, ran: Sequence[int]
) -> tuple[int, ...]:
    """What the policy of this name planned for such a graph after such tasks, else what its planner plans now."""
    return _plans.of((name, fingerprint(problem), tuple(ran)), lambda: tuple(planner(problem, ran)))


def forget_kept() -> None:
    """None is kept any more."""
    _plans.clear()


class _Hashed:
    """A value with its hash at hand: that of a graph of 10,000 tasks takes 20 ms, and a look-up asks several times."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._hash == other._hash and self._value == other._value


def fingerprint(problem: Problem) -> Hashable:
    """What decides on a plan, but for the sizes of what was saved, which mostly follow from it.

    It is made of the names of the nodes, the shapes, dtypes and devices of their gradients, the edges and roots, which
    tasks run, which leaves have a .grad already, and whether the graph is kept.
    """
    graph = problem.graph
    found = (
        tuple([(task.name, task.inputs) for task in graph.tasks]),
        graph.edges,
        graph.roots,
        problem.needed,
        tuple([leaf.grad is None for leaf in graph.leaves.values()]) if graph.nodes else None,
        problem.keep_graph,
    )
    return _Hashed(found)
