"""The gradients from which a backward starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import Module

from ...inspector.arguments import expect, expect_outputs, expect_truth
from ...inspector.graph.graph import Outputs
from ...inspector.tapes.hips_tape import refuse_parts
from ...inspector.torch_internals.engine import first_gradients
from ...inspector.torch_internals.modes import without_torch_function


def as_outputs(tensors: Outputs | Iterable[Tensor | GradientEdge]) -> tuple[Tensor | GradientEdge, ...]:
    """One output or several as a tuple; a generator of them can be read once only.

    Raises:
        TypeError: a backward can't start from this.
    """
    if isinstance(tensors, Tensor | GradientEdge):
        return (tensors,)
    refuse_parts(tensors)
    expect_outputs(tensors)
    return tuple(tensors)


def expect_flags(retain_graph: object, create_graph: object) -> None:
    """Refuses what PyTorch's engine would say of that it can't be interpreted as an integer."""
    if retain_graph is not None:
        expect_truth(retain_graph, "retain_graph")
    expect_truth(create_graph, "create_graph")


def as_gradients(
    grad_tensors: Tensor | Iterable[Tensor | None] | None,
) -> Tensor | tuple[Tensor | None, ...] | None:
    """The same with each generator read once. What is in it is PyTorch's to judge."""
    if isinstance(grad_tensors, Tensor | None):
        return grad_tensors
    wanted = "a tensor, or for each output a tensor or None"
    if isinstance(grad_tensors, str):
        raise TypeError(f"grad_tensors is a str; expected {wanted}. A policy is given by name: policy={grad_tensors!r}")
    expect(grad_tensors, Iterable, "grad_tensors", wanted)
    if isinstance(grad_tensors, Module):
        raise TypeError(f"grad_tensors is a module; expected {wanted}")
    return tuple(grad_tensors)


def given_gradients(tensors: Outputs, grad_tensors: Tensor | Sequence[Tensor | None] | None) -> tuple[bool, ...]:
    """Per output, whether its gradient was given."""
    if grad_tensors is None or isinstance(grad_tensors, Tensor):
        return (grad_tensors is not None,) * len(as_outputs(tensors))
    return tuple(gradient is not None for gradient in grad_tensors)


def root_gradients(
    tensors: Outputs, grad_tensors: Tensor | Sequence[Tensor | None] | None
) -> tuple[Tensor | None, ...]:
    """One gradient per output: the given one, or ones for a scalar. Rules and errors of `torch.autograd.backward`."""
    outputs = as_outputs(tensors)
    if grad_tensors is None:
        given: list[Tensor | None] = [None] * len(outputs)
    else:
        given = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
    if len(given) != len(outputs):
        raise RuntimeError(
            f"got {len(outputs)} tensors and {len(given)} gradients; give one for each tensor, or none at all"
        )
    try:
        return first_gradients(outputs, given)
    except RuntimeError as error:
        for position, (output, gradient) in enumerate(zip(outputs, given, strict=True)):
            if gradient is None and isinstance(output, Tensor) and output.numel() != 1:
                error.add_note(
                    f"tapescope: output {position} has shape {tuple(output.shape)}; reduce it to a scalar "
                    "(loss.sum() or loss.mean()), or pass its gradient in grad_tensors"
                )
        raise


def check_root_gradients(tensors: Outputs, grad_tensors: Tensor | Sequence[Tensor | None] | None) -> None:
    """Raises what `root_gradients` would. PyTorch is going to make the ones of scalars: here none are made for them."""
    with without_torch_function():
        scalars = [
            isinstance(each, Tensor) and each.numel() == 1 and each.is_floating_point() for each in as_outputs(tensors)
        ]
    if grad_tensors is not None or not all(scalars):
        root_gradients(tensors, grad_tensors)


def explain_several_elements(error: BaseException) -> None:
    """Notes on PyTorch's error for a loss that is no scalar, where ours was not asked, what to do."""
    if str(error).startswith("grad can be implicitly created only for scalar") and not hasattr(error, "__notes__"):
        error.add_note(
            "tapescope: reduce the loss to a scalar (loss.sum() or loss.mean()), or pass its gradient: "
            "loss.backward(gradient)"
        )
