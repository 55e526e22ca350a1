"""What mirroring costs besides the replays: each operation of the forward is looked at, some are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter

import torch
from torch import Tensor

from .mirror import mirror
from .mirror_plan import MirrorPlan
from .record_forward import record_forward

_OPERATIONS = 40  # of the small forward on which it is measured
_ROUNDS = 25


@dataclass(frozen=True, slots=True)
class MirrorPrice:
    """Nanoseconds on the host.

    Attributes:
        seen_ns: for each operation of a mirrored forward, with what it saves.
        recorded_ns: on top, for one that has to run again.
        replayed_ns: to run it again, besides what the operation itself takes.
    """

    seen_ns: float
    recorded_ns: float
    replayed_ns: float

    def recording_ns(self, plan: MirrorPlan) -> float:
        """What a forward takes longer under a plan."""
        recorded = sum(each.is_dropped for each in plan.storages)
        return self.seen_ns * len(plan.operations) + self.recorded_ns * recorded


@cache
def mirror_price() -> MirrorPrice:
    """Measured on this machine, once: on operations so small that they take no time themselves."""
    start = torch.ones(4, requires_grad=True)

    def make_loss() -> Tensor:
        value = start
        for _ in range(_OPERATIONS):
            value = value.tanh()
        return value.sum()

    program = record_forward(make_loss, 1)
    droppable = [each.number for each in program.saved if each.obstacle is None]
    nothing, everything = MirrorPlan.of(program, ()), MirrorPlan.of(program, droppable)
    contexts: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        lambda: mirror(nothing),
        lambda: mirror(everything),
    ]
    forward, backward = [math.inf] * 3, [math.inf] * 3
    for _ in range(_ROUNDS):
        for number, context in enumerate(contexts):
            began = perf_counter()
            with context():
                loss = make_loss()
            middle = perf_counter()
            torch.autograd.grad(loss, start)
            forward[number] = min(forward[number], middle - began)
            backward[number] = min(backward[number], perf_counter() - middle)
    plain, seen, recorded = (1e9 * each / _OPERATIONS for each in forward)
    back = (1e9 / _OPERATIONS) * (backward[2] - backward[0])
    unpacked = (1e9 / _OPERATIONS) * (backward[1] - backward[0])
    return MirrorPrice(max(0.0, seen - plain + unpacked), max(0.0, recorded - seen), max(0.0, back - unpacked))
