"""Run by test_fidelity.py: the direct engine frees what nodes keep and hide from Python, as PyTorch does."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts

Alive = list[bool]


class Box:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def view_modified_in_place(backward: Callable[[Tensor], object]) -> tuple[Alive, Tensor]:
    x = torch.ones(4, requires_grad=True)
    y = x.clone()
    factor = torch.full((2,), 3.0)
    y[:2].mul_(factor)
    alive = weakref.ref(factor)
    del factor
    loss = y.sum()
    backward(loss)
    return [alive() is not None], x.grad


def packed_by_hooks(backward: Callable[[Tensor], object]) -> tuple[Alive, Tensor]:
    x = torch.ones(4, requires_grad=True)
    boxes = []

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor.detach())
        boxes.append(weakref.ref(box))
        return box

    with saved_tensors_hooks(pack, lambda box: box.tensor):
        loss = (x.exp() * x).sin().sum()
    backward(loss)
    return [box() is not None for box in boxes], x.grad


def checkpoints(backward: Callable[[Tensor], object]) -> tuple[Alive, Tensor]:
    x = torch.ones(4, requires_grad=True)
    y = x * 1
    alive = []
    for _ in range(4):
        y = y * 1.0
        alive.append(weakref.ref(y))
        y = checkpoint(lambda y: y.exp().sin() * y * 1e-3, y, use_reentrant=False)
    loss = y.sum()
    del y
    backward(loss)
    return [each() is not None for each in alive], x.grad


def stepped(loss: Tensor) -> None:
    session = ts.debug(loss)
    while session.current is not None:
        session.step()


for program in (view_modified_in_place, packed_by_hooks, checkpoints):
    expected, expected_gradient = program(torch.autograd.backward)
    assert not any(expected)
    for backward in (lambda loss: ts.backward(loss, engine="direct"), stepped):
        found, gradient = program(backward)
        assert found == expected, (program.__name__, found)
        assert torch.equal(gradient, expected_gradient), program.__name__
