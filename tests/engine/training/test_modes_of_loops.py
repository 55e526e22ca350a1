"""Loops under transforms, modes and devices: they train as without `ts.training`, which observes all of it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tapescope as ts
from tapescope.engine.training.black_box.read_step import read_step


def row_loss(net: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    return lambda weights, row: functional_call(net, weights, (row[None],)).square().sum()


def detached(net: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach() for name, each in net.named_parameters()}


def dual_loss(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        made = net(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        return torch.autograd.forward_ad.unpack_dual(made).tangent.square().mean()


def beside(other: Callable[[nn.Module, Tensor], object]) -> Callable[[nn.Module, Tensor], Tensor]:
    """A loss, before which the loop does something else."""

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        other(net, x)
        made: Tensor = net(x).square().mean()
        return made

    return loss


LOSSES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "gradients of each sample": beside(lambda net, x: vmap(grad(row_loss(net)), (None, 0))(detached(net), x)),
    "grad": beside(lambda net, x: grad(lambda row: net(row).sum())(x[0])),
    "jvp": beside(lambda net, x: jvp(net, (x,), (x,))),
    "jacrev": beside(lambda net, x: jacrev(net)(x[0])),
    "jacfwd": beside(lambda net, x: jacfwd(net)(x[0])),
    "hessian": beside(lambda net, x: hessian(lambda row: net(row).sum())(x[0])),
    "grad in the loss": lambda net, x: vmap(grad(lambda row: net(row).sum()))(x).square().mean(),
    "hessian in the loss": lambda net, x: vmap(hessian(lambda row: net(row).sum()))(x).square().mean(),
    "jvp in the loss": lambda net, x: jvp(net, (x,), (x,))[1].square().mean(),
    "vmap in the loss": lambda net, x: vmap(net)(x).square().mean(),
    "dual numbers in the loss": dual_loss,
}


class SeeingCalls(TorchFunctionMode):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


class SeeingOperations(TorchDispatchMode):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def trained(
    loss: Callable[[nn.Module, Tensor], Tensor],
    watch: Callable[[nn.Module, torch.optim.Optimizer], AbstractContextManager[Any]],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    nan_in: int | None = None,
) -> tuple[list[Tensor], Any, Any]:
    """Ten steps: losses and parameters, what watched the loop, and what was around it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9), torch.randn(6, 4)
    losses = []
    with around() as mode, watch(net, optimizer) as watched:
        for step in range(10):
            optimizer.zero_grad()
            made = loss(net, x)
            (made * float("nan") if step == nan_in else made).backward()
            optimizer.step()
            losses.append(made.detach().clone())
    return [*losses, *net.parameters()], watched, mode


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loop_that_uses_transforms_is_watched_to_its_end(loss: str, tmp_path: Path) -> None:
    expected, _, _ = trained(LOSSES[loss], lambda *_: nullcontext())
    found, training, _ = trained(LOSSES[loss], lambda *given: ts.training(*given, every=1, black_box=tmp_path))
    assert all(map(torch.equal, found, expected)) and training.notes == []
    assert training.norms.losses.flatten().tolist() == [float(each) for each in expected[:10]]
    _, training, _ = trained(LOSSES[loss], lambda *given: ts.training(*given, black_box=tmp_path), nan_in=7)
    assert {each.step for each in training.findings if each.kind in ("non-finite", "black box")} == {7}
    assert training.notes == [] and len(training.norms) == 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["gradients of each sample", "hessian", "grad in the loss", "vmap in the loss"])
@pytest.mark.parametrize("watch", [lambda *_: ts.training(writes=True), lambda *_: ts.record_steps(2)])
def test_without_a_model_given_such_a_loop_trains_as_before(loss: str, watch: Callable[..., Any]) -> None:
    expected, _, _ = trained(LOSSES[loss], lambda *_: nullcontext())
    found, watched, _ = trained(LOSSES[loss], watch)
    assert all(map(torch.equal, found, expected))
    if isinstance(watched, ts.types.Training):
        assert watched.notes == [] and watched.norms.columns == ["0", "2"]
    else:
        assert len(watched) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_step_inside_of_a_transform_is_kept_with_the_whole_batch(tmp_path: Path) -> None:
    _, training, _ = trained(
        LOSSES["vmap in the loss"], lambda *given: ts.training(*given, black_box=tmp_path), nan_in=3
    )
    kept = next(each for each in training.findings if each.kind == "black box")
    assert kept.at is not None
    torch.manual_seed(0)
    nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(6, 4)
    assert any(each.shape == x.shape and torch.equal(each, x) for each in read_step(kept.at).load().values())


@pytest.mark.parametrize("watch", [lambda *given: ts.training(*given, every=1), lambda *_: ts.record_steps(2)])
@pytest.mark.parametrize("mode", [SeeingCalls, SeeingOperations])
def test_modes_of_the_user_s_see_what_they_see_without(
    mode: type[SeeingCalls] | type[SeeingOperations], watch: Callable[..., Any]
) -> None:
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        made: Tensor = net(x).square().mean()
        return made

    _, _, alone = trained(loss, lambda *_: nullcontext(), mode)
    _, _, watched = trained(loss, watch, mode)
    assert watched.seen == alone.seen


@pytest.mark.filterwarnings("ignore:ts.training")  # a FlopCounterMode's hooks keep graphs alive
@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: FlopCounterMode(display=False),
    ],
)
def test_the_norms_of_a_loop_are_those_of_its_gradients_whatever_is_around_it(around: Callable[..., Any]) -> None:
    net = nn.Linear(4, 1)
    optimizer, x = torch.optim.SGD(net.parameters(), 0.1), torch.randn(5, 4)
    norms = []
    with around(), ts.training(net, optimizer) as training:
        for _ in range(6):
            optimizer.zero_grad()
            net(x).float().square().mean().backward()
            norms.append(math.hypot(*net.weight.grad.flatten().tolist(), *net.bias.grad.tolist()))
            optimizer.step()
        training.save_html(os.devnull)
    assert training.notes == []
    with around():
        assert training.to_pandas("steps")["gradient_norm"].tolist() == pytest.approx(norms)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_numbers_of_a_loop_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    net = nn.Linear(3, 1)
    x, before = torch.ones(2, 3), torch.get_default_dtype()
    expected = net(x).square().mean().item()
    torch.set_default_dtype(dtype)
    try:
        with ts.training(net, optimizer := torch.optim.SGD(net.parameters(), 0.0)) as training:
            for _ in range(12):
                net.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
        table = training.to_pandas("steps")
    finally:
        torch.set_default_dtype(before)
    assert table["loss"].tolist() == [expected] * 12
    assert training.norms.gradients.dtype is torch.float32


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(x.shape[-1])
        found: Tensor = self.lin(x) * self.table
        return found


def test_the_error_of_an_inference_tensor_names_the_attribute_that_has_it() -> None:
    net = Positions()
    with torch.inference_mode():
        net(torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="Inference tensors") as found, ts.training(net):
        net(torch.ones(2, 4)).sum().backward()
    (note,) = (each for each in found.value.__notes__ if "inference_mode" in each)
    assert "Positions.table" in note and "test_modes_of_loops.py:" in note and ".clone()" in note


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("is_around", [True, False])
def test_casts_that_autocast_keeps_over_a_step_are_found(is_around: bool, cache: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 0.1), torch.randn(16, 8)
    losses = []
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, cache_enabled=cache)
    with warnings.catch_warnings(), autocast() if is_around else nullcontext():
        warnings.simplefilter("ignore")
        with ts.training(net, optimizer) as training:
            for _ in range(5):
                optimizer.zero_grad()
                with nullcontext() if is_around else autocast():
                    loss = net(x).float().square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    stale = [each for each in training.findings if each.kind == "stale cast"]
    assert bool(stale) == (len(set(losses)) == 1) == (is_around and cache)
    if stale:
        assert stale[0].step == 1 and stale[0].tensor == "0.weight"
        assert all(word in stale[0].sentence for word in ("2.weight", "SGD", "torch.autocast", "cache_enabled=False"))


COMPILED = """
import torch
from contextlib import nullcontext
from torch._dynamo.utils import counters
import tapescope as ts

def compiled_frames(watch):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forward = torch._dynamo.disable(lambda x: model(x).sum())
    backward = torch._dynamo.disable(lambda loss: loss.backward())

    @torch.compile(backend="eager")
    def step(x):
        loss = forward(x * 2)
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        del loss
        return x * 3

    with watch(model) as watching:
        for _ in range(4):
            step(torch.ones(2, 3))
    return counters["frames"]["total"], model.weight, watching

frames, weight, _ = compiled_frames(lambda model: nullcontext())
found, trained, training = compiled_frames(ts.training)
assert found <= frames, (found, frames)
assert torch.equal(trained, weight) and training.steps == 4
"""


@pytest.mark.slow
def test_a_step_that_is_compiled_with_its_optimizer_compiles_nothing_of_tapescope() -> None:
    """Runs in a separate process, because other tests affect torch's compiler."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
