"""Memory of a trace's statistics is in no figure, so that figures with and without a trace are comparable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.allocator_events import AllocatorEvent, AllocatorRecording, Instant
from tapescope.engine.memory.allocator_recording import CudaRecording, Failure, Level, Reserved, blocks_of
from tapescope.engine.memory.task_boundaries import TaskMoment
from tapescope.engine.recording.statistics import Level as Statistics
from tapescope.widgets.deck.run_page_data import other_policies

Measure = Callable[[Callable[[], Tensor], Statistics | None], ts.Run]

WAYS: dict[str, Measure] = {
    "profile": lambda make_loss, trace: ts.profile(make_loss, trace=trace),
    "profile, direct": lambda make_loss, trace: ts.profile(make_loss, trace=trace, engine="direct"),
    "backward": lambda make_loss, trace: ts.backward(make_loss(), trace=trace, memory=True),
    "backward, bfs": lambda make_loss, trace: ts.backward(make_loss(), policy="bfs", trace=trace, memory=True),
}


@pytest.fixture
def make_loss() -> Callable[[], Tensor]:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64)), torch.randn(128, 64)

    def forward() -> Tensor:
        model.zero_grad(set_to_none=True)
        return model(x).square().sum()

    return forward


def levels(run: ts.Run) -> tuple[list[int], list[int]]:
    assert run.timeline is not None
    return list(run.timeline.levels), list(run.timeline.task_peaks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trace", ["cheap", "full"])
def test_a_traced_run_has_the_memory_of_one_that_is_not(
    make_loss: Callable[[], Tensor], way: str, trace: Statistics
) -> None:
    plain, traced = WAYS[way](make_loss, None), WAYS[way](make_loss, trace)
    assert levels(traced) == levels(plain)
    assert traced.footprints is not None and plain.footprints is not None
    assert traced.footprints.limits == plain.footprints.limits == ()
    assert str(traced.peak()).partition("\n")[0] == str(plain.peak()).partition("\n")[0]
    assert traced.trace is not None and traced.trace[0].outputs


def test_the_page_of_a_traced_run_compares_all_policies_without_it(make_loss: Callable[[], Tensor]) -> None:
    run = ts.profile(make_loss, trace="full")
    assert run.timeline is not None
    for name, _, predicted in other_policies(run):
        measured = ts.profile(make_loss, name).timeline
        assert predicted is not None and measured is not None
        assert predicted.peak_bytes == measured.peak_bytes
    assert ts.simulate(run.graph, "heap", run.footprints).peak_bytes == run.timeline.peak_bytes


def test_blocks_that_outlive_the_statistics_are_left_out_too() -> None:
    rows = [
        AllocatorEvent(0, 1, 100),
        AllocatorEvent(2, 2, 50),  # from here
        AllocatorEvent(3, 3, 60),
        AllocatorEvent(4, 3, -60),  # to here
        AllocatorEvent(6, 1, -100),
        AllocatorEvent(7, 2, -50),
        AllocatorEvent(8, 2, 10),
    ]
    recording = AllocatorRecording(rows, [Instant(1, 1), Instant(4, 5), Instant(6, 8)], [Instant(4, 5)])
    found = recording.without([(0, 1)])
    assert [(row.address, row.nbytes) for row in found.rows] == [(1, 100), (1, -100), (2, 10)]
    assert (found.marks, found.tasks) == ([Instant(1, 1), Instant(1, 5), Instant(2, 8)], [Instant(1, 5)])


def test_an_accelerators_levels_meanwhile_count_for_no_task() -> None:
    rows = [AllocatorEvent(1, 1, 512), AllocatorEvent(3, 2, 1024), AllocatorEvent(4, 2, -1024)]
    moments = [TaskMoment.APART, TaskMoment.BACK, TaskMoment.STARTED, TaskMoment.ENDED]
    noted = [Level(each, each, 4096) for each in (512, 1536, 512, 600, 512)]
    marks = [Instant(1, 2), Instant(3, 5), Instant(3, 6), Instant(3, 7)]
    recording = CudaRecording(rows, marks, [], [Reserved(2, 3, 4096)], [Failure(3, 9, 1, 0)], noted, 0)
    found = recording.without([(0, 1)])
    assert isinstance(found, CudaRecording) and len(found.rows) == 1
    assert (found.reserved[0].row, found.failures[0].row) == (1, 1)
    blocks = blocks_of(found, [(0, moment) for moment in moments])
    assert blocks is not None
    assert (list(blocks.allocated), blocks.peak_before) == ([600], 512)
