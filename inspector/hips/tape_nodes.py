"""Nodes, vector spaces and sums of the package autograd (HIPS), which must be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from weakref import ref

import autograd
import numpy as np
import torch
from autograd.builtins import ContainerVSpace, container_take
from autograd.core import VJPNode, add_outgrads, sparse_object_types, vspace
from autograd.numpy.numpy_vspaces import ArrayVSpace
from autograd.tracer import Box, box_type_mappings, isbox, notrace_primitives, trace_stack
from autograd.tracer import trace as trace_function

from ..graph.graph import TensorMeta
from ..graph.kinds import ARGUMENT
from ..graph.source_lines import Source, is_library
from .observers import FOLLOWED, LOOKING

__all__ = [
    "RecordedNode",
    "add_outgrads",
    "arrays_in",
    "below",
    "can_be_argument",
    "is_container",
    "is_part_of_trace",
    "is_sparse",
    "metas_of",
    "owner_of",
    "places",
    "rebuilt",
    "spaces_in",
    "trace",
    "vspace",
]

_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (autograd, np))
_CPU = torch.device("cpu")
_NOTHING = TensorMeta((0,), torch.float64, _CPU)  # the input of an empty container


class RecordedNode(VJPNode):  # type: ignore[misc]
    """A node of autograd with its name, number in order of creation, vector space and source line.

    autograd creates all nodes of a trace with the class of the start node.

    Attributes:
        parents, vjp: as in VJPNode: the nodes it was computed from, and the function that computes their gradients.
        name: name of the primitive.
        number: position in the trace's order of creation; 0 for the start.
        space: the vector space of its value, and so of its gradient.
        taken: the index at which `container_take` took its value, in a tuple; None for other primitives.
        source: the user's line that called the primitive.
        made: weak references to the arrays that own its value's memory.
        argnums: the numbers of the primitive's arguments that have a parent.
        bad: number of NaN or infinite elements if `looking_at_values` was open, otherwise 0.
        is_own: whether the primitive is from numpy, scipy or autograd rather than defined by the user.
    """

    __slots__ = ("_numbers", "argnums", "bad", "is_own", "made", "name", "number", "source", "space", "taken")
    _numbers: Iterator[int]

    def __init__(
        self,
        value: object,
        fun: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parent_argnums: tuple[int, ...],
        parents: tuple[RecordedNode, ...],
    ) -> None:
        super().__init__(value, fun, args, kwargs, parent_argnums, parents)
        self._numbers = parents[0]._numbers
        self.number = next(self._numbers)
        self.name = getattr(fun, "__name__", type(fun).__name__)
        self.space = vspace(value)
        self.taken = (args[1],) if fun is container_take else None
        self.source = _user_line()
        self.made = _owners(self.space, value)
        self.argnums = tuple(parent_argnums)
        self.is_own = _is_own(fun)
        self.bad = sum(map(_bad, arrays_in(self.space, value))) if LOOKING.get() else 0
        if (follower := FOLLOWED.get()) is not None:
            follower.made(self)

    def initialize_root(self, value: object) -> None:
        super().initialize_root()
        self._numbers = count()
        self.number = next(self._numbers)
        self.name = ARGUMENT
        self.space = vspace(value)
        self.taken = None
        self.source = None
        self.made = _owners(self.space, value)
        self.argnums = ()
        self.is_own = True
        self.bad = 0
        if (follower := FOLLOWED.get()) is not None:
            follower.begun(self)

    def __repr__(self) -> str:
        return f"<node {self.number} {self.name}>"


# autograd keeps the functions that are not traced in a set per class of node.
notrace_primitives[RecordedNode] = notrace_primitives[VJPNode]


def trace(function: Callable[[Any], Any], argument: object) -> tuple[Any, RecordedNode | None, RecordedNode]:
    """Call a function of one argument. Return its value, the node that made it, and the argument's node.

    The node is None if autograd sees no dependence of the value on the argument; the value may then be anything, with
    boxes in it. Unlike in autograd itself, a function that raises leaves no trace open.
    """
    start = RecordedNode.new_root(argument)
    found: list[tuple[Any, RecordedNode | None]] = []

    def seen(box: object) -> object:
        value = function(box)
        if isbox(value) and value._trace == box._trace:  # type: ignore[attr-defined]
            found.append((value._value, value._node))
            return value
        found.append((value, None))
        return box  # otherwise autograd warns about a condition that raises an error later

    top = trace_stack.top
    try:
        trace_function(start, seen, argument)
    finally:
        trace_stack.top = top
    return *found[0], start


def can_be_argument(value: object) -> bool:
    """Return whether autograd can differentiate with respect to such a value."""
    return type(value) in box_type_mappings


def is_part_of_trace(value: object) -> bool:
    """Return whether the value is a box or a node of autograd, from which no graph can be read."""
    return isinstance(value, Box | VJPNode)


def is_container(space: object) -> bool:
    """Return whether values of this space are tuples, lists or dicts."""
    return isinstance(space, ContainerVSpace)


def is_sparse(gradient: object) -> bool:
    """Return whether a gradient is autograd's sparse gradient of an index, which adds to a few elements."""
    return type(gradient) in sparse_object_types


def metas_of(space: Any) -> tuple[TensorMeta, ...]:
    """Return the metadata of a value's arrays: the array or scalar itself, or the arrays of a container in order.

    Raises:
        TypeError: torch has no such dtype, or the space is user-defined and not one of arrays.
    """
    if isinstance(space, ArrayVSpace):
        return (TensorMeta(tuple(space.shape), _torch_dtype(space.dtype), _CPU),)
    if not is_container(space):
        raise TypeError(
            f"the vector space {type(space).__name__} is not one of arrays: tapescope can't show its values"
        )
    return tuple(meta for _, each in _parts(space) for meta in metas_of(each)) or (_NOTHING,)


def arrays_in(space: Any, value: Any) -> Iterator[Any]:
    """Yield the arrays and scalars of a value in the order of `metas_of`.

    There are none for an empty container, and none for a sparse value: a function that takes a gradient has nodes whose
    values are sparse gradients (`container_untake`, `untake`), and these hold a formula instead of arrays.
    """
    if is_sparse(value):
        return
    if not is_container(space):
        yield value
        return
    for key, each in _parts(space):
        yield from arrays_in(each, value[key])


def owner_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the array that owns a value's memory; None for a scalar, or if NumPy does not own the memory."""
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return value if isinstance(value, np.ndarray) else None


@cache
def _is_own(primitive: Callable[..., object]) -> bool:
    inner = getattr(primitive, "fun", primitive)  # the wrapped function
    module = getattr(inner, "__module__", None) or ""
    return isinstance(inner, np.ufunc) or module.partition(".")[0] in ("numpy", "scipy", "autograd", "builtins")


def _bad(value: Any) -> int:
    array = np.asarray(value)
    return int((~np.isfinite(array)).sum()) if array.dtype.kind in "fc" else 0


def _owners(space: Any, value: Any) -> tuple[ref[Any], ...]:
    if isinstance(value, np.ndarray):  # nearly all values are
        owner = owner_of(value)
        return () if owner is None else (ref(owner),)
    owners = map(owner_of, arrays_in(space, value)) if is_container(space) else ()
    return tuple(ref(owner) for owner in owners if owner is not None)


def below(end: RecordedNode) -> list[RecordedNode]:
    """Return `end` and the nodes reachable from it, whose vjp a backward calls."""
    found = {end: None}
    stack = [end]
    while stack:
        for parent in stack.pop().parents:
            if parent not in found:
                found[parent] = None
                stack.append(parent)
    return list(found)


def spaces_in(space: Any) -> Iterator[Any]:
    """Yield the spaces of a value's arrays."""
    if not is_container(space):
        yield space
        return
    for _, each in _parts(space):
        yield from spaces_in(each)


def rebuilt(space: Any, arrays: Iterator[Any]) -> Any:
    """Build a value of this space from its arrays, the reverse of `arrays_in`."""
    return space._map(lambda each: rebuilt(each, arrays)) if is_container(space) else next(arrays)


def places(node: RecordedNode, parent: RecordedNode) -> list[int]:
    """Return the indices of the parent's arrays that a node was computed from; all of them if it is not known."""
    found = None
    if node.taken is not None:
        found = _leaves(_numbered(parent.space, count())[node.taken[0]])
    return found or list(range(len(metas_of(parent.space))))


def _parts(space: Any) -> list[tuple[Any, Any]]:
    return list(space._kv_pairs(space.shape))


def _numbered(space: Any, numbers: Iterator[int]) -> Any:
    """Return a container of the same structure, with the numbers of its arrays in their places."""
    return space._map(lambda each: _numbered(each, numbers)) if is_container(space) else next(numbers)


def _leaves(numbered: Any) -> list[int]:
    if isinstance(numbered, int):
        return [numbered]
    return [
        number for each in (numbered.values() if isinstance(numbered, dict) else numbered) for number in _leaves(each)
    ]


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise TypeError(f"torch has no dtype like numpy's {dtype}: tapescope can't show such values") from None


def _user_line() -> Source | None:
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (is_library(file) or file.startswith(_LIBRARIES)):
            return Source(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return None


class ToldNode(VJPNode):  # type: ignore[misc]
    """A node like those of autograd's `grad`, with nothing else recorded. The root holds a callback for new nodes."""

    __slots__ = ("_tell",)
    _tell: Callable[[], None]

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._tell = self.parents[0]._tell
        self._tell()

    def initialize_root(self, tell: Callable[[], None]) -> None:
        super().initialize_root()
        self._tell = tell


# autograd keeps the functions that are not traced in a set per class of node.
notrace_primitives[ToldNode] = notrace_primitives[VJPNode]
