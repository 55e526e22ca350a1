"""Watchpoints: conditions on gradients that stop a run, and gradient norms into and out of modules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ....inspector.graph.graph import Graph
from ....inspector.text.sizes_and_counts import dtype_name
from ...schedule.find_tasks import calls_at, calls_of, tasks_at
from .breakpoints import Stop, name_of
from .gradient_readings import Need, Reading
from .nan_origin import shown, what_is_bad
from .nan_remedies import NanCause
from .watch_conditions import Condition, Conditions, GradientPredicate, Output, as_conditions, real_dtype

Port = tuple[int, int]
"""A task and the number of one of its inputs or outputs."""


@dataclass(slots=True)
class _Call:
    """One module call: its ports, and the norms known so far."""

    enters: set[Port] = field(default_factory=set)
    leaves: set[Port] = field(default_factory=set)
    came: dict[Port, float] = field(default_factory=dict)
    left: dict[Port, float] = field(default_factory=dict)


class ModuleFlow:
    """Tracks the norms of the gradients that enter and leave module calls.

    A gradient enters at an input of a task of the call if it comes from outside the call. It leaves on an edge to a
    task outside that is not a leaf. The norm is that of all of them concatenated; gradients that leave towards one
    tensor in parts (queries, keys and values) are not added up first.

    Args:
        graph: the graph.
        calls: ids of the module calls to track.
        needed: ids of the tasks that run; None for all.
    """

    def __init__(self, graph: Graph, calls: Collection[int], needed: Collection[int] | None) -> None:
        self._calls = {call: _Call() for call in calls}
        self._entered_at: dict[Port, list[int]] = {}
        self._left_at: dict[Port, list[int]] = {}
        self._ports: dict[int, set[Port]] = {}  # by task
        around: dict[int | None, frozenset[int]] = {None: frozenset()}
        for task in graph.tasks:
            if task.call not in around:
                around[task.call] = frozenset(calls_of(graph, task.id)).intersection(self._calls)
        tasks = graph.tasks
        for root in graph.roots:
            self._add(around[tasks[root.task].call], (root.task, root.input), enters=True)
        for edge in graph.edges:
            if tasks[edge.next_task].is_leaf or (needed is not None and edge.next_task not in needed):
                continue
            here, there = around[tasks[edge.task].call], around[tasks[edge.next_task].call]
            if here != there:
                self._add(here - there, (edge.task, edge.output), enters=False)
                self._add(there - here, (edge.next_task, edge.input), enters=True)

    def _add(self, calls: Iterable[int], port: Port, enters: bool) -> None:
        for call in calls:
            (self._calls[call].enters if enters else self._calls[call].leaves).add(port)
            (self._entered_at if enters else self._left_at).setdefault(port, []).append(call)
            self._ports.setdefault(port[0], set()).add(port)

    def asks(self, port: Port, entered: bool) -> bool:
        return port in (self._entered_at if entered else self._left_at)

    def record(self, port: Port, norm: float, entered: bool) -> list[tuple[int, float, float]]:
        """Record the norm of an input (`entered`) or an output. Return the calls that are now complete, with their
        norms in and out."""
        done = []
        for number in (self._entered_at if entered else self._left_at).get(port, ()):
            call = self._calls[number]
            (call.came if entered else call.left)[port] = norm
            if len(call.came) == len(call.enters) and len(call.left) == len(call.leaves) and call.leaves:
                done.append((number, math.hypot(*call.came.values()), math.hypot(*call.left.values())))
        return done

    def forget(self, task_ids: Collection[int]) -> None:
        """Forget tasks that were undone."""
        for task_id in task_ids:
            for port in self._ports.get(task_id, ()):
                for call in self._entered_at.get(port, ()):
                    self._calls[call].came.pop(port, None)
                for call in self._left_at.get(port, ()):
                    self._calls[call].left.pop(port, None)


@dataclass(slots=True, eq=False)
class Watchpoint:
    """A condition that stops a run after a task that returned a gradient for which it holds.

    Attributes:
        number: its number; breakpoints and watchpoints of a session are counted together, from 1.
        text: its conditions as they were passed.
        tasks: ids of the tasks whose gradients it watches; None for all.
        conditions: the parsed conditions.
        needs: the values to read from each gradient.
        flow: tracks the norms of modules' gradients, if a ratio is watched.
        synchronize: whether each gradient is read before the next task runs; None does so only on the CPU.
        enabled: whether it stops runs.
        kind: "watch", to distinguish it from a breakpoint.
        unread: by task, the reason why it could not read a gradient.
        muted_until: gradients of tasks up to this count were covered by an earlier stop and are only counted.
    """

    number: int
    text: str
    tasks: frozenset[int] | None
    conditions: Conditions = field(repr=False)
    needs: frozenset[Need] = field(repr=False)
    flow: ModuleFlow | None = field(default=None, repr=False)
    synchronize: bool | None = None
    enabled: bool = True
    kind: Literal["watch"] = "watch"
    unread: dict[int, str] = field(default_factory=dict, repr=False)
    muted_until: int = field(default=0, repr=False)
    _found_at: set[int] = field(default_factory=set, repr=False)

    @property
    def hits(self) -> int:
        """The number of tasks at which it found something; a task that runs again after an undo counts once."""
        return len(self._found_at)

    def watches(self, task_id: int) -> bool:
        """Return whether it watches the gradients of this task."""
        return self.tasks is None or task_id in self.tasks

    def hit(self, *task_ids: int) -> None:
        """Record that it found something at these tasks."""
        self._found_at.update(task_ids)


def make_watchpoint(
    graph: Graph,
    needed: Collection[int] | None,
    number: int,
    given: tuple[str | GradientPredicate, ...],
    at: str | int | None,
    synchronize: bool | None,
) -> Watchpoint:
    """Create a watchpoint; see `Verbs.watch`."""
    conditions = as_conditions(given)
    tasks = None if at is None else tasks_at(graph, at)
    flow = None
    if conditions.ratios:
        calls = frozenset(call.id for call in graph.calls)
        if isinstance(at, str):
            calls = calls_at(graph, at.removeprefix("module:"))
        elif tasks is not None:
            calls = frozenset(call for task_id in tasks for call in calls_of(graph, task_id))
        if not calls:
            raise ValueError(
                "a ratio compares the gradients that leave a module's call with those that entered it, and "
                + (
                    "none was captured: run the forward under ts.capture()"
                    if not graph.calls
                    else f"{at!r} is not a module"
                )
            )
        flow = ModuleFlow(graph, calls, needed)
    text = ", ".join(each if isinstance(each, str) else name_of(each) for each in given)
    if at is not None:
        text = f"{text} at {at}"
    return Watchpoint(number, text, tasks, conditions, conditions.needs, flow, synchronize)


def say(graph: Graph, condition: Condition, output: Output, read: Reading) -> str:
    """Return the clause of a stop, `task 31 LogBackward0 (encoder.3, model.py:41) returned NaN in 3 of 64 elements`."""
    words = " and ".join(dict.fromkeys(_words(graph, term.text, output, read) for term in condition))
    return f"{_task_and_verb(graph, output.task.id)} {words}{_where(graph, output.task.id, output.number)}"


def say_late(graph: Graph, condition: Condition, task_id: int, number: int, read: Reading) -> str:
    """Return the clause of a stop for a gradient that has been freed; see `say`."""
    plain = {"nan": "NaN", "inf": "infinite elements", "zero": "a gradient that is all zero"}
    words = [
        f"a gradient of norm {read.norm:.4g}"
        if "norm" in term.needs
        else plain.get(term.text, f"a gradient that satisfies {term.text}")
        for term in condition
    ]
    where = _where(graph, task_id, number)
    return f"{_task_and_verb(graph, task_id)} {' and '.join(dict.fromkeys(words))}{where}"


def say_ratio(graph: Graph, call_id: int, came: float, left: float) -> str:
    call = graph.calls[call_id]
    again = f", call {call.index + 1}" if call.index else ""
    ratio = left / came if came else math.inf
    return (
        f"{call.path or 'the model'} ({call.class_name}{again}) turned gradients of norm "
        f"{came:.4g} into gradients of norm {left:.4g}: {ratio:.4g} times"
    )


def unread_text(unread: Mapping[int, str]) -> str:
    """Join the reasons why gradients cannot be read, the most frequent first."""
    return "; ".join(reason for reason, _ in Counter(unread.values()).most_common())


def stop_at(
    watchpoint: Watchpoint, task_id: int | None, clause: str, cause: NanCause | None = None, **more: Any
) -> Stop:
    """Return the stop of a watchpoint, with a text of its number, the clause and the cause; `more` are its fields."""
    text = f"watchpoint {watchpoint.number} ({watchpoint.text}): {clause}{cause or ''}"
    return Stop("watchpoint", watchpoint.number, task_id, text, clause=clause, cause=cause, **more)


def _task_and_verb(graph: Graph, task_id: int) -> str:
    """Return the task with its verb: a leaf's task receives a gradient, others return one."""
    return f"{graph.describe(task_id)} {'received' if graph.tasks[task_id].is_leaf else 'returned'}"


def _where(graph: Graph, task_id: int, number: int) -> str:
    return f", in output {number}" if len(graph.out_edges[task_id]) > 1 else ""


def _words(graph: Graph, term: str, output: Output, read: Reading) -> str:
    if term in ("nan", "inf"):
        return what_is_bad(shown(output))
    if term == "zero":
        return f"a gradient that is all zero, {output.gradient.numel():,} elements"
    if term.startswith("norm"):
        return f"a gradient of norm {read.norm:.4g}"
    if term == "upcast":
        return _widening(output, graph.is_tape)
    if term == "shape":
        return _summing(output, graph.is_tape)
    return f"a gradient that satisfies {term}"


def _widening(output: Output, on_tape: bool) -> str:
    dtype, takes = dtype_name(output.raw.dtype), output.takes
    if takes is not None and not takes.any_dtype and real_dtype(takes.dtype) != real_dtype(output.raw.dtype):
        expected = dtype_name(takes.dtype)
        if on_tape:  # HIPS autograd passes a gradient on as the formula returned it
            return f"a gradient of {dtype} for a value of {expected}"
        return f"a gradient of {dtype}, which PyTorch casts to {expected}"
    came = " and ".join(sorted({dtype_name(meta.dtype) for meta in output.task.inputs}))
    return f"a gradient of {dtype} from inputs of {came}"


def _summing(output: Output, on_tape: bool) -> str:
    assert output.takes is not None and output.takes.shape is not None, "the shapes differ"
    small, large = tuple(output.takes.shape), tuple(output.summed_from or ())
    if on_tape:
        return f"a gradient of shape {large} for a value of shape {small}"
    return (
        f"a gradient of shape {large}, which PyTorch sums to {small}, because the forward broadcast {small} to {large}"
    )
