"""Layouts, dtypes, strides, subclasses and devices of tensors."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from program import Program, kind, mlp, simple
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map


def quietly(make: Any) -> Any:
    """torch warns once that compressed and nested tensors are new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@kind
def sparse_embedding() -> Program:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))
    return simple(model, torch.tensor([1, 2, 2, 5]))


@kind
def sparse_leaf() -> Program:
    w = torch.eye(4).to_sparse().requires_grad_()
    x = torch.randn(4, 3)
    return Program(lambda: torch.sparse.mm(w, x).square().sum(), {"w": w})


@kind
def compressed_constant() -> Program:
    a = quietly(lambda: torch.randn(4, 4).relu().to_sparse_csr())
    w = torch.randn(4, 3, requires_grad=True)
    return Program(lambda: (a @ w).square().sum(), {"w": w})


@kind
def compressed_rows_leaf() -> Program:
    w = quietly(lambda: torch.randn(4, 4).relu().to_sparse_csr()).requires_grad_()
    x = torch.randn(4, 3)
    return Program(lambda: (w @ x).square().sum(), {"w": w}, has_optimizer=False)


@kind
def compressed_columns() -> Program:
    a = torch.randn(4, 4, requires_grad=True)
    return Program(lambda: quietly(lambda: a.to_sparse_csc()).to_dense().sin().sum(), [a])


@kind
def compressed_blocks() -> Program:
    a = torch.randn(4, 4, requires_grad=True)

    def loss() -> Tensor:
        rows, columns = quietly(lambda: (a.to_sparse_bsr((2, 2)), a.to_sparse_bsc((2, 2))))
        return (rows.to_dense() * columns.to_dense()).sin().sum()

    return Program(loss, [a])


@kind
def nested_jagged() -> Program:
    linear, parts = nn.Linear(4, 3), [torch.randn(2, 4), torch.randn(3, 4)]

    def loss() -> Tensor:
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        return linear(nested).values().square().sum()

    return Program(loss, model=linear)


@kind
def nested_jagged_values() -> Program:
    values, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    offsets = torch.tensor([0, 2, 5])

    def loss() -> Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (nested * w).sin().values().sum()

    return Program(loss, [values, w])


@kind
def nested_strided() -> Program:
    linear, parts = nn.Linear(4, 3), [torch.randn(2, 4), torch.randn(3, 4)]

    def loss() -> Tensor:
        nested = quietly(lambda: torch.nested.nested_tensor(parts))
        return linear(nested).to_padded_tensor(0.0).square().sum()

    return Program(loss, model=linear)


@kind
def complex_numbers() -> Program:
    w = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    r = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        return (w * r).exp().abs().sum() + torch.view_as_real(w).square().sum() + w.conj().mul(w).real.sum()

    return Program(loss, {"w": w, "r": r})


@kind
def conjugate_bits() -> Program:
    w = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    return Program(lambda: (w.conj().imag * w.real).sum() + torch.vdot(w, w.conj()).real, {"w": w})


@kind
def double_precision() -> Program:
    return simple(mlp().double(), torch.randn(3, 4).double())


@kind
def half_precision() -> Program:
    return simple(mlp().bfloat16(), torch.randn(3, 4).bfloat16(), is_rough=True)


@kind
def mixed_dtypes() -> Program:
    a = torch.randn(4, requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, requires_grad=True)
    c = torch.randn(4, dtype=torch.float16, requires_grad=True)
    return Program(lambda: (a * b + c).sin().sum().float(), [a, b, c], is_rough=True)


@kind
def float8_inside() -> Program:
    w = torch.randn(4).to(torch.float8_e4m3fn).float().requires_grad_()
    return Program(lambda: (w.to(torch.float8_e4m3fn).float() * 2).sum(), [w], is_rough=True)


@kind
def fake_quantized() -> Program:
    w, scale, zero = (nn.Parameter(each) for each in (torch.randn(4, 4), torch.tensor([0.1]), torch.tensor([0.0])))

    def loss() -> Tensor:
        return torch._fake_quantize_learnable_per_tensor_affine(w, scale, zero, -128, 127, 1.0).square().sum()

    return Program(loss, {"w": w, "scale": scale, "zero": zero})


@kind
def zero_elements() -> Program:
    model, x, empty = mlp(), torch.randn(0, 4), torch.randn(0, 3, requires_grad=True)
    leaves = {**dict(model.named_parameters()), "empty": empty}
    return Program(lambda: model(x).sum() + empty.exp().sum(), leaves, model, has_unused=True)


@kind
def zero_dimensions() -> Program:
    a, b = torch.tensor(1.5, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    return Program(lambda: (a * b).sin() + a, [a, b])


@kind
def expanded() -> Program:
    a, constant = torch.randn(4, requires_grad=True), torch.randn(1).expand(4)

    def loss() -> Tensor:
        strided = (a.expand(3, 4) * a + constant).as_strided((2, 2), (1, 1))
        return strided.sin().sum() + a.unfold(0, 2, 1).sum()

    return Program(loss, [a])


@kind
def transposed_parameter() -> Program:
    w, x = nn.Parameter(torch.randn(4, 3).t()), torch.randn(2, 4)
    return Program(lambda: functional.linear(x, w).square().sum(), {"w": w})


@kind
def channels_last() -> Program:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    batch = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    return simple(model.to(memory_format=torch.channels_last), batch)


class Wrapper(Tensor):
    """A wrapper subclass with one inner tensor."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=False
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper(...)"

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(each: Any) -> Any:
            return each.inner if isinstance(each, Wrapper) else each

        def wrap(each: Any) -> Any:
            return Wrapper(each) if isinstance(each, Tensor) else each

        kwargs = kwargs or {}
        out = tree_map(wrap, func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs)))
        return return_and_correct_aliasing(func, args, kwargs, out)


@kind
def wrapper_subclass() -> Program:
    w, a = nn.Parameter(Wrapper(torch.randn(4))), torch.randn(4, requires_grad=True)
    return Program(lambda: (w * a).sin().sum(), {"w": w, "a": a})


@kind
def two_tensors_in_one() -> Program:
    w = nn.Parameter(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)))
    x = TwoTensor(torch.randn(2, 4), torch.randn(2, 4))
    return Program(lambda: functional.linear(x, w).square().sum(), {"w": w})


class Named(Tensor):
    """A subclass without operators of its own."""


@kind
def named_subclass() -> Program:
    model, x = mlp(), torch.randn(3, 4).as_subclass(Named)
    return Program(lambda: model(x).square().mean(), model=model)


@kind
def meta_device() -> Program:
    return simple(mlp().to("meta"), torch.randn(3, 4, device="meta"))


@kind
def fake_tensors() -> Program:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, x = mlp(), torch.randn(3, 4)
    return Program(lambda: model(x).square().mean(), model=model)
