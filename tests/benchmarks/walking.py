"""`th.graph` on a chain of operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measure import Effort, Row, repeated

import tapehead as th


def rows(effort: Effort) -> Iterator[Row]:
    operations = 200 if effort.tiny else 200_000
    x = torch.ones(1, requires_grad=True)
    for _ in range(operations):
        x = x + 1
    values = repeated(lambda: th.graph(x), min(effort.repetitions, 3))
    yield Row(f"graph, chain of {operations:,} operations", "s", values, 3.0)
