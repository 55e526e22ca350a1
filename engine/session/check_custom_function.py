"""The gradients returned by a custom Function's backward, and descriptions of their faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import unwrap
from itertools import combinations
from linecache import getlines
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import Node

from ...inspector.graph.operation_inputs import argument_names, names_by_place
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import counted, shape_text
from ...inspector.torch_private.nodes import call_node
from ...inspector.torch_private.tensors import dense, version_of
from ...inspector.validation import a_kind
from .check_finite_differences import ALLOWED, FiniteDifferences
from .float64_replay import OperationReplay, Outcome


@dataclass(frozen=True, slots=True)
class Returned:
    """The gradients a custom Function's backward returned.

    Attributes:
        values: one per argument of its forward, if their number is right; sparse ones made dense.
        names: names of these arguments.
        needed: whether each argument needs a gradient.
        wrote: whether the backward modified an incoming gradient in place.
    """

    values: tuple[Any, ...]
    names: tuple[str, ...]
    needed: tuple[bool, ...]
    wrote: bool


def ask_backward(replay: OperationReplay, outcome: Outcome, cotangents: Sequence[Tensor]) -> Returned | None:
    """Call the backward of a replayed custom Function.

    Returns None for another operation, or if a view of its output hides its node.

    Raises:
        Exception: any exception of the backward.
    """
    node = outcome.node
    if not replay.is_function or not isinstance(node, BackwardCFunction):
        return None
    results = outcome.result if isinstance(outcome.result, tuple) else (outcome.result,)
    # The engine replaces undefined gradients by zeros before it calls the backward (PyNode::apply in
    # python_function.cpp). A call from Python does not.
    given = [torch.zeros_like(each) if isinstance(each, Tensor) else None for each in results]
    for place, (output, cotangent) in enumerate(zip(outcome.outputs, cotangents, strict=True)):
        if output.grad_fn is not node:
            return None
        given[output.output_nr] = None if place in replay.unused else cotangent.clone()
    versions = [0 if each is None else version_of(each) for each in given]
    values = tuple([dense(each) if isinstance(each, Tensor) else each for each in call_quietly(node, given)])
    wrote = [0 if each is None else version_of(each) for each in given] != versions
    needed: tuple[bool, ...] = node.needs_input_grad
    # The engine ignores superfluous results if they are None (PyNode::apply).
    while len(values) > len(needed) and values[-1] is None:
        values = values[:-1]
    return Returned(values, names_by_place(argument_names(replay.operation.function), len(needed)), needed, wrote)


def call_quietly(node: Node, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Call a node's own backward without hooks, without building a graph, and without freeing anything."""
    with torch.no_grad():
        return call_node(node, gradients)


def wrong_form(returned: Returned, args: Sequence[object]) -> Iterator[str]:
    """Yield what PyTorch would refuse or misinterpret: the number, places and shapes of the gradients."""
    values, names, needed = returned.values, returned.names, returned.needed
    if len(values) != len(needed):
        yield (
            f"returns {counted(len(values), 'gradient')} for the {len(needed)} arguments of its forward "
            f"({', '.join(names)}); expected one for each, None for those without"
        )
        return
    for value, name, need, argument in zip(values, names, needed, args, strict=False):
        if value is None:
            continue
        if not isinstance(value, Tensor):
            yield f"returns {a_kind(value)} for {name}; expected a tensor or None"
        elif not isinstance(argument, Tensor):
            yield f"returns a gradient for {name}, which is not a tensor but {a_kind(argument)}"
        elif need and not _fits(value, argument):
            given, expected = shape_text(value.shape), shape_text(argument.shape)
            shapes = f"returns a gradient of shape {given} for {name}, which has shape {expected}"
            yield f"{shapes}{_missing_sum(value, argument)}"


def _missing_sum(value: Tensor, argument: Tensor) -> str:
    """Name the sum that would give the argument's shape, if there is exactly one."""
    extra = value.dim() - argument.dim()
    dims = range(value.dim())
    kept = combinations(dims, argument.dim()) if extra > 0 else ()
    fitting = [each for each in kept if tuple(value.shape[dim] for dim in each) == tuple(argument.shape)]
    if len(fitting) != 1:
        return ""
    missing = [str(dim) for dim in dims if dim not in fitting[0]]
    return f": a sum over dim{'s' if extra > 1 else ''} {' and '.join(missing)} is missing"


def same_values(one: Returned, other: Returned) -> bool:
    """Return whether two calls returned the same values."""
    return len(one.values) == len(other.values) and all(
        mine.shape == its.shape and torch.allclose(mine, its, rtol=1e-9, atol=0, equal_nan=True)
        if isinstance(mine, Tensor) and isinstance(its, Tensor)
        else (mine is None) == (its is None)
        for mine, its in zip(one.values, other.values, strict=True)
    )


def gradients_for(replay: OperationReplay, returned: Returned) -> list[Tensor | None]:
    """Return the gradient of each varied input as the engine would use it; None if none fits."""
    found: list[Tensor | None] = []
    for kept, point in zip(replay.varied, replay.points, strict=True):
        place = returned.names.index(kept.name) if kept.name in returned.names else -1
        value = returned.values[place] if 0 <= place < len(returned.values) else None
        if isinstance(value, Tensor) and _fits(value, point):
            found.append(value.sum_to_size(point.shape).to(point.dtype))
        else:
            found.append(None)
    return found


@dataclass(frozen=True, slots=True)
class WrongGradient:
    """A wrong gradient.

    Attributes:
        text: the fault, without subject, capital letter and full stop.
        place: index of the varied input whose elements can be examined; None if that does not help.
    """

    text: str
    place: int | None = None


def wrong_gradients(
    replay: OperationReplay,
    differences: FiniteDifferences,
    gradients: Sequence[Tensor | None],
    returned: Returned | None,
    ignores_incoming: bool,
) -> Iterator[WrongGradient]:
    """Describe each gradient that differs from finite differences, by what it is instead if that can be found."""
    names = [kept.name for kept in replay.varied]
    candidates: list[tuple[str, object]] = list(zip(names, gradients, strict=True))
    if returned is not None:
        count = len(returned.names)
        candidates = [
            (returned.names[place] if place < count else f"place {place}", value)
            for place, value in enumerate(returned.values)
        ]
    raw = dict(candidates)
    wrong = {
        name: place
        for place, name in enumerate(names)
        if not differences.relative_error(place, gradients[place]) <= ALLOWED
    }
    elsewhere = {name: _misplaced_at(differences, place, name, candidates) for name, place in wrong.items()}
    swapped: set[str] = set()
    for name, place in wrong.items():
        other = elsewhere[name]
        if name in swapped:
            continue
        if other is not None and elsewhere.get(other) == name:
            swapped.add(other)
            yield WrongGradient(f"returns the gradients for {name} and {other} swapped")
        elif other is not None:
            given = "nothing" if raw.get(name) is None else "another gradient"
            yield WrongGradient(f"returns the gradient for {name} at the position of {other}, and {given} for {name}")
        elif raw.get(name) is None:
            yield WrongGradient(f"returns None for {name}, on which the result depends")
        elif differences.is_flat(place):
            yield WrongGradient(
                f"returns a gradient for {name}, although finite differences are 0 everywhere: the result does not "
                f"change with {name}, as for round, sign or a step function. A straight-through estimator does this "
                "on purpose"
            )
        elif ignores_incoming:
            yield WrongGradient(
                f"returns the same gradient for {name} for every incoming gradient; it must be multiplied by that",
                place,
            )
        else:
            text = _misshaped(differences, place, name, raw.get(name), gradients[place])
            if text is not None:
                yield WrongGradient(text, place if gradients[place] is not None else None)


def _misplaced_at(
    differences: FiniteDifferences, place: int, name: str, candidates: Sequence[tuple[str, object]]
) -> str | None:
    """Return the argument in whose place the backward returned this input's gradient."""
    shape = differences.points[place].shape
    for other, value in candidates:
        if other == name or not isinstance(value, Tensor) or value.shape != shape:
            continue
        if differences.relative_error(place, value) <= ALLOWED:
            return other
    return None


def _misshaped(
    differences: FiniteDifferences, place: int, name: str, raw: object, gradient: Tensor | None
) -> str | None:
    point = differences.points[place]
    turned = raw.mT if isinstance(raw, Tensor) and raw.dim() > 1 else None
    factor = None if gradient is None else differences.factor(place, gradient)
    fits = turned is not None and turned.shape == point.shape
    turned_factor = differences.factor(place, turned) if turned is not None and fits else None
    if factor is not None:
        return f"returns a wrong gradient for {name}: it is {_times(factor)}the right one"
    if turned_factor is not None:
        return f"returns a wrong gradient for {name}: it is {_times(turned_factor)}the transpose of the right one"
    if gradient is None:
        return None
    off = differences.relative_error(place, gradient)
    return f"returns a wrong gradient for {name}: it differs from finite differences by {off:.2g}, relatively"


def _times(factor: float) -> str:
    """Return the factor by which a gradient differs from the right one, as text; `factor` would correct it."""
    return "" if abs(factor - 1) <= ALLOWED else f"{1 / factor:.4g} × "


def _fits(value: Tensor, argument: Tensor) -> bool:
    """Return whether the engine accepts it as the argument's gradient: of its shape, or of a shape it broadcasts to."""
    return value.dim() >= argument.dim() and all(
        size in (1, wanted) for size, wanted in zip(reversed(argument.shape), reversed(value.shape), strict=False)
    )


def line_of_backward(function: type) -> Source | None:
    """Return the first line of a custom Function's backward."""
    if not issubclass(function, Function):
        return None
    backward = (
        function.vjp if function.backward is Function.backward else function.backward
    )  # a Function may define vjp instead of backward
    code = getattr(unwrap(backward), "__code__", None)
    if code is None:
        return None
    line, lines = code.co_firstlineno, getlines(code.co_filename)
    while line < len(lines) and lines[line - 1].lstrip().startswith(("@", "#")):  # skip decorators
        line += 1
    return Source(code.co_filename, line, code.co_name)
