"""Which forwards of a loop have graphs that are alive, and which of these wait for their backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakSet

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from ...inspector.graph.node_metadata import nodes_of
from ...inspector.graph.source_lines import Place, source_at, users_place
from ...inspector.torch_private.nodes import notes_on
from ...inspector.torch_private.sequence_numbers import number_of, sequence_nr, youngest_first

_KEY = "tapescope: forward"


class Forward:
    """One call of an outermost module. The nodes of its results keep it, so that it lives as long as they do.

    Attributes:
        title: the module's class.
        place: where it was called.
        step: in which step.
        start, end: the numbers of its nodes.
        results: those of its results.
        has_run: whether a backward has run through it, and let it go.
    """

    __slots__ = ("__weakref__", "end", "has_run", "place", "results", "start", "step", "title")

    def __init__(self, title: str, place: Place | None, step: int, start: int, results: frozenset[int]) -> None:
        self.title = title
        self.place = place
        self.step = step
        self.start = start
        self.end = sequence_nr()
        self.results = results
        self.has_run = False

    def __str__(self) -> str:
        """`the forward of Net at train.py:40`."""
        return f"the forward of {self.title}{at(self.place)}"


class Forwards:
    """The forwards of a loop's thread."""

    def __init__(self) -> None:
        self._shown = False
        self._hidden = False
        self._alive: WeakSet[Forward] = WeakSet()
        self._start = 0

    def begins(self) -> None:
        self._start = sequence_nr()

    def ends(self, module: nn.Module, result: object, step: int) -> None:
        nodes = list(nodes_of(result))
        if not nodes:
            self._hidden |= sequence_nr() != self._start
            return
        self._shown = True
        results = frozenset(map(number_of, nodes))
        forward = Forward(type(module).__name__, users_place(), step, self._start, results)
        for node in nodes:
            notes_on(node)[_KEY] = forward
        self._alive.add(forward)

    @property
    def unseen(self) -> bool:
        """Whether graphs are made that no module's result shows: then nobody knows which of them wait."""
        return self._hidden or not self._shown

    def alive(self) -> list[Forward]:
        return list(self._alive)

    def waiting(self) -> list[Forward]:
        """Those whose backward is still to come, if it comes."""
        return [each for each in self._alive if not each.has_run]

    def runs(self, roots: Sequence[Node]) -> None:
        """A backward runs from these nodes, and lets go of what it runs through."""
        sought: dict[int, Forward] = {number: each for each in self.waiting() for number in each.results}
        if not sought:
            return
        oldest = min(sought)
        for number, node in youngest_first(roots):
            if number < oldest:
                return
            if number in sought and notes_on(node).get(_KEY) is sought[number]:
                run = sought[number]
                run.has_run = True
                sought = {each: forward for each, forward in sought.items() if forward is not run}
                if not sought:
                    return
                oldest = min(sought)

    def forward_of(self, number: int) -> Forward | None:
        """That which made the node of this number."""
        return next((each for each in self._alive if each.start <= number < each.end), None)


def roots_of(outputs: Iterable[Tensor | GradientEdge]) -> list[Node]:
    """The nodes with which a backward of these begins; a single one may be given bare."""
    given = [outputs] if isinstance(outputs, Tensor | GradientEdge) else outputs
    nodes = [each.node if isinstance(each, GradientEdge) else each.grad_fn for each in given]
    return [node for node in nodes if node is not None]


def at(place: Place | None) -> str:
    """` at train.py:45`; empty where nobody knows."""
    source = None if place is None else source_at(place)
    return "" if source is None else f" at {source.short}"
