"""Random programs over three devices and several streams, stepped at random: PyTorch's gradients, no race, no wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tapescope as ts

from .streams import HappensBefore, Line, written_down

Devices = tuple[torch.device, torch.device]

SEEDS = range(60)
POLICIES = ("heap", "bfs", "dfs")


class Program:
    """A forward of some thirty operations, drawn from a seed: on which device and stream each runs, and of what."""

    def __init__(self, seed: int, devices: Devices, streams: int = 0) -> None:
        self._draw = random.Random(seed)
        self._seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.devices = [torch.device("cpu"), *devices]
        self.leaves = [
            torch.randn(4, 4, generator=generator, dtype=torch.float64).to(device).requires_grad_()
            for device in self.devices
            for _ in "ab"
        ]
        self._streams = {device: [torch.Stream(device) for _ in range(streams)] for device in devices}

    def loss(self) -> Tensor:
        draw = self._draw
        draw.seed(self._seed)
        pool = list(self.leaves)
        for _ in range(draw.randint(8, 30)):
            device = draw.choice(self.devices)
            first, second = (draw.choice(pool[-8:]) for _ in "ab")
            pool.append(self._on_some_stream(device, first, second))
        return torch.stack([each.square().mean().cpu() for each in pool[-4:]]).sum()

    def _on_some_stream(self, device: torch.device, first: Tensor, second: Tensor) -> Tensor:
        how = self._draw.randrange(4)
        streams = self._streams.get(device)
        if not streams:
            return self._operation(device, first, second, how)
        stream, main = self._draw.choice(streams), torch.accelerator.current_stream(device)
        first, second = first.to(device), second.to(device)
        stream.wait_stream(main)
        with stream:
            made = self._operation(device, first, second, how)
        main.wait_stream(stream)
        for tensor, user in ((first, stream), (second, stream), (made, main)):
            tensor.record_stream(user)
        return made

    @staticmethod
    def _operation(device: torch.device, first: Tensor, second: Tensor, how: int) -> Tensor:
        first, second = first.to(device), second.to(device)
        if how == 0:
            return (first @ second).tanh()
        if how == 1:
            return first.tanh() + second
        if how == 2:
            return torch.stack([first, second]).sigmoid().sum(0)
        return checkpoint(lambda x: x.tanh() * 2, first, use_reentrant=False) * second.mean(0)

    def gradients(self) -> Iterator[Tensor | None]:
        """The leaves' gradients, which are taken from them."""
        for leaf in self.leaves:
            yield leaf.grad
            leaf.grad = None


def expected_of(program: Program) -> list[Tensor | None]:
    program.loss().backward()
    return list(program.gradients())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_devices_stepped_at_random_give_pytorchs_gradients(accelerators: Devices, seed: int) -> None:
    program = Program(seed, accelerators)
    expected = expected_of(program)
    draw = random.Random(seed)
    for policy in POLICIES:
        with ts.debug(program.loss(), engine="native", queues="per device", policy=policy) as session:
            runs_from = draw.randrange(2 * len(session.graph))
            while session.current is not None and len(session.order) < runs_from:
                device = draw.choice([each.task.device for each in session.ready])
                with suppress(ValueError):  # it stands still
                    assert session.step(device=device).device == device
            if draw.random() < 0.3:
                session.close()
            else:
                session.run()
        found = list(program.gradients())
        if session.over is None or not session.left:
            torch.testing.assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_on_random_streams_nothing_races_and_nothing_is_let_go_early(
    accelerators: Devices, seed: int, captured: bool
) -> None:
    program = Program(seed, accelerators, streams=2)
    expected = expected_of(program)
    for policy in POLICIES:
        lines = _asked(program, captured, lambda loss, policy=policy: ts.backward(loss, policy=policy, engine="direct"))
        torch.testing.assert_close(list(program.gradients()), expected)
        happens_before = HappensBefore(lines)
        assert not happens_before.races and not happens_before.early


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_races_in_pytorchs_own_backward_are_sums_in_place_alone(accelerators: Devices, seed: int) -> None:
    """See `test_streams.py`, of gradients that another stream may still read."""
    happens_before = HappensBefore(_asked(Program(seed, accelerators, streams=2), False, Tensor.backward))
    assert all(race.startswith("aten::add_ ") for race in happens_before.races) and not happens_before.early


def _asked(program: Program, captured: bool, backward: Callable[[Tensor], object]) -> list[Line]:
    with written_down() as lines:
        if captured:
            with ts.capture():
                loss = program.loss()
        else:
            loss = program.loss()
        backward(loss)
        for leaf in program.leaves:
            if leaf.grad is not None:
                leaf.grad.sum()
    return lines
