"""An optimizer that wraps others stands for these: each of their steps is a step of the loop, and no other call is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import tapescope as ts
from tapescope.tests.says import raises


class CountingSGD(SGD):
    """Counts its own updates, by itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 0.1)
        self.updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        return super().step(closure)


class Delegating(Optimizer):
    """Like Opacus' DPOptimizer: an `Optimizer` that never calls `Optimizer.__init__`, and that skips steps."""

    def __init__(self, optimizer: Optimizer, every: int = 1) -> None:
        self.original_optimizer, self.every, self.calls = optimizer, every, 0

    param_groups = property(lambda self: self.original_optimizer.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.original_optimizer.state)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls % self.every == 0:
            self.original_optimizer.step()


class Lookahead(Optimizer):
    """A wrapper that calls `Optimizer.__init__`, so torch's hooks name it as well."""

    def __init__(self, optimizer: Optimizer, every: int = 1) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.every, self.calls = optimizer, every, 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls % self.every == 0:
            self.optimizer.step()


class Forwarding:
    """No `Optimizer`: whatever it does not know it asks the other one."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class Warmup:
    """A wrapper that is not an `Optimizer` and has no groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


class Hiding(Optimizer):
    """A wrapper with the same parameters in its own groups, whose optimizer is not among its attributes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.call = lambda: optimizer.step()
        self.param_groups = [{"params": list(each["params"])} for each in optimizer.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.call()


def accelerated(optimizer: Optimizer) -> Any:
    return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(optimizer)


def lightning(optimizer: Optimizer) -> Any:
    """Return what `self.optimizers()` returns in a LightningModule."""
    wrapped = pytest.importorskip("pytorch_lightning.core.optimizer").LightningOptimizer(optimizer)
    wrapped._strategy = Strategy()
    return wrapped


class Strategy:
    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **options: Any) -> Any:
        return optimizer.step(closure)


WRAPPERS: dict[str, Callable[[Optimizer], Any]] = {
    "accelerate": accelerated,
    "lightning": lightning,
    "opacus": Delegating,
    "opacus, virtual steps": lambda optimizer: Delegating(optimizer, 3),
    "lookahead": Lookahead,
    "lookahead, every third call": lambda optimizer: Lookahead(optimizer, 3),
    "by __getattr__": Forwarding,
    "no groups": Warmup,
    "hiding": Hiding,
    "two": lambda optimizer: Delegating(Lookahead(optimizer)),
}


def loop(wrapper: str, steps: int, watch: Callable[[nn.Module, Any], Any]) -> tuple[Any, int, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    inner = CountingSGD(model.parameters())
    optimizer, x = WRAPPERS[wrapper](inner), torch.randn(5, 4)
    with watch(model, optimizer) as watched:
        for _ in range(steps):
            inner.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return watched, inner.updates, list(model.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_steps_are_those_of_the_optimizer_that_is_wrapped(wrapper: str, given: bool) -> None:
    training, updates, found = loop(
        wrapper, 6, lambda model, optimizer: ts.training(model, optimizer if given else None)
    )
    assert training.steps == updates == (2 if wrapper.endswith(("third call", "virtual steps")) else 6)
    assert len(training.norms.optimizers) == 1 and not training.notes
    assert training.norms.learning_rates.flatten().tolist() == pytest.approx([0.1] * updates)
    for one, other in zip(found, loop(wrapper, 6, lambda *_: nullcontext())[2], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_recorded_steps_are_those_of_the_optimizer_that_is_wrapped(wrapper: str) -> None:
    steps, _, _ = loop(wrapper, 9, lambda *_: ts.record_steps(3))
    name = "Lookahead" if wrapper.startswith(("lookahead", "two")) else "CountingSGD"
    assert [each.optimizers for each in steps] == [(name,)] * 3


def test_of_an_optimizer_that_is_not_given_nothing_is_told_though_the_one_that_was_is_gone() -> None:
    model = nn.Linear(2, 1)
    other = SGD(model.parameters(), 0.1)
    with ts.training(model, Delegating(SGD(nn.Linear(2, 1).parameters(), 0.1))) as training:
        model(torch.ones(2)).sum().backward()
        other.step()
    assert training.steps == 0


def test_a_wrapper_that_is_made_in_the_call_stands_for_its_optimizer() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), 0.1)
    with ts.training(model, Delegating(optimizer)) as training:
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    assert training.steps == 3


def test_a_scheduler_is_refused_though_it_has_an_optimizer() -> None:
    optimizer = SGD(nn.Linear(2, 1).parameters(), 0.1)
    with raises(TypeError, "optimizer", "StepLR"):
        ts.training(optimizer=torch.optim.lr_scheduler.StepLR(optimizer, 1))  # type: ignore[arg-type]


def test_a_step_of_a_wrapper_that_raises_is_none_and_the_next_one_is() -> None:
    model = nn.Linear(2, 1)
    optimizer = Lookahead(SGD(model.parameters(), 0.1))
    with ts.training(model, optimizer) as training:
        for number in range(4):
            model(torch.ones(2)).sum().backward()
            optimizer.optimizer = optimizer.optimizer if number else None  # type: ignore[assignment]
            if number:
                optimizer.step()
            else:
                with pytest.raises(AttributeError):
                    optimizer.step()
                optimizer.optimizer = SGD(model.parameters(), 0.1)
    assert training.steps == 3


@pytest.mark.filterwarnings("ignore:ts.training")
def test_a_gradient_scaler_leaves_out_the_step_of_the_optimizer_that_is_wrapped() -> None:
    model = nn.Linear(2, 1)
    optimizer = Delegating(SGD(model.parameters(), 0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ts.training(model, optimizer) as training:
        for number in range(3):
            model.zero_grad()
            scaler.scale(model(torch.ones(2)).sum() * (float("inf") if number == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert training.norms.skipped.tolist() == [False, True, False]
    assert [each.kind for each in training.findings] == ["skipped"]


def test_a_step_inside_of_a_subclass_s_step_is_the_same_step() -> None:
    SGD(nn.Linear(2, 1).parameters(), 0.1)  # puts torch's hooks into SGD.step, which the subclass calls
    training, updates, _ = loop("by __getattr__", 3, ts.training)
    assert training.steps == updates == 3
    assert len(training.norms) == 3 and training.norms.losses.isfinite().all()
