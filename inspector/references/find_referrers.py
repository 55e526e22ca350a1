"""Finds the shortest reference path from a name to an object, by a search upwards for several objects at once."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import islice, repeat
from operator import is_
from types import ModuleType
from typing import Any, Literal

from ..torch_private.thread_state import unobserved
from .reference_paths import HeldAt, key_of, place_in, type_name
from .stack_frames import is_of_function, place_of, running_frames, thread_name, variables_of

MOST_LOOKED_AT = 20_000
MOST_AT_ONCE = 256  # gc.get_referrers compares each reference of the process with each of them
_MOST_LEVELS = 60
_MAIN = ("__main__", "__mp_main__")  # what multiprocessing calls the same module
_MOST_INSTANCES = 8  # of a class: each of them holds it
_MOST_ELEMENTS = 10_000  # of an array of objects
_NOBODY = "a temporary of a running frame or C++"

_contents_of: Any = vars(ModuleType)["__dict__"].__get__

Kind = Literal["named", "cycle", "unnamed", "bounded"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds an object.

    Attributes:
        text: as an expression: `trainer.store[1]['o']`, `local variable outs of train() at train.py:90: outs[1]`.
        kind: "named" where a variable leads to it; "cycle" where it holds itself, so that the collector finds it, but
            where C++ holds one of the cycle; "unnamed" where what holds it is not seen by Python; "bounded" where too
            much would have had to be looked at.
        at: `file:line` of the function whose variable it is, if it is one's.
    """

    text: str
    kind: Kind
    at: str | None = None

    def __str__(self) -> str:
        return self.text


def who_holds(
    objects: Sequence[object], most: int = MOST_LOOKED_AT, error: BaseException | None = None
) -> list[Holder]:
    """Who holds each of these, in their order; `objects` itself does not count, nor do the calls of tapescope that ask.

    Modules' and running functions' variables are where a way starts. No code of the user is called: no property, no
    `__class__`, no `__eq__`. Nothing is kept alive afterwards, and no garbage is made that only the collector frees.

    Known limitations: what is frozen (`gc.freeze`) or not tracked by the collector holds unseen; of NumPy's arrays of
    objects, which are not, those are looked into that are variables. Context variables are those of this thread. What
    the stack of an expression under way holds has no name. Of several ways to an object the shortest is told.

    Args:
        most: how many objects may be looked at; where they don't suffice, the holder says so.
        error: an exception: what the functions that it has left still hold is theirs.
    """
    with unobserved():
        search = _Search(objects, most, error)
        search.climb()
        return [search.holder_of(id(each)) for each in objects]


class _Search:
    """Levels of holders above the targets. What was looked at is referred to by `kept` alone, and by numbers elsewhere:
    a container of ours would be found as a holder.

    Attributes:
        kept: what was looked at, by id.
        below: by the id of a holder, what it holds of that.
        way: by the id of what a name leads to, its holder's; its own where it is at the start.
        namespaces: the variables of modules, by the modules' names.
        of_modules, of_others: where ways start: by the id of a variable's value its module, or its place where it is
            a function's, a context's or an array's.
        is_bounded: whether something was left out.
    """

    def __init__(self, targets: Sequence[object], most: int, error: BaseException | None) -> None:
        self.most = most
        self.kept: dict[int, object] = {id(each): each for each in targets}
        self.below: dict[int, list[int]] = {}
        self.way: dict[int, int] = {}
        self.namespaces: dict[str, dict[str, object]] = {}
        self.of_modules: dict[int, str] = {}
        self.of_others: dict[int, HeldAt] = {}
        self.is_bounded = False
        self._targets = set(self.kept)
        self._values: list[object] = []  # else another could be at one's address
        self._not_holders = {id(self.kept), id(self._values), id(self.namespaces), id(targets)}
        self._instances: dict[int, int] = {}
        self._find_starts(error)

    def _find_starts(self, error: BaseException | None) -> None:
        here = threading.get_ident()
        for thread, frame in running_frames(error):  # IPython's cells run in a module that is not that of sys.modules
            self.namespaces.setdefault(str(dict.get(frame.f_globals, "__name__")), frame.f_globals)
            if is_of_function(frame):
                place = place_of(frame)
                where = place + ("" if thread == here else f" in thread {thread_name(thread)}")
                at = place.rpartition(" at ")[2]
                for name, value in variables_of(frame).items():
                    self._values.append(value)
                    self._starts_at(value, HeldAt(name, f"local variable {name} of {where}", at=at))
        for name, module in list(sys.modules.items()):
            if issubclass(type(module), ModuleType):
                self.namespaces.setdefault(name, _contents_of(module))
        for name, variables in reversed(self.namespaces.items()):  # a variable of several modules is the first one's
            ids = [id(value) for value in list(dict.values(variables))]
            self.of_modules.update(dict.fromkeys(ids, name))  # collectors don't tell of each module's dict that it does
        array = _array_type()
        for name, variables in self.namespaces.items():
            # In few modules. By identity: of a program's classes neither == nor hash() need work.
            if any(map(is_, map(type, list(dict.values(variables))), repeat(array))):
                for variable, value in list(dict.items(variables)):
                    for element, inner in _elements_of(value, HeldAt(_in_module(name, variable))):
                        self._starts_at(element, inner)
        for context_variable, value in copy_context().items():  # which only C holds
            self._starts_at(value, HeldAt(f"<the context variable {context_variable.name}>"))

    def _starts_at(self, value: object, place: HeldAt) -> None:
        self._values.append(value)
        self.of_others.setdefault(id(value), place)
        for element, inner in _elements_of(value, place):
            self._values.append(element)
            self.of_others.setdefault(id(element), inner)

    def climb(self) -> None:
        """Looks at the holders, theirs, and so on, until a name leads to each target or there are none left."""
        level = tuple(self.kept.values())
        for _ in range(_MOST_LEVELS):
            for starts in (self.of_modules, self.of_others):
                for each in level:
                    if id(each) in starts:
                        self._settle(id(each))
            level = tuple([each for each in level if id(each) not in self.way])
            if not level or self._targets <= self.way.keys():
                return
            if len(self.kept) > self.most:
                break
            if len(level) > MOST_AT_ONCE:
                self.is_bounded = True
                level = level[:MOST_AT_ONCE]
            level = self._holders_of(level)
        self.is_bounded = True

    def _holders_of(self, level: tuple[object, ...]) -> tuple[object, ...]:
        """Those that have not been looked at yet."""
        numbers = {id(each) for each in level}
        found = []
        for holder in gc.get_referrers(*level):
            number = id(holder)
            if number in self._not_holders or holder is level:
                continue
            below = [id(each) for each in gc.get_referents(holder) if id(each) in numbers]
            kind = id(type(holder))
            if kind in below and not self._may_be_looked_at(kind):
                below = [each for each in below if each != kind]
            if not below:
                continue
            self.below.setdefault(number, []).extend(below)
            if number in self.way:
                self._settle(number)
            elif number not in self.kept:
                self.kept[number] = holder
                found.append(holder)
        return tuple(found)

    def _may_be_looked_at(self, kind: int) -> bool:
        """Whether one more instance of a class may stand as its holder."""
        self._instances[kind] = self._instances.get(kind, 0) + 1
        return self._instances[kind] <= _MOST_INSTANCES

    def _settle(self, start: int) -> None:
        """A name leads to `start`, and so to all below it."""
        self.way.setdefault(start, start)
        waiting = [start]
        for each in waiting:
            for held in self.below.get(each, ()):
                if held not in self.way:
                    self.way[held] = each
                    waiting.append(held)

    def holder_of(self, target: int) -> Holder:
        """In words."""
        if target not in self.way:
            return self._unnamed(target)
        numbers = [target]
        while (holder := self.way[numbers[-1]]) != numbers[-1]:
            numbers.append(holder)
        chain = [self.kept[number] for number in reversed(numbers)]
        place = place_in(chain, self._start(chain[0]))
        return Holder(str(place), "named", place.at or None)

    def _start(self, value: object) -> HeldAt:
        """The variable that a way starts with."""
        module = self.of_modules.get(id(value))
        if module is None:
            return self.of_others[id(value)]
        found = key_of(self.namespaces[module], value)
        name = str(found[0]) if found else f"<a former variable of {module}>"
        return HeldAt(_in_module(module, name))

    def _unnamed(self, target: int) -> Holder:
        """No name leads to it: a cycle, something that only C++ holds, or too much to look at."""
        if self.is_bounded:
            return Holder(f"no name found among the {len(self.kept):,} objects that were looked at", "bounded")
        numbers, is_cycle = self._unnamed_way(target)
        if len(numbers) == 1:
            return Holder(_NOBODY, "unnamed")
        chain = [self.kept[number] for number in reversed(numbers)]
        place = place_in(chain, HeldAt(f"<{type_name(chain[0])}>"))
        if is_cycle:
            return Holder(f"a cycle: {place} is that {type_name(chain[0])} itself", "cycle")
        return Holder(f"{place}, which is held by {_NOBODY}", "unnamed", place.at or None)

    def _unnamed_way(self, target: int) -> tuple[list[int], bool]:
        """The shortest cycle upward from the target; if there is none, the way to the last that was found above it."""
        above: dict[int, list[int]] = {}
        for holder, below in self.below.items():
            for each in below:
                above.setdefault(each, []).append(holder)
        came_from: dict[int, int] = {}
        waiting = [target]
        for each in waiting:
            for holder in above.get(each, ()):
                if holder == target:
                    return [*_back(came_from, each, target)[::-1], target], True
                if holder not in came_from:
                    came_from[holder] = each
                    waiting.append(holder)
        return _back(came_from, waiting[-1], target)[::-1], False


def _in_module(module: str, variable: object) -> str:
    return str(variable) if module in _MAIN else f"{module}.{variable}"


def _array_type() -> Any:
    """NumPy's, where it has been imported."""
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _elements_of(value: Any, place: HeldAt) -> Iterator[tuple[object, HeldAt]]:
    """Those of an array of objects: no collector knows that it holds them."""
    if type(value) is not _array_type() or value.dtype != object:
        return
    what = place.expression if value.ndim == 1 else f"{place.expression}.flat"
    for number, element in enumerate(islice(value.flat, _MOST_ELEMENTS)):
        yield element, replace(place, expression=f"{what}[{number}]")


def _back(came_from: dict[int, int], start: int, target: int) -> list[int]:
    """From a holder down to the target."""
    numbers = [start]
    while numbers[-1] != target:
        numbers.append(came_from[numbers[-1]])
    return numbers
