"""`ts.graph` on a chain of operations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measure import Effort, Row, repeated

import tapescope as ts


def rows(effort: Effort) -> Iterator[Row]:
    operations = 200 if effort.tiny else 200_000
    chain = [torch.ones(1, requires_grad=True)]
    for _ in range(operations):
        chain[0] = chain[0] + 1
    values = repeated(lambda: ts.graph(chain[0]), min(effort.repetitions, 3))
    # torch frees nodes that Python has seen by recursion: a long chain overflows the stack. A graph that outlives
    # the chain frees them one by one.
    last = ts.graph(chain[0])
    chain.clear()
    del last
    yield Row(f"graph, chain of {operations:,} operations", "s", values, 3.0)
