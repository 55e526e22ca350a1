"""Backwards of forwards that use several streams: no races, and no block is freed too early."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

from .streams import HappensBefore, Line, stream_of, written_down

Devices = tuple[torch.device, torch.device]


@pytest.fixture(autouse=True)
def _streams_are_written_down(accelerators: Devices) -> None:
    if accelerators[0].type == "cuda":
        pytest.skip("what CUDA is asked to do is not written down")


class OnStreams(nn.Module):
    """A branch on the current stream, and two on other streams, which the current one waits for."""

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
        return (left + right).square().sum()


@pytest.fixture
def model(accelerators: Devices) -> OnStreams:
    torch.manual_seed(0)
    return OnStreams(accelerators[0])


@pytest.fixture
def x(accelerators: Devices) -> Tensor:
    return torch.randn(4, 16, device=accelerators[0])


def both(model: nn.Module, x: Tensor, backward: Callable[[Tensor], object]) -> list[Line]:
    """Record the requests of a forward, its backward, and a read of the gradients on the current stream."""
    model.zero_grad()
    with written_down() as lines:
        backward(model(x))
        sum(parameter.grad.sum() for parameter in model.parameters())
    return lines


def stepped(loss: Tensor, queues: str = "one") -> None:
    with ts.debug(loss, engine="native", queues=queues) as session:
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
    graph = ts.graph(model(x))
    ids = {stream_of(node) for node in graph.nodes}
    main = torch.accelerator.current_stream(model.device)
    assert ids == {(0, stream.stream_id) for stream in (main, model.side, model.other)}


@pytest.mark.parametrize(
    "backward",
    [
        pytest.param(lambda loss: ts.backward(loss, policy="bfs"), id="ts.backward"),
        pytest.param(lambda loss: ts.backward(loss, queues="per device"), id="per device"),
        pytest.param(stepped, id="stepped"),
        pytest.param(lambda loss: stepped(loss, "per device"), id="stepped per device"),
    ],
)
def test_pytorchs_engine_under_tapescope_neither_races_nor_lets_go_early(
    model: OnStreams, x: Tensor, backward: Callable[[Tensor], object]
) -> None:
    happens_before = HappensBefore(both(model, x, backward))
    assert not happens_before.races and not happens_before.early


def captured(model: OnStreams, x: Tensor) -> Tensor:
    with ts.capture(model):
        return model(x)


def stepped_directly(loss: Tensor, **options: object) -> None:
    with ts.debug(loss, **options) as session:
        while session.current is not None:
            session.step()
            assert all(
                gradient is None or gradient.sum().isfinite() for gradient in session.waiting(session.current or 0)
            )


DIRECT = [
    pytest.param(lambda loss: ts.backward(loss, engine="direct"), id="heap"),
    pytest.param(lambda loss: ts.backward(loss, policy="bfs", engine="direct", trace="full"), id="bfs"),
    pytest.param(stepped_directly, id="stepped"),
    pytest.param(lambda loss: stepped_directly(loss, history=True), id="history"),
    pytest.param(lambda loss: ts.backward(loss, engine="direct", accumulate="list"), id="lists"),
]


@pytest.mark.parametrize("forward", [captured, lambda model, x: model(x)], ids=["captured", "not"])
@pytest.mark.parametrize("backward", DIRECT)
def test_the_direct_engine_neither_races_nor_lets_go_early(
    model: OnStreams, x: Tensor, forward: Callable[[OnStreams, Tensor], Tensor], backward: Callable[[Tensor], object]
) -> None:
    model.zero_grad()
    model(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with written_down() as lines:
        backward(forward(model, x))
        sum(parameter.grad.sum() for parameter in model.parameters())
    happens_before = HappensBefore(lines)
    assert not happens_before.races and not happens_before.early
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


class Shared(nn.Module):
    """A sum on one stream, whose two operands were computed on two others, and one of which has a further use.

    AddBackward0 gives one and the same gradient to both. The task of `angle` runs next: its kernel reads it on the
    stream of the sum, and the task lets go of it. Then the gradient of the further use comes to `product`.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.first, self.second = (nn.Parameter(torch.ones(4, device=device)) for _ in range(2))
        self.side, self.other = torch.Stream(device), torch.Stream(device)

    def forward(self) -> Tensor:
        main = torch.accelerator.current_stream(self.device)
        with self.other:
            product = self.first * 2
        main.wait_stream(self.other)
        further = product.square().sum()
        self.side.wait_stream(main)
        with self.side:
            angle = self.second.tanh()
            total = angle + product
        main.wait_stream(self.side)
        for tensor, user in ((product, main), (product, self.side), (total, main)):
            tensor.record_stream(user)
        return total.square().sum() + further


def races_of(model: Shared, backward: Callable[[Tensor], object], captured: bool = False) -> list[str]:
    model.zero_grad()
    with written_down() as lines:
        with ts.capture() if captured else nullcontext():
            loss = model()
        backward(loss)
        sum(parameter.grad.sum() for parameter in model.parameters())
    found = HappensBefore(lines)
    assert not found.early
    return found.races


def test_pytorchs_engine_adds_in_place_to_a_gradient_that_another_stream_may_still_read(accelerators: Devices) -> None:
    """No mistake of the check.

    The engine adds in place where nobody else holds what waits (input_buffer.cpp, can_accumulate_inplace). The stream
    that adds has waited for the kernel that made it, by an event of that moment, and for none that has read it since
    on another stream: the host's reference to it is gone, but that kernel may not have begun.
    """
    model = Shared(accelerators[0])
    theirs = [f"aten::add_ on {(0, model.other.stream_id)} does not wait for {(0, model.side.stream_id)}"]
    assert races_of(model, Tensor.backward) == theirs
    assert races_of(model, lambda loss: ts.backward(loss, policy="heap")) == theirs
    assert races_of(model, lambda loss: ts.backward(loss, policy="bfs")) == []  # by then both gradients are there


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
def test_the_direct_engine_waits_for_who_may_still_read_a_gradient_before_it_adds_to_it(
    accelerators: Devices, policy: str, captured: bool
) -> None:
    model = Shared(accelerators[0])
    model().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert not races_of(model, lambda loss: ts.backward(loss, policy=policy, engine="direct"), captured)
    assert all(map(torch.equal, [parameter.grad for parameter in model.parameters()], expected))


@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
def test_after_a_capture_each_task_runs_on_the_stream_of_its_forward(model: OnStreams, x: Tensor, policy: str) -> None:
    with ts.capture(model):
        loss = model(x)
    graph = ts.graph(loss)
    expected = {task.id: stream_of(graph.nodes[task.id]) for task in graph.tasks}
    found = {}
    for task, node in enumerate(graph.nodes):
        node.register_prehook(lambda gradients, task=task: found.setdefault(task, now(model.device)) and None)
    with written_down() as lines:
        ts.backward(loss, policy=policy, engine="direct")
    assert found == expected
    assert not any(line.what == "wait for device" for line in lines)


def now(device: torch.device) -> tuple[int, int]:
    return 0, torch.accelerator.current_stream(device).stream_id
