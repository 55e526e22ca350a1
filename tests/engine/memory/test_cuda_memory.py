"""Memory on CUDA: what can be on the CPU's events in the words of CUDA's history, the rest on CUDA where that is."""

from __future__ import annotations

import dataclasses
import gc
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory import measure_backward
from tapescope.engine.memory.allocator_events import MARK_BYTES
from tapescope.engine.memory.allocator_recording import (
    CudaAllocator,
    CudaRecording,
    Level,
    RecordedAllocators,
    read_history,
)
from tapescope.engine.memory.device_choice import device_of
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.estimates import Estimate
from tapescope.engine.memory.measure_backward import Measurement
from tapescope.engine.memory.timeline import BlockLevels, Timeline
from tapescope.engine.recording.peak_report import peak_report
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.graph.graph import Root, Task, TensorMeta
from tapescope.inspector.graph.kinds import Kind
from tapescope.inspector.torch_private.allocators import start_allocation_events, stop_allocation_events
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_policy
from ..memory_programs import Program
from ..sizes import built

OLDER = 10**6
ON_CUDA = [name for name in WORKLOADS if name != "two_devices"]  # half of that one stays on the CPU
SMALL = ("gpt2", "lstm_cell", "unet", "recommender", "ensemble", "linear50")


class CpuInCudasWords(CudaAllocator):
    """The CPU allocator's events in the form of CUDA's memory history, starting just before `start`.

    Its blocks are as large as what was asked for, and `OLDER` bytes were there before.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.marks = []
        self._levels = None
        self._first_noted = 0

    def listen(self) -> None:
        """Record the frees of blocks that are allocated from now on."""
        start_allocation_events()
        self._listens = True

    def start(self) -> None:
        if not getattr(self, "_listens", False):
            self.listen()
        self.mark()  # what was before is not in the history

    def note_levels(self) -> None:
        self._first_noted = len(self.marks)

    def stop(self) -> CudaRecording:
        entries = []
        alive: dict[int, int] = {}  # of what is older the CPU's allocator tells sizes that an earlier recording knew
        for ns, _, address, nbytes, _ in stop_allocation_events().rows:
            size = alive.pop(address, 0) if nbytes < 0 else alive.setdefault(address, nbytes)
            if size:
                action = "alloc" if nbytes > 0 else "free_requested"
                entries.append({"action": action, "addr": address, "size": size, "time_us": ns // 1000})
        recording = read_history(entries, self.marks)
        sums = list(accumulate((row.nbytes for row in recording.rows), initial=OLDER))
        stops = [mark.row for mark in recording.marks[self._first_noted :]] + [len(recording.rows)]
        peaks = [sums[stops[0]], *(max(sums[begin : end + 1]) for begin, end in pairwise(stops))]
        levels = [Level(peak, peak, peak) for peak in peaks]
        return dataclasses.replace(recording, levels=levels).split(0)[1]


@pytest.fixture
def in_cudas_words(monkeypatch: pytest.MonkeyPatch) -> CpuInCudasWords:
    """Makes measurements take the way of CUDA. The recorder that the next one uses."""
    first = CpuInCudasWords()
    recorders = [first]
    monkeypatch.setattr(
        measure_backward, "_history_of", lambda devices: recorders.pop() if recorders else CpuInCudasWords()
    )
    return first


def facts(timeline: Timeline) -> dict[str, Any]:
    """All but the clock, the blocks, the tensors themselves, and which graph it was."""
    names = {field.name for field in dataclasses.fields(timeline)} - {
        "graph",
        "began_ns",
        "event_ns",
        "task_ns",
        "forward_ns",
        "makers",
        "changes",
        "blocks",
        "tensors",
    }
    found = {name: getattr(timeline, name) for name in names}
    makers = [(each.task, each.module, each.operation and each.operation.name) for each in timeline.makers]
    return {**found, "makers": makers, "changes": list(timeline.changes)}


@pytest.mark.parametrize("name", SMALL)
def test_one_recording_tells_what_two_do(name: str, in_cudas_words: CpuInCudasWords) -> None:
    model, make_loss = WORKLOADS[name].build()
    run = ts.profile(make_loss, "bfs", device="cpu")
    assert run.timeline is not None and run.footprints is not None
    assert MARK_BYTES not in run.timeline.nbytes
    assert run.timeline.blocks.requested == array("q", [OLDER + peak for peak in run.timeline.task_peaks])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_backward, "_history_of", lambda devices: None)
        model.zero_grad()
        expected = ts.profile(make_loss, "bfs", device="cpu")
    assert expected.timeline is not None and expected.footprints is not None
    assert facts(run.timeline) == facts(expected.timeline)
    assert run.footprints.tasks == expected.footprints.tasks and not run.footprints.limits


@pytest.mark.parametrize("name", SMALL)
def test_attached_late_the_history_tells_what_dies(name: str, in_cudas_words: CpuInCudasWords) -> None:
    model, make_loss = WORKLOADS[name].build()
    expected = ts.profile(make_loss, "bfs", device="cpu").timeline
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        late = CpuInCudasWords()
        patch.setattr(measure_backward, "_history_of", lambda devices: late)
        late.listen()
        loss = make_loss()
        run = ts.backward(loss, policy="bfs", memory=True)
    timeline = run.timeline
    assert timeline is not None and expected is not None
    assert (timeline.peak_bytes, timeline.end_bytes) == (expected.peak_bytes, expected.end_bytes)
    assert timeline.task_peaks == expected.task_peaks
    assert timeline.forward_peak_bytes is None
    levels = zip(timeline.blocks.requested, timeline.task_peaks, strict=True)
    assert len({requested - level for requested, level in levels}) == 1


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_predicted_from_one_recording(seed: int, in_cudas_words: CpuInCudasWords) -> None:
    program = Program(seed, kept=seed % 2 == 1)
    program.reset()
    footprints = ts.profile(program.make_loss, device="cpu").footprints
    program.reset()
    run = ts.profile(program.make_loss, random_policy(seed), device="cpu")
    predicted = ts.simulate(run.graph, run.order, footprints)
    assert predicted.start_bytes == run.timeline.start_bytes
    assert predicted.estimates or predicted.peak_bytes == run.peak_bytes


def lower_limits(run: ts.Run) -> list[Estimate]:
    """Why predictions from it are less than what is taken."""
    assert run.footprints is not None
    limits = [each for each in run.footprints.limits if isinstance(each, Estimate)]
    return [each for each in limits if each.direction == "at least"]


def test_a_hooks_memory_makes_an_estimate(in_cudas_words: CpuInCudasWords, snapshot: Snapshots) -> None:
    x = torch.randn(100, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: torch.empty(1000).fill_(1)[:100] * gradient)
        return y.exp().sum()

    run = ts.profile(make_loss, device="cpu")
    (storage,) = [each for each in run.timeline if each.nbytes == 4000]
    assert run.graph.tasks[run.order[storage.born]].name == "ExpBackward0", "the task before"
    (limit,) = lower_limits(run)
    says(limit, 2)
    snapshot("profile", limit)


def test_a_hook_of_the_root_makes_an_estimate(in_cudas_words: CpuInCudasWords) -> None:
    x = torch.randn(100, requires_grad=True)

    def make_loss() -> Tensor:
        loss = x.exp().sum()
        loss.register_hook(lambda gradient: gradient * 2)
        return loss

    assert lower_limits(ts.profile(make_loss, device="cpu"))


def test_after_an_error_no_recorder_is_left(in_cudas_words: CpuInCudasWords) -> None:
    def make_loss() -> Tensor:
        y = torch.randn(3, requires_grad=True) * 2
        y.register_hook(lambda gradient: 1 / 0)
        return y.sum()

    with pytest.raises(ZeroDivisionError):
        ts.profile(make_loss, device="cpu")
    assert not torch.autograd._profiler_enabled()


def graph_on(*devices: str) -> ts.Graph:
    tasks = [
        Task(number, "MulBackward0", Kind.CPP, number, (TensorMeta((4,), torch.float32, torch.device(device)),))
        for number, device in enumerate(devices)
    ]
    return ts.Graph(tuple(tasks), (), (Root(0, 0),))


def test_devices_that_can_not_be_measured_are_refused_in_a_sentence(snapshot: Snapshots) -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    with raises(ValueError, "CPU", "meta") as raised:
        ts.profile(lambda: loss, device="meta")
    snapshot("profile", raised.value)
    with raises(ValueError, "cuda:99"):
        ts.profile(lambda: loss, device="cuda:99")
    with Measurement() as begun, raises(ValueError, "xpu:99"):
        begun.settle(graph_on("xpu:99"))
    with Measurement() as begun:
        begun.begin_forward()
        with raises(ValueError, "cuda:99"):
            begun.settle(graph_on("cpu", "cuda:99"))
    assert not torch.autograd._profiler_enabled()


def test_a_dry_run_is_of_the_accelerator_and_of_devices_that_are_named() -> None:
    assert device_of(graph_on("cpu", "cuda:1")) == device_of(graph_on("cuda:1"), "cuda") == torch.device("cuda:1")
    assert device_of(graph_on("cuda:1"), "cpu") == device_of(graph_on("cpu")) == torch.device("cpu")
    assert device_of(graph_on("cuda:0", "cuda:1"), "cuda:1") == torch.device("cuda:1")
    assert device_of(graph_on("cuda:1", "xpu:0"), "cuda") == torch.device("cuda:1")
    with raises(ValueError, "cuda:0", "cuda:1", 'device="cuda:0"'):
        device_of(graph_on("cuda:0", "cuda:1"), "cuda")
    assert device_of(graph_on("cpu", "cuda:1", "cuda:0")) == torch.device("cuda:0"), "none of them keeps anything"


@pytest.mark.parametrize("name", ["resnet50", "unet", "recommender", "ensemble"])
def test_a_dry_run_on_another_device_is_that_of_the_cpu_without_its_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tapescope.engine.memory.kernel_workspaces.kernel_run", lambda *given, **options: None)
    on_cpu = dry_run(ts.graph(built(name)[1]()))
    graph = ts.graph(built(name, "meta")[1]())
    elsewhere = dry_run(graph, "meta")
    assert elsewhere.device == "meta" and elsewhere.tasks == on_cpu.tasks
    assert [each.nbytes for each in elsewhere.start] == [each.nbytes for each in on_cpu.start]
    assert not dry_run(graph, "cpu").start, "nothing of it is there"
    assert ts.simulate(graph, "bfs", dry_run(graph, "cpu")).peak_bytes == 0


def test_the_peak_tells_what_the_allocator_took_for_it(snapshot: Snapshots) -> None:
    run = ts.profile(lambda: torch.randn(300, requires_grad=True).exp().sum())
    place = run.timeline.peak_place
    columns = [[0] * len(run.order) for _ in range(3)]
    for column, nbytes in zip(columns, (5000, 5000 + 2**20, 5000 + 3 * 2**20), strict=True):
        column[place] = nbytes
    blocks = BlockLevels(*(array("q", column) for column in columns), peak_before=0)
    report = peak_report(dataclasses.replace(run.timeline, blocks=blocks))
    (said,) = set(report.answer) - set(run.peak().answer)
    says(said, "1.0 MiB", "3.0 MiB", "2.0 MiB")
    snapshot("peak", said)


def test_where_tasks_may_overlap_the_history_which_tells_no_threads_is_not_asked() -> None:
    cuda = torch.device("cuda:0")
    for threads in (False, True):
        history = Mock(spec=CudaAllocator, device=cuda, marks=[])
        recorder = RecordedAllocators(history, profiled=True)
        recorder.start()
        try:
            recorder.keep([cuda], threads)
            assert (recorder.history is None) == history.stop.called == threads
        finally:
            recorder.close()


def on_cuda(name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A workload after a step, in which libraries have taken what they keep."""
    model, make_loss = built(name, "cuda")
    for _ in range(2):
        model.zero_grad()
        ts.backward(make_loss())
    gc.collect()  # else what other tests left may go in the middle of a measurement
    return model, make_loss


def measured(model: nn.Module, make_loss: Callable[[], Tensor], policy: Any) -> ts.Run:
    model.zero_grad()
    return ts.profile(make_loss, policy)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["heap", "bfs"])
@pytest.mark.parametrize("name", ON_CUDA)
def test_cudas_own_counters_agree_with_the_levels(name: str, policy: str) -> None:
    model, make_loss = on_cuda(name)
    losses = []

    def noted_loss() -> Tensor:
        losses.append(storage_bytes([loss := make_loss()]))
        return loss

    run = measured(model, noted_loss, policy)
    timeline = run.timeline
    assert MARK_BYTES not in timeline.nbytes
    assert timeline.end_bytes == losses[-1] + storage_bytes(parameter.grad for parameter in model.parameters())
    blocks = timeline.blocks
    before = {requested - level for requested, level in zip(blocks.requested, timeline.task_peaks, strict=True)}
    assert len(before) == 1, "what was on the device before"
    assert min(before) >= storage_bytes(model.parameters())
    assert min(blocks.rounding) >= 0 and min(blocks.unused) >= 0
    assert blocks.peak_allocated >= max(blocks.allocated)


class TooMuch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.empty(2**50, dtype=torch.uint8, device="cuda")[:1]


@pytest.mark.gpu
def test_running_out_of_memory_names_the_task_and_leaves_nothing_recording() -> None:
    x = torch.randn(100, device="cuda", requires_grad=True)
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        ts.profile(lambda: TooMuch.apply(x).exp().sum())
    assert any("tapescope: raised in" in note and "TooMuch" in note for note in caught.value.__notes__)
    assert not torch._C._cuda_isHistoryEnabled() and not torch.autograd._profiler_enabled()
    assert ts.profile(lambda: x.exp().sum()).peak_bytes


@pytest.mark.gpu
def test_the_users_peak_counter_is_told() -> None:
    x = torch.randn(100, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    high = torch.empty(50 * 2**20, dtype=torch.uint8, device="cuda")
    del high
    peak = torch.cuda.max_memory_allocated()
    assert ts.profile(lambda: x.exp().sum()).timeline.blocks.peak_allocated == peak


@pytest.mark.gpu
def test_a_dry_run_allocates_nothing_on_cuda() -> None:
    _, make_loss = on_cuda("gpt2")
    loss = make_loss()
    graph = ts.graph(loss)
    dry_run(graph)  # torch wakes CUDA for fake tensors once
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    footprints = dry_run(graph)
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == before
    assert footprints.device == str(loss.device)
    predicted = ts.simulate(graph, "bfs", footprints)
    timeline = ts.backward(loss, policy="bfs", memory=True).timeline
    print(f"dry run {predicted.peak_bytes:,}, with what kernels take {timeline.peak_bytes:,}")
    assert predicted.start_bytes == timeline.start_bytes
