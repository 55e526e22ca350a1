"""The breakpoints and watchpoints of a prompt, which outlast the session they were made in."""

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
"""What an expression of the user's says of a task and the gradients that wait for it."""

_HIT = re.compile(r"hit\s+(\d+)")
_CONDITION = re.compile(r"(?:^|\s)if\s+|,")
_TEST = re.compile(r"\s*if\s+(.+?)(?:\s+at\s+(\S+))?\s*")


@dataclass(slots=True, eq=False)
class Asked:
    """A breakpoint or watchpoint as it was asked for.

    Attributes:
        make: makes it in a session.
        once: it is deleted when it has stopped a run.
        entry: the session's; None while nothing there matches.
        why_not: why nothing has matched yet, "" before the first session; None from the first match on.
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
    """What was asked for at one prompt, in all sessions that it gets: with the same numbers in each.

    Known limitations: a number of hits is counted in each session anew.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._asked: dict[int, Asked] = {}
        self._last = 0

    @property
    def session(self) -> Session:
        assert self._session is not None, "a prompt has a session before it has stops"
        return self._session

    def __iter__(self) -> Iterator[Asked]:
        """All in order of their number, those that the session had before the prompt among them."""
        found = dict(self._asked)
        for entry in self.session.stops:
            if entry.number not in found:
                found[entry.number] = Asked(entry.number, entry.kind, entry.text, _none, False, entry.enabled, entry)
        return iter([found[number] for number in sorted(found)])

    @property
    def wait(self) -> bool:
        """Whether any may stop a run."""
        return any(each.enabled for each in self)

    @property
    def only_watch(self) -> bool:
        """Whether what was asked for at this prompt, and is enabled, are watchpoints alone."""
        return {each.kind for each in self._asked.values() if each.enabled} == {"watch"}

    def enter(self, session: Session) -> list[str]:
        """Another session: the breakpoints and watchpoints are set in it, as far as anything there matches.

        Returns:
            Of those that match nothing in the first session they are for, why.
        """
        self._session = session
        news = []
        for asked in self._asked.values():
            session.stops.number_from(asked.number)
            try:
                self._set(asked)
            except ValueError as error:
                asked.entry = None
                if asked.why_not == "":
                    news.append(f"{asked.kind} {asked.text}: {error}")
                if asked.why_not is not None:
                    asked.why_not = str(error)
        return news

    def ask(
        self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry], *, once: bool = False
    ) -> Asked:
        """Makes one in this session.

        Raises:
            ValueError: nothing matches, or it can't be read.
        """
        asked = self._new(kind, text, make, once)
        self._set(asked)
        self._keep(asked)
        return asked

    def ask_for_later(self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry]) -> None:
        """Makes one for the sessions to come."""
        self._keep(self._new(kind, text, make, False))

    def enable(self, number: int, on: bool) -> None:
        """Switches one on or off."""
        asked = self._asked.get(number)
        if asked is not None:
            asked.enabled = on
        if asked is None or asked.entry is not None:
            change = self.session.stops.enable if on else self.session.stops.disable
            change(number)

    def delete(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is None or asked.entry is not None:
            self.session.stops.delete(number)

    def met(self, number: int | None) -> None:
        """A run has stopped for this one."""
        if number in self._asked and self._asked[number].once:
            self.delete(number)

    @property
    def in_vain(self) -> bool:
        """Whether something was asked for, and nothing of it has matched in any session."""
        return bool(self._asked) and all(each.why_not is not None for each in self._asked.values())

    def never_met(self) -> Iterator[str]:
        """What has matched nothing in any session."""
        for each in self._asked.values():
            if each.why_not:
                yield f"{each.kind} {each.text} matched nothing in any backward: {each.why_not}"

    def _new(self, kind: Literal["break", "watch"], text: str, make: Callable[[Session], Entry], once: bool) -> Asked:
        taken = [] if self._session is None else [entry.number for entry in self._session.stops]
        return Asked(max([self._last, *taken]) + 1, kind, text, make, once)

    def _keep(self, asked: Asked) -> None:
        self._asked[asked.number] = asked
        self._last = asked.number

    def _set(self, asked: Asked) -> None:
        self.session.stops.number_from(asked.number)
        asked.entry, asked.why_not = asked.make(self.session), None
        asked.number = asked.entry.number
        if not asked.enabled:
            self.session.stops.disable(asked.number)


def _none(session: Session) -> Entry:
    raise ValueError("it was not made at the prompt")


def read_break(text: str, test_of: Callable[[str], Test]) -> Callable[[Breaks], Breakpoint]:
    """`WHERE`, `WHERE, CONDITION`, `WHERE if CONDITION`, `WHERE, hit N`, or `if CONDITION` at any task.

    Args:
        test_of: compiles a condition.

    Raises:
        ValueError: it says neither where nor when.
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
        raise ValueError("break where? break WHERE [, CONDITION]; help break says what WHERE may be")
    condition_there = when if where else None

    def make(session: Breaks) -> Breakpoint:
        there = typed_task(where, session.graph, run_of(session)) if is_typed_task(where) else place
        return session.break_at(there, hit=hit, when=condition_there)

    return make


def read_watch(text: str, test_of: Callable[[str], Callable[[Any, Any], object]]) -> Callable[[Session], Entry]:
    """`nan`, `nan or inf`, `norm>1e3 and inf at encoder.*`, `if EXPRESSION of gradient and task`.

    Raises:
        ValueError: it says nothing, or what is no condition.
    """
    conditions: Sequence[Any]
    if found := _TEST.fullmatch(text):
        test = test_of(found[1])
        test.__name__ = found[1]
        conditions, at = (test,), found[2]
    else:
        conditions, at = watched(text)
        as_conditions(tuple(conditions))  # says at once what is none
    return lambda session: session.watch(*conditions, at=at)
