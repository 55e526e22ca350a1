"""Backwards through a freed or modified graph, found before PyTorch raises."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack

from torch import nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.inplace_writes import WritesSeen, watching_unnoticed_writes
from ...inspector.graph.freed_nodes import is_freed
from ...inspector.graph.source_lines import users_place
from ...inspector.torch_private.compiled import watching_functions
from ...inspector.torch_private.saved_variables import FREED, MODIFIED
from ...inspector.torch_private.sequence_numbers import sequence_nr, youngest_first
from ..execution.saved_tensor_errors import FreedGraph, freed_graph
from ..session.error_notes.explain_error import explain_error
from .findings import Finding
from .follow_loop import BackwardGiven
from .loop_observers import LoopPart
from .pending_graphs import Forwards, at, roots_of
from .training_result import Training
from .unversioned_writes import SilentWrites

_FREED = FREED.partition(" (")[0]
_MOST_STEPS = 10_000


class SecondBackward:
    """Finds backwards that reach a graph which an earlier backward has freed.

    Only nodes younger than the previous backward are visited, and only while a freed graph is alive.
    """

    def __init__(self, training: Training, forwards: Forwards) -> None:
        self._training = training
        self._forwards = forwards
        self._began = sequence_nr()  # sequence number at which the latest backward began
        self._before = self._began
        self._first = 0  # the step that the first of `_starts` belongs to
        self._starts: list[int] = []  # sequence numbers at which steps began
        self._reached: FreedGraph | None = None  # by the backward under way

    def step_begins(self, number: int) -> None:
        if not self._starts:
            self._first = number
        self._starts.append(sequence_nr())
        if len(self._starts) > _MOST_STEPS:
            del self._starts[0]
            self._first += 1

    def backward_begins(self, given: BackwardGiven, step: int) -> None:
        self._reached = None
        self._before, self._began = self._began, sequence_nr()
        if len(given) > 4 and given[4]:  # inputs: not all of it runs
            return
        if not self._forwards.unseen and not any(each.has_run for each in self._forwards.alive()):
            return
        freed = self._youngest_freed(given)
        if freed is None:
            return
        self._reached = freed_graph(read_graph(given[0]), None, self._before, self._maker())
        self._report(freed, step)

    def _report(self, freed: int, step: int) -> None:
        """Add the finding. `freed` is the sequence number of the youngest node that an earlier backward freed."""
        if self._reached is None:
            return
        place = at(users_place())
        made = max(bisect_right(self._starts, freed) - 1, 0) + self._first
        which = "an earlier graph" if made == step else f"the graph of step {made}"
        self._training.add(
            Finding(
                "second backward",
                step,
                f"the backward{place} goes back into {which}, which an earlier backward has freed: {self._reached}.",
                at=place.removeprefix(" at ") or None,
            )
        )

    def backward_ends(self, given: BackwardGiven, error: BaseException | None, step: int) -> None:
        """Add notes with the cause to PyTorch's error, and the finding if it is missing."""
        reached, self._reached = self._reached, None
        is_freed_error = error is not None and str(error).startswith(_FREED)
        if error is None or not (is_freed_error or MODIFIED in str(error)):
            return
        watched = self._training.watched
        graph = read_graph(given[0], dict(watched.parameters()))
        modules = [module for _, module in watched.modules()]
        explain_error(error, graph, None, self._before, self._maker(), modules)
        freed = self._youngest_freed(given) if is_freed_error and reached is None else None
        if freed is not None:
            self._reached = freed_graph(graph, None, self._before, self._maker())
            self._report(freed, step)

    def _youngest_freed(self, given: BackwardGiven) -> int | None:
        youngest = youngest_first(roots_of(given[0]))
        return next((number for number, node in youngest if number < self._before and is_freed(node)), None)

    def _maker(self) -> Callable[[Node], str | None]:
        names = {module: path for path, module in self._training.watched.modules()}
        return lambda node: self._forwards.maker_of(node, names)


class InvalidGraphs(LoopPart):
    """Finds backwards whose graph was freed or whose saved tensors were modified.

    It knows which graphs wait for their backward by a mark on the results of the loop's outermost modules.
    """

    def __init__(self) -> None:
        self._forwards = Forwards()
        self._step = 0
        self._silent: SilentWrites | None = None
        self._second: SecondBackward | None = None
        self._writes = ExitStack()

    def begins(self, training: Training) -> None:
        self._silent = SilentWrites(training, self._forwards)
        self._second = SecondBackward(training, self._forwards)
        self._writes.enter_context(watching_unnoticed_writes(self._silent.by_others))
        if training.writes:
            self._writes.enter_context(watching_functions(WritesSeen()))

    def step_begins(self, number: int) -> None:
        self._step = number
        if self._silent is not None:
            self._silent.by_others.step = number
        if self._second is not None:
            self._second.step_begins(number)

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        self._forwards.begins()

    def forward_ends(self, module: nn.Module, result: object) -> None:
        self._forwards.ends(module, result, self._step)
        if self._silent is not None:
            self._silent.by_others.forward_ends()

    def backward_begins(self, given: BackwardGiven) -> None:
        if self._silent is not None:
            self._silent.backward_begins(given, self._step)
        if self._second is not None:
            self._second.backward_begins(given, self._step)
        if not given[2]:  # retain_graph
            self._forwards.runs(roots_of(given[0]))

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._silent is not None:
            self._silent.backward_ends()
        if self._second is not None:
            self._second.backward_ends(given, error, self._step)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        if self._silent is not None:
            self._silent.optimizer_begins(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        if self._silent is not None:
            self._silent.optimizer_ends(optimizer, self._step)

    def ends(self) -> None:
        self._writes.close()
        self._silent = self._second = None
        self._forwards = Forwards()
