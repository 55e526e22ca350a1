"""Random programs whose memory has all in it: views, broadcasts, in-place operations, shared and held tensors."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

WIDTH = 16


class Pair(torch.autograd.Function):
    """Two inputs, two outputs, and gradients that are sums."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, gradient, other):
        x, y = ctx.saved_tensors
        return gradient * y + other, gradient * x + other


class Program:
    """One random program: `make_loss()` runs the same forward each time.

    Args:
        seed: what decides everything.
        operations: how many at most.
        graded: the leaves have a .grad before.
        kept: tensors of the forward, of which the user keeps some.
        regions: with checkpointed regions.
        hooked: tensors and leaves have hooks: some keep gradients, clone them or give others.
        visit: is shown each tensor that is made.
    """

    def __init__(
        self,
        seed: int,
        operations: int = 28,
        graded: bool = False,
        kept: bool = False,
        regions: bool = False,
        hooked: bool = False,
        visit: Callable[[Tensor], object] = lambda tensor: None,
    ) -> None:
        pick = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        shapes = [(8 * pick.choice([1, 2, 4]), WIDTH) for _ in range(3)] + [(WIDTH,), (WIDTH, WIDTH)]
        self.leaves = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
        self.kept: list[Tensor] = []
        self.gradients: list[Tensor | None] = []  # what hooks keep
        self._handles: list[RemovableHandle] = []
        self._seed = seed
        self._operations = pick.randrange(6, operations)
        self._graded = graded
        self._keeps = kept
        self._hooked = hooked
        self._visit = visit
        self._kinds = len(OPERATIONS) if regions else len(OPERATIONS) - 1

    def reset(self) -> None:
        """Reset the state to that before the first forward."""
        self.kept.clear()
        self.gradients.clear()
        while self._handles:
            self._handles.pop().remove()
        for leaf in self.leaves:
            leaf.grad = torch.zeros_like(leaf) if self._graded else None

    def make_loss(self) -> Tensor:
        pick = random.Random(self._seed + 1)
        torch.manual_seed(self._seed)
        alive = list(self.leaves[:3])
        for _ in range(self._operations):
            x, y = pick.choice(alive), pick.choice(alive)
            made = OPERATIONS[pick.randrange(self._kinds)](x, y, self.leaves[3], self.leaves[4])
            for each in made:
                self._visit(each)
                if self._hooked and pick.random() < 0.2:
                    self._hook(pick, each)
                alive.append(each if each.shape[0] % 8 == 0 and each.shape[0] <= 64 else each[:8])
            if self._keeps and pick.random() < 0.15:
                self.kept.append(pick.choice([made[0], made[0].detach(), made[0][:4]]))
            while len(alive) > 6:
                alive.pop(pick.randrange(len(alive)))
        return sum((each * each).sum() if pick.random() < 0.5 else each.sum() for each in alive)

    def _hook(self, pick: random.Random, tensor: Tensor) -> None:
        keep, leaf = self.gradients.append, pick.choice(self.leaves)
        node = tensor.grad_fn
        assert node is not None
        match pick.randrange(6):
            case 0:
                tensor.register_hook(keep)
            case 1:
                tensor.register_hook(lambda gradient: None if gradient is None else gradient * 2)
            case 2:
                tensor.register_hook(lambda gradient: keep(None if gradient is None else gradient.clone()))
            case 3:
                tensor.retain_grad()
                self.kept.append(tensor)
            case 4:
                node.register_hook(lambda given, taken: keep(given[0].sum()) if given[0] is not None else None)
            case _:
                self._handles.append(leaf.register_hook(lambda gradient: gradient + 1))


def _pair(x: Tensor, y: Tensor, vector: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
    rows = min(len(x), len(y))
    return Pair.apply(x[:rows], y[:rows])


def _assigned(x: Tensor, y: Tensor, vector: Tensor, matrix: Tensor) -> list[Tensor]:
    copy = x.clone()
    copy[2:5] = vector * 2
    return [copy]


def _multiplied_slice(x: Tensor, y: Tensor, vector: Tensor, matrix: Tensor) -> list[Tensor]:
    copy = x * 1
    copy[:4].mul_(vector.exp())
    return [copy]


def _halves(x: Tensor, y: Tensor, vector: Tensor, matrix: Tensor) -> list[Tensor]:
    top, bottom = x.chunk(2)
    return [top - bottom]


def _region(x: Tensor, y: Tensor, vector: Tensor, matrix: Tensor) -> list[Tensor]:
    def run(x: Tensor) -> Tensor:
        return torch.tanh(torch.relu(x @ matrix) * vector).exp()

    return [checkpoint(run, x, use_reentrant=False)]


Operation = Callable[[Tensor, Tensor, Tensor, Tensor], "list[Tensor] | tuple[Tensor, ...]"]

OPERATIONS: list[Operation] = [
    lambda x, y, vector, matrix: [torch.tanh(x)],
    lambda x, y, vector, matrix: [x + vector],
    lambda x, y, vector, matrix: [x @ matrix],
    lambda x, y, vector, matrix: [x * vector],
    lambda x, y, vector, matrix: [functional.linear(x, matrix, vector)],
    lambda x, y, vector, matrix: [x + y if x.shape == y.shape else torch.cat([x, y])],
    lambda x, y, vector, matrix: [x * y if x.shape == y.shape else x - vector],
    _halves,
    lambda x, y, vector, matrix: [x.view(-1, min(4, len(x)), WIDTH).transpose(0, 1).reshape(-1, WIDTH)],
    lambda x, y, vector, matrix: [x.sum(0, keepdim=True).expand(x.shape)],
    lambda x, y, vector, matrix: [x - x.mean(1, keepdim=True)],
    lambda x, y, vector, matrix: [torch.softmax(x, 1)],
    _pair,
    _assigned,
    _multiplied_slice,
    lambda x, y, vector, matrix: [functional.layer_norm(x, (WIDTH,), vector, None)],
    lambda x, y, vector, matrix: [torch.stack([x, x * 2]).max(0)[0]],
    lambda x, y, vector, matrix: [x.t().contiguous().t()],
    lambda x, y, vector, matrix: [x[torch.arange(len(x) - 1, -1, -1)]],
    lambda x, y, vector, matrix: [torch.relu_(x * 1.5)],
    lambda x, y, vector, matrix: [torch.where(x > 0, x, vector)],
    lambda x, y, vector, matrix: [(x.unsqueeze(1) * matrix).sum(2)],
    lambda x, y, vector, matrix: [x.to(torch.float64).exp().to(torch.float32)],
    lambda x, y, vector, matrix: [functional.dropout(x, 0.3)],
    lambda x, y, vector, matrix: [x.unsqueeze(0).repeat(2, 1, 1).mean(0)],
    lambda x, y, vector, matrix: [x.roll(1, 1).clamp(-1, 1)],
    _region,
]
