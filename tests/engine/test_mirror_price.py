"""What mirroring costs besides the replays."""

from __future__ import annotations

import torch

from tapehead.engine.mirror_plan import MirrorPlan
from tapehead.engine.mirror_price import MirrorPrice, mirror_price
from tapehead.engine.record_forward import record_forward


def test_each_operation_is_paid_for_and_those_that_run_again_more() -> None:
    x = torch.randn(8, requires_grad=True)
    program = record_forward(lambda: x.tanh().exp().sum(), 1)
    tanh, exp = (each.number for each in program.saved)
    price = MirrorPrice(100.0, 10.0, 1.0)
    assert len(program.operations) == 3
    assert price.recording_ns(MirrorPlan.of(program, ())) == 300
    assert price.recording_ns(MirrorPlan.of(program, (tanh, exp))) == 320


def test_it_is_measured_once() -> None:
    price = mirror_price()
    assert price.seen_ns > 0 and price.replayed_ns > 0
    assert mirror_price() is price
