"""Memory on devices other than the CPU: CUDA where there is one, and the second device of tests/second_device."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.torch_private.allocators import profiler_is_on
from tapescope.tests.says import raises, says, says_none_of

from ..sizes import built

SMALL = ("gpt2", "lstm_cell", "unet", "recommender", "ensemble", "linear50")
POLICIES = ("heap", "bfs", "dfs")
EACH = [pytest.param(name, marks=[] if name in SMALL else pytest.mark.slow) for name in WORKLOADS]

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")


def on(device: torch.device, name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A workload after a step, in which libraries have taken what they keep."""
    model, make_loss = built(name, str(device))
    for _ in range(2):
        model.zero_grad()
        ts.backward(make_loss())
    gc.collect()  # else what other tests left may go in the middle of a measurement
    return model, make_loss


def measured(model: nn.Module, make_loss: Callable[[], Tensor], policy: Any = "heap", **asked: Any) -> ts.Run:
    model.zero_grad()
    return ts.profile(make_loss, policy, **asked)


def counter(device: torch.device) -> int:
    """The bytes on the device, by its own count."""
    found: int = torch.get_device_module(device).memory_allocated(device.index)
    return found


class TwoAndCpu(nn.Module):
    """Branches on two accelerators that exchange what they compute, and a head on the CPU."""

    def __init__(self, one: torch.device, other: torch.device, width: int = 64) -> None:
        super().__init__()

        def block(device: torch.device) -> nn.Module:
            layers = nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()
            return nn.Sequential(*layers).to(device)

        self.ones = nn.ModuleList([block(one), block(one)])
        self.others = nn.ModuleList([block(other), block(other)])
        self.head = nn.Linear(width, 1)
        self._devices = one, other

    def forward(self, x: Tensor) -> Tensor:
        one, other = self._devices
        a, b = self.ones[0](x.to(one)), self.others[0](x.to(other))
        a, b = self.ones[1](a + b.to(one)), self.others[1](b * a.to(other))
        return self.head(a.cpu() + b.cpu()).sum()


def two_and_cpu(accelerators: tuple[torch.device, torch.device]) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model, x = TwoAndCpu(*accelerators), torch.randn(33, 64)
    return model, lambda: model(x)


@pytest.mark.parametrize("name", EACH)
def test_each_device_reaches_the_levels_that_were_predicted(name: str, accelerator: torch.device) -> None:
    if accelerator.type == "second" and name == "sequence_labeler":
        pytest.skip("the tests' own device has no kernel for a GRU's cell, which PyTorch fuses off the CPU")
    model, make_loss = on(accelerator, name)
    calibration = measured(model, make_loss, "dfs")
    for policy in POLICIES:
        run = measured(model, make_loss, policy)
        assert run.timeline is not None and run.timeline.device == str(accelerator)
        assert set(run.timelines) == {str(device) for device in run.graph.devices}
        for device, timeline in run.timelines.items():
            predicted = ts.simulate(run.graph, run.order, calibration.footprints_by_device[device])
            off = predicted.peak_bytes - timeline.peak_bytes
            assert abs(off) <= (0.01 * timeline.peak_bytes if accelerator.type == "cuda" else 0)
            assert predicted.start_bytes == timeline.start_bytes
            assert predicted.end_bytes == timeline.end_bytes
            assert accelerator.type == "cuda" or predicted.task_peaks == timeline.task_peaks


@pytest.mark.parametrize("policy", POLICIES)
def test_levels_on_two_devices_are_their_own_counters_at_every_task(
    policy: str, accelerators: tuple[torch.device, torch.device]
) -> None:
    model, make_loss = two_and_cpu(accelerators)
    counted: list[tuple[int, ...]] = []
    before: list[int] = []

    def loss_with_counters() -> Tensor:
        gc.collect()
        before.extend(map(counter, accelerators))
        loss = make_loss()
        for node in ts.graph(loss).nodes:
            node.register_prehook(lambda gradients: counted.append(tuple(map(counter, accelerators))))
        return loss

    timelines = measured(model, loss_with_counters, policy).timelines
    assert set(timelines) == {*map(str, accelerators), "cpu"}
    for number, device in enumerate(accelerators):
        timeline = timelines[str(device)]
        levels = [timeline.levels[start] for start in timeline.starts[:-1]]
        assert [each[number] - before[number] for each in counted] == levels


def test_of_several_devices_each_is_predicted(accelerators: tuple[torch.device, torch.device]) -> None:
    model, make_loss = two_and_cpu(accelerators)
    calibration = measured(model, make_loss)
    assert list(calibration.footprints_by_device) == list(calibration.timelines)
    for policy in POLICIES:
        run = measured(model, make_loss, policy)
        for device, timeline in run.timelines.items():
            predicted = ts.simulate(run.graph, run.order, calibration.footprints_by_device[device])
            assert not predicted.estimates and predicted.task_peaks == timeline.task_peaks
            assert predicted.end_bytes == timeline.end_bytes


def test_the_peak_is_said_of_the_device_that_has_the_highest_and_of_any_that_is_named(
    accelerators: tuple[torch.device, torch.device],
) -> None:
    model, make_loss = two_and_cpu(accelerators)
    with torch.no_grad():
        x = torch.ones(50_000, device=accelerators[1])
    run = measured(model, lambda: make_loss() + (x * model.others[0][0].bias[0]).sin().sum().cpu())
    names = [str(device) for device in accelerators]
    assert run.timeline is run.timelines[names[1]] and list(run.timelines) == [names[1], names[0], "cpu"]
    assert all(f" on {device}" in repr(run) for device in run.timelines)
    answer = str(run.peak())
    says(run.peak().answer[0], names[1], ts.size_text(run.timelines[names[1]].peak_bytes))
    says(answer, names[0], ts.size_text(run.timelines[names[0]].peak_bytes))
    says(run.peak("cpu").answer[0], "cpu", ts.size_text(run.timelines["cpu"].peak_bytes))
    assert run.peak(accelerators[0]).timeline is run.timelines[names[0]]
    with raises(ValueError, "'meta'", names[1], names[0], "cpu"):
        run.peak("meta")
    alone = measured(model, make_loss, device=accelerators[0])
    assert list(alone.timelines) == names[:1]
    says_none_of(alone.peak().answer[0], names[0])


@pytest.mark.parametrize("name", SMALL)
def test_attached_late_a_device_measures_the_same(name: str, accelerator: torch.device) -> None:
    model, make_loss = on(accelerator, name)
    expected = measured(model, make_loss).timeline
    model.zero_grad()
    timeline = ts.backward(make_loss(), memory=True).timeline
    assert timeline is not None and expected is not None and timeline.device == expected.device
    assert (timeline.peak_bytes, timeline.end_bytes) == (expected.peak_bytes, expected.end_bytes)
    assert timeline.task_peaks[1:] == expected.task_peaks[1:]


def test_the_direct_engine_takes_what_pytorchs_does(accelerators: tuple[torch.device, torch.device]) -> None:
    model, make_loss = two_and_cpu(accelerators)
    native, direct = (measured(model, make_loss, engine=engine) for engine in ("native", "direct"))
    for device, timeline in native.timelines.items():
        assert direct.timelines[device].task_peaks == timeline.task_peaks
        assert direct.timelines[device].end_bytes == timeline.end_bytes


def test_without_a_device_it_is_the_graphs(accelerator: torch.device) -> None:
    model = nn.Linear(8, 8)
    cpu = ts.profile(lambda: model(torch.ones(4, 8)).tanh().sum()).timeline
    assert cpu is not None and (cpu.device, cpu.blocks) == ("cpu", None) and cpu.start_bytes
    model.to(accelerator)
    x = torch.ones(4, 8, device=accelerator)

    def profiled(device: str | None) -> Timeline:
        timeline = ts.profile(lambda: model(x).tanh().sum(), device=device).timeline
        assert timeline is not None
        return timeline

    assert profiled(accelerator.type).device == profiled(None).device == str(accelerator)
    assert profiled("cpu").device == "cpu"
    assert not profiler_is_on()


def test_a_copy_between_devices_counts_on_either_side(accelerator: torch.device) -> None:
    x = torch.randn(1000, device=accelerator, requires_grad=True)
    calibration = ts.profile(lambda: (x * 2).exp().cpu().sin().exp().sum())
    x.grad = None
    run = ts.profile(lambda: (x * 2).exp().cpu().sin().exp().sum(), "bfs")
    assert list(run.timelines) == [str(accelerator), "cpu"]
    copied = [group.made_by for group in run.peak(accelerator).groups if "ToCopyBackward0" in group.made_by]
    assert copied
    for made_by in copied:
        says(made_by, "cpu")
    for group in run.peak("cpu").groups:
        says_none_of(group.made_by, accelerator)
    for device, timeline in run.timelines.items():
        predicted = ts.simulate(run.graph, run.order, calibration.footprints_by_device[device])
        assert timeline.start_bytes > 0 and not predicted.estimates
        assert (predicted.peak_bytes, predicted.end_bytes) == (timeline.peak_bytes, timeline.end_bytes)


def test_what_the_user_holds_is_said_to_be_held(accelerator: torch.device) -> None:
    layer, kept = nn.Linear(64, 64).to(accelerator), []
    x = torch.randn(32, 64, device=accelerator)
    ts.backward(layer(x).sum())

    def make_loss() -> Tensor:
        kept.append(layer(x))
        return layer(kept[-1].tanh()).sum()

    timeline = measured(layer, make_loss).timeline
    assert timeline is not None
    storages = [each for each in timeline if each.number in timeline.held and each.nbytes == 32 * 64 * 4]
    assert [(each.died, each.category) for each in storages] == [(None, Category.FORWARD)]


def test_a_hooks_memory_counts_to_its_task(accelerator: torch.device) -> None:
    x = torch.randn(100, device=accelerator, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: torch.empty(1000, device=accelerator).fill_(1)[:100] * gradient)
        return y.exp().sum()

    run = ts.profile(make_loss)
    assert run.footprints is not None and run.timeline is not None
    if accelerator.type == "cuda":  # its history does not tell when tasks begin
        assert any(getattr(each, "direction", None) == "at least" for each in run.footprints.limits)
        assert ts.simulate(run.graph, "bfs", run.footprints).estimates
    else:
        (storage,) = [each for each in run.timeline if each.nbytes == 4000]
        assert run.graph.tasks[run.order[storage.born]].name == "MulBackward0"


def _interrupted(gradient: Tensor) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("hook", "error"), [(lambda gradient: 1 / 0, ZeroDivisionError), (_interrupted, KeyboardInterrupt)]
)
@pytest.mark.parametrize("late", [False, True])
def test_after_an_error_nothing_is_left_recording(hook: Any, error: Any, late: bool, accelerator: torch.device) -> None:
    x = torch.randn(100, device=accelerator, requires_grad=True)

    def make_loss() -> Tensor:
        y = x * 2
        y.register_hook(hook)
        return y.sum()

    with pytest.raises(error):
        _ = ts.backward(make_loss(), memory=True) if late else ts.profile(make_loss)
    assert not profiler_is_on()
    with pytest.raises(ZeroDivisionError):
        ts.profile(lambda: x * (1 // 0))
    assert not profiler_is_on()
    assert ts.profile(lambda: x.exp().sum()).peak_bytes


def test_a_dry_run_allocates_nothing_on_the_device(accelerator: torch.device) -> None:
    _, make_loss = on(accelerator, "gpt2")
    loss = make_loss()
    graph = ts.graph(loss)
    dry_run(graph)  # torch wakes CUDA for fake tensors once
    before = counter(accelerator)
    footprints = dry_run(graph)
    assert counter(accelerator) == before
    assert footprints.device == str(loss.device)
    predicted = ts.simulate(graph, "bfs", footprints)
    timeline = ts.backward(loss, policy="bfs", memory=True).timeline
    assert timeline is not None and predicted.start_bytes == timeline.start_bytes


def test_policies_are_compared_on_each_device(accelerators: tuple[torch.device, torch.device]) -> None:
    _, make_loss = two_and_cpu(accelerators)
    compared = ts.compare(make_loss, ["bfs", "heap"], repetitions=1)
    assert set(compared.devices) == {*map(str, accelerators), "cpu"} and compared.on(compared.device) is compared
    for device in compared.devices:
        there = compared.on(device)
        assert there.device == device and [row.policy for row in there.rows] == ["bfs", "heap"]
        assert [row.predicted_bytes for row in there.rows] == [row.peak_bytes for row in there.rows]
        assert all(row.dry_run_bytes for row in there.rows)
    for heading, device in zip(compared.cells[0][1:4], compared.devices, strict=True):
        says(heading, device)
    assert any(re.search(r"\bcpu\b", said) for said in compared.sentences)
    with raises(ValueError, "'meta'", *compared.devices):
        compared.on("meta")


def test_what_is_predicted_is_of_the_device_that_is_named(accelerators: tuple[torch.device, torch.device]) -> None:
    model, make_loss = two_and_cpu(accelerators)
    timelines = measured(model, make_loss).timelines
    model.zero_grad()
    graph = ts.graph(make_loss())
    for device, timeline in timelines.items():
        predicted = ts.simulate(graph, device=device)
        assert (predicted.device, predicted.end_bytes) == (device, timeline.end_bytes)
    assert ts.simulate(graph).device in map(str, accelerators)
    assert ts.plan_order(make_loss(), "lpmf").order
    footprints = ts.orders.dry_run(graph, accelerators[0])
    with raises(ValueError, "device='cpu'", accelerators[0]):
        ts.simulate(graph, "heap", footprints, device="cpu")


def test_a_file_keeps_each_devices_memory(accelerators: tuple[torch.device, torch.device], tmp_path: Path) -> None:
    model, make_loss = two_and_cpu(accelerators)
    run = measured(model, make_loss)
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert list(loaded.timelines) == list(run.timelines) and not loaded.footprints_by_device
    for device, timeline in run.timelines.items():
        assert loaded.timelines[device].levels == timeline.levels
        assert str(loaded.peak(device)).partition("\n")[0] == str(run.peak(device)).partition("\n")[0]
