"""Search for the shortest reference path from a name to an object, upwards, for several objects at once."""

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

from ..graph.frame_variables import is_of_function, variables_of
from ..torch_private.thread_state import unobserved
from .reference_paths import HeldAt, key_of, place_in, type_name
from .stack_frames import function_of, running_frames, thread_name

MOST_LOOKED_AT = 20_000
MOST_AT_ONCE = 256  # gc.get_referrers compares every reference in the process with each of them
_MOST_LEVELS = 60
_MAIN = ("__main__", "__mp_main__")  # multiprocessing's name for the main module
_MOST_INSTANCES = 8  # instances of a class to look at; each of them refers to it
_MOST_ELEMENTS = 10_000  # elements of an object array to look at
_NOBODY = "a temporary of a running frame or C++"

_contents_of: Any = vars(ModuleType)["__dict__"].__get__

Kind = Literal["named", "cycle", "unnamed", "bounded"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of an object.

    Attributes:
        text: the holder as an expression: `trainer.store[1]['o']`, `local variable outs of train() at train.py:80:
            outs[1]`.
        kind: "named" if a variable leads to the object; "cycle" if the object refers to itself through others, which
            the collector frees unless C++ holds one of them; "unnamed" if Python cannot see the holder; "bounded" if
            the search reached its limit.
        at: `file:line` of the `def` of the function whose local variable leads to the object, if there is one.
    """

    text: str
    kind: Kind
    at: str | None = None

    def __str__(self) -> str:
        return self.text


def who_holds(
    objects: Sequence[object], most: int = MOST_LOOKED_AT, error: BaseException | None = None
) -> list[Holder]:
    """Return the holder of each of these objects, ignoring `objects` itself and tapescope's own calls.

    A path starts at a variable of a module or a running function. No user code is called: no property, no `__class__`,
    no `__eq__`. Nothing is kept alive afterwards, and no garbage is created that only the collector frees.

    Known limitations: references from objects that are frozen (`gc.freeze`) or not tracked by the collector are not
    seen, except those from NumPy object arrays in variables. Only this thread's context variables are searched. Values
    on the stack of a running expression have no name. If several paths lead to an object, the shortest is returned.

    Args:
        most: Maximum number of objects to look at; if it is reached, the holder says so.
        error: An exception; variables of the functions in its traceback count as theirs.
    """
    with unobserved():
        search = _Search(objects, most, error)
        search.climb()
        return [search.holder_of(id(each)) for each in objects]


class _Search:
    """A search through levels of holders above the targets.

    Only `kept` refers to the objects; everything else uses their ids, because another container of ours would be found
    as a holder.

    Attributes:
        kept: the objects looked at, by id.
        below: by the id of a holder, the ids of the objects it refers to.
        way: by the id of an object that a name leads to, the id of its holder; its own id at the start of a path.
        namespaces: the variables of modules, by module name.
        of_modules, of_others: the starts of paths: by the id of a variable's value, its module, or its place if it is a
            variable of a function or context, or an array element.
        is_bounded: whether objects were left out.
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
        self._values: list[object] = []  # kept alive so that no address is reused
        self._not_holders = {id(self.kept), id(self._values), id(self.namespaces), id(targets)}
        self._instances: dict[int, int] = {}
        self._find_starts(error)

    def _find_starts(self, error: BaseException | None) -> None:
        here = threading.get_ident()
        for thread, frame in running_frames(error):  # IPython cells run in a module other than the one in sys.modules
            self.namespaces.setdefault(str(dict.get(frame.f_globals, "__name__")), frame.f_globals)
            if is_of_function(frame):
                place = function_of(frame)  # the current line is that of a later call, not of the variable
                where = place + ("" if thread == here else f" in thread {thread_name(thread)}")
                at = place.rpartition(" at ")[2]
                for name, value in variables_of(frame).items():
                    self._values.append(value)
                    self._starts_at(value, HeldAt(name, f"local variable {name} of {where}", at=at))
        for name, module in list(sys.modules.items()):
            if issubclass(type(module), ModuleType):
                self.namespaces.setdefault(name, _contents_of(module))
        for name, variables in reversed(self.namespaces.items()):  # a variable in several modules is the first one's
            ids = [id(value) for value in list(dict.values(variables))]
            self.of_modules.update(dict.fromkeys(ids, name))  # the collector does not track every module's dict
        array = _array_type()
        for name, variables in self.namespaces.items():
            # Few modules have any. Compare by identity, because == and hash() of the program's classes may fail.
            if any(map(is_, map(type, list(dict.values(variables))), repeat(array))):
                for variable, value in list(dict.items(variables)):
                    for element, inner in _elements_of(value, HeldAt(_in_module(name, variable))):
                        self._starts_at(element, inner)
        for context_variable, value in copy_context().items():  # held only by C
            self._starts_at(value, HeldAt(f"<the context variable {context_variable.name}>"))

    def _starts_at(self, value: object, place: HeldAt) -> None:
        self._values.append(value)
        self.of_others.setdefault(id(value), place)
        for element, inner in _elements_of(value, place):
            self._values.append(element)
            self.of_others.setdefault(id(element), inner)

    def climb(self) -> None:
        """Look at the holders level by level, until a name leads to each target or no holders are left."""
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
        """Return the holders of a level that have not been looked at yet."""
        numbers = {id(each) for each in level}
        found = []
        for holder in gc.get_referrers(*level):
            number = id(holder)
            if number in self._not_holders or holder is level:
                continue
            below = [id(each) for each in gc.get_referents(holder) if id(each) in numbers]
            kind = id(type(holder))
            if kind in below:
                self._instances[kind] = self._instances.get(kind, 0) + 1
                if self._instances[kind] > _MOST_INSTANCES:  # each instance of a class refers to the class
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

    def _settle(self, start: int) -> None:
        """Mark `start` and everything below it as reached from a name."""
        self.way.setdefault(start, start)
        waiting = [start]
        for each in waiting:
            for held in self.below.get(each, ()):
                if held not in self.way:
                    self.way[held] = each
                    waiting.append(held)

    def holder_of(self, target: int) -> Holder:
        """Return the holder of a target as text."""
        if target not in self.way:
            return self._unnamed(target)
        numbers = [target]
        while (holder := self.way[numbers[-1]]) != numbers[-1]:
            numbers.append(holder)
        chain = [self.kept[number] for number in reversed(numbers)]
        place = place_in(chain, self._start(chain[0]))
        return Holder(str(place), "named", place.at or None)

    def _start(self, value: object) -> HeldAt:
        """Return the variable at the start of a path."""
        module = self.of_modules.get(id(value))
        if module is None:
            return self.of_others[id(value)]
        found = key_of(self.namespaces[module], value)
        name = str(found[0]) if found else f"<a former variable of {module}>"
        return HeldAt(_in_module(module, name))

    def _unnamed(self, target: int) -> Holder:
        """Return the holder of a target that no name leads to: a cycle, C++, or a search that reached its limit."""
        if self.is_bounded:
            return Holder(f"no name found among the {len(self.kept):,} objects searched", "bounded")
        numbers, is_cycle = self._unnamed_way(target)
        if len(numbers) == 1:
            return Holder(_NOBODY, "unnamed")
        chain = [self.kept[number] for number in reversed(numbers)]
        place = place_in(chain, HeldAt(f"<{type_name(chain[0])}>"))
        if is_cycle:
            return Holder(f"a cycle: {place} is that {type_name(chain[0])} itself", "cycle")
        return Holder(f"{place}, which is held by {_NOBODY}", "unnamed", place.at or None)

    def _unnamed_way(self, target: int) -> tuple[list[int], bool]:
        """Return the shortest cycle upwards from the target, or else the path to the last object found above it."""
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
    """Return NumPy's array type if NumPy has been imported."""
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _elements_of(value: Any, place: HeldAt) -> Iterator[tuple[object, HeldAt]]:
    """Yield the elements of an object array, whose references the collector does not see."""
    if type(value) is not _array_type() or value.dtype != object:
        return
    what = place.expression if value.ndim == 1 else f"{place.expression}.flat"
    for number, element in enumerate(islice(value.flat, _MOST_ELEMENTS)):
        yield element, replace(place, expression=f"{what}[{number}]")


def _back(came_from: dict[int, int], start: int, target: int) -> list[int]:
    """Return the path from a holder down to the target."""
    numbers = [start]
    while numbers[-1] != target:
        numbers.append(came_from[numbers[-1]])
    return numbers
