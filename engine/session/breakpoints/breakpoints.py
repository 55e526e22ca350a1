"""Breakpoints: the tasks before which a run stops, and the stops themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from ....inspector.graph.graph import Graph, Task
from ....inspector.graph.source_lines import Source
from ....inspector.text.sizes_and_counts import counted
from ...schedule.find_tasks import Where as Place

if TYPE_CHECKING:
    from .nan_remedies import NanCause

Why = Literal["breakpoint", "watchpoint", "asked"]


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """The reason why a session stopped, in a sentence and as data.

    Attributes:
        why: a breakpoint, a watchpoint, or a call of `stop`.
        number: number of the breakpoint or watchpoint.
        task: id of the task: the next one for a breakpoint, the one that returned the gradient for a watchpoint.
        text: the stop and its task, with the task's module and source line.
        lines: further facts; for a bad gradient, the way back to its origin.
        tensors: the tensors it refers to, by name; the session's own in their own shapes, not copies.
        since: the number of tasks run since that task; not 0 only if an accelerator was not waited for.
        hint: what would make the message more precise, in a session's first stop; "" for nothing.
        unread: ids of tasks whose gradients a watchpoint could not read, in the session's last stop.
        clause: the text without the watchpoint and the cause: `LogBackward0 returned NaN in 3 of 64 elements`.
        cause: the known cause of a bad gradient, with its remedy, which the text ends with.
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
    clause: str = ""
    cause: NanCause | None = None

    def __str__(self) -> str:
        return "\n".join((self.text, *(f"  {line}" for line in self.all_lines)))

    @property
    def all_lines(self) -> tuple[str, ...]:
        """The `lines`, and the hint if there is one."""
        return (*self.lines, self.hint) if self.hint else self.lines


Gradients = tuple[Tensor | None, ...]
Predicate = Callable[[Task, Gradients], object]
Where = Place | Predicate


@dataclass(slots=True, eq=False, repr=False)
class Breakpoint:
    """A condition that stops a run before a task.

    Attributes:
        number: its number; breakpoints and watchpoints of a session are counted together, from 1.
        text: the place as it was passed.
        tasks: ids of the tasks before which it may stop; None for any.
        hit: stop only at the n-th matching task, in the order in which they run.
        when: functions that must all return True for a stop.
        enabled: whether it stops runs.
        kind: "break", to distinguish it from a watchpoint.
        calls: for a breakpoint on modules, the module call of each task; it stops where the first task of a call is
            next.
    """

    number: int
    text: str
    tasks: frozenset[int] | None
    hit: int | None = None
    when: tuple[Predicate, ...] = ()
    enabled: bool = True
    kind: Literal["break"] = "break"
    calls: Mapping[int, int] | None = None
    _matches: set[int] = field(default_factory=set)
    _entered: set[int] = field(default_factory=set)  # calls of the first `_seen` tasks of the order
    _seen: int = 0

    def __repr__(self) -> str:
        at = "any task" if self.tasks is None else counted(len(self.tasks), "task")
        return f"<Breakpoint {self.number} {self.text}, {at}{'' if self.enabled else ', disabled'}>"

    @property
    def hits(self) -> int:
        """The number of tasks before which it matched; a task that runs again after an undo counts once."""
        return len(self._matches)

    def stops(
        self, graph: Graph, task_id: int, order: Sequence[int], gradients: Callable[[], Gradients]
    ) -> Stop | None:
        """Return the stop before this task, or None.

        An exception in a predicate also stops the run, because it must not end the backward.
        """
        if self.tasks is not None and task_id not in self.tasks:
            return None
        if self.calls is not None:
            self._entered.update(self.calls[ran] for ran in order[self._seen :] if ran in self.calls)
            self._seen = len(order)
            if self.calls[task_id] in self._entered:  # only the first task of a module call stops
                return None
        task = graph.tasks[task_id]
        place = graph.describe(task, len(order))
        for predicate in self.when:
            try:
                if not predicate(task, gradients()):
                    return None
            except Exception as error:
                text = f"the predicate of breakpoint {self.number} raised {error_text(error)} before {place}"
                return Stop("breakpoint", self.number, task_id, text)
        self._matches.add(task_id)
        if self.hit is not None and self._matched(order) + 1 != self.hit:
            return None
        name = "" if self.text == f"#{task_id}" else f" ({self.text})"  # `place` contains the task's number
        hit = "" if self.hit is None else f", hit {self.hit}"
        return Stop("breakpoint", self.number, task_id, f"breakpoint {self.number}{name}{hit}, before {place}")

    def forget_undone(self) -> None:
        """Forget the module calls entered, after an undo."""
        self._entered.clear()
        self._seen = 0

    def _matched(self, order: Sequence[int]) -> int:
        """Return the number of tasks that have run and at which it would have stopped."""
        if self.tasks is None or self.when:
            return len(self._matches.intersection(order))
        if self.calls is not None:
            return len({self.calls[ran] for ran in order if ran in self.calls})
        return len(self.tasks.intersection(order))


def name_of(predicate: Callable[..., object]) -> str:
    """Return a name for a user's function."""
    name = str(getattr(predicate, "__name__", type(predicate).__name__))
    code = getattr(predicate, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda at {Source(code.co_filename, code.co_firstlineno, name).short}"


def error_text(error: Exception) -> str:
    """Return the type and first line of an exception."""
    message = str(error).partition("\n")[0]
    return f"{type(error).__name__}{': ' if message else ''}{message}"
