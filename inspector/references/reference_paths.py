"""Reference paths from a name to an object, as the expression that a user would write.

Nothing here calls user code: `type` returns the types, and attributes are read through descriptors implemented in C.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
)
from typing import Any
from weakref import ref

from torch import nn
from torch.autograd.graph import Node

from ..graph.frame_variables import variables_of
from ..graph.source_lines import Source
from .stack_frames import place_of

_name_of: Any = vars(type)["__name__"].__get__
_classes_of: Any = vars(type)["__mro__"].__get__
_contents_of: Any = vars(type)["__dict__"].__get__
_ATTRIBUTES = {
    *("__dict__", "__defaults__", "__kwdefaults__", "__traceback__", "__cause__", "__context__", "args", "tb_next"),
    *("cell_contents", "_backward_hooks", "_post_accumulate_grad_hooks"),
}  # computed by C from other attributes
_PLAIN = {str, bytes, int, float, bool, type(None)}  # types whose repr is not user code
_PARTS = {"_modules", "_parameters", "_buffers"}
_SUSPENDED = {
    GeneratorType: ("generator", "gi_frame"),
    CoroutineType: ("coroutine", "cr_frame"),
    AsyncGeneratorType: ("asynchronous generator", "ag_frame"),
}


@dataclass(frozen=True, slots=True)
class HeldAt:
    """A place that refers to an object.

    Attributes:
        expression: the expression for the object, within the scope.
        scope: description of the local or closure variable that the expression starts with; empty for a module's.
        outer: description of the holder of that scope.
        namespace: for a dict with the attributes of `expression`, the attribute that the dict itself is.
        at: `file:line` of the function whose variable it is; empty for a module's.
    """

    expression: str
    scope: str = ""
    outer: str = ""
    namespace: str = ""
    at: str = ""

    def __str__(self) -> str:
        expression = f"{self.expression}{self.namespace}"
        scoped = expression
        if self.scope:
            scoped = self.scope if expression.isidentifier() else f"{self.scope}: {expression}"
        return f"{scoped}; {self.outer}" if self.outer else scoped


def place_in(chain: Sequence[object], start: HeldAt) -> HeldAt:
    """Return the place of the last object in a chain of references; `start` is the place of the first."""
    place = start
    at = 0
    while at + 1 < len(chain):
        holder, held = chain[at], chain[at + 1]
        if type(holder) is FunctionType and held is holder.__closure__ and at + 3 < len(chain):
            code = holder.__code__
            name = next(
                name
                for name, each in zip(code.co_freevars, holder.__closure__ or (), strict=True)
                if each is chain[at + 2]
            )
            source = Source(code.co_filename, code.co_firstlineno, "").short
            scope = f"closure variable {name} of {code.co_qualname}() at {source}"
            place = HeldAt(name, scope, f"that function is held as {place}", at=source)
            at += 3
        else:
            place = _held_by(place, holder, held, chain[at - 1] if at else None)
            at += 1
    return place


def type_name(thing: object) -> str:
    """Return the name of the real type, such as `Tensor`, ignoring an overridden `__class__`."""
    return str(_name_of(type(thing)))


def key_of(holder: dict[Any, Any], held: object) -> tuple[Any] | None:
    """Return the key of a value in a namespace; names without a leading underscore come first."""
    keys = [key for key, value in list(dict.items(holder)) if value is held]
    public = [key for key in keys if type(key) is str and not key.startswith("_")]
    return next(((key,) for key in public or keys), None)


def _held_by(place: HeldAt, holder: object, held: object, owner: object) -> HeldAt:
    """Follow one reference of the chain. `owner` is the object that refers to the holder."""
    kind = type(holder)
    expression = f"{place.expression}{place.namespace}"
    if issubclass(kind, dict):
        return _in_dict(place, holder, held, owner)  # type: ignore[arg-type]
    itself = replace(place, expression=expression, namespace="")
    for base, iterate in _SEQUENCES:
        if issubclass(kind, base):
            found = next((i for i, each in enumerate(list(iterate(holder))) if each is held), None)
            if found is not None:
                return replace(itself, expression=f"{expression}[{found}]")
    if issubclass(kind, (set, frozenset)):
        return replace(itself, expression=f"<an element of {expression}>")
    if (issubclass(kind, type) and type(held) is dict) or issubclass(kind, threading.local):
        return replace(itself, namespace=".__dict__")
    if kind is functools._lru_cache_wrapper:
        return replace(itself, expression=f"<a result in the cache of {expression}>")
    scoped = _local_of(itself, holder, held)
    if scoped is not None:
        return scoped
    name = _attribute(holder, held)
    if name is not None:
        return _named(itself, holder, name)
    if held is kind:
        return replace(itself, expression=f"type({expression})")
    if issubclass(kind, Node) and issubclass(type(held), dict):
        return replace(itself, expression=f"<hooks of {expression}>")
    return replace(itself, expression=f"<{type_name(held)} in {expression}>")


_SEQUENCES: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (deque, deque.__iter__),
)


def _in_dict(place: HeldAt, holder: dict[Any, Any], held: object, owner: object) -> HeldAt:
    expression, space = place.expression, place.namespace
    itself = replace(place, namespace="")
    found = key_of(holder, held)
    if found is None:
        return replace(itself, expression=f"<a key of {expression}{space}>")
    (key,) = found
    if space and type(key) is str:
        if key.isidentifier():
            return (
                _named(itself, owner, key)
                if space == ".__dict__"
                else replace(itself, expression=f"{expression}.{key}")
            )
        if space == "._modules" and key.isdecimal():  # nn.Sequential and nn.ModuleList
            return replace(itself, expression=f"{expression}[{key}]")
    if space and type(key) is ref:  # threading.local has one dict per thread
        return place
    return replace(itself, expression=f"{expression}{space}[{_key_text(key)}]")


def _key_text(key: object) -> str:
    if type(key) in _PLAIN:
        return repr(key)
    if type(key) is tuple:
        return ", ".join(map(_key_text, key)) or "()"
    return f"<{type_name(key)}>"


def _named(place: HeldAt, owner: object, name: str) -> HeldAt:
    """Return the place of an attribute. A module's parameters, buffers and submodules are in dicts of its own."""
    if name == "__dict__" or (name in _PARTS and issubclass(type(owner), nn.Module)):
        return replace(place, namespace=f".{name}")
    return replace(place, expression=f"{place.expression}.{name}")


def _attribute(holder: object, held: object) -> str | None:
    """Return the attribute that refers to an object: in the holder's dict, a slot, or a C field."""
    for kind in _classes_of(type(holder)):
        for name, descriptor in list(_contents_of(kind).items()):
            in_c = type(descriptor) is MemberDescriptorType
            if not (in_c or (type(descriptor) is GetSetDescriptorType and name in _ATTRIBUTES)):
                continue
            try:
                value = descriptor.__get__(holder)
            except (AttributeError, TypeError, RuntimeError):  # an empty slot; another kind of object
                continue
            if value is held:
                return str(name)
            if name == "__dict__" and type(value) is dict:  # reading __dict__ may have created it
                found = key_of(value, held)
                if found is not None and type(found[0]) is str:
                    return found[0]
    return None


def _local_of(place: HeldAt, holder: object, held: object) -> HeldAt | None:
    """Return the place of a variable of a suspended generator, or of a frame kept by a traceback."""
    kind = type(holder)
    if kind is FrameType:
        name = _first(variables_of(holder).items(), held)  # type: ignore[arg-type]
        where, what = place_of(holder), "its frame"  # type: ignore[arg-type]
    elif kind in _SUSPENDED:
        title, attribute = _SUSPENDED[kind]
        frame = getattr(holder, attribute)
        if frame is None:
            return None
        name = _first(variables_of(frame).items(), held)
        where, what = f"the {title} {place_of(frame)}", "it"
    else:
        return None
    if name is None:  # on the frame's value stack, or the frame's caller
        return None
    at = where.rpartition(" at ")[2]
    return HeldAt(name, f"local variable {name} of {where}", f"{what} is held as {place}", at=at)


def _first(variables: Iterable[tuple[str, object]], held: object) -> str | None:
    return next((name for name, value in variables if value is held), None)
