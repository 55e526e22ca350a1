"""The direct engine's refusals, and cases that must not mislead it."""

from __future__ import annotations

import gc
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.schedule.policy import Policy
from tapescope.tests.says import Snapshots, raises

from ..backward_programs import Scale
from ..comparing import ENGINES


@pytest.mark.usefixtures("nothing_set_aside")
def test_the_direct_engine_finds_hooks_of_frozen_objects_and_minds_no_stranger() -> None:
    class Strict(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise RuntimeError("strict")

    strangers = [torch.ones(2).as_subclass(Strict)]
    base = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        strangers.append(base[:2])
    base.mul_(2)
    y = x = torch.ones(1, requires_grad=True)
    for _ in range(1200):
        y = y * 1
    assert ts.backward(y, retain_graph=True, engine="direct").engine == "direct" and len(strangers) == 2
    x.grad = None
    handle = x.register_hook(lambda gradient: gradient * 0)
    gc.freeze()
    try:
        ts.backward(y, engine="direct")
    finally:
        gc.unfreeze()
        handle.remove()
    assert torch.equal(x.grad, torch.zeros(1))


def test_the_direct_engine_refuses_nested_gradients(snapshot: Snapshots) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    with raises(NotImplementedError, "nested", "AccumulateGrad", 'engine="native"') as raised:
        ts.backward(nested.to_padded_tensor(0.0).sum(), engine="direct")
    snapshot("backward", raised.value)


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="needs Tensor.grad_dtype")
def test_a_leaf_that_takes_gradients_of_any_dtype_is_left_to_pytorchs_engine(snapshot: Snapshots) -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad_dtype = None
    with raises(NotImplementedError, "AccumulateGrad", "grad_dtype", 'engine="native"') as raised:
        ts.backward((leaf * 2).sum(), engine="direct")
    snapshot("backward", raised.value)
    assert leaf.grad is None
    ts.backward((leaf * 2).sum(), policy="bfs")
    assert torch.equal(leaf.grad, torch.full((2,), 2.0))


def test_the_direct_engine_refuses_what_it_would_do_differently(snapshot: Snapshots) -> None:
    x = torch.ones(2, requires_grad=True)

    def loss() -> Tensor:
        return x.exp().sum()

    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        for engine in ENGINES:
            with raises((NotImplementedError, RuntimeError), "compiled autograd") as raised:
                ts.backward(loss(), engine=engine)
            snapshot("backward", raised.value)
    assert x.grad is None


def test_functions_with_arguments_that_are_no_tensors() -> None:
    x = torch.ones(2, requires_grad=True)
    ts.backward(Scale.apply(x, 3.0, torch.tensor([1.0, 0.0])).sum(), engine="direct")
    assert torch.equal(x.grad, torch.tensor([3.0, 0.0]))


def not_scalar(h: Tensor) -> Tensor:
    return h * 3


def freed(h: Tensor) -> Tensor:
    loss = (h * h).sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("make", [not_scalar, freed, lambda h: not_scalar(h).relu()])
@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_backward_that_is_refused_leaves_its_inputs_as_they_were(make: Any, engine: Any) -> None:
    retained = []
    for backward in (torch.autograd.backward, partial(ts.backward, engine=engine)):
        h = torch.ones(3, requires_grad=True) * 2
        loss = make(h)
        with pytest.raises(RuntimeError):
            backward(loss, inputs=[h])
        retained.append(h.retains_grad)
    assert retained[0] == retained[1] == (make is freed)  # which PyTorch's engine refuses when it has begun


def test_an_input_that_requires_no_grad_leaves_the_others_as_they_were() -> None:
    h, x = torch.ones(3, requires_grad=True) * 2, torch.ones(3)
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        ts.backward((h * 3).sum(), inputs=[h, x], engine="direct")
    assert not h.retains_grad


@pytest.mark.parametrize("engine", ENGINES)
def test_a_policy_that_fails_to_plan_leaves_inputs_as_they_were(engine: Any) -> None:
    def plan(problem: object, ran: object) -> list[int]:
        raise LookupError("no plan")

    h = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(LookupError, match="no plan"):
        ts.backward((h * 3).sum(), inputs=[h], engine=engine, policy=Policy("bad", "fails", plan=plan))
    assert not h.retains_grad


def test_a_profiler_that_a_hook_sets_stays() -> None:
    h = torch.ones(3, requires_grad=True) * 2

    def profiler(*told: object) -> None:
        """Keeps nothing."""

    handle = h.register_hook(lambda gradient: sys.setprofile(profiler))
    try:
        with ts.debug((h * h).sum()) as session:
            session.run()
        found = sys.getprofile()
    finally:
        sys.setprofile(None)
        handle.remove()
    assert found is profiler
