"""Allocations of the forward besides its nodes' results: leaves, masks, and a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.estimates import EARLIER, HELD_LEAVES, HIDDEN
from tapescope.engine.schedule.greedy_order import heap_order
from tapescope.inspector.graph.forward_allocations import forward_allocations
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES
from tapescope.tests.says import says

from ..profiled import profiled

MakeLoss = Callable[[], Tensor]
ROWS = 512


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))


def wgan_penalty(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    mix = torch.rand(ROWS, 1)
    z = (mix * real + (1 - mix) * real.flip(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(model(z).sum(), z, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def r1_penalty(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    z = real.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(z).sum(), z, create_graph=True)
    return gradient.square().sum(1).mean()


def zero_centred(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    z = torch.empty_like(real).copy_(real)
    z.requires_grad = True
    (gradient,) = torch.autograd.grad(model(z).sum(), z, create_graph=True)
    return gradient.square().mean() + model(z).mean()


def projected_attack(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    delta = torch.zeros_like(real, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(model(real + delta).square().mean(), delta)
        delta = (delta + 0.1 * gradient.sign()).detach().requires_grad_()
    return model(real + delta).square().mean()


def physics_informed(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    points = torch.rand(ROWS, 32, requires_grad=True)
    (slope,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    return (slope.sum(1) - points.detach().sum(1)).square().mean()


def slices_of_a_leaf(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    z = torch.randn(ROWS, 32).requires_grad_()
    return model(z[: ROWS // 2]).sum() + z[ROWS // 2 :].exp().sum()


def leaf_that_is_kept(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    z = real.clone().requires_grad_()
    kept[:] = [z]
    return model(z).square().mean()


def mask_that_is_kept(model: nn.Module, real: Tensor, kept: list[Tensor]) -> Tensor:
    kept[:] = [(torch.rand(real.shape) > 0.5).float()]
    return (model(real).expand_as(real).exp() * kept[0]).mean()


LETS_GO = [wgan_penalty, r1_penalty, zero_centred, projected_attack, physics_informed, slices_of_a_leaf]
KEEPS = [leaf_that_is_kept, mask_that_is_kept]


def program(forward: Callable[[nn.Module, Tensor, list[Tensor]], Tensor]) -> MakeLoss:
    model, real, kept = net(), torch.randn(ROWS, 32), [torch.empty(0)]

    def make_loss() -> Tensor:
        model.zero_grad()
        kept[:] = []
        return forward(model, real, kept)

    make_loss().backward()
    return make_loss


@pytest.mark.parametrize("forward", LETS_GO + KEEPS, ids=lambda each: each.__name__)
def test_what_a_forward_makes_counts_where_a_capture_sees_it(
    forward: Callable[[nn.Module, Tensor, list[Tensor]], Tensor],
) -> None:
    make_loss = program(forward)
    expected = profiled(make_loss, heap_order).peak
    with ts.capture(every_call=True):
        loss = make_loss()
    found = ts.simulate(ts.graph(loss))
    assert (found.peak_bytes, found.direction) == (expected, None)
    assert ts.plan_order(loss)["heap"].peak_bytes == expected
    row = ts.compare(make_loss, ["heap"], repetitions=1)["heap"]
    assert (row.peak_bytes, row.dry_run_bytes) == (expected, expected)


@pytest.mark.parametrize("forward", LETS_GO, ids=lambda each: each.__name__)
def test_a_leaf_that_nothing_holds_counts_without_a_capture(
    forward: Callable[[nn.Module, Tensor, list[Tensor]], Tensor],
) -> None:
    make_loss = program(forward)
    expected = profiled(make_loss, heap_order).peak
    found = ts.simulate(ts.graph(make_loss()))
    assert (found.peak_bytes, found.direction) == (expected, None)
    assert ts.backward(make_loss(), memory=True).peak_bytes == expected


def test_a_leaf_that_something_holds_makes_it_a_lower_bound_without_a_capture() -> None:
    make_loss = program(leaf_that_is_kept)
    expected = profiled(make_loss, heap_order).peak
    found = ts.simulate(ts.graph(make_loss()))
    assert found.direction == "at least" and found.peak_bytes < expected
    assert HELD_LEAVES in found.estimates[0]


def test_an_older_input_does_not_count_and_is_no_estimate_under_a_capture() -> None:
    model, x = net(), torch.randn(ROWS, 32, requires_grad=True)
    with ts.capture(every_call=True):
        loss = model(x).square().mean()
    found = ts.simulate(ts.graph(loss))
    x.grad = None
    assert (found.peak_bytes, found.direction) == (profiled(lambda: model(x).square().mean(), heap_order).peak, None)


def test_an_old_tensor_that_starts_to_require_gradients_is_none_that_the_forward_made() -> None:
    model, x = net(), torch.randn(ROWS, 32)
    with ts.capture(every_call=True):
        z = x.detach().requires_grad_()
        loss = model(z).sum() + x.view(-1).requires_grad_().sum()
    assert not forward_allocations(ts.graph(loss)).leaves


def of_model(make: Callable[[], nn.Module]) -> tuple[MakeLoss, MakeLoss, nn.Module]:
    """The program with its model made inside, outside, and that model."""
    outside = make()
    x = torch.randn(16, 3, 8, 8)

    def forward(model: nn.Module) -> Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    return lambda: forward(make()), lambda: forward(outside), outside


def convolutional() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64))
    model[4].bias.requires_grad_(False)
    return model


def held_bytes(report: ts.types.PeakReport) -> set[int]:
    """The bytes of each storage that the program's code holds."""
    storages = [storage for group in report.groups for storage in group.storages]
    return {each.nbytes for each in storages if any(keeper.kind == "user" for keeper in each.kept_by)}


def test_a_model_made_inside_of_make_loss_gives_the_figures_of_one_outside() -> None:
    inside, outside, model = of_model(convolutional)
    model.zero_grad()
    expected = profiled(outside, heap_order).peak
    model.zero_grad()
    run = ts.profile(inside)
    assert run.peak_bytes == expected
    assert held_bytes(run.peak()) == {4}  # the loss
    with ts.capture(every_call=True):
        assert ts.simulate(ts.graph(inside())).peak_bytes == expected
    row = ts.compare(inside, ["heap", "bfs"], repetitions=1)["heap"]
    assert (row.peak_bytes, row.dry_run_bytes, row.predicted_bytes) == (expected, expected, expected)


def test_a_leaf_of_the_forward_is_held_by_its_graph_and_not_by_your_code() -> None:
    make_loss = program(slices_of_a_leaf)
    report = ts.profile(make_loss).peak()
    assert held_bytes(report) == {4}  # the loss
    says(report, "AccumulateGrad")


def test_gradients_reach_a_leaf_of_the_forward_as_ever() -> None:
    model, real = net(), torch.randn(ROWS, 32)
    z = real.clone().requires_grad_()
    expected = torch.autograd.grad(nn.functional.softplus(model(z)).sum(), z)[0]
    again = real.clone().requires_grad_()
    with ts.capture(every_call=True):
        loss = nn.functional.softplus(model(again)).sum()
    ts.simulate(ts.graph(loss))
    loss.backward()
    assert torch.equal(again.grad, expected)


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("view", [True, False])
def test_buckets_of_ddp_are_older_and_may_be_the_grads(view: bool, to_none: bool) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    x = torch.randn(8, 64)

    def make_loss() -> Tensor:
        wrapped.zero_grad(set_to_none=to_none)
        return wrapped(x).square().mean()  # type: ignore[no-any-return]

    for _ in range(2):
        make_loss().backward()
    expected = profiled(make_loss, heap_order).peak
    loss = make_loss()
    found = ts.simulate(ts.graph(loss))
    loss.backward()
    assert (found.peak_bytes, found.direction) == (expected, None)
    run = ts.profile(make_loss)
    assert run.peak_bytes == expected
    says(run.peak(), "DistributedDataParallel", "65 KiB")


@pytest.mark.parametrize("rows", [8, 256])
@pytest.mark.parametrize("around_all", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_prediction_under_checkpoints_is_a_lower_bound(reentrant: bool, around_all: bool, rows: int) -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)))
    x = torch.randn(rows, 32, requires_grad=reentrant)

    def make_loss() -> Tensor:
        layers.zero_grad()
        x.grad = None
        h = x
        for layer in [layers] if around_all else layers:
            h = checkpoint(layer, h, use_reentrant=reentrant).relu()  # type: ignore[union-attr]
        return h.square().mean()

    make_loss().backward()
    layers.zero_grad()
    x.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = make_loss()
        loss.backward()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    level = accumulate(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))
    found = ts.simulate(ts.graph(make_loss()))
    assert found.direction == "at least" and found.peak_bytes <= max(level)


def test_what_nodes_hide_makes_an_estimate_of_unknown_direction() -> None:
    model, x = nn.Linear(64, 64), torch.randn(64, 64)
    normed = nn.functional.instance_norm(model(x).view(1, 4, 32, 32))
    normed.relu_()  # on a view, and so a CopySlices
    found = ts.simulate(ts.graph(normed.square().mean()))
    assert found.direction == "unknown" and HIDDEN in found.estimates[0]


class Keeper(nn.Module):
    """A model that leaves what `keep` makes of its hidden values in an attribute, outside the graph."""

    def __init__(self, keep: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 1)
        self.keep = keep
        self.kept: object = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.kept = self.keep(hidden)
        return self.last(torch.relu(hidden + 1))  # type: ignore[no-any-return]


def without_gradients(hidden: Tensor) -> object:
    with torch.no_grad():
        return [hidden.exp(), {"mean": hidden.mean(0)}]


KEPT = {
    "computed": lambda hidden: hidden.detach() * 2,
    "detached": lambda hidden: hidden.detach(),
    "data": lambda hidden: hidden.data,
    "part": lambda hidden: (hidden.detach() * 2)[:3].data,
    "numpy": lambda hidden: hidden.detach().numpy(),
    "without gradients": without_gradients,
    "indices": lambda hidden: hidden.sort(1)[1],
    "mask": lambda hidden: torch.rand(hidden.shape) > 0.5,
    "of numpy": lambda hidden: torch.from_numpy(np.zeros(10_000)),
    "freed": lambda hidden: (hidden.detach() * 2) is None,
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_forward_keeps_outside_the_graph_counts_where_a_capture_sees_it(kind: str) -> None:
    model, x = Keeper(KEPT[kind]), torch.randn(32, 16)

    def make_loss() -> Tensor:
        model.kept = None
        return model(x).sum()  # type: ignore[no-any-return]

    make_loss()  # torch keeps some numbers from the first time on
    expected_peaks = [profiled(make_loss, heap_order).peak for _ in range(2)]
    model.zero_grad()
    for _ in range(2):  # the second time each leaf has a .grad
        with ts.capture(model, every_call=True):
            loss = make_loss()
        found = ts.simulate(ts.graph(loss))
        planned = ts.plan_order(loss)["heap"].peak_bytes
        measured = ts.backward(loss, memory=True).peak_bytes
        expected = expected_peaks.pop(0)
        assert (found.peak_bytes, found.direction) == (expected, None)
        assert planned == measured == expected


def test_what_a_capture_of_several_steps_saw_before_the_forward_makes_it_a_lower_bound() -> None:
    model, x = net(), torch.randn(ROWS, 32)
    optimizer = torch.optim.Adam(model.parameters())
    with ts.capture(model, every_call=True):
        first = ts.simulate(ts.graph(model(x).square().mean()))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        second = ts.simulate(ts.graph(model(x).square().mean()))
    assert (first.direction, second.direction) == (None, "at least")
    assert first.peak_bytes == second.peak_bytes  # Adam's states are not the forward's
    assert EARLIER in second.estimates[0]


@pytest.mark.parametrize("every_call", [True, False])
def test_what_no_capture_could_see_is_left_unsure(every_call: bool) -> None:
    """From torch 2.14 on a capture sees new nodes, and other calls only where they are wanted."""
    kept: list[Tensor] = []
    with ts.capture(every_call=every_call):
        loss = leaf_that_is_kept(net(), torch.rand(ROWS, 32), kept)
    found = forward_allocations(ts.graph(loss))
    assert bool(found.unsure) is not (every_call or not TELLS_OF_NEW_NODES)
    assert bool(found.addresses) is (every_call or not TELLS_OF_NEW_NODES)
