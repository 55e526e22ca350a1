"""Random programs with many kinds of node, to hold the engines against PyTorch's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Scale(torch.autograd.Function):
    """A custom Function with an argument that is not a tensor and one that gets no gradient."""

    @staticmethod
    def forward(ctx, x, factor, mask):
        ctx.factor = factor
        ctx.save_for_backward(mask)
        return x * factor * mask

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * ctx.factor * mask, None, None


class Swap(torch.autograd.Function):
    """Gives the tensors which it got on, so that gradients alias each other."""

    @staticmethod
    def forward(ctx, x, y):
        return y.clone(), x.clone()

    @staticmethod
    def backward(ctx, gradient_y, gradient_x):
        return gradient_x, gradient_y


def random_policy(seed: int) -> Callable[[Sequence[Any], object], Any]:
    """Picks any ready task, the same ones for equal seeds."""
    pick = random.Random(seed)
    return lambda ready, state: pick.choice(ready)


class OnCtx(torch.autograd.Function):
    """Keeps what its backward needs as an attribute, and so as long as there is its node."""

    @staticmethod
    def forward(ctx, x):
        ctx.doubled = x * 2
        return x.square().sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.doubled


def random_program(
    seed: int, operations: int = 25, visit: Callable[[Tensor], object] = lambda tensor: None
) -> tuple[list[Tensor], Tensor]:
    """Leaves of several shapes and a scalar loss, equal for equal seeds. Each tensor on the way is shown to `visit`."""
    pick = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    leaves = [
        torch.randn(shape, generator=generator, requires_grad=True)
        for shape in ((4, 4), (4, 4), (4,), (1, 4), (), (4, 4))
    ]
    made = [leaf * 1 if leaf.shape == (4, 4) else leaf + torch.zeros(4, 4) for leaf in leaves]
    for _ in range(operations):
        x, y = pick.choice(made), pick.choice(made)
        leaf = pick.choice(leaves)
        new = _operation(pick.randrange(17), x, y, leaf)
        made.extend(new)
        for each in new:
            visit(each)
    return leaves, torch.stack([each.sum() for each in made[-8:]]).sum() + (made[-1] * made[0]).mean()


def _operation(kind: int, x: Tensor, y: Tensor, leaf: Tensor) -> list[Tensor]:
    match kind:
        case 0:
            return [x + y]
        case 1:
            return [x * leaf]
        case 2:
            return [(x @ y).tanh()]
        case 3:
            return [x.t()]
        case 4:
            return [x + x]
        case 5:
            left, right = x.chunk(2)
            return [torch.cat([right, left])]
        case 6:
            return [x.softmax(-1)]
        case 7:
            z = x.clone()
            z[:2] = y[2:]
            return [z]
        case 8:
            z = x * 1
            z.mul_(leaf.sum())
            return [z]
        case 9:
            return [Scale.apply(x, 0.5, torch.eye(4))]
        case 10:
            left, right = Swap.apply(x, y)
            return [left - right]
        case 11:
            return [torch.nn.functional.layer_norm(x, (4,)) / 2]
        case 12:
            other = torch.float32 if x.dtype == torch.float64 else torch.float64
            return [(x.to(other) * 2).to(x.dtype)]
        case 13:
            return [x.expand(2, 4, 4).sum(0).sin()]
        case 14:
            return [torch.where(x > 0, x, leaf)]
        case 15:
            return [x.max(dim=0, keepdim=True).values + y]
        case _:
            return [x - leaf.reshape(-1)[0]]
