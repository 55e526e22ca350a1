"""Sequence numbers, by which the engine's queue goes."""

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
"""The sequence number which the next node of this thread will get."""

UNNUMBERED = 2**64 - 1
"""The sequence number of each AccumulateGrad: the engine runs them first of all (accumulate_grad.h)."""


def number_of(node: Node) -> int:
    """The node's own sequence number, also while it is pinned to another."""
    with _pins_lock:  # else a pin could close between the two looks
        if _pins:
            for pin in _pins:
                own = pin.own_number(node)
                if own is not None:
                    return own
        number: int = node._sequence_nr()
        return number


def youngest_first(roots: Iterable[Node]) -> Iterator[tuple[int, Node]]:
    """The nodes below these and they themselves with their numbers, in falling order: nothing is walked that is older
    than what is asked for. Without leaves'. Of another thread's nodes the order means nothing."""
    seen = set(roots)
    waiting = [(-number_of(node), place, node) for place, node in enumerate(seen)]
    heapify(waiting)
    place = len(waiting)
    while waiting:
        negative, _, node = heappop(waiting)
        yield -negative, node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                number = number_of(child)
                if number != UNNUMBERED:
                    place += 1
                    heappush(waiting, (-number, place, child))


def numbers_of(nodes: Iterable[Node]) -> dict[Node, int]:
    """`number_of` each."""
    with _pins_lock:
        if _pins:
            return {node: number_of(node) for node in nodes}
        return {node: node._sequence_nr() for node in nodes}


def current_number(node: Node) -> int:
    """The sequence number by which the engine goes."""
    number: int = node._sequence_nr()
    return number


def current_numbers(nodes: Iterable[Node]) -> list[int]:
    """`current_number` of each."""
    return [node._sequence_nr() for node in nodes]


_pins: list[Pin] = []
_pins_lock = threading.RLock()
_TOP = 2**63  # above each pinned number
_ROOM = 2**20  # between two of them, for those of a pin inside this one


class Pin:
    """While it is open the engine runs `nodes` in this order, where edges allow it; then their own numbers come back.

    The engine's ready queue pops the highest sequence number first (engine.h, CompareNodeTaskTime). Several pins may be
    open, in threads of their own or one inside the other, and share nodes: the AccumulateGrad of a common parameter. A
    node that another pin holds keeps its number where the rest can be numbered around it, as in two backwards of one
    model. Else it gets a new one, and the other pin is `disturbed`: while the node waits in the other backward's queue,
    that queue is not sorted again, and its order may not hold for the shared nodes. In one thread, where a backward in
    a hook disturbs the one around it, `settle_queue` mends that.

    Args:
        nodes: in their order.
        waiting: how many of them may wait in the engine's queue at once.
        own: their own numbers, if they were read while no pin was open and none could open (`no_pins`).
    """

    __slots__ = ("_index", "_nodes", "_numbers", "_own", "disturbed", "thread", "waiting")

    def __init__(self, nodes: Sequence[Node], waiting: Callable[[], int] = lambda: 0, own: Sequence[int] = ()) -> None:
        self.disturbed = False
        self.waiting = waiting
        self.thread = 0
        self._nodes = nodes
        self._own: list[int] = list(own)
        self._numbers: list[int] = []
        self._index: dict[Node, int] | None = None  # made when a second pin opens

    def during(self, run: Callable[[], T]) -> T:
        """Calls `run` while the pin is open. An interrupt, wherever it comes, leaves no pin open."""
        try:
            try:
                self.open()
                return run()
            finally:
                self.close()
        finally:  # for an interrupt in the first
            self.close()

    def open(self) -> None:
        """To be called where a `finally` closes it, whatever comes in here."""
        self.thread = threading.get_ident()
        with _pins_lock:
            if _pins:
                self._own = [number_of(node) for node in self._nodes]
                self._numbers = self._chosen()
            else:
                self._own = self._own or current_numbers(self._nodes)
                self._numbers = list(range(len(self._nodes) * _ROOM, 0, -_ROOM))
            _pins.append(self)
            _set_numbers(self._nodes, self._numbers)

    def close(self) -> None:
        """Does nothing where the pin is not open. Interrupted, it can be called again."""
        with _pins_lock:
            if self in _pins:
                self._give_back()
                _pins.remove(self)

    def own_number(self, node: Node) -> int | None:
        """The number which the node had before any pin; None for a node that this one does not hold."""
        place = self._places().get(node)
        return None if place is None else self._own[place]

    def take_back(self) -> None:
        """Gives the nodes this pin's numbers again, which other pins have changed."""
        with _pins_lock:
            for node, number in zip(self._nodes, self._numbers, strict=True):
                if current_number(node) != number:
                    self.number(node, number)
                    for pin in _pins:
                        if pin is not self and node in pin._places():
                            pin.disturbed = True
            self.disturbed = False

    def reorder(self, nodes: Sequence[Node]) -> None:
        """These of the nodes shall run in this order, which is not that of those that wait in the engine's queue."""
        numbers = falling_numbers(len(nodes), {})
        assert numbers is not None, "2**63 numbers are enough"
        for node, number in zip(nodes, numbers, strict=True):
            self.number(node, number)

    def number(self, node: Node, number: int) -> None:
        """Gives one of the nodes another number. In vain while the node waits in the engine's queue.

        Before the pin is open nothing happens.
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

    def _give_back(self) -> None:
        others = [pin for pin in reversed(_pins) if pin is not self]
        if not others:
            _set_numbers(self._nodes, self._own)
            return
        for node, own in zip(self._nodes, self._own, strict=True):
            holder = next((pin for pin in others if node in pin._places()), None)
            number = own if holder is None else holder._numbers[holder._places()[node]]
            node._set_sequence_nr(number)  # type: ignore[attr-defined]


def falling_numbers(count: int, fixed: Mapping[int, int]) -> list[int] | None:
    """So many numbers, each less than the one before, with room between them; some are `fixed`. None if impossible."""
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


def _set_numbers(nodes: Sequence[Node], numbers: Sequence[int]) -> None:
    for node, number in zip(nodes, numbers, strict=True):
        node._set_sequence_nr(number)  # type: ignore[attr-defined]


def set_number(node: Node, number: int) -> None:
    """Gives a node that nobody has pinned another sequence number."""
    _set_numbers([node], [number])


def make_numbers(count: int) -> None:
    """Uses up so many sequence numbers of this thread."""
    with unobserved(), torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True, device="cpu")
        for _ in range(count):
            leaf.view(())


def settle_queue() -> None:
    """After a backward in a hook, which may have disturbed those around it: puts the engine's queue in order."""
    around = [pin for pin in tuple(_pins) if pin.thread == threading.get_ident()]
    if any(pin.disturbed for pin in around) and real_graph_task_id() >= 0:
        sort_queue_again(sum(pin.waiting() for pin in around))
        for pin in around:
            pin.disturbed = False


@contextmanager
def no_pins() -> Iterator[bool]:
    """Whether no node is pinned; while this is open, none is by another thread."""
    with _pins_lock:
        yield not _pins


def pins_open() -> bool:
    """Whether any node's number may be pinned."""
    return bool(_pins)


def sort_queue_again(waiting: int) -> None:
    """From a hook: lets the engine's queue, where so many tasks wait, follow sequence numbers that were changed there.

    The queue is a binary heap, which compares tasks only as they are put in and taken out. Tasks of a backward inside
    this one stand above all others: as they are put in, they push those down to the ends of the branches, where none is
    above another any more; and as they are taken out, each is sorted in by its number.
    """
    with unobserved():
        leaves = [
            torch.zeros((), requires_grad=True, device="cpu") for _ in range((waiting + 1) * waiting.bit_length() + 2)
        ]
        edges = [get_gradient_edge(leaf) for leaf in leaves]
        run_engine(edges, [torch.ones((), device="cpu")] * len(leaves), False, False, accumulate=True)


def empty_queue() -> None:
    """After a backward that raised: lets go of the tasks which still wait in the engine's queue, with their gradients.

    The next backward of the thread drops them first, and may be a small one.
    """
    sort_queue_again(0)
