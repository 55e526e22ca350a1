"""A kind of program: a tiny forward, and what its user owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[Callable[[], Any]], Any]


def directly(function: Callable[[], Any]) -> Any:
    return function()


def within(context: Callable[[], AbstractContextManager[Any]]) -> Call:
    """Return a caller that opens `context()` around everything."""

    def call(function: Callable[[], Any]) -> Any:
        with context():
            return function()

    return call


@dataclass
class Program:
    """A tiny program of one kind.

    Attributes:
        make_loss: runs a forward and returns the loss.
        leaves: tensors whose values and gradients are compared, by name; a sequence is numbered. Defaults to the
            model's parameters.
        model: the module, if there is one.
        roots: runs a forward and returns the arguments of `torch.autograd.backward`. Defaults to the loss alone.
        call: calls a function in the program's surroundings: a mode, a thread, an event loop.
        call_backward: calls the function that runs the backward.
        buffers: further tensors of the user's, by name.
        extra: returns further tensors to compare, by name.
        optimizers: optimizers whose state is compared.
        log: what the program's hooks have recorded.
        batch, loss_of: for the verbs that take a batch and `loss_of(model, batch)`.
        has_optimizer: whether a training loop may update the leaves.
        is_repeatable: whether a second backward through one graph can be tried without further effects.
        is_exact: whether two plain runs are equal to the bit.
        is_rough: whether other orders differ by the rounding of a low-precision dtype.
        carries_state: whether each forward leaves something in Python that the next one reads.
        has_unused: whether some parameters have no effect on the loss.
        refuses_gradients: whether a backward of the user's raises for gradients that a plain backward never gives it;
            `session.check()` gives it such, and calls it wrong.
    """

    make_loss: Callable[[], Any]
    leaves: Any = ()
    model: nn.Module | None = None
    roots: Callable[[], dict[str, Any]] | None = None
    call: Call = directly
    call_backward: Call = directly
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    extra: Callable[[], Mapping[str, Tensor | None]] = dict
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    log: list[Any] | None = None
    batch: Any = None
    loss_of: Callable[[Any, Any], Tensor] | None = None
    has_optimizer: bool = True
    is_repeatable: bool = True
    is_exact: bool = True
    is_rough: bool = False
    carries_state: bool = False
    has_unused: bool = False
    refuses_gradients: bool = False

    def __post_init__(self) -> None:
        if self.model is not None and not len(self.leaves):
            self.leaves = dict(self.model.named_parameters())
        if not isinstance(self.leaves, Mapping):
            self.leaves = {f"leaf {number}": each for number, each in enumerate(self.leaves)}

    @property
    def has_own_roots(self) -> bool:
        return self.roots is not None

    def arguments(self) -> dict[str, Any]:
        """Run a forward and return the arguments of `torch.autograd.backward`."""
        return {"tensors": self.make_loss()} if self.roots is None else self.roots()


KINDS: dict[str, Callable[[], Program]] = {}


def kind(build: Callable[[], Program]) -> Callable[[], Program]:
    """Add a kind to the matrix, under its function's name."""
    assert build.__name__ not in KINDS, build.__name__
    KINDS[build.__name__] = build
    return build


def mlp(*more: nn.Module, inputs: int = 4, hidden: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), *more, nn.Linear(hidden, 1))


def simple(model: nn.Module, batch: Tensor, **others: Any) -> Program:
    """A module, a batch, and the mean of the squared outputs."""

    def loss_of(any_model: nn.Module, any_batch: Tensor) -> Tensor:
        return any_model(any_batch).square().mean()

    return Program(lambda: loss_of(model, batch), model=model, batch=batch, loss_of=loss_of, **others)


def surrounded(context: Callable[[], AbstractContextManager[Any]] = nullcontext, **others: Any) -> Program:
    """A plain multilayer perceptron in surroundings."""
    return simple(mlp(), torch.randn(3, 4), call=within(context), **others)
