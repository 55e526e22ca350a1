"""Verbs inside transforms of torch.func, of forwards that use these, and under modes of the user's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.inspector.torch_private.thread_state import unobserved
from tapescope.tests.says import raises


def make_loss() -> Tensor:
    return (torch.ones(3, requires_grad=True) * 2).sin().sum()


def chain(length: int) -> Tensor:
    x = torch.ones(4, requires_grad=True)
    for _ in range(length):
        x = x * 1.01
    return x.sum()


SMALL = nn.Linear(2, 1)


def fitted() -> ts.types.Fit:
    return ts.fits(
        SMALL, lambda: torch.ones(2), lambda given: torch.optim.SGD(given, 0.1), "1GB", lambda net, x: net(x).sum()
    )


VERBS: dict[str, Callable[[], object]] = {
    "profile": lambda: ts.profile(make_loss),
    "compare": lambda: ts.compare(make_loss, repetitions=1),
    "find_nan": lambda: ts.find_nan(make_loss),
    "find_unused": lambda: ts.find_unused(make_loss, SMALL),
    "plan_recompute": lambda: ts.plan_recompute(make_loss, budget=0.5),
    "recompute": lambda: ts.recompute(budget=0.5)(make_loss),
    "find_order_dependence": lambda: ts.find_order_dependence(make_loss),
    "advise": lambda: ts.advise(make_loss),
    "record_forward": lambda: ts.record_forward(make_loss),
    "profile_step": lambda: ts.profile_step(make_loss),
    "fits": fitted,
}


@pytest.mark.parametrize("transform", [grad, vmap, lambda function: partial(jvp, function, tangents=(torch.ones(2),))])
@pytest.mark.parametrize("verb", VERBS)
def test_inside_a_transform_a_verb_is_refused_by_name(verb: str, transform: Callable[..., Any]) -> None:
    def function(x: Tensor) -> Tensor:
        with raises(RuntimeError, f"ts.{verb}()", "torch.func"):
            VERBS[verb]()
        return (x * 2).sum()

    given = torch.ones(2)
    result = transform(function)
    result(primals=(given,)) if isinstance(result, partial) else result(given)


@pytest.mark.parametrize("engine", ["native", "direct"])
def test_a_backward_inside_a_transform_raises_as_pytorch_s_and_runs_nothing(engine: Any) -> None:
    ran: list[Tensor] = []

    def function(x: Tensor, run: Callable[[Tensor], object]) -> Tensor:
        loss = make_loss()
        loss.register_hook(ran.append)
        run(loss)
        return x.sum()

    with pytest.raises(RuntimeError) as expected:
        grad(partial(function, run=torch.autograd.backward))(torch.ones(2))
    with pytest.raises(RuntimeError) as found:
        grad(partial(function, run=partial(ts.backward, engine=engine, trace="full")))(torch.ones(2))
    assert str(found.value) == str(expected.value) and ran == []


@pytest.mark.parametrize(
    "verb",
    [
        lambda loss, net: ts.find_unused(loss, net),
        lambda loss, net: ts.find_nan(loss),
        lambda loss, net: ts.backward(loss(), policy="lpmf"),
        lambda loss, net: ts.backward(loss(), policy="bfs"),
        lambda loss, net: ts.profile(loss),
    ],
)
def test_a_derivative_that_is_not_implemented_is_told_as_by_pytorch(verb: Callable[..., object]) -> None:
    net = nn.Linear(8, 8)

    def loss() -> Tensor:
        x = torch.ones(2, 2, 16, 8, requires_grad=True)
        made = functional.scaled_dot_product_attention(net(x), net(x), net(x)).sum()
        return torch.autograd.grad(made, x, create_graph=True)[0].square().sum()

    with pytest.raises(RuntimeError) as expected:
        loss().backward()
    with pytest.raises(RuntimeError) as found:
        verb(loss, net)
    assert str(found.value) == str(expected.value)


class SeeingCalls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


class SeeingOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def stepped(loss: Tensor, engine: Any) -> None:
    with ts.debug(loss, engine=engine) as session:
        while session.current is not None:
            session.step()


BACKWARDS: dict[str, Callable[[Tensor], object]] = {
    "native": ts.backward,
    "policy": partial(ts.backward, policy="bfs"),
    "direct": partial(ts.backward, engine="direct"),
    "full trace": partial(ts.backward, trace="full"),
    "memory": partial(ts.backward, memory=True),
    "native session": partial(stepped, engine="native"),
    "direct session": partial(stepped, engine="direct"),
}


@pytest.mark.parametrize("way", BACKWARDS)
def test_how_often_a_function_mode_is_called_does_not_depend_on_the_number_of_tasks(way: str) -> None:
    counts = []
    for length in (60, 60, 120):  # the first time modules are loaded
        loss = chain(length)
        with SeeingCalls() as mode:
            BACKWARDS[way](loss)
        counts.append(mode.count)
    assert counts[1] == counts[2]


@pytest.mark.parametrize("way", ["native", "direct", "native session", "direct session"])
def test_a_backward_makes_the_loss_s_gradient_once(way: str) -> None:
    with SeeingOperations() as mode:
        BACKWARDS[way](make_loss())
    assert mode.seen.count("aten.ones_like.default") == 1


def modes_now() -> dict[str, object]:
    return {
        "grad": torch.is_grad_enabled(),
        "forward": torch._C._is_fwd_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "functions": torch._C._is_torch_function_mode_enabled(),
        "dispatch": torch._C._len_torch_dispatch_stack(),
        "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "device": str(torch.empty(0).device),
    }


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
        SeeingCalls,
        SeeingOperations,
    ],
)
@pytest.mark.parametrize("transform", [lambda function: function, vmap, lambda function: vmap(grad(function))])
def test_nothing_is_in_force_inside_and_all_is_as_before_afterwards(
    around: Callable[[], AbstractContextManager[object]], transform: Callable[..., Any]
) -> None:
    def look(x: Tensor) -> Tensor:
        with around():
            before = modes_now()
            with suppress(KeyError), unobserved():
                inside = modes_now()
                with unobserved():
                    assert modes_now() == inside
                assert modes_now() == inside
                raise KeyError
            assert modes_now() == before
        assert inside == {
            "grad": False,
            "forward": False,
            "inference": False,
            "autocast": False,
            "functions": False,
            "dispatch": 0,
            "transforms": 0,
            "device": "cpu",
        }
        return x.sum()

    transform(look)(torch.ones(2, 2))
