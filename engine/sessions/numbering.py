"""The nodes that a backward with create_graph makes in a thread of ours, numbered as the caller's thread would."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.graph.kinds import Kind, kind_of
from ...inspector.torch_internals.sequence_numbers import current_number, make_numbers, sequence_nr, set_number


class Numbering:
    """The sequence numbers of each thread count by themselves, and PyTorch's engine runs the later node first: in the
    graph of the backward it would take nodes of our thread for older than the forward's, and second derivatives would
    be added in another order.

    Attributes:
        begin, end: what our thread's numbers were when it last went on, and when it stopped.
    """

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._spans: list[tuple[int, int, int]] = []

    def went_on(self, caller: int) -> None:
        """In the caller's thread, whose number was `caller`: ours has stopped. Its numbers are the caller's next."""
        self._spans.append((self.begin, self.end, caller))
        make_numbers(max(0, caller + self.end - self.begin - sequence_nr()))

    def number(self, graph: Graph, given: Iterable[Tensor | None]) -> None:
        """The backward has ended: numbers what it made, as far as the gradients of leaves lead there.

        Args:
            given: the gradients with which it began, whose graph is the caller's.
        """
        known = set(graph.nodes)
        stack = [each.grad_fn for each in given if each is not None]
        while stack:
            node = stack.pop()
            if node is not None and node not in known:
                known.add(node)
                stack += [child for child, _ in node.next_functions]
        stack = [leaf.grad.grad_fn for leaf in graph.leaves.values() if leaf.grad is not None]
        while stack:
            node = stack.pop()
            if node is None or node in known:
                continue
            known.add(node)
            stack += [child for child, _ in node.next_functions]
            if kind_of(node) is not Kind.ACCUMULATE_GRAD:
                set_number(node, self._callers(current_number(node)))

    def _callers(self, number: int) -> int:
        for begin, end, caller in self._spans:
            if begin <= number < end:
                return caller + number - begin
        return number
