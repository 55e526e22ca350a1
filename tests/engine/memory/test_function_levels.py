"""Levels of any computation, in the terms of a timeline, including NumPy's memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch

import tapescope as ts
from tapescope.engine.memory.function_levels import Step, allocated_levels, levels_of, traced_levels
from tapescope.engine.memory.kernel_workspaces import _run
from tapescope.engine.memory.measure_backward import Measurement
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import raises

from ..interrupts import interrupted, lines_run

BOTH = pytest.mark.parametrize("measure", [allocated_levels, traced_levels])


def test_a_backward_has_the_levels_of_its_timeline() -> None:
    model, make_loss = WORKLOADS["mlp_norm"].build(layers=3)
    timeline = ts.profile(make_loss).timeline
    assert timeline is not None
    model.zero_grad()

    def compute(step: Step) -> torch.Tensor:
        loss = make_loss()
        step()
        loss.backward()
        step()
        return loss

    _, found = allocated_levels(compute)
    same = levels_of(timeline)
    assert found.start_bytes + make_loss().nbytes == same.start_bytes, "with the gradient which backward() starts from"
    assert found.end_bytes == same.end_bytes
    assert found.forward_peak_bytes == same.forward_peak_bytes
    assert list(found.peaks) == [timeline.peak_bytes] and found.peak_bytes == same.peak_bytes == timeline.peak_bytes
    assert len(same.peaks) == len(timeline.order)
    for each in (found, same):
        assert max(each.forward) == each.forward_peak_bytes and len(each.ns) == len(each.forward) + len(each.peaks)
        assert list(each.ns) == sorted(each.ns) and each.ns[0] == 0
    assert list(same.forward[:-1]) == list(found.forward), "but for the gradient which backward() starts from"


def test_of_the_fan_out_by_hand_each_matrix_is_accounted_for() -> None:
    """Before step k, counted from 0, there are 99 - k of the z, the gradient, and the sum, which step 0 makes."""
    matrix = 64 * 64 * 8
    for fused in (False, True):
        _, compute = WORKLOADS["fan_out"].by_hand(dtype=torch.float64, fused=fused)
        (loss, _), found = allocated_levels(compute)
        product = 0 if fused else 1
        assert found.start_bytes == 100 * matrix + loss.nbytes
        expected = [101, *(101 + product - step for step in range(1, 100))]
        assert [(peak - loss.nbytes) / matrix for peak in found.peaks] == expected
        assert found.end_bytes == matrix + loss.nbytes


def test_fused_the_rnn_needs_one_gradient_of_the_weight_less() -> None:
    peaks = {}
    for fused in (False, True):
        model, compute = WORKLOADS["rnn"].by_hand(fused=fused)
        peaks[fused] = allocated_levels(compute)[1].peak_bytes
    assert peaks[False] - peaks[True] == pytest.approx(model.weight.nbytes, rel=0.1)


@pytest.mark.parametrize("name", ["rnn", "fan_out", "needless"])
def test_pytorchs_backward_needs_hardly_more_than_by_hand(name: str) -> None:
    width = {"width": 256} if name == "rnn" else {}
    _, make_loss = WORKLOADS[name].build(**width)
    _, compute = WORKLOADS[name].by_hand(**width)
    assert ts.profile(make_loss).peak_bytes <= 1.05 * allocated_levels(compute)[1].peak_bytes


@BOTH
def test_levels_are_those_between_the_steps(measure) -> None:
    unit = 2**20

    def made(units: int) -> object:
        return torch.zeros(units * unit, dtype=torch.uint8) if measure is allocated_levels else bytearray(units * unit)

    before = [made(9)]

    def compute(step: Step) -> object:
        kept = made(4)
        passing = made(3)
        del passing
        step()
        before.clear()  # not counted as it came, nor as it goes
        passing = made(2)
        del passing
        step()
        more = made(1)
        step()
        return kept, more

    _, found = measure(compute)
    levels = (found.forward_peak_bytes, found.start_bytes, *found.peaks, found.end_bytes)
    assert [round(level / unit, 2) for level in levels] == [7, 4, 6, 5, 5]
    assert found.peak_bytes == max(levels[1:])


def test_a_tracing_of_the_users_goes_on() -> None:
    tracemalloc.start()
    try:
        traced_levels(lambda step: step())
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    traced_levels(lambda step: step())
    assert not tracemalloc.is_tracing()


@BOTH
def test_a_computation_that_tells_no_step_is_refused(measure) -> None:
    with raises(ValueError, "step()"):
        measure(lambda step: None)
    with pytest.raises(ZeroDivisionError):
        measure(lambda step: 1 / 0)
    assert measure(lambda step: step())[1] is not None, "nothing is left running"


def test_without_the_forward_a_timeline_has_no_such_levels() -> None:
    _, make_loss = WORKLOADS["needless"].build()
    with raises(ValueError, "ts.profile(make_loss)"):
        levels_of(ts.backward(make_loss(), memory=True).timeline)


def measure_a_forward() -> None:
    with Measurement() as measurement:
        measurement.begin_forward()
        measurement.observe(None, None)


RECORDINGS: dict[str, Callable[[], object]] = {
    "levels": lambda: allocated_levels(lambda step: step()),
    "measurement": measure_a_forward,
    "kernel": lambda: _run(torch.ops.aten.neg.default, [torch.ones(2)], {}, 1, False, False),
}


@pytest.mark.parametrize("recording", RECORDINGS)
def test_an_interrupt_at_any_line_of_a_recording_leaves_no_profiler_on(
    recording: str, left_behind: Callable[[], list[str]]
) -> None:
    record = RECORDINGS[recording]
    record()
    lines = lines_run(record)
    assert lines > 50
    for at in range(1, lines + 1):
        place = interrupted(record, at)
        assert not left_behind(), f"interrupted at {place}: {left_behind()}"
        with torch.autograd.profiler.profile():  # the user's own
            pass
        record()
