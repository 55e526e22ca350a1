"""What the backward of a custom Function returns, and what is wrong with that, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ..inspector.kept_inputs import argument_names, names_by_place
from ..inspector.torch_internals import call_node, version_of
from .derivative import ALLOWED, FiniteDifferences
from .operation_replay import OperationReplay, Outcome


@dataclass(frozen=True, slots=True)
class Returned:
    """What a custom Function's backward returned for one set of gradients.

    Attributes:
        values: one for each argument of its forward, if their number is right.
        names: what these arguments are called.
        needed: for each of them whether it needs a gradient.
        wrote: whether the backward wrote into a gradient that it was given.
    """

    values: tuple[Any, ...]
    names: tuple[str, ...]
    needed: tuple[bool, ...]
    wrote: bool


def ask_backward(replay: OperationReplay, outcome: Outcome, cotangents: Sequence[Tensor]) -> Returned | None:
    """Calls the backward of a replayed custom Function. None for another operation, or where a view of what it gave
    hides its node.

    Raises:
        Exception: whatever it raises.
    """
    node = outcome.node
    if not replay.is_function or not isinstance(node, BackwardCFunction):
        return None
    results = outcome.result if isinstance(outcome.result, tuple) else (outcome.result,)
    given = [torch.zeros_like(each) if isinstance(each, Tensor) else None for each in results]
    for output, cotangent in zip(outcome.outputs, cotangents, strict=True):
        if output.grad_fn is not node:
            return None
        given[output.output_nr] = cotangent.clone()
    versions = [0 if each is None else version_of(each) for each in given]
    values = call_quietly(node, given)
    wrote = [0 if each is None else version_of(each) for each in given] != versions
    needed: tuple[bool, ...] = node.needs_input_grad
    while len(values) > len(needed) and values[-1] is None:
        values = values[:-1]
    return Returned(values, names_by_place(argument_names(replay.operation.function), len(needed)), needed, wrote)


def call_quietly(node: Node, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Calls a node's own backward: no hooks, no graph of it, nothing freed."""
    with torch.no_grad():
        return call_node(node, gradients)


def wrong_form(returned: Returned, args: Sequence[object]) -> Iterator[str]:
    """What PyTorch would refuse, or would take for something else: number, places and shapes of the gradients."""
    values, names, needed = returned.values, returned.names, returned.needed
    if len(values) != len(needed):
        yield (
            f"returns {_count(len(values))} for the {len(needed)} arguments of its forward ({', '.join(names)}): one "
            "is due for each, None where there is none"
        )
        return
    for value, name, need, argument in zip(values, names, needed, args, strict=False):
        if value is None:
            continue
        if not isinstance(value, Tensor):
            yield f"returns a {type(value).__name__} for {name}, where a tensor or None is due"
        elif not isinstance(argument, Tensor):
            yield f"returns a gradient for {name}, which is no tensor but a {type(argument).__name__}"
        elif need and not _fits(value, argument):
            yield (f"returns a gradient of shape {_shape(value)} for {name}, which has shape {_shape(argument)}")


def same_values(one: Returned, other: Returned) -> bool:
    """Whether two calls returned the same."""
    return len(one.values) == len(other.values) and all(
        mine.shape == its.shape and torch.allclose(mine, its, rtol=1e-9, atol=0, equal_nan=True)
        if isinstance(mine, Tensor) and isinstance(its, Tensor)
        else (mine is None) == (its is None)
        for mine, its in zip(one.values, other.values, strict=True)
    )


def gradients_for(replay: OperationReplay, returned: Returned) -> list[Tensor | None]:
    """What the backward returned for each varied input, as the engine takes it; None where it fits none."""
    found: list[Tensor | None] = []
    for kept, point in zip(replay.varied, replay.points, strict=True):
        place = returned.names.index(kept.name) if kept.name in returned.names else -1
        value = returned.values[place] if 0 <= place < len(returned.values) else None
        if isinstance(value, Tensor) and _fits(value, point):
            found.append(value.sum_to_size(point.shape).to(point.dtype))
        else:
            found.append(None)
    return found


def wrong_gradients(
    replay: OperationReplay,
    differences: FiniteDifferences,
    gradients: Sequence[Tensor | None],
    returned: Returned | None,
    ignores_incoming: bool,
) -> Iterator[str]:
    """Names each gradient that differs from finite differences, by what it is instead, where that can be found out."""
    names = [kept.name for kept in replay.varied]
    candidates: list[tuple[str, object]] = list(zip(names, gradients, strict=True))
    if returned is not None:
        count = len(returned.names)
        candidates = [
            (returned.names[place] if place < count else f"place {place}", value)
            for place, value in enumerate(returned.values)
        ]
    for place, (name, gradient) in enumerate(zip(names, gradients, strict=True)):
        off = differences.apart(place, gradient)
        if off <= ALLOWED:
            continue
        point = differences.points[place]
        elsewhere = next(
            (
                other
                for other, value in candidates
                if other != name
                and isinstance(value, Tensor)
                and value.shape == point.shape
                and differences.apart(place, value) <= ALLOWED
            ),
            None,
        )
        raw = dict(candidates).get(name)
        if elsewhere is not None:
            given = "nothing" if raw is None else "another one"
            yield f"returns the gradient for {name} in the place of {elsewhere}, and {given} for {name}"
        elif raw is None:
            yield f"returns None for {name}, on which the result depends"
        elif ignores_incoming:
            yield f"returns the same for {name} whatever gradient comes in: it has to be multiplied by that"
        else:
            yield from _misshaped(differences, place, name, raw, gradient, off)


def _misshaped(
    differences: FiniteDifferences, place: int, name: str, raw: object, gradient: Tensor | None, off: float
) -> Iterator[str]:
    point = differences.points[place]
    turned = raw.mT if isinstance(raw, Tensor) and raw.dim() > 1 else None
    factor = None if gradient is None else differences.factor(place, gradient)
    fits = turned is not None and turned.shape == point.shape
    turned_factor = differences.factor(place, turned) if turned is not None and fits else None
    if factor is not None:
        yield f"returns a wrong gradient for {name}: it is {_times(factor)}what it should be"
    elif turned_factor is not None:
        yield f"returns a wrong gradient for {name}: it is {_times(turned_factor)}the transpose of what it should be"
    elif gradient is not None:
        yield f"returns a wrong gradient for {name}: {off:.2g} away from finite differences, relatively"


def _times(factor: float) -> str:
    """How a gradient that has to be multiplied by the factor compares with the right one."""
    return "" if abs(factor - 1) <= ALLOWED else f"{1 / factor:.4g} × "


def _fits(value: Tensor, argument: Tensor) -> bool:
    """Whether the engine takes it as the argument's gradient: of its shape, or of one to which it was broadcast."""
    return value.dim() >= argument.dim() and all(
        size in (1, wanted) for size, wanted in zip(reversed(argument.shape), reversed(value.shape), strict=False)
    )


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"


def _count(number: int) -> str:
    return f"{number} gradient{'' if number == 1 else 's'}"
