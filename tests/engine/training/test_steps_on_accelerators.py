"""Whole steps on devices other than the CPU, and on several: CUDA where there is one, and the second device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import tapescope as ts
from tapescope.engine.memory.categories import PARAMETERS
from tapescope.engine.training.step import TrainingStep
from tapescope.engine.training.step_memory import StepTimeline
from tapescope.tests.says import raises, says

from ..memory.test_accelerator_memory import TwoAndCpu, counter

Devices = tuple[torch.device, torch.device]
Step = Callable[[], list[Optimizer]]


def on_one(devices: Devices) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    device = devices[0]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    return model, lambda: model(torch.randn(8, 16).to(device)).square().mean()


def on_three(devices: Devices) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = TwoAndCpu(*devices)
    return model, lambda: model(torch.randn(33, 64)).square().mean()


MODELS = {"one": on_one, "two and the CPU": on_three}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adam": lambda parameters: Adam(parameters, foreach=False),
    "adamw, foreach": lambda parameters: AdamW(parameters, foreach=True),
    "momentum": lambda parameters: SGD(parameters, 0.01, momentum=0.9),
}


def loop_of(model: nn.Module, make_loss: Callable[[], Tensor], optimizer: Optimizer, parts: int = 1) -> Step:
    def step() -> list[Optimizer]:
        optimizer.zero_grad()
        for _ in range(parts):
            make_loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return [optimizer]

    return step


def tensors_of(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)


def walked(model: nn.Module, optimizer: Optimizer) -> dict[tuple[str, str], int]:
    """Return the memory that a loop holds by device and category, each storage once."""
    kinds = {
        "parameters": list(model.parameters()),
        "gradients": [each.grad for each in model.parameters() if each.grad is not None],
        "optimizer state": list(tensors_of(dict(optimizer.state))),
    }
    found: dict[tuple[str, str], int] = {}
    for kind, tensors in kinds.items():
        storages = {(str(each.device), each.untyped_storage().data_ptr()): each.untyped_storage() for each in tensors}
        for (device, _), storage in storages.items():
            found[device, kind] = found.get((device, kind), 0) + rounded(storage.nbytes(), device)
    return found


def rounded(nbytes: int, device: str) -> int:
    """Round up to the size of a CUDA block, which is what torch reports if there are several CUDA devices."""
    return -(-nbytes // 512) * 512 if device.startswith("cuda") and torch.cuda.device_count() > 1 else nbytes


def held(step: TrainingStep) -> dict[tuple[str, str], int]:
    """Return the recorded memory by device and category after the optimizer."""
    found = {}
    for device, timeline in step.timelines.items():
        after = timeline.phases[-1]
        parts = timeline.parts_at(after.event if after.name == "between" else len(timeline.events))
        found.update({(device, kind): nbytes for kind, nbytes in parts.items()})
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_state_gradients_and_parameters_are_the_walked_sums_of_each_device_to_the_byte(
    name: str, optimizer: str, accelerators: Devices
) -> None:
    model, make_loss = MODELS[name](accelerators)
    made = OPTIMIZERS[optimizer](model.parameters())
    step = loop_of(model, make_loss, made)
    sums = []
    with ts.record_steps(steps=3) as steps:
        for _ in range(5):
            step()
            sums.append(walked(model, made))
    assert len(steps) == 3
    for each, wanted in zip(steps, sums, strict=False):
        found = held(each)
        assert {key: found.get(key, 0) for key in wanted} == wanted
        assert list(each.timelines)[-1] == "cpu"
    assert steps[2].like_before


@pytest.mark.parametrize("name", MODELS)
def test_levels_are_the_devices_own_counters_wherever_an_optimizer_begins_and_ends(
    name: str, accelerators: Devices
) -> None:
    model, make_loss = MODELS[name](accelerators)
    optimizer = Adam(model.parameters(), foreach=True)
    counted: list[dict[str, int]] = []

    def count(*given: object) -> None:
        counted.append({str(each): counter(each) for each in accelerators})

    optimizer.register_step_pre_hook(count)
    optimizer.register_step_post_hook(count)
    step = loop_of(model, make_loss, optimizer, parts=2)
    gc.collect()  # else what other tests left may go in the middle
    with ts.record_steps(steps=3) as steps:
        for _ in range(4):
            step()
    for device in map(str, accelerators):
        if device in steps[0].timelines:
            levels = [level for each in steps for level in around_optimizer(each.timelines[device])]
            others = {count[device] - level for count, level in zip(counted, levels, strict=False)}
            assert len(levels) == 6
            assert len(others) == 1


def around_optimizer(timeline: StepTimeline) -> tuple[int, int]:
    """The levels where the optimizer begins, and where it has stepped."""
    place = next(place for place, phase in enumerate(timeline.phases) if phase.name == "optimizer")
    first, last = timeline.phases[place : place + 2]
    return timeline.levels[first.event], timeline.levels[last.event]


def test_a_profiled_step_says_what_each_device_has_at_its_highest(accelerators: Devices) -> None:
    model, make_loss = on_three(accelerators)
    optimizer = Adam(model.parameters())
    step = ts.profile_step(loop_of(model, make_loss, optimizer))
    assert set(step.timelines) == {*map(str, accelerators), "cpu"}
    assert step.timeline.device == max(map(str, accelerators), key=lambda each: step.timelines[each].peak_bytes)
    says(step.peak().answer[0], step.timeline.device, ts.size_text(step.peak_bytes))
    for device, timeline in step.timelines.items():
        peak = step.peak(device)
        assert peak.nbytes == timeline.peak_bytes == sum(peak.categories.values())
        says(step, device, ts.size_text(timeline.peak_bytes))
    of_devices = {
        device: sum(each.nbytes for each in model.parameters() if str(each.device) == device)
        for device in step.timelines
    }
    assert {device: timeline.parts_at(0)[PARAMETERS] for device, timeline in step.timelines.items()} == of_devices
    assert {each["device"] for each in step.records()} == set(step.timelines)
    with raises(ValueError, "'meta'", *step.timelines):
        step.peak("meta")


def test_the_backward_of_a_step_has_the_memory_of_the_whole_step_on_each_device(accelerators: Devices) -> None:
    model, make_loss = on_three(accelerators)
    step = ts.profile_step(loop_of(model, make_loss, SGD(model.parameters(), 0.01, momentum=0.9)))
    assert list(step.run.timelines) == list(step.timelines)
    for device, timeline in step.timelines.items():
        played = step.run.timelines[device]
        assert list(played.levels[timeline.before :]) == list(timeline.levels)
        assert list(played.nbytes) == list(timeline.nbytes)


@pytest.mark.parametrize("whole", [False, True])
def test_where_an_allocation_fails_in_a_step_who_held_what_is_noted(
    whole: bool, accelerators: Devices, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("second_device"):
        pytest.skip("its memory is limited in bytes")
    model, make_loss = on_three(accelerators)
    step = loop_of(model, make_loss, Adam(model.parameters()))
    step()

    def run() -> None:
        if whole:
            ts.profile_step(step)
        else:
            with ts.record_steps():
                step()

    gc.collect()  # memory of earlier tests would be freed meanwhile
    device = torch.get_device_module(accelerators[0])
    device.set_memory_limit(0, counter(accelerators[0]) + 10_000)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            run()
    finally:
        device.set_memory_limit(0, 0)
    held, *_ = caught.value.__notes__
    says(held, accelerators[0], "optimizer state", "parameters")


@pytest.mark.parametrize("name", MODELS)
def test_training_is_bit_by_bit_as_without(name: str, accelerators: Devices) -> None:
    def trained(recorded: bool) -> list[Tensor]:
        model, make_loss = MODELS[name](accelerators)
        optimizer = Adam(model.parameters())
        torch.manual_seed(1)
        step = loop_of(model, make_loss, optimizer)
        if recorded:
            with ts.record_steps(steps=2):
                for _ in range(4):
                    step()
        else:
            for _ in range(4):
                step()
        state = list(tensors_of(dict(optimizer.state)))
        return [each.detach().cpu().clone() for each in (*model.parameters(), *state)]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert torch.equal(one, other)
