"""Backwards with retain_graph=True whose graph no later backward uses."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import finalize

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from ....inspector.graph.source_lines import users_place
from ....inspector.text.sizes_and_counts import size_text
from ....inspector.torch_private.nodes import notes_on
from ....inspector.torch_private.saved_variables import saved_slots
from ....inspector.torch_private.sequence_numbers import UNNUMBERED, youngest_first
from ...memory.census import storages_of
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..pending_graphs import at, roots_of
from ..training_result import Training
from .graph_leaks import steps_text

_KEY = "tapescope: retained by"
_ENOUGH = 3  # retained graphs that were freed unused
_MOST_PENDING = 8  # retained graphs that are followed at once, because marking a graph visits all of its nodes


class _Retained:
    """One backward that retained its graph. Only the nodes hold it, so it lives as long as they do."""

    __slots__ = ("__weakref__", "place")

    def __init__(self, place: str) -> None:
        self.place = place


class RetainedGraphs(LoopPart):
    """Finds retain_graph=True where the graph is freed without another backward through it, three times in a row.

    Each line that calls such a backward is followed until it is decided: by a later backward or torch.autograd.grad
    that reaches one of the nodes, or by the finding. A graph that stays alive is a leak, see `Leaks`.
    """

    def __init__(self) -> None:
        self._number = 0
        self._unused: dict[str, list[int]] = {}  # by place: the steps whose retained graph was freed unused
        self._decided: set[str] = set()
        self._nbytes: dict[str, int] = {}  # of the saved tensors of the last one
        self._pending = 0  # retained graphs that are alive

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def gradients_begin(self, outputs: Sequence[Tensor | GradientEdge]) -> None:
        self._uses(roots_of(outputs))

    def backward_begins(self, given: BackwardGiven) -> None:
        roots = roots_of(given[0])
        self._uses(roots)
        is_retained, has_graph = given[2], given[3]
        place = at(users_place()) if is_retained and not has_graph else ""
        if not place or place in self._decided or self._pending >= _MOST_PENDING:
            return
        retained = _Retained(place)
        saved = []
        for number, node in youngest_first(roots):
            if number != UNNUMBERED:
                notes_on(node)[_KEY] = retained
                saved += [slot.tensor for slot in saved_slots(node) if not isinstance(slot.tensor, nn.Parameter)]
        self._nbytes[place] = sum(storages_of(saved).values())
        self._pending += 1
        finalize(retained, self._freed, place, self._number).atexit = False

    def _uses(self, roots: Sequence[Node]) -> None:
        """Decide for the lines whose retained graphs this backward reaches."""
        if self._pending:
            for _, node in youngest_first(roots):
                retained = notes_on(node).get(_KEY)
                if retained is not None:
                    self._decided.add(retained.place)

    def _freed(self, place: str, step: int) -> None:
        self._pending -= 1
        if place not in self._decided:
            self._unused.setdefault(place, []).append(step)

    def step_ends(self, number: int) -> None:
        for place, steps in list(self._unused.items()):
            if len(steps) >= _ENOUGH and place not in self._decided:
                self._decided.add(place)
                self._training.add(
                    Finding(
                        "retained graph",
                        number,
                        f"backward(retain_graph=True){place} keeps its graph, with {size_text(self._nbytes[place])} of "
                        "saved tensors, and no later backward uses it: remove retain_graph=True, so that the backward "
                        f"frees the saved tensors. In {steps_text(steps)} they stayed until the loss was replaced.",
                        size=self._nbytes[place],
                        at=place.removeprefix(" at "),
                    )
                )

    def ends(self) -> None:
        self._unused.clear()
