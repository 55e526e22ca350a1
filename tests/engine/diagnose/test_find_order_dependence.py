"""`ts.find_order_dependence`: what depends on the order of tasks is found and named; what only rounds is not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.diagnose.find_order_dependence import count_pairs
from tapescope.engine.diagnose.run_in_order import BitPrints
from tapescope.inspector.torch_private.hooks import node_hooks
from tapescope.tests.says import Snapshots, raises, says


def line_of(function: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"{Path(__file__).name}:{number}"


class InPlace(Function):
    """Doubles, and its backward writes into the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].mul_(2)


class Shared(Function):
    """Goes by a buffer that all of its tasks write."""

    buffer = torch.zeros(())

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Shared.buffer.add_(gradients[0].sum())
        return gradients[0] * Shared.buffer


class Overwrites(Function):
    """Writes what it was given, which another node has saved, past `save_for_backward`'s eyes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.kept = kept.detach()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.kept.data.zero_()
        return gradients[0], None


class Drops(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (torch.rand(64) > 0.5)


@pytest.fixture
def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(64)), nn.Parameter(torch.randn(64))


def apart(make_loss: Callable[[], Tensor], *leaves: Tensor) -> bool:
    """Return whether a backward of PyTorch's engine under bfs has other gradients, by more than rounding."""
    found = []
    for policy in ("heap", "bfs"):
        torch.manual_seed(0)
        Shared.buffer.zero_()
        ts.backward(make_loss(), policy=policy)
        found.append([leaf.grad for leaf in leaves])
        for leaf in leaves:
            leaf.grad = None
    return not all(torch.allclose(one, other) for one, other in zip(*found, strict=True))


def test_a_function_that_writes_into_its_gradient_is_named_with_its_line(
    leaves: tuple[Tensor, Tensor], snapshot: Snapshots
) -> None:
    w, v = leaves

    def make_loss() -> Tensor:
        return (InPlace.apply(w * 3) + v.tanh()).square().sum()

    assert apart(make_loss, w, v)
    found = ts.find_order_dependence(make_loss)
    assert found and not found.same_bits
    assert found.first is not None and found.graph is not None
    task, writer = found.graph.tasks[found.first.task], found.graph.tasks[found.first.writer or 0]
    assert (found.first.how, task.name, writer.name) == ("written", "TanhBackward0", "InPlaceBackward")
    assert found.first.cause == "write"
    says(found.first.story, "mul_", line_of(InPlace.backward, "mul_(2)"))
    says(found.first.advice, "grad * 2", "grad.mul_(2)")
    snapshot("find_order_dependence", f"{found.first.story}\n{found.first.advice}")
    assert "bfs" in found.first.orders and not found.gradients[0].close
    assert line_of(make_loss, "v.tanh()") in str(found) and "<table" in found._repr_html_()


def test_a_buffer_that_tasks_share_is_found_where_they_read_it(
    leaves: tuple[Tensor, Tensor], snapshot: Snapshots
) -> None:
    w, v = leaves

    def make_loss() -> Tensor:
        return (Shared.apply(w * 2) + Shared.apply(v * 3) * 2).sum()

    assert apart(make_loss, w, v)
    Shared.buffer.zero_()
    found = ts.find_order_dependence(make_loss)
    assert [each.how for each in found.departures] == ["result", "result"]
    assert {each.writer for each in found.departures} == {each.task for each in found.departures}
    assert {each.cause for each in found.departures} == {"write"}
    says(found.departures[0].story, 64, "[0]", 384, 256)
    snapshot("find_order_dependence", f"{found.departures[0].story}\n{found.departures[0].advice}")
    assert not Shared.buffer and w.grad is None  # as before


def test_what_a_function_overwrites_that_another_node_has_saved(leaves: tuple[Tensor, Tensor]) -> None:
    w, v = leaves
    kept = torch.randn(64)

    def make_loss() -> Tensor:
        data = kept.clone()
        return (w * data + Overwrites.apply(v * 2, data)).sum()

    assert apart(make_loss, w, v)
    first = ts.find_order_dependence(make_loss).first
    assert first is not None and first.how == "result"
    says(first.story, "OverwritesBackward", line_of(Overwrites.backward, "zero_()"))


def test_random_numbers_of_a_backward(leaves: tuple[Tensor, Tensor], snapshot: Snapshots) -> None:
    w, v = leaves
    before = torch.get_rng_state()
    found = ts.find_order_dependence(lambda: (Drops.apply(w * 2) + Drops.apply(v * 3) * 2).sum(), "bfs")
    assert [each.how for each in found.departures] == ["result", "result"]
    assert {each.cause for each in found.departures} == {"random"}
    says(found.departures[0].advice, "ctx.save_for_backward")
    snapshot("find_order_dependence", f"{found.departures[0].story}\n{found.departures[0].advice}")
    assert torch.equal(before, torch.get_rng_state())


def test_a_hook_that_goes_by_the_order_in_which_it_is_called(
    leaves: tuple[Tensor, Tensor], snapshot: Snapshots
) -> None:
    w, v = leaves

    def make_loss() -> Tensor:
        calls: list[int] = []

        def later_ones_count_more(gradients: Any, *_: object) -> Any:
            calls.append(1)
            return (gradients[0] * len(calls), *gradients[1:])

        both = [w * 2, v * 3]
        for each in both:
            assert each.grad_fn is not None
            each.grad_fn.register_hook(later_ones_count_more)
        return (both[0].tanh() + both[1].tanh()).sum()

    assert apart(make_loss, w, v)
    found = ts.find_order_dependence(make_loss)
    assert found.first is not None and found.first.cause == "hook"
    assert "later_ones_count_more" in found.first.story
    snapshot("find_order_dependence", f"{found.first.story}\n{found.first.advice}")


def test_what_differs_in_the_same_order_is_not_called_a_dependence(
    leaves: tuple[Tensor, Tensor], snapshot: Snapshots
) -> None:
    w, _ = leaves
    calls = count(1)
    with pytest.warns(UserWarning, match="`calls`") as warned:
        found = ts.find_order_dependence(lambda: w.sum() * next(calls), "bfs")
    assert not found and [each.how for each in found.departures] == ["unsteady"]
    says(warned[0].message, "`calls`", "count")
    says(found.departures[0].advice, "torch.use_deterministic_algorithms(True)")
    snapshot("find_order_dependence", found.sentences[0])


def test_sums_in_another_order_are_rounding(snapshot: Snapshots) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(16, 16), torch.randn(8, 16)
    found = ts.find_order_dependence(lambda: torch.stack([linear(x * scale).tanh() for scale in range(1, 6)]).sum())
    assert not found and not found.same_bits
    assert {each.how for each in found.departures} == {"rounding"}
    assert {found.graph.tasks[each.task].parameter for each in found.departures} <= {"weight", "bias"}  # type: ignore[union-attr]
    assert all(each.close and 0 < each.share < 1e-5 for each in found.gradients)
    snapshot("find_order_dependence", found.sentences[0])


@pytest.mark.parametrize(("name", "knobs"), [("linear50", {"uses": 5, "width": 16}), ("din", {})])
def test_a_ready_model_does_not_depend_on_it_and_nothing_of_it_changes(name: str, knobs: dict[str, int]) -> None:
    model, make_loss = ts.workload(name).build(**knobs)  # type: ignore[arg-type]
    before = [each.clone() for each in model.state_dict().values()]
    loss = make_loss()
    found = ts.find_order_dependence(make_loss, ["bfs", "random(7)"], model=model)
    assert not found and all(each.how == "rounding" for each in found.departures)
    assert found.open_pairs and found.both_ways
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(each.grad is None for each in model.parameters())
    assert loss.grad_fn is not None and not any(node_hooks(loss.grad_fn))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ts.WORKLOADS if name != "resnet152"])
def test_no_ready_model_depends_on_it(name: str) -> None:
    model, make_loss = ts.workload(name).build()
    found = ts.find_order_dependence(make_loss, model=model)
    assert not found and all(each.how == "rounding" for each in found.departures)
    assert all(each.close for each in found.gradients)


def test_a_chain_has_no_order_to_depend_on(snapshot: Snapshots) -> None:
    x = nn.Parameter(torch.ones(()))
    found = ts.find_order_dependence(lambda: x.sin().cos(), "bfs")
    assert not found and found.same_bits and found.open_pairs == 0
    snapshot("find_order_dependence", found)


def test_a_loss_without_a_graph(snapshot: Snapshots) -> None:
    found = ts.find_order_dependence(lambda: torch.ones(()))
    assert found.graph is None
    snapshot("find_order_dependence", found)


def test_another_graph_each_time_is_refused(snapshot: Snapshots) -> None:
    x, calls = nn.Parameter(torch.ones(3)), count(1)

    def make_loss() -> Tensor:
        return (x.sin() if next(calls) % 2 else x.cos().cos()).sum()

    with pytest.warns(UserWarning, match="`calls`"), raises(ValueError, "make_loss", "heap") as refused:
        ts.find_order_dependence(make_loss)
    snapshot("find_order_dependence", refused.value)


def test_only_the_order_that_runs_anyway_is_refused(snapshot: Snapshots) -> None:
    with raises(ValueError, "heap", "policies") as refused:
        ts.find_order_dependence(lambda: torch.ones(()), "heap")
    snapshot("find_order_dependence", refused.value)


def test_pairs_of_a_diamond() -> None:
    x = nn.Parameter(torch.ones(3))
    graph = ts.graph((x.sin() + x.cos()).sum())
    heap = [task.id for task in reversed(graph.tasks) if not task.is_leaf] + list(graph.leaves)
    assert count_pairs(graph, [heap]) == (1, 0)
    swapped = list(heap)
    first, second = (heap.index(task.id) for task in graph.tasks if task.name in ("SinBackward0", "CosBackward0"))
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert count_pairs(graph, [heap, swapped]) == (1, 1)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.int8, torch.bool]
)
def test_a_print_tells_any_bit_and_the_place_of_each_element(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1000).abs().add(1).to(dtype)
    tensor[::7] = 0
    changed, swapped = tensor.clone(), tensor.clone()
    changed[17] = 0 if tensor[17] else 1
    swapped[[6, 7]] = swapped[[7, 6]]
    prints = BitPrints()
    read = [prints.of(each) for each in (tensor, tensor.clone(), changed, swapped, tensor.reshape(8, 125).T)]
    prints.read()
    first, same, *others = [each() for each in read]
    assert first == same
    assert first not in others


def test_what_a_reentrant_checkpoint_adds_to_a_leaf_is_no_task_of_the_backward() -> None:
    layer, data = nn.Linear(4, 4), torch.randn(3, 4)

    def make_loss() -> Tensor:
        x = data.clone().requires_grad_()
        again = checkpoint(layer, x, use_reentrant=True).sin() + checkpoint(layer, x * 3, use_reentrant=True).cos()
        return again.sum() + layer(x).pow(2).sum()

    found = ts.find_order_dependence(make_loss)
    assert not found and {each.how for each in found.departures} <= {"rounding"}, found
