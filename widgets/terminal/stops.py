"""Breakpoints and watchpoints of a prompt, which are kept for later sessions, and the parsers of their syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from ...engine.session.breakpoints.breakpoints import Breakpoint, Predicate, Where
from ...engine.session.breakpoints.stop_list import Entry
from ...engine.session.breakpoints.watch_conditions import as_conditions
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Task
from ..deck.task_and_stop_syntax import Running, is_typed_task, run_of, typed_task, watched

Session: TypeAlias = Stepper | NativeSession


class Breaks(Running, Protocol):
    """A session, or a deck."""

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint: ...


Test = Callable[[Task | None, tuple[Tensor | None, ...]], object]
"""A user's expression as a function of a task and the gradients waiting for it."""

_HIT = re.compile(r"hit\s+(\d+)")
_CONDITION = re.compile(r"(?:^|\s)if\s+|,")
_TEST = re.compile(r"\s*if\s+(.+?)(?:\s+at\s+(\S+))?\s*")


@dataclass(slots=True, eq=False)
class PromptStop:
    """A breakpoint or watchpoint set at a prompt.

    Attributes:
        number: its number in every session.
        kind: "break" or "watch".
        text: its definition as typed.
        make: creates it in a session.
        once: whether it is deleted after it has stopped a run.
        enabled: whether it can stop a run.
        entry: its entry in the current session; None if nothing there matches.
        why_not: why nothing has matched yet; "" before the first session, None after the first match.
    """

    number: int
    kind: Literal["break", "watch"]
    text: str
    make: Callable[[Session], Entry]
    once: bool = False
    enabled: bool = True
    entry: Entry | None = None
    why_not: str | None = ""


class PromptStops:
    """The breakpoints and watchpoints of a prompt. They have the same numbers in all of its sessions.

    Known limitations: hits are counted separately in each session.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._stops: dict[int, PromptStop] = {}
        self._last = 0

    @property
    def session(self) -> Session:
        assert self._session is not None, "a prompt has a session before it has stops"
        return self._session

    def __iter__(self) -> Iterator[PromptStop]:
        """Iterate over all by number, including those that the session had before the prompt."""
        found = dict(self._stops)
        for entry in self.session.stops:
            if entry.number not in found:
                found[entry.number] = PromptStop(
                    entry.number, entry.kind, entry.text, _not_from_prompt, False, entry.enabled, entry
                )
        return iter([found[number] for number in sorted(found)])

    @property
    def wait(self) -> bool:
        """True if any breakpoint or watchpoint is enabled."""
        return any(each.enabled for each in self)

    @property
    def only_watch(self) -> bool:
        """True if all enabled stops of this prompt are watchpoints, and there is at least one."""
        return {each.kind for each in self._stops.values() if each.enabled} == {"watch"}

    def enter(self, session: Session) -> list[str]:
        """Set the breakpoints and watchpoints in another session.

        Returns:
            Messages for those that match nothing in their first session.
        """
        self._session = session
        messages = []
        for stop in self._stops.values():
            # Each session numbers its stops itself. Setting the next number keeps the prompt's numbers.
            session.stops.number_from(stop.number)
            try:
                self._set(stop)
            except ValueError as error:
                stop.entry = None
                if stop.why_not == "":
                    messages.append(f"{stop.kind} {stop.text}: {error}")
                if stop.why_not is not None:
                    stop.why_not = str(error)
        return messages

    def add(
        self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry], *, once: bool = False
    ) -> PromptStop:
        """Add a breakpoint or watchpoint to the current session.

        Raises:
            ValueError: nothing matches, or the syntax is invalid.
        """
        stop = self._new(kind, text, make, once)
        self._set(stop)
        self._keep(stop)
        return stop

    def add_for_later(self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry]) -> None:
        """Add a breakpoint or watchpoint for later sessions."""
        self._keep(self._new(kind, text, make, False))

    def enable(self, number: int, on: bool) -> None:
        """Enable or disable a breakpoint or watchpoint."""
        stop = self._stops.get(number)
        if stop is not None:
            stop.enabled = on
        if stop is None or stop.entry is not None:
            change = self.session.stops.enable if on else self.session.stops.disable
            change(number)

    def delete(self, number: int) -> None:
        stop = self._stops.pop(number, None)
        if stop is None or stop.entry is not None:
            self.session.stops.delete(number)

    def delete_if_once(self, number: int | None) -> None:
        """Delete a stop that is meant to stop a run only once. Call this after it has stopped a run."""
        if number in self._stops and self._stops[number].once:
            self.delete(number)

    @property
    def matched_nothing(self) -> bool:
        """True if there are stops, and none of them has matched in any session."""
        return bool(self._stops) and not self.has_matched

    @property
    def has_matched(self) -> bool:
        """True if one of the stops has matched in a session, whether or not it has stopped a run."""
        return any(each.why_not is None for each in self._stops.values())

    def unmatched_messages(self) -> Iterator[str]:
        """Yield a message for each stop that matched nothing in any session."""
        for each in self._stops.values():
            if each.why_not:
                yield f"{each.kind} {each.text} matched nothing in any backward: {each.why_not}"

    def _new(
        self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry], once: bool
    ) -> PromptStop:
        # The session may have stops that were set without the prompt.
        taken = [] if self._session is None else [entry.number for entry in self._session.stops]
        return PromptStop(max([self._last, *taken]) + 1, kind, text, make, once)

    def _keep(self, stop: PromptStop) -> None:
        self._stops[stop.number] = stop
        self._last = stop.number

    def _set(self, stop: PromptStop) -> None:
        self.session.stops.number_from(stop.number)
        stop.entry, stop.why_not = stop.make(self.session), None
        stop.number = stop.entry.number
        if not stop.enabled:
            self.session.stops.disable(stop.number)


def _not_from_prompt(session: Session) -> Entry:
    raise ValueError("this stop was not set at the prompt")


def read_break(text: str, test_of: Callable[[str], Test]) -> Callable[[Breaks], Breakpoint]:
    """Parse a breakpoint: `WHERE`, `WHERE, CONDITION`, `WHERE if CONDITION`, `WHERE, hit N`, or `if CONDITION`.

    Args:
        text: the definition. Without WHERE the breakpoint applies to every task.
        test_of: compiles a condition.

    Returns:
        A function that sets the breakpoint in a session or deck.

    Raises:
        ValueError: the text has neither a place nor a condition.
    """
    found = _CONDITION.search(text)
    where, condition = (text, "") if found is None else (text[: found.start()], text[found.end() :])
    where, condition = where.strip(), condition.strip()
    hit: int | None = None
    if match := _HIT.match(condition):
        hit, condition = int(match[1]), condition[match.end() :].strip(" ,").removeprefix("if ")
    when: Predicate | None = None
    if condition:
        test = test_of(condition)

        def when(task: Task, gradients: tuple[Tensor | None, ...]) -> object:
            return test(task, gradients)

        when.__name__ = condition
    place: Where | None = when
    if where:
        place = where
    if place is None:
        raise ValueError(
            "missing place; usage: break WHERE [, CONDITION], where WHERE is a module, a parameter, a node's name, a "
            "task such as 53rd, or FILE:LINE"
        )
    condition_there = when if where else None

    def make(session: Breaks) -> Breakpoint:
        there = typed_task(where, session.graph, run_of(session)) if is_typed_task(where) else place
        return session.break_at(there, hit=hit, when=condition_there)

    return make


def read_watch(text: str, test_of: Callable[[str], Callable[[Any, Any], object]]) -> Callable[[Session], Entry]:
    """Parse a watchpoint such as `nan or inf`, `norm>1e3 and inf at encoder.*`, or `if EXPRESSION`.

    An expression can use `gradient` and `task`.

    Returns:
        A function that sets the watchpoint in a session.

    Raises:
        ValueError: the text is empty, or has an unknown condition.
    """
    conditions: Sequence[Any]
    if found := _TEST.fullmatch(text):
        test = test_of(found[1])
        test.__name__ = found[1]
        conditions, at = (test,), found[2]
    else:
        conditions, at = watched(text)
        as_conditions(tuple(conditions))  # raises for an unknown condition now, not in a later session
    return lambda session: session.watch(*conditions, at=at)
