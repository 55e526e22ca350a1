"""Where a step's time goes, on a clock that only the program moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import tapescope as ts
from tapescope.engine.training import loop_observers
from tapescope.engine.training.step_times import _BACKWARD as BACKWARD
from tapescope.engine.training.step_times import _FORWARD as FORWARD
from tapescope.engine.training.step_times import StepTimes
from tapescope.engine.training.training_file import read_page
from tapescope.tests.says import says


class Clock:
    """A clock in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def take(self, milliseconds: float) -> None:
        self.now += int(milliseconds * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop_observers, "perf_counter_ns", made)
    return made


class Slow(Dataset[Tensor]):
    def __init__(self, clock: Clock, milliseconds: float, steps: int) -> None:
        self.clock, self.milliseconds, self.steps = clock, milliseconds, steps

    def __len__(self) -> int:
        return 4 * self.steps

    def __getitem__(self, place: int) -> Tensor:
        self.clock.take(self.milliseconds / 4)
        return torch.ones(3)


class Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, clock: Clock) -> Tensor:
        clock.take(20)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        CLOCKS[0].take(40)
        return gradient, None


CLOCKS: list[Clock] = []


class Net(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.fc = clock, nn.Linear(3, 1)
        CLOCKS[:] = [clock]

    def forward(self, x: Tensor) -> Tensor:
        return Timed.apply(self.fc(x), self.clock).sum()  # type: ignore[no-any-return, no-untyped-call]


class Adam(torch.optim.Adam):
    def __init__(self, net: Net) -> None:
        super().__init__(net.parameters())
        self.clock = net.clock

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        self.clock.take(10)


def trained(clock: Clock, data_ms: float, steps: int = 9, accumulated: int = 1) -> ts.types.Training:
    net = Net(clock)
    optimizer = Adam(net)
    with ts.training(net, optimizer) as training:
        for number, batch in enumerate(DataLoader(Slow(clock, data_ms, steps * accumulated), 4)):
            net(batch).backward()
            if (number + 1) % accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
                clock.take(5)
    return training


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_phase_gets_the_time_that_the_program_spends_in_it(clock: Clock, tmp_path: Path) -> None:
    training = trained(clock, 25)
    time = training.step_time
    assert time is not None and time.steps == 7  # neither the first of 9 nor the last
    assert time.seconds == pytest.approx(
        {"data": 0.025, "forward": 0.020, "backward": 0.040, "optimizer": 0.010, "rest": 0.005}
    )
    assert time.samples_per_second == pytest.approx(4 / time.total)
    says(time, "100 ms", "25 % data", "40 samples/s")
    says(replace(time, samples_per_second=12_800.0), "12,800 samples/s")
    assert not training.findings
    assert read_page(training.save_html(tmp_path / "loop.html")).step_time == time


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_accumulated_batches_count_to_their_step(clock: Clock) -> None:
    time = trained(clock, 10, accumulated=3).step_time
    assert time is not None
    assert time.seconds["forward"] == pytest.approx(0.060) and time.seconds["backward"] == pytest.approx(0.120)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_evaluation_is_no_wait_for_data_and_the_end_of_the_loop_belongs_to_no_step(clock: Clock) -> None:
    net = Net(clock)
    optimizer = Adam(net)
    with ts.training(net, optimizer) as training:
        for step in range(6):
            net(torch.ones(4, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                with torch.no_grad():
                    for _ in DataLoader(Slow(clock, 4000, 3), 4):
                        pass
        clock.take(10_000)
    time = training.step_time
    assert time is not None and time.steps == 4 and time.seconds["data"] == 0
    assert time.seconds["rest"] == pytest.approx(12 / 4) and time.samples_per_second is None
    assert not training.findings


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data_ms", "is_found"), [(800, True), (8, False)])
def test_waiting_for_data_is_found_if_it_is_long_and_a_large_share(
    clock: Clock, data_ms: float, is_found: bool
) -> None:
    training = trained(clock, data_ms)
    assert [each.kind for each in training.findings] == ["data wait"] * is_found
    for finding in training.findings:
        assert training.step_time is not None
        says(finding, training.step_time.share("data"), "DataLoader", "num_workers=0")
        assert finding.last_step == 7


def test_time_of_the_observers_is_not_counted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from tapescope.engine.training.norm_watch import NormWatch

    original = NormWatch.backward_ends

    def slow(*given: object) -> None:
        clock.take(1000)
        original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(NormWatch, "backward_ends", slow)
    time = trained(clock, 25).step_time
    assert time is not None and time.total < 0.1


class DeviceEvent:
    """An event of a device that reaches each event `LAG_MS` after it is recorded."""

    LAG_MS = 30

    def __init__(self, device: torch.device, enable_timing: bool) -> None: ...

    def record(self) -> None:
        self.at = CLOCKS[0].now

    def query(self) -> bool:
        return CLOCKS[0].now >= self.at + self.LAG_MS * 1e6

    def elapsed_time(self, other: DeviceEvent) -> float:
        assert other.query(), "the device has not reached it"
        return (other.at - self.at) / 1e6


def test_a_long_evaluation_with_grad_mode_keeps_few_events_of_a_device(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLOCKS[:] = [clock]
    monkeypatch.setattr(torch, "Event", DeviceEvent)
    training = SimpleNamespace(clock=clock, step_time=None, update=lambda finding: None)
    times = StepTimes()
    times._training, times._since, times._device = training, 0, torch.device("mps")  # type: ignore[assignment]
    for step in range(4):
        times.step_begins(step)
        for _ in range(5_000):  # batches of an evaluation
            with times._waiting(2):
                clock.take(1)
            times._enter(FORWARD)
            clock.take(2)
        assert len(times._marks) < 1_000
        times._enter(BACKWARD)
        clock.take(7)
        times._enter(FORWARD)
    clock.take(DeviceEvent.LAG_MS)
    times.step_begins(4)
    time = times._training.step_time
    assert time is not None and time.steps == 2  # neither the first nor the last, whose end the device has not reached
    assert time.seconds == pytest.approx({"data": 5, "forward": 10, "backward": 0.007, "optimizer": 0, "rest": 0})


@pytest.mark.gpu
def test_phases_of_a_gpu_are_those_of_its_stream() -> None:
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(20))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    data = torch.randn(4096, 2048, device="cuda")
    with ts.training(net, optimizer) as training:
        for _ in range(20):
            net(data).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
    time = training.step_time
    assert time is not None and time.device == "cuda:0" and time.steps >= 10
    # A backward computes two products for each of the forward's.
    assert 1.5 < time.seconds["backward"] / time.seconds["forward"] < 3
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    net(data)
    ended.record()
    torch.cuda.synchronize()
    assert time.seconds["forward"] == pytest.approx(started.elapsed_time(ended) / 1e3, rel=0.5)


@pytest.fixture(autouse=True)
def _no_clock_stays() -> Iterator[None]:
    yield
    CLOCKS.clear()
