"""The breakpoints and watchpoints of one session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from ....inspector.graph.graph import Graph
from ....inspector.validation import a_kind
from ...recording.task_records import Trace
from ...schedule.find_tasks import tasks_and_calls_at
from .breakpoints import Breakpoint, Gradients, Predicate, Stop, Where, name_of

if TYPE_CHECKING:  # sessions without watchpoints do not import them
    from .watch_conditions import GradientPredicate
    from .watch_gradients import Watching
    from .watchpoints import Watchpoint

Entry: TypeAlias = "Breakpoint | Watchpoint"


class Stops:
    """The breakpoints and watchpoints of one session, numbered together from 1 in the order of creation.

    Iterating yields them all, `stops[number]` returns one. The methods that change them may be called from any thread.

    An engine calls `before` before each task while a breakpoint is enabled, `produced` after each task while a
    watchpoint is, then `found`, and finally `at_end`. None of them raises, even if a user's predicate does.

    Args:
        graph: the graph.
        needed: ids of the tasks that run; None for all.
        trace: returns the records so far, which cover tasks that ran before the first watchpoint.

    Attributes:
        stopped: the reason why the session's last run ended before its end, set by the session; None if it did not.
        stop_asked: whether a run is to return before its next task.
        breakpoints, watchpoints: the enabled ones; the engine may read these tuples at any time.
    """

    breakpoints: tuple[Breakpoint, ...]
    watchpoints: tuple[Watchpoint, ...]

    def __init__(
        self, graph: Graph, needed: Collection[int] | None = None, trace: Callable[[], Trace] | None = None
    ) -> None:
        self._graph = graph
        self._needed = needed
        self._trace = trace
        self._order: Sequence[int] = ()
        self.stopped: Stop | None = None
        self.stop_asked = False
        self._entries: dict[int, Entry] = {}
        self._made = 0
        self._watching: Watching | None = None  # created with the first watchpoint
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
            known = f"expected one of {', '.join(map(str, self._entries))}" if self._entries else "there are none"
            raise ValueError(f"unknown breakpoint or watchpoint {number!r}; {known}")
        return found

    def break_at(self, where: Where, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Create a breakpoint; see `Verbs.break_at`."""
        if hit is not None and (isinstance(hit, bool) or not isinstance(hit, int) or hit < 1):
            raise ValueError(f"hit must be a whole number of at least 1, got {hit!r}")
        if when is not None and not callable(when):
            raise TypeError(f"when must be a function (task, gradients) -> bool, got {a_kind(when)}")
        number, predicates = self._made + 1, () if when is None else (when,)
        if callable(where):
            made = Breakpoint(number, name_of(where), None, hit, (where, *predicates))
        else:
            tasks, calls = tasks_and_calls_at(self._graph, where)
            text = where if isinstance(where, str) else f"#{min(tasks)}"
            text = text if when is None else f"{text} when {name_of(when)}"
            made = Breakpoint(number, text, tasks, hit, predicates, calls=calls)
        self._add(made)
        return made

    def watch(
        self, *conditions: str | GradientPredicate, at: str | int | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Create a watchpoint; see `Verbs.watch`."""
        from .watch_gradients import Watching
        from .watchpoints import make_watchpoint

        made = make_watchpoint(self._graph, self._needed, self._made + 1, conditions, at, synchronize)
        if self._watching is None:
            watching = Watching(self._graph, self._trace)
            watching.use_order(self._order)
            self._watching = watching
        self._add(made)
        return made

    def use_order(self, order: Sequence[int]) -> None:
        """Use this order for task positions in messages; it may grow."""
        self._graph, self._order = self._graph.in_order(order), order
        if self._watching is not None:
            self._watching.use_order(order)

    def number_from(self, number: int) -> None:
        """Continue the numbering of an earlier session: the next entry gets at least this number."""
        self._made = max(self._made, number - 1)

    def enable(self, number: int) -> None:
        """Enable an entry again after `disable`."""
        self[number].enabled = True
        self._arrange()

    def disable(self, number: int) -> None:
        """Disable an entry; it stays in the list."""
        self[number].enabled = False
        self._arrange()

    def delete(self, number: int) -> None:
        """Delete an entry; its number is not used again."""
        self[number]  # raises if it is unknown
        entries = dict(self._entries)  # a copy, since the engine's thread may be iterating over it
        del entries[number]
        self._entries = entries
        self._arrange()

    def before(self, task_id: int, order: Sequence[int], gradients: Callable[[], Gradients]) -> Stop | None:
        """Return the breakpoint's stop before this task, or None. Nothing is changed, except by the user's predicates.

        Args:
            task_id: id of the task that runs next.
            order: ids of the tasks that have run.
            gradients: returns the task's input buffer; only called if a predicate needs it.
        """
        first = None
        for each in self.breakpoints:  # evaluate all, because each counts its hits
            found = each.stops(self._graph, task_id, order, gradients)
            first = first or found
        return first

    def produced(
        self,
        task_id: int,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        raw: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Evaluate the watchpoints on a task that has run and whose node still has its saved tensors.

        A leaf's task is evaluated before it runs, because AccumulateGrad moves the gradient out of the input buffer
        into .grad.

        Args:
            task_id: id of the task.
            inputs: its input buffer, after the hooks that run before it.
            outputs: its outputs, one per entry of its node's `next_functions`, as the next tasks receive them.
            raw: its outputs before the engine summed and cast them; None if the engine does not show them.
        """
        if self._watching is not None:
            self._watching.produced(task_id, inputs, outputs, raw)

    def found(self, wait: bool = False) -> Stop | None:
        """Return what the watchpoints found at the last task, or at earlier tasks on accelerators since the last
        report.

        Args:
            wait: whether to wait for values still being copied from an accelerator.
        """
        return None if self._watching is None else self._watching.found(wait)

    def at_end(self, order: Sequence[int]) -> Stop | None:
        """Return the stop after the last task: a watchpoint's result, leaves without a gradient, or unreadable
        gradients.

        Args:
            order: ids of the tasks that have run.
        """
        watching = self._watching
        return None if watching is None else watching.found(True) or watching.missing(order) or watching.unread(order)

    def take_request(self) -> Stop | None:
        """Return a stop if `stop_asked` is set, and reset it; None otherwise."""
        asked, self.stop_asked = self.stop_asked, False
        return Stop("asked", None, None, "stop() was called") if asked else None

    def unread(self) -> dict[int, str]:
        """Return, per task whose gradients a watchpoint could not read, the reason."""
        return {task: why for each in self.watchpoints for task, why in each.unread.items()}

    def reaching_leaves(self) -> frozenset[int]:
        """Return the ids of tasks whose non-finite gradients reach a leaf in the end."""
        watching = self._watching
        return frozenset() if watching is None else watching.bad.reaching_leaves(self._graph, self.unread())

    def forget_undone(self, task_ids: Collection[int]) -> None:
        """Forget tasks that were undone."""
        back = frozenset(task_ids)
        if self._watching is not None:
            self._watching.forget_undone(back)
        for each in self:
            if isinstance(each, Breakpoint):
                each.forget_undone()
            elif each.flow is not None:
                each.flow.forget(back)

    def close(self) -> None:
        """Release the graph's nodes when the session is over."""
        self._graph = replace(self._graph, nodes=())
        self._trace = None
        if self._watching is not None:
            self._watching.close()

    def _add(self, entry: Entry) -> None:
        self._made = entry.number
        self._entries = {**self._entries, entry.number: entry}
        self._arrange()

    def _arrange(self) -> None:
        """Update the tuples of enabled entries."""
        self.breakpoints = tuple(each for each in self if isinstance(each, Breakpoint) and each.enabled)
        self.watchpoints = tuple(each for each in self if not isinstance(each, Breakpoint) and each.enabled)
        if self._watching is not None:
            self._watching.enable(self.watchpoints)


def session_over(why: str) -> RuntimeError:
    """Return the error for a verb of a session that is over."""
    return RuntimeError(f"this session is over ({why}); start a new one on a fresh forward with ts.debug(loss)")
