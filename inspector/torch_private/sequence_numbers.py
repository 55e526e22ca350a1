"""Sequence numbers of nodes, which determine the order of the engine's queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

import torch
from torch.autograd.graph import Node, get_gradient_edge

from .engine import T, real_graph_task_id, run_engine
from .thread_state import unobserved

sequence_nr: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Return the sequence number of the next node of this thread."""

UNNUMBERED = 2**64 - 1
"""The sequence number of each AccumulateGrad: the engine runs them first of all (accumulate_grad.h)."""


def number_of(node: Node) -> int:
    """Return the node's own sequence number, even while it is pinned to another."""
    with _pins_lock:  # otherwise a pin could close between the two reads
        if _pins:
            for pin in _pins:
                own = pin.own_number(node)
                if own is not None:
                    return own
        number: int = node._sequence_nr()
        return number


def youngest_first(roots: Iterable[Node]) -> Iterator[tuple[int, Node]]:
    """Yield these nodes and those below them with their numbers, in descending order, without leaves' nodes.

    Older nodes are only visited when they are requested. The order of another thread's nodes is meaningless.
    """
    seen = set(roots)
    waiting = [(-number_of(node), place, node) for place, node in enumerate(seen)]
    heapify(waiting)
    while waiting:
        negative, _, node = heappop(waiting)
        yield -negative, node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                number = number_of(child)
                if number != UNNUMBERED:
                    heappush(waiting, (-number, len(seen), child))


def numbers_of(nodes: Iterable[Node]) -> dict[Node, int]:
    """Return `number_of` each node."""
    with _pins_lock:
        if _pins:
            return {node: number_of(node) for node in nodes}
        return {node: node._sequence_nr() for node in nodes}


def current_number(node: Node) -> int:
    """Return the sequence number that the engine uses."""
    number: int = node._sequence_nr()
    return number


def current_numbers(nodes: Iterable[Node]) -> list[int]:
    """Return the `current_number` of each node."""
    return [node._sequence_nr() for node in nodes]


_pins: list[Pin] = []
_pins_lock = threading.RLock()
_TOP = 2**63  # upper bound of pinned numbers
_ROOM = 2**20  # gap between two numbers, for those of a nested pin


class Pin:
    """Sequence numbers that make the engine run `nodes` in this order, as far as edges allow, while the pin is open.

    The engine's ready queue pops the highest sequence number first (engine.h, CompareNodeTaskTime). Several pins may be
    open, in different threads or nested, and share nodes such as the AccumulateGrad of a common parameter. A node of
    another pin keeps its number if the rest can be numbered around it, as in two backwards of one model. Otherwise it
    gets a new number, and the other pin is `disturbed`: the other backward's queue is not sorted again, so its order
    may not hold for shared nodes that already wait there. If a backward in a hook disturbs the one around it in the
    same thread, `settle_queue` repairs the order.

    Args:
        nodes: the nodes in order.
        waiting: returns how many of them may wait in the engine's queue at once.
        own: their own numbers, if they were read while no pin was open and none could open (`no_pins`).
        numbers: numbers that make them run in another order than that of `nodes`, for a pin that opens alone.
    """

    __slots__ = ("_alone", "_index", "_nodes", "_numbers", "_own", "disturbed", "thread", "waiting")

    def __init__(
        self,
        nodes: Sequence[Node],
        waiting: Callable[[], int] = lambda: 0,
        own: Sequence[int] = (),
        numbers: Sequence[int] = (),
    ) -> None:
        self.disturbed = False
        self.waiting = waiting
        self.thread = 0
        self._nodes = nodes
        self._own: Sequence[int] = own
        self._alone = numbers
        self._numbers: list[int] = []
        self._index: dict[Node, int] | None = None  # built when a second pin opens

    def during(self, run: Callable[[], T]) -> T:
        """Call `run` while the pin is open. An interrupt at any line leaves no pin open."""
        try:
            try:
                self.open()
                return run()
            finally:
                self.close()
        finally:  # again, in case an interrupt came in the first `finally`
            self.close()

    def open(self) -> None:
        """Set the numbers. Call this in a `try` whose `finally` closes the pin, because it may be interrupted."""
        self.thread = threading.get_ident()
        with _pins_lock:
            if _pins:
                self._own = [number_of(node) for node in self._nodes]
                self._numbers = self._chosen()
            else:
                self._own = self._own or current_numbers(self._nodes)
                self._numbers = list(self._alone) or spaced_numbers(len(self._nodes))
            _pins.append(self)
            set_numbers(self._nodes, self._numbers)

    def close(self) -> None:
        """Restore the numbers if the pin is open. After an interrupt it can be called again."""
        with _pins_lock:
            if self not in _pins:
                return
            others = [pin for pin in reversed(_pins) if pin is not self]
            if not others:
                set_numbers(self._nodes, self._own)
            for node, own in zip(self._nodes, self._own, strict=True) if others else ():
                holder = next((pin for pin in others if node in pin._places()), None)
                number = own if holder is None else holder._numbers[holder._places()[node]]
                node._set_sequence_nr(number)  # type: ignore[attr-defined]
            _pins.remove(self)

    def own_number(self, node: Node) -> int | None:
        """Return the node's number before any pin; None for a node that this pin does not contain."""
        place = self._places().get(node)
        return None if place is None else self._own[place]

    def take_back(self) -> None:
        """Restore this pin's numbers after other pins have changed them."""
        with _pins_lock:
            for node, number in zip(self._nodes, self._numbers, strict=True):
                if current_number(node) != number:
                    self.number(node, number)
                    for pin in _pins:
                        if pin is not self and node in pin._places():
                            pin.disturbed = True
            self.disturbed = False

    def reorder(self, nodes: Sequence[Node]) -> None:
        """Number some of the nodes in a new order. Nodes that already wait in the engine's queue are not reordered."""
        numbers = falling_numbers(len(nodes), {})
        assert numbers is not None, "2**63 numbers are enough"
        for node, number in zip(nodes, numbers, strict=True):
            self.number(node, number)

    def number(self, node: Node, number: int) -> None:
        """Set the number of one of the nodes. It has no effect on a node that waits in the engine's queue.

        Before the pin is open, this does nothing.
        """
        if not self._numbers:
            return
        with _pins_lock:
            self._numbers[self._places()[node]] = number
            node._set_sequence_nr(number)  # type: ignore[attr-defined]

    def _places(self) -> dict[Node, int]:
        if self._index is None:
            self._index = {node: place for place, node in enumerate(self._nodes)}
        return self._index

    def _chosen(self) -> list[int]:
        sharing = {pin: found for pin in _pins if (found := [node for node in self._nodes if node in pin._places()])}
        held = {node for found in sharing.values() for node in found}
        fixed = {place: current_number(node) for place, node in enumerate(self._nodes) if node in held} if held else {}
        numbers = falling_numbers(len(self._nodes), fixed)
        if numbers is None:
            for pin in sharing:
                pin.disturbed = True
            numbers = falling_numbers(len(self._nodes), {})
        assert numbers is not None, "2**63 numbers are enough"
        return numbers


def spaced_numbers(count: int) -> list[int]:
    """Return `count` descending numbers for nodes that run in this order, with room between them for nested pins."""
    return list(range(count * _ROOM, 0, -_ROOM))


def falling_numbers(count: int, fixed: Mapping[int, int]) -> list[int] | None:
    """Return `count` descending numbers with gaps, some of them `fixed`; None if impossible."""
    numbers: list[int] = []
    place, high = -1, _TOP
    for next_place, low in [*sorted(fixed.items()), (count, 0)]:
        step = (high - low) // (next_place - place)
        if step < 1:
            return None
        numbers.extend(range(high - step, high - step * (next_place - place), -step))
        numbers.append(low)
        place, high = next_place, low
    del numbers[count:]
    return numbers


def set_numbers(nodes: Sequence[Node], numbers: Sequence[int]) -> None:
    """Set the sequence numbers of nodes. Pinned nodes are numbered by their pin."""
    for node, number in zip(nodes, numbers, strict=True):
        node._set_sequence_nr(number)  # type: ignore[attr-defined]


def make_numbers(count: int) -> None:
    """Use up `count` sequence numbers of this thread."""
    with unobserved(), torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True, device="cpu")
        for _ in range(count):
            leaf.view(())


def settle_queue() -> None:
    """Sort the engine's queue again after a backward in a hook, which may have disturbed those around it."""
    around = [pin for pin in tuple(_pins) if pin.thread == threading.get_ident()]
    if any(pin.disturbed for pin in around) and real_graph_task_id() >= 0:
        sort_queue_again(sum(pin.waiting() for pin in around))
        for pin in around:
            pin.disturbed = False


@contextmanager
def no_pins() -> Iterator[bool]:
    """Yield whether no node is pinned; meanwhile other threads cannot pin any."""
    with _pins_lock:
        yield not _pins


def pins_open() -> bool:
    """Return whether any node's number may be pinned."""
    return bool(_pins)


def sort_queue_again(waiting: int) -> None:
    """Make the engine's queue, with `waiting` tasks, follow changed sequence numbers. Call this in a hook.

    The queue is a binary heap, which compares tasks only when they are pushed or popped. Tasks of a nested backward
    rank above all others (engine.h, CompareNodeTaskTime: the reentrant depth comes first). Pushing enough of them moves
    the waiting tasks down to the leaves of the heap; popping them sifts each waiting task in by its current number.
    """
    with unobserved():
        leaves = [
            torch.zeros((), requires_grad=True, device="cpu") for _ in range((waiting + 1) * waiting.bit_length() + 2)
        ]
        edges = [get_gradient_edge(leaf) for leaf in leaves]
        run_engine(edges, [torch.ones((), device="cpu")] * len(leaves), False, False, accumulate=True)


def empty_queue() -> None:
    """Free the tasks that a failed backward left in the engine's queue, with their gradients.

    The next backward of the thread drops them first, and may be a small one.
    """
    sort_queue_again(0)
