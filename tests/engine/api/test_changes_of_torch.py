"""Differences of PyTorch's engine between the supported versions: both engines behave like the installed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

Backward = Callable[[Tensor], object]


def stepped(loss: Tensor, engine: str) -> None:
    with ts.debug(loss, engine=engine) as session:
        session.step()
        session.run()


WAYS: dict[str, Backward] = {
    "native": lambda loss: ts.backward(loss, engine="native", policy="bfs"),
    "direct": lambda loss: ts.backward(loss, engine="direct", policy="bfs"),
    "native session": lambda loss: stepped(loss, "native"),
    "direct session": lambda loss: stepped(loss, "direct"),
}
every_way = pytest.mark.parametrize("backward", WAYS.values(), ids=WAYS)


@contextmanager
def any_layout() -> Iterator[None]:
    policy = getattr(torch.autograd, "enforce_grad_layout_policy", None)
    if policy is None:
        pytest.skip("needs torch.autograd.enforce_grad_layout_policy (torch 2.13)")
    with policy(False):
        yield


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "permuted": lambda x: (x.permute(1, 2, 0) * torch.arange(24.0).reshape(2, 3, 4)).sum(),
    "expanded": lambda x: x.sum(),
    "its own": lambda x: (x * 2).sum(),
    "twice": lambda x: (x.permute(1, 2, 0) * torch.arange(24.0).reshape(2, 3, 4)).sum() + (x * 2).sum(),
}


@every_way
@pytest.mark.parametrize("loss_of", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("is_any", [False, True], ids=["as the leaf", "any layout"])
def test_a_gradient_becomes_grad_in_the_layout_that_the_policy_asks_for(
    backward: Backward, loss_of: Callable[[Tensor], Tensor], is_any: bool
) -> None:
    def grad(run: Backward) -> Tensor:
        leaf = torch.ones(4, 2, 3, requires_grad=True)
        loss = loss_of(leaf)
        if is_any:
            with any_layout():
                run(loss)
        else:
            run(loss)
        assert leaf.grad is not None
        return leaf.grad

    found, expected = grad(backward), grad(Tensor.backward)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


def test_a_prediction_under_any_layout_is_an_estimate() -> None:
    leaf = torch.ones(4, 2, 3, requires_grad=True)
    loss = LAYOUTS["permuted"](leaf)
    assert not any("layout" in why for why in ts.simulate(ts.graph(loss)).estimates)
    with any_layout():
        assert any("enforce_grad_layout_policy" in why for why in ts.simulate(ts.graph(loss)).estimates)


class Boxed(torch.autograd.Function):
    """From torch 2.13 on its backward gets one list."""

    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        boxed = [*gradients[0]] if isinstance(gradients[0], list) else [*gradients]
        total: Tensor = boxed.pop(0) * 2
        return total + boxed.pop(0) * 3


@every_way
@pytest.mark.parametrize("uses_both", [True, False])
def test_a_backward_that_gets_its_gradients_in_a_list(backward: Backward, uses_both: bool) -> None:
    x = torch.arange(3.0, requires_grad=True)
    one, other = Boxed.apply(x)
    backward((one * 5 + (other * 7 if uses_both else 0)).sum())
    assert torch.equal(x.grad, torch.full((3,), 31.0 if uses_both else 10.0))


@pytest.mark.parametrize("engine", ["native", "direct"])
def test_inputs_in_a_dict(engine: str) -> None:
    """torch.autograd.backward takes one from 2.13 on, ts.backward on every version."""
    layer = nn.Linear(3, 2)
    ts.backward(layer(torch.ones(1, 3)).sum(), engine=engine, inputs={"weight": layer.weight})
    assert torch.equal(layer.weight.grad, torch.ones(2, 3))
    assert layer.bias.grad is None


class WritesItsInput(torch.autograd.Function):
    """From torch 2.14 on its output's gradient has the output's dtype, before that the one declared for the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, got: list[Tensor]) -> Tensor:
        ctx.mark_dirty(x)
        ctx.got = got
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.got.append(gradient.clone())
        return None, gradient.to(torch.bfloat16), None


@every_way
@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="needs Tensor.grad_dtype")
def test_a_function_that_writes_a_tensor_whose_gradient_dtype_was_declared(backward: Backward) -> None:
    def got(run: Backward) -> Tensor:
        weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
        x, found = torch.ones(3, dtype=torch.bfloat16), []
        x.grad_dtype = torch.float64
        y = WritesItsInput.apply(x, weight, found)
        run((y * torch.full((3,), 1.0009765625, dtype=torch.float64)).sum())
        (gradient,) = found
        return gradient

    found, expected = got(backward), got(Tensor.backward)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


@every_way
def test_hooks_see_the_callers_context_variables(backward: Backward) -> None:
    """torch hands them on to the engine's threads from 2.13 on."""
    variable, seen = ContextVar("variable", default="another thread's"), []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(variable.get()))
    variable.set("the caller's")
    backward(y.sum())
    assert seen == ["the caller's"]


@every_way
@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "queue_callback"), reason="needs torch.autograd.graph.queue_callback (torch 2.15)"
)
def test_callbacks_for_the_end_of_the_backward(backward: Backward) -> None:
    x, ran = torch.ones(3, requires_grad=True), []
    y = x * 2

    def hook(gradient: Tensor) -> None:
        torch.autograd.graph.queue_callback(lambda: ran.append(x.grad is not None))

    y.register_hook(hook)
    backward(y.sum())
    assert ran == [True]


class AddsIntoTheBuffer(torch.autograd.Function):
    """From torch 2.15 on its backward may add to the gradient that has come to an input by then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, got: list[tuple[bool, ...]]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.got = got
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        buffers = ctx.input_grad_buffers
        ctx.got.append(tuple(each is not None for each in buffers))
        found = gradient * weight
        if buffers[0] is not None:
            buffers[0].add_(found)
            found = None
        return found, gradient * x, None


def adding_into_the_buffer(steps: int = 0) -> tuple[list[Tensor], Tensor, list[tuple[bool, ...]]]:
    x, weight = torch.arange(3.0, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    got: list[tuple[bool, ...]] = []
    y = x * 3
    for _ in range(steps):
        y = y * 1.0
    product, sine = AddsIntoTheBuffer.apply(y, weight, got), y.sin()  # the sine's gradient comes first
    return [x, weight], product.sum() + sine.sum(), got


needs_buffers = pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"),
    reason="needs ctx.input_grad_buffers (torch 2.15)",
)


@needs_buffers
@pytest.mark.parametrize("steps", [0, 1500], ids=["few tasks", "many tasks"])
@every_way
def test_a_backward_that_asks_for_the_buffers_of_its_inputs(backward: Backward, steps: int) -> None:
    leaves, loss, got = adding_into_the_buffer(steps)
    loss.backward()
    assert got == [(True, False, False)]
    expected = [leaf.grad for leaf in leaves]
    leaves, loss, got = adding_into_the_buffer(steps)
    backward(loss)
    assert all(torch.equal(leaf.grad, other) for leaf, other in zip(leaves, expected, strict=True))
    assert len(got) == 1


@needs_buffers
@pytest.mark.parametrize("engine", ["native", "direct"])
def test_buffers_can_be_asked_for_after_a_session_too(engine: str) -> None:
    """The engine goes on to refuse them once a node has had a post-hook."""
    leaves, loss, _ = adding_into_the_buffer()
    loss.backward(retain_graph=True)
    expected = [leaf.grad.clone() for leaf in leaves]
    with ts.debug(loss, engine=engine, retain_graph=True) as session:
        session.step()
    ts.simulate(ts.graph(loss))
    for leaf in leaves:
        leaf.grad = None
    loss.backward()
    assert all(torch.equal(leaf.grad, other) for leaf, other in zip(leaves, expected, strict=True))


@needs_buffers
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_what_torch_refuses_stays_refused() -> None:
    for engine in ("native", "direct"):
        _, loss, _ = adding_into_the_buffer()
        (node,) = [node for node in ts.graph(loss).nodes if node.name() == "AddsIntoTheBufferBackward"]
        node.register_hook(lambda *gradients: None)  # the user's own
        with pytest.raises(RuntimeError, match="input_grad_buffers"):
            ts.backward(loss, engine=engine)
        _, loss, _ = adding_into_the_buffer()
        with pytest.raises(RuntimeError, match="input_grad_buffers"):
            ts.backward(loss, engine=engine, create_graph=True)
        (node,) = [node for node in ts.graph(loss).nodes if node.name() == "AddsIntoTheBufferBackward"]
        with pytest.raises(RuntimeError, match="input_grad_buffers"):
            node.input_grad_buffers  # noqa: B018
