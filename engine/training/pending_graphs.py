"""The forwards of a loop whose graphs are alive, and those among them that wait for their backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from ...inspector.graph.node_metadata import nodes_of
from ...inspector.graph.source_lines import Place, source_at, users_place
from ...inspector.torch_private.nodes import notes_on
from ...inspector.torch_private.sequence_numbers import number_of, sequence_nr, youngest_first

_KEY = "tapescope: forward"
MODULE = "tapescope: module"
"""The key of a weak reference to the module that returned a node, in its metadata."""


class Forward:
    """One call of an outermost module.

    The metadata of its results' nodes holds it, and nothing else does, so it lives exactly as long as its graph.

    Attributes:
        title: the module's class name.
        place: the line that called it.
        step: the number of the training step.
        start, end: the range of its nodes' sequence numbers; `end` is excluded.
        results: the sequence numbers of its results' nodes.
        has_run: whether a backward has run through it and freed it.
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
    """The forwards of a loop's thread whose graphs are alive."""

    def __init__(self) -> None:
        self._shown = False
        self._hidden = False
        self._alive: WeakValueDictionary[int, Forward] = WeakValueDictionary()  # by id
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
        self._alive[id(forward)] = forward

    @property
    def unseen(self) -> bool:
        """True if some graphs are not reachable from a module's result, so that those that wait are unknown."""
        return self._hidden or not self._shown

    def alive(self) -> list[Forward]:
        return [each for known in self._alive.valuerefs() if (each := known()) is not None]  # values() is slow

    def waiting(self) -> list[Forward]:
        """Return the forwards that no backward has run through."""
        return [each for each in self.alive() if not each.has_run]

    def runs(self, roots: Sequence[Node]) -> None:
        """Mark the forwards that a backward from these nodes runs through, and frees."""
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

    def maker_of(self, node: Node, names: Mapping[nn.Module, str]) -> str | None:
        """Return the module and the forward that made a node: `rnn (GRU) in the forward of Net at train.py:40`.

        Args:
            node: the node.
            names: the paths of modules.
        """
        noted, forward = notes_on(node).get(MODULE), self.forward_of(number_of(node))
        module = None if noted is None else noted()
        made = [] if module is None or not names.get(module) else [f"{names[module]} ({type(module).__name__})"]
        return " in ".join([*made, str(forward)] if forward else made) or None

    def forward_of(self, number: int) -> Forward | None:
        """Return the forward that made the node with this sequence number."""
        return next((each for each in self.alive() if each.start <= number < each.end), None)


def roots_of(outputs: Iterable[Tensor | GradientEdge]) -> list[Node]:
    """Return the nodes at which a backward of these outputs begins. A single output needs no list."""
    given = [outputs] if isinstance(outputs, Tensor | GradientEdge) else outputs
    nodes = [each.node if isinstance(each, GradientEdge) else each.grad_fn for each in given]
    return [node for node in nodes if node is not None]


def at(place: Place | None) -> str:
    """Return ` at train.py:45`, or "" for an unknown place."""
    source = None if place is None else source_at(place)
    return "" if source is None else f" at {source.short}"
