"""Backwards of some shapes and of any size, on tiny tensors: what planners and pictures have to cope with."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tapescope.engine.studies.workloads import workload


def shuffled(tasks: int, inputs: int) -> Tensor:
    """Products of results drawn by lot."""
    draw = random.Random(0)
    made = [torch.ones(4, requires_grad=True) for _ in range(4)]
    for _ in range(tasks // (inputs + 1)):
        product = torch.ones(4)
        for _ in range(inputs):
            product = product * draw.choice(made)
        made.append(product + 1)
    return torch.stack(made[4:]).sum()


def recurrence(tasks: int) -> Tensor:
    cell = nn.LSTMCell(4, 4)
    state = torch.zeros(2, 4), torch.zeros(2, 4)
    results = []
    for _ in range(tasks // 20):
        state = cell(torch.ones(2, 4), state)
        results.append(state[0])
    return torch.stack(results).sum()


def lattice(tasks: int) -> Tensor:
    width = int(tasks**0.5)
    row = [torch.ones(4, requires_grad=True).sin() for _ in range(width)]
    for _ in range(width):
        row = [row[place] * row[place - 1] for place in range(width)]
    return torch.stack(row).sum()


def tree(tasks: int) -> Tensor:
    row = [torch.ones(4, requires_grad=True).sin() for _ in range(tasks // 3)]
    while len(row) > 1:
        row = [row[place] * row[place + 1] for place in range(0, len(row) - 1, 2)]
    return row[0].sum()


def fan(tasks: int) -> Tensor:
    x = torch.ones(4, requires_grad=True)
    return torch.stack([(x * 2).sin() for _ in range(tasks // 2)]).sum()


def chain(tasks: int) -> Tensor:
    x = torch.ones(4, requires_grad=True)
    for _ in range(tasks):
        x = x.sin()
    return x.sum()


def transformer(tasks: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    """GPT-2 of so many blocks, and what makes its loss."""
    knobs = {"layers": max(1, tasks // 47), "width": 8, "heads": 2, "vocabulary": 16, "context": 8, "batch": 1}
    return workload("gpt2").build(**knobs)


SHAPES: dict[str, Callable[[int], Tensor]] = {
    "chain": chain,
    "fan": fan,
    "lattice": lattice,
    "tree": tree,
    "recurrence": recurrence,
    "sparse": lambda tasks: shuffled(tasks, 1),
    "by lot": lambda tasks: shuffled(tasks, 2),
    "dense": lambda tasks: shuffled(tasks, 6),
    "blocks": lambda tasks: transformer(tasks)[1](),
}
"""By name what makes the loss of about so many tasks."""
