"""The breakpoints and watchpoints of one session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from ....inspector.graph.graph import Graph
from ...recording.task_records import Trace
from .breakpoints import Breakpoint, Gradients, Predicate, Stop, Where, make_breakpoint
from .watch_conditions import GradientPredicate
from .watch_gradients import Watching
from .watchpoints import Watchpoint, make_watchpoint

Entry: TypeAlias = Breakpoint | Watchpoint


class Stops:
    """The breakpoints and watchpoints of one session, numbered together from 1 in the order in which they were made.

    Iterating gives them all, `stops[number]` one. What changes them may be called from any thread.

    An engine calls `before` before each task while `asks`, `produced` after each while `watches`, `found` after that,
    and at last `at_end`. None of them raises, whatever a user's predicate does.

    Args:
        needed: the ids of the tasks that run at all; None: all.
        trace: gives what has been recorded so far, which knows of tasks that ran before anything was watched.

    Attributes:
        stopped: why the last run of the session ended before its end, for the session to note; None if it did not.
        stop_asked: whether a run is to return before the next task, whichever that is.
    """

    def __init__(
        self, graph: Graph, needed: Collection[int] | None = None, trace: Callable[[], Trace] | None = None
    ) -> None:
        self._graph = graph
        self._needed = needed
        self.stopped: Stop | None = None
        self.stop_asked = False
        self._entries: dict[int, Entry] = {}
        self._made = 0
        self._watching = Watching(graph, trace)
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
        """Whether a breakpoint is enabled: `before` has to be called."""
        return bool(self._breakpoints)

    @property
    def first_watch(self) -> Watchpoint | None:
        """The watchpoint that is enabled, the first of them."""
        return next(iter(self._watching.watchpoints), None)

    @property
    def watches(self) -> bool:
        """Whether a watchpoint is enabled: `produced` has to be called."""
        return bool(self._watching.watchpoints)

    def break_at(self, where: Where, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes a breakpoint; see `Verbs.break_at`."""
        made = make_breakpoint(self._graph, self._made + 1, where, hit, when)
        self._add(made)
        return made

    def watch(
        self, *conditions: str | GradientPredicate, at: str | int | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Makes a watchpoint; see `Verbs.watch`."""
        made = make_watchpoint(self._graph, self._needed, self._made + 1, conditions, at, synchronize)
        self._add(made)
        return made

    def speak_of(self, order: Sequence[int]) -> None:
        """Sentences say which place of this order a task has. The order may grow."""
        self._graph = self._graph.in_order(order)
        self._watching.speak_of(order)

    def number_from(self, number: int) -> None:
        """The next one made gets this number, if none has had it: the numbers go on from an earlier session's."""
        self._made = max(self._made, number - 1)

    def enable(self, number: int) -> None:
        """It stops runs again, after `disable`."""
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

    def breakpoint_at(self, task_id: int) -> Breakpoint | None:
        """The breakpoint that may stop before this task, if there is one: others would have to be asked then."""
        return next((each for each in self._breakpoints if each.tasks is None or task_id in each.tasks), None)

    def produced(
        self,
        task_id: int,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        raw: Sequence[Tensor | None] | None = None,
    ) -> None:
        """A task has run, and its node still has what it saved. A leaf's task is about to run: .grad takes the gradient
        away from its input buffer.

        Args:
            inputs: its input buffer, after the hooks that run before it.
            outputs: what it gave, one per entry of its node's `next_functions`, as the next tasks get it.
            raw: the same before the engine summed and cast it; None where the engine does not show that.
        """
        self._watching.produced(task_id, inputs, outputs, raw)

    def found(self, wait: bool = False) -> Stop | None:
        """What the watchpoints have found at the last task, or of earlier ones on accelerators since they last said so.

        Args:
            wait: for what is still on its way from an accelerator.
        """
        return self._watching.found(wait)

    def at_end(self, order: Sequence[int]) -> Stop | None:
        """Return the stop after the last task: a watchpoint's find, leaves without a gradient, or unreadable gradients.

        Args:
            order: the ids of the tasks that have run.
        """
        return self.found(wait=True) or self._watching.missing(order) or self._watching.unread(order)

    def asked(self) -> Stop | None:
        """Return the stop that `stop_asked` asks for, which is then done with; None: it does not."""
        asked, self.stop_asked = self.stop_asked, False
        return Stop("asked", None, None, "stop() was called") if asked else None

    def unread(self) -> dict[int, str]:
        """Return, per task whose gradients a watchpoint could not read, the reason."""
        return {task: why for each in self._watching.watchpoints for task, why in each.unread.items()}

    def reaching_leaves(self) -> frozenset[int]:
        """Return the ids of tasks whose non-finite gradients reach a leaf in the end."""
        return self._watching.bad.reaching_leaves(self._graph, self.unread())

    def taken_back(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all: the session went back."""
        back = frozenset(task_ids)
        self._watching.taken_back(back)
        for each in self:
            if isinstance(each, Breakpoint):
                each.taken_back()
            elif each.flow is not None:
                each.flow.forget(back)

    def let_go(self) -> None:
        """The session is over: holds nothing of the graph's nodes any more."""
        self._graph = replace(self._graph, nodes=())
        self._watching.let_go()

    def _add(self, entry: Entry) -> None:
        self._made = entry.number
        self._entries = {**self._entries, entry.number: entry}
        self._arrange()

    def _arrange(self) -> None:
        """Sorts out what is asked for each task: the engine may look at any time."""
        self._breakpoints = tuple(each for each in self if isinstance(each, Breakpoint) and each.enabled)
        self._watching.watchpoints = tuple(each for each in self if isinstance(each, Watchpoint) and each.enabled)
