"""Backwards of forwards that use several streams: nothing races, and no block of memory is let go too early."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapehead as th

from .streams import HappensBefore, Line, stream_of, written_down

Devices = tuple[torch.device, torch.device]


@pytest.fixture(autouse=True)
def _streams_are_written_down(accelerators: Devices) -> None:
    if accelerators[0].type == "cuda":
        pytest.skip("what CUDA is asked to do is not written down")


class OnStreams(nn.Module):
    """A branch on the current stream, and two on streams of their own, which the current one waits for."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.first, self.second, self.third = (nn.Linear(16, 16, device=device) for _ in range(3))
        self.side, self.other = torch.Stream(device), torch.Stream(device)

    def forward(self, x: Tensor) -> Tensor:
        main = torch.accelerator.current_stream(self.device)
        hidden = self.first(x).tanh()
        self.side.wait_stream(main)
        self.other.wait_stream(main)
        with self.side:
            left = self.second(hidden).tanh()
        with self.other:
            right = self.third(hidden).sigmoid()
        main.wait_stream(self.side)
        main.wait_stream(self.other)
        left.record_stream(main)
        right.record_stream(main)
        hidden.record_stream(self.side)
        hidden.record_stream(self.other)
        return (left + right).square().sum()


@pytest.fixture
def model(accelerators: Devices) -> OnStreams:
    torch.manual_seed(0)
    return OnStreams(accelerators[0])


@pytest.fixture
def x(accelerators: Devices) -> Tensor:
    return torch.randn(4, 16, device=accelerators[0])


def both(model: nn.Module, x: Tensor, backward: Callable[[Tensor], object]) -> list[Line]:
    """What a forward, its backward, and a look at the gradients on the current stream ask for."""
    model.zero_grad()
    with written_down() as lines:
        backward(model(x))
        sum(parameter.grad.sum() for parameter in model.parameters())
    return lines


def stepped(loss: Tensor) -> None:
    with th.debug(loss, engine="native") as session:
        while session.current is not None:
            session.step()


def kernels_by_stream(lines: list[Line]) -> set[tuple[int, int]]:
    return {line.stream for line in lines if line.is_kernel}


def test_pytorchs_own_backward_neither_races_nor_lets_go_early(model: OnStreams, x: Tensor) -> None:
    lines = both(model, x, Tensor.backward)
    happens_before = HappensBefore(lines)
    assert not happens_before.races and not happens_before.early
    assert len(kernels_by_stream(lines)) == 3


def test_races_are_seen_where_nobody_waits(model: OnStreams, x: Tensor) -> None:
    lines = both(model, x, Tensor.backward)
    assert HappensBefore([line for line in lines if line.what not in ("record", "block")]).races
    assert HappensBefore([line for line in lines if line.what != "record_stream"]).early


def test_a_nodes_stream_is_the_one_that_was_current_as_it_was_made(model: OnStreams, x: Tensor) -> None:
    graph = th.graph(model(x))
    ids = {stream_of(node) for node in graph.nodes}
    main = torch.accelerator.current_stream(model.device)
    assert ids == {(0, stream.stream_id) for stream in (main, model.side, model.other)}


@pytest.mark.parametrize(
    "backward",
    [
        pytest.param(lambda loss: th.backward(loss, policy="bfs"), id="th.backward"),
        pytest.param(lambda loss: th.backward(loss, queues="per device"), id="per device"),
        pytest.param(stepped, id="stepped"),
    ],
)
def test_pytorchs_engine_under_tapehead_neither_races_nor_lets_go_early(
    model: OnStreams, x: Tensor, backward: Callable[[Tensor], object]
) -> None:
    happens_before = HappensBefore(both(model, x, backward))
    assert not happens_before.races and not happens_before.early
