"""Python state that a program carries from run to run is restored, to the object; state that cannot be is reported."""

from __future__ import annotations

import io
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.hooks import RemovableHandle

import tapescope as ts
from tapescope.tests.says import Snapshots, raises, says

VERBS: dict[str, Callable[[Callable[[], Tensor], nn.Module], object]] = {
    "find_nan": lambda make_loss, model: ts.find_nan(make_loss),
    "find_unused": ts.find_unused,
    "find_order_dependence": lambda make_loss, model: ts.find_order_dependence(make_loss, "bfs"),
    "compare": lambda make_loss, model: ts.compare(make_loss, "bfs", repetitions=1),
    "advise": lambda make_loss, model: ts.advise(make_loss, rounds=1),
    "record_forward": lambda make_loss, model: ts.record_forward(make_loss, 1),
    "plan_recompute": lambda make_loss, model: ts.plan_recompute(make_loss, seconds=0.01, repetitions=1),
}
BACKWARDS = [name for name in VERBS if name != "record_forward"]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class Lookahead:
    """A wrapper that does not derive from Optimizer and has separate slow weights."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.steps, self.slow = inner, 0, {}

    def step(self) -> None:
        self.inner.step()
        self.steps += 1
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                slow = self.slow.setdefault(parameter, parameter.detach().clone())
                if self.steps % 2 == 0:
                    slow.lerp_(parameter.detach(), 0.5)
                    with torch.no_grad():
                        parameter.copy_(slow)


class Counting(Optimizer):
    """Keeps its own count and log, and rebinds its state at each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.log, self.recent = [], deque(maxlen=3)

    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.9
            for parameter in group["params"]:
                state = self.state[parameter]
                state["mean"] = state.get("mean", 0) * 0.5 + parameter.grad
                state["count"] = state.get("count", 0) + 1
                with torch.no_grad():
                    parameter -= group["lr"] * state["mean"]
                self.log.append(state["count"])
                self.recent.append(state["mean"])


class Lazily:
    """Makes each parameter's optimizer when it is first asked."""

    made: dict[Tensor, Optimizer]

    def __init__(self) -> None:
        self.made = {}

    def of(self, parameter: Tensor) -> Optimizer:
        if parameter not in self.made:
            self.made[parameter] = Adam([parameter], 0.1)
        return self.made[parameter]


def stepping(kind: str) -> tuple[nn.Module, Callable[[], Tensor], list[RemovableHandle]]:
    """A model that is stepped inside of its backward, and its hooks: they lead to the parameters, and torch never frees
    such a cycle, see `test_nothing_kept`."""
    model = mlp()
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "momentum": lambda each: SGD([each], 0.1, momentum=0.9),
        "adam": lambda each: Adam([each], 0.1, amsgrad=True),
        "lr tensor": lambda each: Adam([each], torch.tensor(0.1), foreach=False),
        "counting": lambda each: Counting([each]),
        "lookahead": lambda each: Lookahead(Adam([each], 0.1)),
        "scheduled": lambda each: SGD([each], 0.1, momentum=0.9),
    }
    lazily = Lazily()
    optimizers = {each: kinds[kind](each) for each in model.parameters()} if kind in kinds else {}
    schedulers = {each: StepLR(found, 1, 0.5) for each, found in optimizers.items() if kind == "scheduled"}

    def step(parameter: Tensor) -> None:
        optimizer = optimizers[parameter] if optimizers else lazily.of(parameter)
        optimizer.step()
        if schedulers:
            schedulers[parameter].step()
        if kind == "lr tensor":
            optimizer.param_groups[0]["lr"].mul_(0.5)
        parameter.grad = None

    handles = [each.register_post_accumulate_grad_hook(step) for each in model.parameters()]
    return model, lambda: model(X).square().mean(), handles


@pytest.mark.parametrize("verb", BACKWARDS)
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("kind", ["momentum", "adam", "lr tensor", "counting", "lookahead", "scheduled", "lazily"])
def test_optimizers_that_step_in_the_backward_go_on_as_if_nobody_had_asked(kind: str, before: int, verb: str) -> None:
    trained = []
    for asks in (False, True):
        model, make_loss, handles = stepping(kind)
        for _ in range(before):
            make_loss().backward()
        if asks:
            VERBS[verb](make_loss, model)
        for _ in range(3):
            make_loss().backward()
        trained.append(list(model.parameters()))
        for each in handles:
            each.remove()
    assert all(map(torch.equal, *trained))


class Carries(nn.Module):
    """A module that changes all kinds of attributes when it is called."""

    shared: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden, self._private = nn.RNNCell(4, 3), None, {"calls": 0}
        self.calls, self.log, self.names = 0, [], {"a"}
        self.generator, self.numpy_generator = random.Random(0), np.random.default_rng(0)
        self.array = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.cell(x, self.hidden)
        self._private["calls"] += 1
        self.calls += 1
        self.log.append(self.hidden)
        self.names.add(f"call {self.calls}")
        self.array += self.numpy_generator.random()
        self.shared.append(self.calls)
        self.later = self.calls
        self.cell.register_forward_hook(lambda *told: None)
        self.cell.weight_hh.register_hook(lambda gradient: None)
        self.cell.weight_hh.seen = True
        self.requires_grad_(True).train()
        return self.hidden.square().sum() * self.generator.random()


def all_of(model: Carries) -> list[Any]:
    """Return the objects in its attributes."""
    weight = model.cell.weight_hh
    return [
        {name: id(each) for name, each in vars(model).items()},
        [dict(model._private), list(map(id, model.log)), set(model.names), model.array.tolist(), list(model.shared)],
        [model.generator.getstate(), str(model.numpy_generator.bit_generator.state)],
        [list(each) for each in (model.cell._forward_hooks, model.cell._forward_pre_hooks)],
        [list(weight._backward_hooks or ()), dict(vars(weight)), [each.requires_grad for each in model.parameters()]],
        [each.training for each in model.modules()],
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_module_keeps_is_as_it_was_to_the_object(verb: str, recwarn: pytest.WarningsRecorder) -> None:
    model = Carries().eval()
    model.cell.bias_ih.requires_grad_(False)
    Carries.shared.clear()
    before = all_of(model)
    VERBS[verb](lambda: model(X), model)
    assert all_of(model) == before and not [each for each in recwarn if f"ts.{verb}" in str(each.message)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_hook_that_the_forward_registers_is_gone_with_the_run(verb: str) -> None:
    weight, ran = torch.ones(4, requires_grad=True), []

    def make_loss() -> Tensor:
        weight.register_post_accumulate_grad_hook(lambda leaf: ran.append("post-accumulate"))
        weight.register_hook(lambda gradient: ran.append("gradient"))
        return (X @ weight).square().sum()

    VERBS[verb](make_loss, nn.Sequential())
    ran.clear()
    weight.sum().backward()
    assert not ran


@pytest.mark.parametrize("verb", VERBS)
def test_truncated_backpropagation_goes_on_from_where_it_was(verb: str) -> None:
    losses = []
    for asks in (False, True):
        torch.manual_seed(0)
        cell, state, steps = nn.RNNCell(4, 3), {"h": torch.zeros(3, 3)}, itertools.repeat(None, 3)

        def make_loss() -> Tensor:
            h = cell(X, state["h"].detach())
            state["h"] = h
            return h.square().sum()

        for _ in steps:
            if asks:
                VERBS[verb](make_loss, cell)
            losses.append(make_loss().item())
    assert losses[:3] == losses[3:]


def test_a_loop_that_recomputes_itself_trains_as_without() -> None:
    losses = []
    for call in (lambda function, *args: function(*args), ts.recompute(budget=0.9, seconds=0.01)):
        torch.manual_seed(0)
        cell, state = nn.RNNCell(4, 3), {"h": torch.zeros(3, 3)}

        def forward(x: Tensor) -> Tensor:
            state["h"] = cell(x, state["h"].detach())
            return state["h"].square().sum()

        losses.append([call(forward, X * number).item() for number in range(1, 4)])
    assert losses[0] == losses[1]


def generated() -> Iterator[Tensor]:
    number = 0
    while True:
        number += 1
        yield X * number


def loaded() -> Iterator[Any]:
    return iter(DataLoader(TensorDataset(torch.arange(400.0).reshape(100, 4)), batch_size=2))


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        (generated, "generator"),
        (lambda: iter([X * number for number in range(1, 60)]), "list_iterator"),
        (lambda: map(X.mul, itertools.count(1)), "count"),
        (loaded, None),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_an_iterator_that_goes_on_is_told(
    batches: Callable[[], Any], kind: str | None, verb: str, snapshot: Snapshots
) -> None:
    model, given = mlp(), batches()

    def make_loss() -> Tensor:
        batch = next(given)
        return model(batch if isinstance(batch, Tensor) else batch[0]).square().mean()

    facts = ["make_loss", "`given`", *([] if kind is None else [kind])]
    if verb == "plan_recompute":
        with raises(RuntimeError, *facts) as raised:
            VERBS[verb](make_loss, model)
        if kind == "generator":
            snapshot("plan_recompute", raised.value)
    else:
        with pytest.warns(UserWarning, match="`given`") as warned:
            VERBS[verb](make_loss, model)
        says("\n".join(str(each.message) for each in warned), *facts)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "find_nan"])  # which runs it once
def test_a_loss_that_goes_on_for_reasons_unseen_is_told(verb: str, tmp_path: Any) -> None:
    model, counter = mlp(), tmp_path / "count"
    counter.write_text("1")

    def make_loss() -> Tensor:
        number = int(counter.read_text())
        counter.write_text(str(number + 1))
        return model(X).square().mean() * number

    if verb == "plan_recompute":
        with raises(RuntimeError, "make_loss()", f"ts.{verb}"):
            VERBS[verb](make_loss, model)
    else:
        with pytest.warns(UserWarning, match=rf"make_loss\(\)[\s\S]*\bts\.{verb}\b"):
            VERBS[verb](make_loss, model)


@pytest.mark.parametrize("verb", VERBS)
def test_an_input_that_the_forward_makes_a_leaf_is_none_afterwards(verb: str) -> None:
    model, x = mlp(), X.clone()
    VERBS[verb](lambda: model(x.requires_grad_()).sum() + x.exp().sum(), model)
    assert not x.requires_grad and x.grad is None


def test_what_cannot_be_put_back_keeps_nothing_else_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = mlp(), mlp()
    gradients = [torch.ones_like(each) for each in second.parameters()]
    for each, gradient in zip(second.parameters(), gradients, strict=True):
        each.grad = gradient

    class Stubborn(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: object, value: object) -> None:
            if self.get("stays"):
                raise KeyError("it stays")
            super().__setitem__(key, value)

    kept = Stubborn(calls=0)
    first.calls = 0  # type: ignore[assignment]

    def make_loss() -> Tensor:
        kept["calls"] += 1
        dict.__setitem__(kept, "stays", True)
        first.calls += 1  # type: ignore[operator]
        return first(X).sum() + second(X).sum()

    with pytest.raises(KeyError, match="it stays"):
        ts.find_unused(make_loss, first)
    assert first.calls == 0 and all(each.grad is None for each in first.parameters())
    assert all(each.grad is gradient for each, gradient in zip(second.parameters(), gradients, strict=True))


def flags() -> list[object]:
    """Return the flags that a program may set."""
    backends = torch.backends
    return [
        (torch.is_grad_enabled(), torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.get_num_threads()),
        (backends.cudnn.benchmark, backends.mkldnn.enabled, backends.cuda.flash_sdp_enabled()),
    ]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_flags_that_the_forward_sets_are_as_they_were(verb: str, raises: bool) -> None:
    model, before = mlp(), flags()

    def make_loss() -> Tensor:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("high")
        torch.set_anomaly_enabled(True, check_nan=False)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        if raises:
            torch.set_grad_enabled(False)
            raise KeyError("mine")
        return model(X).square().mean()

    # torch.testing._internal, which other tests import, permanently forbids setting these flags.
    settable = torch.backends.__allow_nonbracketed_mutation()
    with settable, pytest.raises(KeyError, match="mine") if raises else nullcontext():
        VERBS[verb](make_loss, model)
    assert flags() == before


@pytest.mark.parametrize("kept", [random.SystemRandom(), io.StringIO()], ids=["no state", "closed"])
def test_what_has_no_state_to_keep_is_left_alone(kept: Any) -> None:
    """A trainer of Hugging Face's leads to a SystemRandom, whose getstate() raises."""
    if isinstance(kept, io.StringIO):
        kept.close()
    w = torch.ones(3, requires_grad=True)

    def make_loss() -> Tensor:
        assert kept is not None
        return (w * 2).sum()

    assert not ts.find_nan(make_loss)


class Lazy(dict[str, Any]):
    """A mapping that loads an entry when it is read, like those of transformers."""

    def items(self) -> Any:
        raise AssertionError("nobody asked for its items")

    __iter__ = __getitem__ = keys = values = items


def test_a_container_that_loads_its_entries_is_not_asked_for_them() -> None:
    w, lazy = torch.ones(3, requires_grad=True), Lazy(model=1)

    def make_loss() -> Tensor:
        assert lazy is not None
        return (w * 2).sum()

    assert not ts.find_nan(make_loss)
    assert ts.compare(make_loss, ["heap", "bfs"], repetitions=1)
