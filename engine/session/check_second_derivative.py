"""The second derivative of an operation, compared with finite differences of its backward."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.kinds import Kind, kind_of
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import percent_text
from ...inspector.torch_private.saved_variables import saved_slots
from ...inspector.torch_private.tensors import storage_of
from .check_finite_differences import ALLOWED, FiniteDifferences
from .float64_replay import OperationReplay, UncheckableError

_STEP = 1e-6  # relative to an element's size
_DIRECTIONS = 3
_LEAST = 1e-6  # below this share of the backward's own size, a second derivative is lost in rounding


def second_derivative_faults(replay: OperationReplay, at: FiniteDifferences, subject: str) -> tuple[list[str], str]:
    """Compare the derivative of a backward with finite differences of that backward, as gradgradcheck does.

    Both are taken along random directions of all inputs and incoming gradients, so that one derivative tests all of
    their elements, in any size. The first derivative must be known to be right.

    Args:
        replay: the operation. Must be used `InFloat64`, in a clean thread.
        at: the point and the incoming gradients.
        subject: the backward in words.

    Returns:
        The faults, and a sentence about the comparison.
    """
    inputs = [*at.points, *at.cotangents]
    names = [*(each.name for each in replay.varied), *("the incoming gradient" for _ in at.cotangents)]
    if any(each.is_complex() for each in inputs):
        return [], "its second derivative is not checked: it has complex inputs"
    weights = [torch.randn(each.shape, dtype=each.dtype).to(each.device) for each in at.points]

    def product(values: Sequence[Tensor], differentiable: bool) -> Tensor:
        """Return the sum of the backward's gradients times fixed weights."""
        points = [each if each.requires_grad else each.detach().requires_grad_() for each in values[: len(weights)]]
        outputs = replay.run_on(points).outputs
        given = list(values[len(weights) :])
        found = torch.autograd.grad(outputs, points, given, create_graph=differentiable, allow_unused=True)
        parts = [(each * weight).sum() for each, weight in zip(found, weights, strict=True) if each is not None]
        return torch.stack(parts).sum()

    leaves = [each.detach().requires_grad_() for each in inputs]
    try:
        total = product(leaves, True)
        if _raises(total.grad_fn):
            return [], "its backward raises where it is differentiated (once_differentiable)"
        derivatives = (
            torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
        )
    except Exception as error:
        message = str(error).partition("\n")[0].rstrip(".")
        return [], f"its backward cannot be differentiated: {type(error).__name__}: {message}"
    found = []
    for place, (name, derivative) in enumerate(zip(names, derivatives, strict=True)):
        scale = at.scales[place] if place < len(at.scales) else torch.ones_like(inputs[place])
        given, expected = [], []
        for _ in range(_DIRECTIONS):
            direction = scale * torch.randn(scale.shape, dtype=scale.dtype).to(scale.device)
            moved = [[*inputs], [*inputs]]
            for values, sign in zip(moved, (1, -1), strict=True):
                values[place] = inputs[place] + sign * _STEP * direction
            high, low = (product([each.detach() for each in values], False).item() for values in moved)
            expected.append((high - low) / (2 * _STEP))
            given.append(0.0 if derivative is None else (derivative * direction).sum().item())
        size = max(map(abs, (*given, *expected)))
        if not isfinite(size):
            raise UncheckableError("its second derivative is NaN or infinite at these inputs")
        off = max(abs(one - other) for one, other in zip(given, expected, strict=True))
        if size > _LEAST * abs(total.item()) and off > ALLOWED * size:
            found.append(f"{percent_text(off / size)} off for {name}")
    if not found:
        return [], "its second derivative agrees with finite differences of its backward"
    fault = f"{subject} is right, but its own derivative, which create_graph=True needs, is {joined(found, len(found))}"
    return [
        f"{fault}{_constants(replay)}"
    ], "its second derivative was compared with finite differences of its backward"


def _constants(replay: OperationReplay) -> str:
    """Explain which saved tensors are constants for the second derivative: neither inputs nor outputs."""
    if not replay.is_function:
        return ""
    outcome = replay.run(replay.points)
    known = {storage_of(each) for each in (*tensors_of(outcome.args), *tensors_of(outcome.result))}
    node = outcome.node
    saved = [] if node is None else list(saved_slots(node))
    inside = [str(place) for place, slot in enumerate(saved) if storage_of(slot.tensor) not in known]
    if not inside:
        return ": use only differentiable operations on the saved inputs in its backward, without .detach() or .data"
    return (
        f", because its saved tensor {joined(inside, len(inside))} is an intermediate of its forward, a constant for "
        "autograd: save only inputs and outputs with ctx.save_for_backward, and compute it from them in the backward"
    )


def _raises(node: Node | None) -> bool:
    """Return whether a graph has a node that raises, which a gradient of other leaves does not run."""
    todo, seen = [node], {node, None}
    while todo:
        if (each := todo.pop()) is None:
            continue
        if kind_of(each) is Kind.ERROR:
            return True
        below = [child for child, _ in each.next_functions if child not in seen]
        seen.update(below)
        todo += below
    return False
