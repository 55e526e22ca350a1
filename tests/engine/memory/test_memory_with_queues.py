"""Memory if each device has a separate queue and thread, so that tasks overlap."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.allocator_events import AllocatorEvent, AllocatorRecording, Instant
from tapescope.engine.memory.task_boundaries import MemoryWatch, TaskMoment, Visit
from tapescope.engine.memory.task_spans import Turns
from tapescope.tests.says import says

from .test_accelerator_memory import POLICIES, counter, two_and_cpu

Counted = dict[int, tuple[int, ...]]
"""By task the bytes on each accelerator as it started, where nobody changed them just then."""


@contextmanager
def counting(accelerators: tuple[torch.device, ...]) -> Iterator[Counted]:
    """While it is open, devices' own counters are read around the mark of each task's start."""
    found: Counted = {}
    mark = MemoryWatch._mark

    def counted(watch: MemoryWatch, task_id: int, moment: TaskMoment) -> int:
        if moment is not TaskMoment.STARTED:
            return mark(watch, task_id, moment)
        before = tuple(map(counter, accelerators))
        number = mark(watch, task_id, moment)
        if before == tuple(map(counter, accelerators)):
            found[task_id] = before
        return number

    with patch.object(MemoryWatch, "_mark", counted):
        yield found


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_levels_are_the_devices_own_counters_at_every_task(
    policy: str, late: bool, accelerators: tuple[torch.device, torch.device]
) -> None:
    model, make_loss = two_and_cpu(accelerators)
    ts.backward(make_loss())
    model.zero_grad()
    gc.collect()
    before = tuple(map(counter, accelerators))
    with counting(accelerators) as counted:
        if late:
            loss = make_loss()
            there = tuple(map(counter, accelerators))
            run = ts.backward(loss, policy=policy, memory=True, queues="per device")
        else:
            run = ts.profile(make_loss, policy, queues="per device")
    assert len(counted) > len(run.order) / 2 and set(run.timelines) == {*map(str, accelerators), "cpu"}
    for number, device in enumerate(accelerators):
        timeline = run.timelines[str(device)]
        assert timeline.event_places and timeline.order == run.order
        start = there[number] - timeline.start_bytes if late else before[number]
        levels = {task: timeline.levels[first] for task, first in zip(run.order, timeline.starts, strict=False)}
        assert {task: each[number] - start for task, each in counted.items()} == {
            task: levels[task] for task in counted
        }
        assert counter(device) - start == timeline.end_bytes


def test_a_task_has_what_its_own_thread_does(accelerators: tuple[torch.device, torch.device]) -> None:
    model, make_loss = two_and_cpu(accelerators)
    model.zero_grad()
    run = ts.profile(make_loss, queues="per device")
    devices = [str(task.device) for task in run.graph.tasks]
    for device, timeline in run.timelines.items():
        assert not timeline.held or device == "cpu"  # the loss alone
        for storage in timeline:
            if 0 <= storage.born < len(run.order) and storage.died != storage.born:
                task = run.order[storage.born]
                given_on = [devices[edge.next_task] for edge in run.graph.out_edges[task]]
                assert device in (devices[task], *given_on)  # where another one takes it, it copies or adds
            saved = [keeper.task for keeper in storage.kept_by if keeper.kind == "saved"]
            if saved and storage.died is not None:
                assert run.order[storage.died] in saved


def test_the_gradients_stay_and_the_peak_is_said_to_be_of_this_run(
    accelerators: tuple[torch.device, torch.device], tmp_path: Path
) -> None:
    model, make_loss = two_and_cpu(accelerators)
    model.zero_grad()
    make_loss().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    run = ts.profile(make_loss, queues="per device", trace="full")
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    assert run.trace is not None and run.trace.order == run.order and run.footprints is None
    assert not run.footprints_by_device
    says(run.peak().answer[0], run.timeline.device)  # type: ignore[union-attr]
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert loaded.timeline is not None and run.timeline is not None
    assert loaded.timeline.event_places == run.timeline.event_places and str(loaded.peak()) == str(run.peak())
    table = run.to_pandas()
    assert sum(table["allocated_bytes"]) - sum(table["freed_bytes"]) == (
        run.timeline.levels[run.timeline.starts[-1]] - run.timeline.start_bytes
    )
    assert run.save_html(tmp_path / "run.html").stat().st_size > 100_000


def test_hooks_memory_counts_to_their_task_also_where_it_is_a_threads_first(accelerator: torch.device) -> None:
    x = torch.randn(100, device=accelerator, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: torch.empty(1000, device=accelerator).fill_(1)[:100] * gradient)
        return y.cpu().sum()

    run = ts.profile(make_loss, queues="per device")
    (storage,) = [each for each in run.timelines[str(accelerator)] if each.nbytes == 4000]
    assert run.graph.tasks[run.order[storage.born]].name == "MulBackward0"


def test_a_graph_on_one_device_alone_is_measured_in_that_devices_thread(accelerator: torch.device) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(accelerator)
    x = torch.ones(4, 8, device=accelerator)
    one = ts.profile(lambda: layers(x).sum())
    layers.zero_grad()
    per_device = ts.profile(lambda: layers(x).sum(), queues="per device")
    assert one.timeline is not None and per_device.timeline is not None
    assert not per_device.timeline.event_places and per_device.footprints is not None
    assert per_device.timeline.task_peaks == one.timeline.task_peaks


def test_the_direct_engine_measures_tasks_in_the_order_of_its_queues(
    accelerators: tuple[torch.device, torch.device],
) -> None:
    model, make_loss = two_and_cpu(accelerators)
    calibration = ts.profile(make_loss)
    model.zero_grad()
    run = ts.profile(make_loss, "bfs", engine="direct", queues="per device")
    for device, timeline in run.timelines.items():
        predicted = ts.simulate(run.graph, run.order, calibration.footprints_by_device[device])
        assert not timeline.event_places and predicted.task_peaks == timeline.task_peaks


def test_rows_belong_to_the_last_task_that_their_own_thread_began() -> None:
    one, other, caller = 1, 2, 3
    rows = [
        AllocatorEvent(0, 10, 4, caller),  # the root's gradient
        AllocatorEvent(3, 20, 8, one),
        AllocatorEvent(5, 30, 16, other),
        AllocatorEvent(7, 20, -8, one),
        AllocatorEvent(9, 40, 32, other),
        AllocatorEvent(12, 30, -16, one),
        AllocatorEvent(20, 10, -4, caller),
    ]
    starts = [Instant(1, 2, one), Instant(2, 4, other), Instant(5, 11, one)]
    marks = [starts[0], starts[1], Instant(4, 8, one), Instant(5, 10, other), starts[2], Instant(6, 15, one)]
    moments = [
        (7, TaskMoment.STARTED),
        (8, TaskMoment.STARTED),
        (7, TaskMoment.ENDED),
        (8, TaskMoment.ENDED),
        (9, TaskMoment.STARTED),
        (9, TaskMoment.ENDED),
    ]
    begun = [each._replace(ns=each.ns - 1) for each in starts]
    visits = [Visit(task, (), (), None, False) for task in (7, 8, 9)]
    found = Turns.of(AllocatorRecording(rows, marks, begun), moments, visits)
    assert [turn.visit.task for turn in found.turns] == [7, 8, 9]
    assert found.places == [-1, 0, 1, 0, 1, 2, 3]
    assert [turn.end for turn in found.turns] == [4, 5, 6]
