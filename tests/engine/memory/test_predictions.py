"""After one calibration run the memory of any order is predicted to the byte, or it says that it is an estimate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tapescope as ts

from ..backward_programs import random_policy
from ..memory_programs import Program
from ..sizes import LARGEST_SLOW, built

pytestmark = pytest.mark.heavy


def deltas_by_task(timeline: ts.types.Timeline) -> list[list[int]]:
    """Return the bytes of each task's events, sorted, because a task frees its tensors at the end in no certain
    order."""
    deltas, starts = list(timeline.deltas), timeline.starts
    return [sorted(deltas[starts[place] : starts[place + 1]]) for place in range(len(timeline.order))]


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_every_event_of_every_order(name):
    model, make_loss = built(name)
    calibration = ts.profile(make_loss)
    for policy in ("heap", "bfs", "dfs", random_policy(0), random_policy(1)):
        model.zero_grad()
        measured = ts.profile(make_loss, policy)
        predicted = ts.simulate(measured.graph, measured.order, calibration.footprints)
        assert predicted.peak_bytes == measured.peak_bytes
        assert predicted.peak_place == measured.timeline.peak_place
        assert deltas_by_task(predicted) == deltas_by_task(measured.timeline)
        assert predicted.start_bytes == measured.timeline.start_bytes
        assert predicted.end_bytes == measured.timeline.end_bytes


def check(program: Program, orders: int, seed: int) -> None:
    program.reset()
    calibration = ts.profile(program.make_loss)
    for number in range(orders):
        program.reset()
        measured = ts.profile(program.make_loss, random_policy(seed + number))
        predicted = ts.simulate(measured.graph, measured.order, calibration.footprints)
        assert predicted.start_bytes == measured.timeline.start_bytes
        if not predicted.estimates:
            assert predicted.peak_bytes == measured.peak_bytes
            assert deltas_by_task(predicted) == deltas_by_task(measured.timeline)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_random_programs_in_random_orders(seed, graded, kept, regions, hooked):
    check(Program(seed, graded=graded, kept=kept, regions=regions, hooked=hooked), 3, seed)


def test_a_gradient_that_is_copied_and_turned_takes_scratch_memory_beside_it():
    weight, other = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

    def make_loss() -> torch.Tensor:
        weight.grad = None
        return (weight.t() * other).sum()

    measured = ts.profile(make_loss)
    predicted = ts.simulate(measured.graph, measured.order, measured.footprints)
    assert not predicted.estimates
    assert predicted.task_peaks == measured.timeline.task_peaks
