"""The breakpoints and watchpoints of one session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor
from torch.autograd.graph import Node

from ..inspector.graph import Graph
from .breakpoints import Breakpoint, Gradients, Predicate, Where, make_breakpoint
from .stop import Stop

Entry = Breakpoint


class Stops:
    """The breakpoints and watchpoints of one session, numbered together from 1 in the order in which they were made.

    Iterating gives them all, `stops[number]` one. What changes them may be called from any thread.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._entries: dict[int, Entry] = {}
        self._made = 0
        self._arrange()

    def __repr__(self) -> str:
        return f"<Stops: {', '.join(f'{each.number} {each.kind} {each.text}' for each in self) or 'none'}>"

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> Entry:
        found = self._entries.get(number)
        if found is None:
            known = ", ".join(map(str, self._entries)) or "none"
            raise ValueError(f"there is no breakpoint or watchpoint {number!r}; there is {known}")
        return found

    @property
    def asks(self) -> bool:
        """Whether `before` has to be called at all."""
        return bool(self._breakpoints)

    @property
    def watches(self) -> bool:
        """Whether `produced` has to be called at all."""
        return False

    def break_at(self, where: Where, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes a breakpoint; see `Verbs.break_at`."""
        made = make_breakpoint(self._graph, self._made + 1, where, hit, when)
        self._add(made)
        return made

    def number_from(self, number: int) -> None:
        """The next one made gets this number, if none has had it: the numbers go on from an earlier session's."""
        self._made = max(self._made, number - 1)

    def enable(self, number: int) -> None:
        self[number].enabled = True
        self._arrange()

    def disable(self, number: int) -> None:
        """It stays, and stops nothing."""
        self[number].enabled = False
        self._arrange()

    def delete(self, number: int) -> None:
        """Takes it away; its number is not given again."""
        self[number]
        entries = dict(self._entries)
        del entries[number]
        self._entries = entries
        self._arrange()

    def before(self, task_id: int, order: Sequence[int], gradients: Callable[[], Gradients]) -> Stop | None:
        """The breakpoint before this task, if there is one. Changes nothing, but calls the user's predicates.

        Args:
            order: the ids of the tasks that have run.
            gradients: what the task is about to get; only asked for where a predicate wants it.
        """
        first = None
        for each in self._breakpoints:  # all of them: each counts its hits
            found = each.stops(self._graph, task_id, order, gradients)
            first = first or found
        return first

    def produced(
        self, task_id: int, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], node: Node
    ) -> None:
        """A task has run and its node still has what it saved. Never raises."""

    def found(self) -> Stop | None:
        """What the watchpoints have found since the last time somebody asked."""
        return None

    def at_end(self, order: Sequence[int]) -> Stop | None:
        """What the watchpoints find once all tasks have run."""
        return None

    def taken_back(self, task_ids: Sequence[int]) -> None:
        """These tasks have not run after all: the session went back."""

    def let_go(self) -> None:
        """The session is over: holds nothing of the graph's nodes any more."""
        self._graph = replace(self._graph, nodes=())

    def _add(self, entry: Entry) -> None:
        self._made = entry.number
        self._entries = {**self._entries, entry.number: entry}
        self._arrange()

    def _arrange(self) -> None:
        """Sorts out what is asked for each task: the engine may look at any time."""
        self._breakpoints = tuple(each for each in self if each.enabled)
