"""Invalid arguments are refused in a sentence that names them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.tests.says import Snapshots, raises

from .comparing import is_ours


def loss() -> Tensor:
    return (torch.ones(3, requires_grad=True) * 2).sum()


def run() -> ts.Run:
    return ts.backward(loss(), trace="cheap")


CALLS: list[tuple[str, Callable[[object], object]]] = [
    ("model", lambda bad: ts.graph(loss(), model=bad)),
    ("order", lambda bad: ts.simulate(ts.graph(loss()), bad)),
    ("durations", lambda bad: ts.makespan(loss(), durations=bad)),
    ("policies", lambda bad: ts.makespan(loss(), policies=bad)),
    ("policies", lambda bad: ts.compare(loss, bad)),
    ("repetitions", lambda bad: ts.compare(loss, "heap", repetitions=bad)),
    ("accumulate", lambda bad: ts.compare(loss, "heap", accumulate=bad)),
    ("device_of", lambda bad: ts.makespan(loss(), device_of=bad)),
    ("min_fusion_size", lambda bad: ts.types.GroupRules(min_fusion_size=bad)),
    ("how_many_is_many", lambda bad: ts.types.GroupRules(how_many_is_many=bad)),
    ("timeline", lambda bad: ts.peak_report(bad)),
    ("place", lambda bad: run().trace[bad]),
    ("tolerance", lambda bad: ts.diff(run(), run(), tolerance=bad)),
    ("ts.load", lambda bad: ts.load(bad)),
    ("RecomputePlan.load", lambda bad: ts.types.RecomputePlan.load(bad)),
]
MAY_BE = {("device_of", None), ("durations", None), ("model", None), ("policies", None), ("tolerance", None)}


@pytest.mark.parametrize("bad", [None, object(), 0.5j, 1.5])
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_an_argument_of_another_type_is_named(name: str, call: Callable[[object], object], bad: object) -> None:
    if (name, bad) in MAY_BE or (name == "tolerance" and bad == 1.5):
        return
    with raises((TypeError, ValueError), name) as refused:
        call(bad)
    assert is_ours(refused.traceback[-1].frame.code.path)  # not from inside torch


def test_texts_that_are_no_such_thing_are_named(snapshot: Snapshots) -> None:
    for name, call in CALLS:
        if name in ("model", "durations", "min_fusion_size", "timeline", "place", "tolerance"):
            with raises(TypeError, name, "str") as refused:
                call("x")
            snapshot("arguments", refused.value)
