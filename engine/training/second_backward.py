"""A backward into what an earlier one has freed: which tensor crosses from which step, before PyTorch raises."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from torch.autograd.graph import Node

from ...inspector.capturing.walk import read_graph
from ...inspector.graph.source import users_place
from ...inspector.graph.spent import is_over
from ...inspector.torch_internals.saved import FREED, MODIFIED
from ...inspector.torch_internals.sequence_numbers import sequence_nr, youngest_first
from ..steps.loop_watch import BackwardGiven
from ..trace.spoiled_graph import crossings_told, explain_spoiled_graph
from .finding import Finding
from .forwards import Forwards, at, roots_of
from .record import Training

_FREED = FREED.partition(" (")[0]
_MOST_STEPS = 10_000


class SecondBackward:
    """Looks at a backward's graph as far as it is younger than the backward before; only where a graph that has run is
    alive, and so may be tied to this one."""

    def __init__(self, training: Training, forwards: Forwards) -> None:
        self._training = training
        self._forwards = forwards
        self._began = sequence_nr()  # the backward before this one: what the next node was to be numbered
        self._before = self._began
        self._first = 0  # the step of the first number
        self._starts: list[int] = []  # the numbers with which steps began
        self._told: list[str] = []  # of the backward that is under way

    def step_begins(self, number: int) -> None:
        if not self._starts:
            self._first = number
        self._starts.append(sequence_nr())
        if len(self._starts) > _MOST_STEPS:
            del self._starts[0]
            self._first += 1

    def backward_begins(self, given: BackwardGiven, step: int) -> None:
        self._told = []
        self._before, self._began = self._began, sequence_nr()
        if len(given) > 4 and given[4]:  # inputs: not all of it runs
            return
        if not self._forwards.unseen and not any(each.has_run for each in self._forwards.alive()):
            return
        freed = self._first_freed(roots_of(given[0]))
        if freed is None:
            return
        self._told = crossings_told(read_graph(given[0]), self._before)
        if not self._told:
            return
        place = at(users_place())
        made = max(bisect_right(self._starts, freed) - 1, 0) + self._first
        which = "an earlier graph" if made == step else f"the graph of step {made}"
        self._training.add(
            Finding(
                "second backward",
                step,
                f"the backward{place} goes back into {which}, which an earlier backward has freed: "
                + "; ".join(self._told)
                + ".",
                at=place.removeprefix(" at ") or None,
            )
        )

    def _first_freed(self, roots: Sequence[Node]) -> int | None:
        """The number of the youngest node through which an earlier backward has run."""
        for number, node in youngest_first(roots):
            if number < self._before and is_over(node):
                return number
        return None

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        """PyTorch's error gets what led to it as notes, where nobody has noted it yet."""
        told, self._told = self._told, []
        if not isinstance(error, RuntimeError) or _is_explained(error):
            return
        if str(error).startswith(_FREED) and told:
            for each in told:
                error.add_note(f"tapescope: {each}")
        elif str(error).startswith(_FREED) or MODIFIED in str(error):
            names = dict(self._training.watched.parameters())
            explain_spoiled_graph(error, read_graph(given[0], names), None, self._before, self._forwards.forward_of)


def _is_explained(error: BaseException) -> bool:
    notes = [each for each in getattr(error, "__notes__", ()) if each.startswith("tapescope: ")]
    return any(" saved " in each or " takes " in each for each in notes)
