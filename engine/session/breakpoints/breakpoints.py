"""Breakpoints: the tasks before which a run stops, and why it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ....inspector.graph.graph import Graph, Task
from ....inspector.graph.source_lines import Source
from ....inspector.text.sizes_and_counts import counted
from ....inspector.validation import a_kind
from ...schedule.find_tasks import tasks_and_calls_at
from ...schedule.ready_queue import ReadyTask

Why = Literal["breakpoint", "watchpoint", "asked"]


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Why a session stopped: a sentence for a person, and what it speaks of.

    Attributes:
        why: a breakpoint, a watchpoint, or somebody called `stop`.
        number: of the breakpoint or watchpoint.
        task: the id of the task it is about: the one to come for a breakpoint, for a watchpoint the one that gave the
            gradient.
        text: what it is, and at which task, with its module and source line.
        lines: what else is known: of a bad gradient the way back to its origin.
        tensors: by name the tensors which it speaks of, the session's own in their own shapes, not copies.
        since: how many tasks have run since that one. Not 0 only where an accelerator was not waited for.
        unread: the ids of tasks whose gradients a watchpoint could not read; the session's last stop speaks of them.
        hint: what would let it say more, in the first stop of a session that has a reason to; "": nothing.
    """

    why: Why
    number: int | None
    task: int | None
    text: str
    lines: tuple[str, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    since: int = 0
    hint: str = ""
    unread: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.text, *(f"  {line}" for line in self.all_lines)))

    @property
    def all_lines(self) -> tuple[str, ...]:
        """`lines`, and the hint where there is one."""
        return (*self.lines, self.hint) if self.hint else self.lines


Gradients = tuple[Tensor | None, ...]
Predicate = Callable[[Task, Gradients], object]
Where = str | int | Task | ReadyTask | Predicate


@dataclass(slots=True, eq=False, repr=False)
class Breakpoint:
    """Stops a run before a task.

    Attributes:
        number: counts breakpoints and watchpoints of a session together, from 1.
        text: how it was given.
        tasks: the ids of the tasks before which it may stop; None: any.
        calls: of a breakpoint on modules: by task the call of one of them. It stops where a call's first task is next.
        hit: it stops only at the n-th task that it meets, counted in the order in which the tasks run.
        when: it stops only where this says so.
        enabled: whether it stops anything.
        kind: "break": what tells it from a watchpoint.
    """

    number: int
    text: str
    tasks: frozenset[int] | None
    hit: int | None = None
    when: tuple[Predicate, ...] = ()
    enabled: bool = True
    kind: Literal["break"] = "break"
    calls: Mapping[int, int] | None = None
    _met: set[int] = field(default_factory=set)
    _entered: set[int] = field(default_factory=set)  # calls, by the tasks of the order that were `_seen`
    _seen: int = 0

    def __repr__(self) -> str:
        at = "any task" if self.tasks is None else counted(len(self.tasks), "task")
        return f"<Breakpoint {self.number} {self.text}, {at}{'' if self.enabled else ', disabled'}>"

    @property
    def hits(self) -> int:
        """Before how many tasks it was found to match. One that runs again, after going back, counts once."""
        return len(self._met)

    def stops(
        self, graph: Graph, task_id: int, order: Sequence[int], gradients: Callable[[], Gradients]
    ) -> Stop | None:
        """The stop before this task, if it is one. A predicate that raises stops, too: the backward must not end."""
        if self.tasks is not None and task_id not in self.tasks:
            return None
        if self.calls is not None and self._is_inside(task_id, order):
            return None
        task = graph.tasks[task_id]
        place = graph.describe(task, len(order))
        for predicate in self.when:
            try:
                if not predicate(task, gradients()):
                    return None
            except Exception as error:
                text = f"the predicate of breakpoint {self.number} raised {said(error)} before {place}"
                return Stop("breakpoint", self.number, task_id, text)
        self._met.add(task_id)
        if self.hit is not None and self._matched(order) + 1 != self.hit:
            return None
        given = "" if self.text == f"#{task_id}" else f" ({self.text})"  # which the place says
        hit = "" if self.hit is None else f", hit {self.hit}"
        return Stop("breakpoint", self.number, task_id, f"breakpoint {self.number}{given}{hit}, before {place}")

    def _is_inside(self, task_id: int, order: Sequence[int]) -> bool:
        """Whether the backward has entered this task's call before."""
        calls = self.calls or {}
        self._entered.update(calls[ran] for ran in order[self._seen :] if ran in calls)
        self._seen = len(order)
        return calls[task_id] in self._entered

    def taken_back(self) -> None:
        """Fewer tasks have run than before."""
        self._entered.clear()
        self._seen = 0

    def _matched(self, order: Sequence[int]) -> int:
        """At how many of the tasks that have run it would have stopped."""
        if self.tasks is None or self.when:
            return len(self._met.intersection(order))
        if self.calls is not None:
            return len({self.calls[ran] for ran in order if ran in self.calls})
        return len(self.tasks.intersection(order))


def make_breakpoint(graph: Graph, number: int, where: Where, hit: int | None, when: Predicate | None) -> Breakpoint:
    """See `Verbs.break_at`."""
    if hit is not None and (isinstance(hit, bool) or not isinstance(hit, int) or hit < 1):
        raise ValueError(f"hit counts from 1, so it can't be {hit!r}")
    if when is not None and not callable(when):
        raise TypeError(f"when takes a function (task, gradients) -> bool, not {a_kind(when)}")
    predicates = () if when is None else (when,)
    if callable(where):
        return Breakpoint(number, name_of(where), None, hit, (where, *predicates))
    tasks, calls = tasks_and_calls_at(graph, where)
    text = where if isinstance(where, str) else f"#{min(tasks)}"
    if when is not None:
        text = f"{text} when {name_of(when)}"
    return Breakpoint(number, text, tasks, hit, predicates, calls=calls)


def name_of(predicate: Callable[..., object]) -> str:
    """What to call a function that somebody gave."""
    name = str(getattr(predicate, "__name__", type(predicate).__name__))
    code = getattr(predicate, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda at {Source(code.co_filename, code.co_firstlineno, name).short}"


def said(error: Exception) -> str:
    """The first line of an exception."""
    message = str(error).partition("\n")[0]
    return f"{type(error).__name__}{': ' if message else ''}{message}"
