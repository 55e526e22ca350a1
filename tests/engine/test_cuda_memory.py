"""Memory on CUDA: what can be on the CPU's events in the words of CUDA's history, the rest on CUDA where that is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import tapehead as th
from tapehead.engine import measurement
from tapehead.engine.allocator import MARK_BYTES
from tapehead.engine.cuda_allocator import CudaAllocator, CudaRecording, read_history
from tapehead.engine.measurement import Measurement
from tapehead.engine.native import Call, Plan, run_native
from tapehead.engine.policies import find_policy
from tapehead.engine.timeline import Timeline
from tapehead.engine.workloads import WORKLOADS
from tapehead.inspector.graph import Root, Task, TensorMeta
from tapehead.inspector.kinds import Kind
from tapehead.inspector.torch_internals import start_allocation_events, stop_allocation_events

from .memory_programs import Program
from .test_orders import random_policy

SMALL = ("gpt2", "lstm_cell", "unet", "recommender", "ensemble", "linear50")


class CpuInCudasWords(CudaAllocator):
    """What the CPU's allocator does as the history of CUDA's tells it, from just before `start` on."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._addresses = []
        self._levels = None

    def listen(self) -> None:
        """Frees are told only of blocks that came after this."""
        start_allocation_events()
        self._listens = True

    def start(self) -> None:
        if not getattr(self, "_listens", False):
            self.listen()
        self.mark()  # what was before is not in the history

    def note_levels(self) -> None:
        """Of which the CPU has none."""

    def stop(self) -> CudaRecording:
        entries = [
            {
                "action": "alloc" if nbytes > 0 else "free_requested",
                "addr": address,
                "size": abs(nbytes),
                "time_us": ns // 1000,
            }
            for ns, address, nbytes in stop_allocation_events().rows
            if nbytes
        ]
        return read_history(entries, self._addresses).split(0)[1]


@pytest.fixture
def in_cudas_words(monkeypatch: pytest.MonkeyPatch) -> CpuInCudasWords:
    """Makes measurements take the way of CUDA. The recorder that the next one uses."""
    first = CpuInCudasWords()
    recorders = [first]
    monkeypatch.setattr(
        measurement, "_allocator_of", lambda device: recorders.pop() if recorders else CpuInCudasWords()
    )
    return first


def facts(timeline: Timeline) -> dict[str, Any]:
    """All but the clock, and which graph it was."""
    names = {field.name for field in dataclasses.fields(timeline)} - {"graph", "event_ns", "makers", "changes"}
    found = {name: getattr(timeline, name) for name in names}
    makers = [(each.task, each.module, each.operation and each.operation.name) for each in timeline.makers]
    return {**found, "makers": makers, "changes": list(timeline.changes)}


@pytest.mark.parametrize("name", SMALL)
def test_one_recording_tells_what_two_do(name: str, in_cudas_words: CpuInCudasWords) -> None:
    model, make_loss = WORKLOADS[name].build()
    run = th.profile(make_loss, "bfs")
    assert run.timeline is not None and run.footprints is not None
    assert MARK_BYTES not in run.timeline.nbytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_allocator_of", lambda device: measurement.CpuAllocator())
        model.zero_grad()
        expected = th.profile(make_loss, "bfs")
    assert expected.timeline is not None and expected.footprints is not None
    assert facts(run.timeline) == facts(expected.timeline)
    assert run.footprints.tasks == expected.footprints.tasks and not run.footprints.limits


@pytest.mark.parametrize("name", SMALL)
def test_attached_late_the_history_tells_what_dies(name: str, in_cudas_words: CpuInCudasWords) -> None:
    model, make_loss = WORKLOADS[name].build()
    expected = th.profile(make_loss, "bfs").timeline
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        late = CpuInCudasWords()
        patch.setattr(measurement, "_allocator_of", lambda device: late)
        late.listen()
        loss = make_loss()
        run = th.backward(loss, policy="bfs", memory=True)
    timeline = run.timeline
    assert timeline is not None and expected is not None
    assert (timeline.peak_bytes, timeline.end_bytes) == (expected.peak_bytes, expected.end_bytes)
    assert timeline.task_peaks == expected.task_peaks
    assert timeline.forward_peak_bytes is None


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_predicted_from_one_recording(seed: int, in_cudas_words: CpuInCudasWords) -> None:
    program = Program(seed, kept=seed % 2 == 1)
    program.reset()
    footprints = th.profile(program.make_loss).footprints
    program.reset()
    run = th.profile(program.make_loss, random_policy(seed))
    predicted = th.simulate(run.graph, run.order, footprints)
    assert predicted.start_bytes == run.timeline.start_bytes
    assert predicted.estimates or predicted.peak_bytes == run.peak_bytes


def test_a_hooks_memory_makes_an_estimate(in_cudas_words: CpuInCudasWords) -> None:
    x = torch.randn(100, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: torch.empty(1000).fill_(1)[:100] * gradient)
        return y.exp().sum()

    run = th.profile(make_loss)
    (storage,) = [each for each in run.timeline if each.nbytes == 4000]
    assert run.graph.tasks[run.order[storage.born]].name == "ExpBackward0", "the task before"
    (limit,) = run.footprints.limits
    assert limit == "memory is allocated between tasks, as by hooks of tensors (blocks: 2): predictions leave it out"


def test_a_hook_of_the_root_makes_an_estimate(in_cudas_words: CpuInCudasWords) -> None:
    x = torch.randn(100, requires_grad=True)

    def make_loss() -> Tensor:
        loss = x.exp().sum()
        loss.register_hook(lambda gradient: gradient * 2)
        return loss

    assert "memory is allocated between tasks" in th.profile(make_loss).footprints.limits[0]


def test_after_an_error_no_recorder_is_left(in_cudas_words: CpuInCudasWords) -> None:
    def make_loss() -> Tensor:
        y = torch.randn(3, requires_grad=True) * 2
        y.register_hook(lambda gradient: 1 / 0)
        return y.sum()

    with pytest.raises(ZeroDivisionError):
        th.profile(make_loss)
    assert not torch.autograd._profiler_enabled()


def graph_on(*devices: str) -> th.Graph:
    tasks = [
        Task(number, "MulBackward0", Kind.CPP, number, (TensorMeta((4,), torch.float32, torch.device(device)),))
        for number, device in enumerate(devices)
    ]
    return th.Graph(tuple(tasks), (), (Root(0, 0),))


def test_devices_that_can_not_be_measured_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    with pytest.raises(ValueError, match="memory is measured on the CPU and on CUDA devices, not on meta"):
        th.profile(lambda: loss, device="meta")
    with pytest.raises(ValueError, match="there is no cuda:99 to measure: torch sees"):
        th.profile(lambda: loss, device="cuda:99")
    with pytest.raises(
        ValueError, match=r"runs on cuda:0 and cuda:1, .* one .* th.profile\(make_loss, device=\"cuda:0\"\)"
    ):
        Measurement().settle(graph_on("cpu", "cuda:1", "cuda:0"))
    with pytest.raises(ValueError, match="on CUDA devices, not on xpu:0"):
        Measurement().settle(graph_on("xpu:0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with Measurement() as begun:
        begun.begin_forward()
        with pytest.raises(
            ValueError, match=r"runs on cuda:1, .* was recorded on cpu: tell before, with device=\"cuda:1\""
        ):
            begun.settle(graph_on("cuda:1"))
    assert not torch.autograd._profiler_enabled()


def test_tasks_that_may_overlap_are_not_measured() -> None:
    call = Call.of(torch.ones(2, requires_grad=True).sum(), None, None, False, None)
    plan = dataclasses.replace(Plan.of(call, find_policy("heap")), devices=frozenset({"cpu", "cuda:0"}))
    with pytest.raises(ValueError, match="memory is measured task by task, .*: use one queue for all devices"):
        run_native(call, plan, queues="per device", measurement=Measurement())
