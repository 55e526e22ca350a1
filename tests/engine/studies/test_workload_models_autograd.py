"""Gradients written by hand are autograd's, need no graph, and touch nothing."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.engine.studies.ready_workload import OF_HIPS
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.tests.says import Snapshots, raises

BY_HAND = [name for name, found in WORKLOADS.items() if found.gradient is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand_the_gradient_is_that_of_autograd(name: str, fused: bool, dtype: torch.dtype) -> None:
    model, make_loss = WORKLOADS[name].build(dtype=dtype)
    loss = make_loss()
    loss.backward()
    same, compute = WORKLOADS[name].by_hand(dtype=dtype, fused=fused)
    found, gradients = compute()
    torch.testing.assert_close(found, loss.detach())
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for key, parameter in model.named_parameters():
        assert gradients[key].dtype is dtype and gradients[key].shape == parameter.shape
        torch.testing.assert_close(gradients[key], parameter.grad)
    assert not any(each.requires_grad for each in gradients.values())
    assert all(parameter.grad is None for parameter in same.parameters())
    torch.testing.assert_close(compute()[1], gradients, rtol=0, atol=0, msg="parameters and data are left as they were")


@pytest.mark.parametrize(
    ("name", "steps"), [("rnn", 1 + 1 + 50), ("fan_out", 1 + 100), ("elementwise", 1 + 100), ("needless", 1 + 1)]
)
def test_each_step_of_the_backward_is_told(name: str, steps: int) -> None:
    told: list[int] = []
    _, compute = WORKLOADS[name].by_hand()
    compute(lambda: told.append(1))
    assert len(told) == steps


def test_the_programs_are_those_of_the_thread() -> None:
    parts = WORKLOADS["rnn"].make(batch=2, width=8, steps=3)
    (x,), (label,), made = parts.inputs, parts.targets, parts.model
    h = x
    for _ in range(3):
        h = (h @ made.weight + made.bias).tanh()
    logit = h @ made.weight_out + made.bias_out
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, label, reduction="sum")
    torch.testing.assert_close(parts.criterion(made(x), label), expected)

    sizes = {name: dict(WORKLOADS[name].full) for name in BY_HAND}
    assert sizes["rnn"] == {"batch": 16, "width": 1024, "steps": 50}
    assert sizes["fan_out"] == {"width": 1000, "uses": 100}
    assert sizes["elementwise"] == {"width": 1000, "uses": 100}
    assert sizes["needless"] == {"width": 1000, "additions": 100}
    names = {name: [task.short_name for task in ts.graph(WORKLOADS[name].build()[1]()).tasks] for name in BY_HAND}
    assert names["rnn"].count("Mm") == names["rnn"].count("Tanh") + 1 == 51
    assert names["fan_out"].count("Mm") == 100 and names["fan_out"].count("AccumulateGrad") == 1
    assert names["elementwise"].count("Mul") == 100 and names["elementwise"].count("AccumulateGrad") == 1
    assert names["needless"].count("Add") == 100


@pytest.mark.parametrize("name", ["rnn", "fan_out"])
def test_fused_no_product_is_a_tensor_of_its_own(name: str) -> None:
    class Products(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.made = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            self.made += func is torch.ops.aten.mm.default and made.shape == largest
            return made

    model, _ = WORKLOADS[name].build(dtype=torch.float64)
    largest = max((parameter.shape for parameter in model.parameters()), key=torch.Size.numel)
    counts = {}
    for fused in (False, True):
        _, compute = WORKLOADS[name].by_hand(fused=fused)
        with Products() as products:
            compute()
        counts[fused] = products.made
    assert counts[False] - counts[True] == (49 if name == "rnn" else 99)


def test_a_workload_without_one_names_those_which_have_it(snapshot: Snapshots) -> None:
    with raises(ValueError, "gpt2", *BY_HAND) as refused:
        workload("gpt2").by_hand()
    snapshot("workload", refused.value)


@pytest.mark.parametrize("name", ["gpt2", "lstm_cell", "recommender", "two_devices"])
def test_a_dtype_is_that_of_parameters_data_and_gradients(name: str) -> None:
    model, make_loss = WORKLOADS[name].build(device="meta", dtype=torch.float64)
    loss = make_loss()
    loss.backward()
    assert loss.dtype is torch.float64
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BY_HAND)
def test_for_numpy_the_program_has_the_same_value_and_gradient(name: str, dtype: torch.dtype) -> None:
    autograd = pytest.importorskip("autograd")
    fun, args = WORKLOADS[name].in_numpy(dtype=dtype)
    _, compute = WORKLOADS[name].by_hand(dtype=dtype)
    loss, expected = compute()
    value, gradient = autograd.value_and_grad(fun)(*args)
    torch.testing.assert_close(torch.tensor(value), loss)
    found = gradient if isinstance(gradient, tuple) else (gradient,)
    names = [key for key, _ in WORKLOADS[name].build()[0].named_parameters()]
    for key, each in zip(names, found, strict=True):
        torch.testing.assert_close(torch.from_numpy(each), expected[key])


def test_a_workload_without_a_program_for_numpy_names_those_which_have_it(snapshot: Snapshots) -> None:
    with raises(ValueError, "gpt2", "NumPy", *BY_HAND) as refused:
        workload("gpt2").in_numpy()
    snapshot("workload", refused.value)


def test_the_programs_of_hips_are_those_that_are_named() -> None:
    assert sorted(OF_HIPS) == sorted(BY_HAND)
    assert sorted(OF_HIPS) == sorted(name for name, found in WORKLOADS.items() if found.program is not None)
