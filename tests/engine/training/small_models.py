"""Models and optimizers that train in a few kilobytes, and what the allocator is seen to do in a step of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

from tapescope.engine.memory.allocator_events import CpuAllocator


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        made: Tensor = x + self.mlp(self.second(x))
        return made


class Gpt(nn.Module):
    def __init__(self, width: int = 64, layers: int = 3, words: int = 500, length: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def tokens(size: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 500, (size, 32)), torch.randint(0, 500, (size, 32))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))


def pairs(size: int = 64) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 32), torch.randint(0, 8, (size,))


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = functional.relu(x + self.norm_two(self.two(functional.relu(self.norm_one(self.one(x))))))
        return made


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), ResBlock(16), nn.MaxPool2d(2), ResBlock(16), ResBlock(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8),
    )  # fmt: skip


def pictures(size: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 16, 16), torch.randint(0, 8, (size,))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = functional.gelu(self.down(x))
        low = functional.interpolate(
            functional.gelu(self.deep(functional.avg_pool2d(high, 2))), scale_factor=1, mode="nearest"
        )
        return functional.mse_loss(self.out(torch.cat([high, self.up(low)], 1)), x)


def images(size: int = 2) -> Tensor:
    return torch.randn(size, 3, 32, 32)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Any]] = {
    "perceptron": (perceptron, pairs, cross_entropy),
    "gpt": (Gpt, tokens, None),
    "resnet": (resnet, pictures, cross_entropy),
    "unet": (UNet, images, None),
}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, 0.1),
    "momentum": lambda parameters: SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: Adam(parameters, foreach=False),
    "adam, foreach": lambda parameters: Adam(parameters, foreach=True),
    "adamw, fused": lambda parameters: AdamW(parameters, fused=True),
}


def measured(make_model: Any, make_batch: Any, make_optimizer: Any, loss_of: Any) -> dict[str, int]:
    """The highest level of each phase of the second step, by the allocator's events."""
    allocator = CpuAllocator()
    allocator.start()
    try:
        model = make_model()
        batch = make_batch()
        optimizer = make_optimizer(list(model.parameters()))
        for _ in range(2):
            optimizer.zero_grad()
            allocator.mark()
            loss = loss_of(model, batch) if loss_of else model(*batch if isinstance(batch, tuple) else (batch,))
            allocator.mark()
            loss.backward()
            allocator.mark()
            optimizer.step()
    finally:
        recording = allocator.stop()
    levels = [0]
    alive: dict[int, int] = {}
    for _, address, nbytes, _ in recording.rows:
        known = nbytes if nbytes > 0 else -alive.pop(address, 0)
        if nbytes > 0:
            alive[address] = nbytes
        levels.append(levels[-1] + known)
    starts = [mark.row for mark in recording.marks[3:]]
    ends = [*starts[1:], len(recording.rows)]
    phases = zip(("forward", "backward", "optimizer"), starts, ends, strict=True)
    return {phase: max(levels[start : end + 1]) for phase, start, end in phases}
