"""Programs that make predictions hard: the peak is predicted to the byte, or the prediction says it is an estimate."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.estimates import direction_of
from tapescope.engine.planning.simulate import schedule
from tapescope.tests.says import Snapshots, says

from ..planning.test_simulate import random_order
from ..profiled import profiled

Forward = Callable[[Tensor, Tensor, list[object]], Tensor]


class Views(torch.autograd.Function):
    """Its gradients are views of the one that it gets."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient.t().t(), gradient.view(-1).view(gradient.shape)


class GivesSaved(torch.autograd.Function):
    """One of its gradients is a tensor that it saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y.clone())
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], gradient


class KeepsOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.copy = x.detach().clone()
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.copy


class Remembers(torch.autograd.Function):
    """Keeps the last gradient that any of it got."""

    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.kept[:] = [gradient]
        return gradient * 2, None


class FillsCache(torch.autograd.Function):
    """The first one that runs makes what all of them use."""

    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.kept:
            ctx.kept.append(torch.zeros_like(gradient))
        return gradient + ctx.kept[0], None


def retained_gradients(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    product = x @ y
    after = product.tanh()
    for tensor in (product, after):
        tensor.retain_grad()
        kept.append(tensor)
    return (after * x + y.exp() * after + product).sum()


def gradients_that_are_views(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return (Views.apply(x.exp(), y).sin() + Views.apply(y, x * x)).sum()


def kept_on_a_context(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return (KeepsOnContext.apply(x.exp()).sin() + KeepsOnContext.apply(y) * KeepsOnContext.apply(x)).sum()


def slices_that_share_a_factor(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    factor = y[:8].exp()
    copy, other = x * 1, x.sin()
    copy[:8].mul_(factor)
    copy[8:].mul_(factor)
    copy[4:12].mul_(factor)
    other[:8] = factor
    return (copy * other).sum() + factor.sum()


def views_changed_in_place(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    copy = x * 1
    flat = copy.view(-1)
    flat[:100].add_(y.view(-1)[:100].exp())
    copy.t()[3] = y[0].sin()
    copy.relu_()
    return (copy * y).sum() + flat.sum()


def regions_that_use_what_is_outside(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    hidden, product = x.exp() * 2, x @ y
    first = checkpoint(lambda z: (z @ hidden).tanh() * product, y * 1, use_reentrant=False)
    second = checkpoint(lambda z: (z * hidden).sin(), x.cos(), use_reentrant=False)
    return (first * hidden.sin() + second).sum()


def regions_in_regions(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    def inner(z: Tensor) -> Tensor:
        return (z @ y).tanh().exp()

    def outer(z: Tensor) -> Tensor:
        return checkpoint(inner, z.sin(), use_reentrant=False).cos() * z

    first, second = (checkpoint(outer, each, use_reentrant=False) for each in (x * 1, x.exp()))
    return (first * second + checkpoint(inner, first, use_reentrant=False)).sum()


def saved_as_copies(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    with saved_tensors_hooks(lambda tensor: tensor.detach().double(), lambda tensor: tensor.float()):
        product = (x @ y).tanh().exp()
        after = product * product.sin()
    return (after @ x).sum() + product.cos().sum()


def resized(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    grown, shrunk = torch.randn(4).resize_(16, 16).zero_(), torch.randn(64, 64).resize_(16, 16)
    return (x.exp() * grown * y).sin().sum() + (x.exp() * shrunk).sum()


def views_of_leaves(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    with torch.no_grad():
        x[:4].mul_(0.9)
    flat = x.view(256)[:128]
    return (flat * flat).sum() + (x.t() @ y).sin().sum() + x[2:5].exp().sum()


def expanded_gradients(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    row, column = x.sum(0, keepdim=True), y.sum(1, keepdim=True)
    return x.sum() + y.t().sum() + (row.expand(16, 16) * column).sum() + row.expand(16, 16).sum() + (x + x + y).sum()


def complex_and_doubles(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    spectrum = torch.fft.fft(x) * torch.complex(x, y)
    return spectrum.abs().sum() + (x * torch.complex(y, x)).real.sum() + x.double().exp().float().sum()


def nothing_and_scalars(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    scalar, nothing = x.mean(), x[:, :0] @ y[:0]  # the gradients of nothing are new tensors
    return scalar * y.sum() + nothing.exp().sum() + (x * scalar).sin().sum() + scalar.exp() / 3


def made_by_threads(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    made: list[Tensor] = [x, x]

    def work(number: int) -> None:
        made[number] = (x @ y).sin() * (number + 1)

    for number in range(2):
        thread = Thread(target=work, args=(number,))
        thread.start()
        thread.join()
    return (made[0] * made[1]).sum()


def a_function_with_a_graph_of_its_own(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                again = ctx.saved_tensors[0].detach().requires_grad_()
                result = again.exp().sin().exp()
            return torch.autograd.grad(result, again, gradient)[0]

    return (Inner.apply(x * y) + Inner.apply(x.sin()) * y).sum()


EXACT: list[Forward] = [
    retained_gradients,
    gradients_that_are_views,
    kept_on_a_context,
    slices_that_share_a_factor,
    views_changed_in_place,
    regions_that_use_what_is_outside,
    regions_in_regions,
    saved_as_copies,
    resized,
    views_of_leaves,
    expanded_gradients,
    complex_and_doubles,
    nothing_and_scalars,
    made_by_threads,
    a_function_with_a_graph_of_its_own,
]


def hooks_that_replace(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    product = x @ y
    product.register_hook(lambda gradient: gradient * 2)
    return (product.tanh() * x).sum()


def a_hook_that_gives_what_was_there(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    product, constant = x @ y, torch.ones(16, 16)
    product.register_hook(lambda gradient: constant)
    return (product.tanh() * x).sum()


def a_hook_that_keeps_until_another(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    one, other = x.exp(), y.exp()
    one.register_hook(lambda gradient: kept.append(gradient))
    other.register_hook(lambda gradient: kept.clear())
    return (one * other).sum()


def hooks_that_keep_the_last(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    one, other = x.exp(), y.exp()
    product = one * other
    for tensor in (one, other, product):
        tensor.register_hook(lambda gradient: kept.__setitem__(slice(None), [gradient]))
    return (product.sin() + one).sum()


def gradients_deleted_at_once(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    if not x._post_accumulate_grad_hooks:
        x.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None))
    return ((x @ y).tanh() * x).sum()


def gradients_that_were_saved(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return (GivesSaved.apply(x, y).sin() + GivesSaved.apply(y, x)).sum()


def a_function_that_remembers(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return (Remembers.apply(x.exp(), kept).sin() + Remembers.apply(y, kept) * Remembers.apply(x.sin(), kept)).sum()


def a_function_with_a_cache(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return (FillsCache.apply(x.exp(), kept).sin() + FillsCache.apply(y, kept) * x).sum()


def sums_of_sparse_gradients(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    some, more = torch.arange(4), torch.arange(8)
    one, other = (nn.functional.embedding(rows, x, sparse=True) for rows in (some, more))
    return (one @ y).tanh().sum() + (other @ y).sum() + one.exp().sum()


def compiled(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    run = torch.compile(lambda x, y: ((x @ y).tanh() @ y).exp(), backend="aot_eager")
    return (run(x, y).sin() * run(x.sin(), y)).sum()


def slices_that_hide_what_they_keep(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    factor = torch.ones(8, 16)
    copies = [x.sin() for _ in range(3)]
    for copy in copies:
        copy[:8].mul_(factor)
    del factor
    return sum(((copy @ copy).sum() for copy in copies), start=(x @ y).sum())


def reentrant_regions(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    first, second = (checkpoint(lambda z: (z @ y).tanh().exp(), each, use_reentrant=True) for each in (x * 1, x.exp()))
    return (first * second).sum()


def saved_on_the_cpu(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    with save_on_cpu():
        product = (x @ y).tanh().exp()
        after = product * product.sin()
    return (after @ x).sum() + product.cos().sum()


def an_empty_view_of_a_gradient(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    return torch.cat([y[:0], x * 2]).sin().sum() + y.sum()


ESTIMATES: list[Forward] = [
    an_empty_view_of_a_gradient,
    hooks_that_replace,
    a_hook_that_gives_what_was_there,
    a_hook_that_keeps_until_another,
    hooks_that_keep_the_last,
    gradients_deleted_at_once,
    gradients_that_were_saved,
    a_function_that_remembers,
    a_function_with_a_cache,
    sums_of_sparse_gradients,
    compiled,
    slices_that_hide_what_they_keep,
    reentrant_regions,
    saved_on_the_cpu,
]


class Step:
    """A forward on two leaves, as often as one likes."""

    def __init__(self, forward: Forward) -> None:
        torch.manual_seed(0)
        self._forward = forward
        self._leaves = [torch.randn(16, 16, requires_grad=True) for _ in range(2)]
        self._kept: list[object] = []

    def __call__(self) -> Tensor:
        return self._forward(*self._leaves, self._kept)

    def reset(self) -> Step:
        self._kept.clear()
        for leaf in self._leaves:
            leaf.grad = None
        return self


def wrong(run: ts.Run, step: Step, **arguments: bool) -> tuple[list[tuple[int, int]], set[str]]:
    """The peaks that are not as predicted, as (predicted, real), with what they were said to be estimates for."""
    found, estimates = [], set()
    orders = [lambda graph: schedule(graph, "heap"), lambda graph: schedule(graph, "bfs")]
    orders += [lambda graph, seed=seed: random_order(graph, seed) for seed in range(3)]
    for order in orders:
        real = profiled(step.reset(), order, **arguments)
        predicted = ts.simulate(real.graph, real.order, run.footprints, retain_graph=arguments.get("retain_graph"))
        estimates.update(predicted.estimates)
        levels = (predicted.start_bytes, predicted.peak_bytes, predicted.end_bytes)
        if levels != (real.start, real.peak, real.end) and not predicted.estimates:
            found.append((predicted.peak_bytes, real.peak))
    return found, estimates


@pytest.mark.parametrize("forward", EXACT, ids=lambda forward: forward.__name__)
def test_predicted_to_the_byte(forward: Forward) -> None:
    step = Step(forward)
    run = ts.profile(step.reset())
    assert run.footprints is not None and not run.footprints.limits
    assert wrong(run, step) == ([], set())


@pytest.mark.parametrize("forward", ESTIMATES, ids=lambda forward: forward.__name__)
def test_said_to_be_an_estimate(forward: Forward) -> None:
    step = Step(forward)
    run = ts.profile(step.reset())
    _, estimates = wrong(run, step)
    assert run.footprints is not None and run.footprints.limits
    assert set(run.footprints.limits) <= estimates


RETAINABLE = [forward for forward in (*EXACT, *ESTIMATES) if forward is not compiled]  # its buffers go while it runs


@pytest.mark.parametrize("forward", RETAINABLE, ids=lambda forward: forward.__name__)
def test_with_the_graph_retained(forward: Forward) -> None:
    step = Step(forward)
    run = ts.profile(step.reset())
    assert wrong(run, step, retain_graph=True)[0] == []


def test_a_run_that_kept_its_graph_does_not_show_what_is_freed(snapshot: Snapshots) -> None:
    step = Step(saved_as_copies)
    run = ts.profile(step.reset(), retain_graph=True)
    _, estimates = wrong(run, step, retain_graph=False)
    (estimate,) = [each for each in estimates if "%" not in each]  # the share of workspace
    assert direction_of([estimate]) == "at least"
    snapshot("simulate", estimate)
    assert wrong(run, step, retain_graph=True) == ([], set())


@pytest.mark.parametrize("forward", [gradients_that_are_views, expanded_gradients])
def test_a_backward_that_makes_a_graph_is_an_estimate(forward: Forward) -> None:
    step = Step(forward)
    torch.set_warn_always(True)  # else the one warning of a process is gone, for which other tests look
    try:
        with pytest.warns(UserWarning, match="create_graph=True"):
            run = ts.profile(step, create_graph=True)
    finally:
        torch.set_warn_always(False)
        step.reset()  # a .grad with a graph and its leaf keep each other alive
    assert run.footprints is not None
    found = ts.simulate(run.graph, "bfs", run.footprints)
    assert any("create_graph=True" in estimate for estimate in found.estimates)


def test_what_inputs_leaves_out_is_an_estimate_for_the_whole_and_its_own_order_is_right() -> None:
    x, y = (torch.randn(16, 16, requires_grad=True) for _ in range(2))
    loss = ((x @ y).tanh() * x.exp()).sum()
    run = ts.backward(loss, inputs=[x, x], memory=True)
    assert run.timeline is not None and run.footprints is not None
    again = ts.simulate(run.graph, run.order, run.footprints)
    assert (again.peak_bytes, again.end_bytes) == (run.timeline.peak_bytes, run.timeline.end_bytes)
    assert ts.simulate(run.graph, "heap", run.footprints).estimates


def regions_of_which_either_branch_may_come_first(x: Tensor, y: Tensor, kept: list[object]) -> Tensor:
    def region(z: Tensor) -> tuple[Tensor, Tensor]:
        return z.repeat(8, 1).tanh().sum(0, keepdim=True).exp(), (z * 2).sin()

    one, other = checkpoint(region, x.exp(), use_reentrant=False)
    return (one * x).tanh().sum() + (other.sin().sin().sin() @ y).exp().sum()


def test_a_region_that_another_task_has_computed_again_is_an_estimate(snapshot: Snapshots) -> None:
    step = Step(regions_of_which_either_branch_may_come_first)
    run = ts.profile(step.reset())
    assert run.footprints is not None and not run.footprints.limits
    found = {policy: ts.simulate(run.graph, policy, run.footprints).estimates for policy in ("heap", "bfs")}
    assert not found["heap"] and direction_of(found["bfs"]) == "unknown"
    snapshot("simulate", found["bfs"][0])
    opener = {policy: ts.profile(step.reset(), policy).footprints for policy in ("heap", "bfs")}
    first = {policy: footprints.regions[0][0] for policy, footprints in opener.items() if footprints is not None}
    assert first["heap"] != first["bfs"]  # as it was said


def test_a_step_that_adds_to_gradients_is_predicted_by_one_that_did_not_and_is_an_estimate(
    snapshot: Snapshots,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(8, 64)

    def make_loss() -> Tensor:
        return model(x).sum()  # type: ignore[no-any-return]

    first = ts.profile(make_loss)
    loss = make_loss()
    found = ts.simulate(ts.graph(loss, model), "heap", first.footprints)
    planned = ts.plan_order(ts.graph(loss, model), "heap", footprints=first.footprints)
    second = ts.profile(make_loss).timeline
    assert second is not None and first.timeline is not None
    assert found.peak_bytes == planned.best.peak_bytes == second.peak_bytes < first.timeline.peak_bytes
    (why,) = found.estimates[:1]
    says(why, 4, ".grad")
    assert re.search(r"\b0\.(weight|bias)\b", why)
    snapshot("simulate", re.sub(r"\b0\.(weight|bias)\b", "PARAMETER", why))
    assert any(why in note for note in planned.notes)
    same = ts.simulate(first.graph, "heap", first.footprints)
    assert (same.peak_bytes, same.estimates) == (first.timeline.peak_bytes, ())
