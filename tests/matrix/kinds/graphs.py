"""Shapes of graphs, and what a backward can be called with."""

from __future__ import annotations

from typing import Any

import torch
from program import Program, kind, mlp
from torch import Tensor, autograd, nn
from torch.autograd.graph import get_gradient_edge


def leaf() -> Tensor:
    return torch.randn(4, requires_grad=True)


def from_roots(loss: Any, leaves: Any, roots: Any, **others: Any) -> Program:
    return Program(loss, leaves, roots=roots, **others)


@kind
def create_graph() -> Program:
    a = leaf()

    def loss() -> Tensor:
        return a.sin().exp().sum()

    return from_roots(loss, [a], lambda: {"tensors": loss(), "create_graph": True}, has_optimizer=False)


@kind
def create_graph_with_inputs() -> Program:
    a = leaf()

    def loss() -> Tensor:
        return a.sin().exp().sum()

    def roots() -> dict[str, Any]:
        return {"tensors": loss(), "create_graph": True, "inputs": [a]}

    return from_roots(loss, [a], roots, has_optimizer=False)


@kind
def retain_graph() -> Program:
    a = leaf()

    def loss() -> Tensor:
        return a.sin().exp().sum()

    return from_roots(loss, [a], lambda: {"tensors": loss(), "retain_graph": True})


@kind
def one_root_twice() -> Program:
    a = leaf()

    def roots() -> dict[str, Any]:
        loss = a.sin().sum()
        return {"tensors": [loss, loss]}

    return from_roots(lambda: 2 * a.sin().sum(), [a], roots)


@kind
def root_inside_the_graph() -> Program:
    a = leaf()

    def roots() -> dict[str, Any]:
        inner = a.sin().sum()
        return {"tensors": [inner, (inner * 2).exp()]}

    return from_roots(lambda: a.sin().sum(), [a], roots)


@kind
def several_roots() -> Program:
    a, b = leaf(), leaf()

    def roots() -> dict[str, Any]:
        product = a * b
        tensors = [product, product.sin().sum(), b.exp()]
        return {"tensors": tensors, "grad_tensors": [torch.ones(4), None, torch.full((4,), 2.0)]}

    return from_roots(lambda: (a * b).sum() + 2 * (a * b).sin().sum() + b.exp().sum(), [a, b], roots)


@kind
def root_is_not_a_scalar() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    return Program(
        lambda: model(x).mean(),
        model=model,
        roots=lambda: {"tensors": model(x), "grad_tensors": torch.ones(3, 1)},
    )


@kind
def loss_of_shape_one() -> Program:
    model, x = mlp(), torch.randn(1, 4)
    return Program(lambda: model(x), model=model)


@kind
def with_inputs() -> Program:
    model, x = mlp(), torch.randn(3, 4, requires_grad=True)

    def roots() -> dict[str, Any]:
        return {"tensors": model(x).mean(), "inputs": [model[0].weight, x]}

    leaves = {**dict(model.named_parameters()), "x": x}
    return Program(lambda: model(x).mean(), leaves, model, roots=roots, has_optimizer=False)


@kind
def with_an_inner_tensor_as_input() -> Program:
    a, kept = leaf(), []

    def roots() -> dict[str, Any]:
        kept.append(a.sin())
        return {"tensors": (kept[-1] * 2).exp().sum(), "inputs": [kept[-1]]}

    return Program(
        lambda: (a.sin() * 2).exp().sum(),
        [a],
        roots=roots,
        has_optimizer=False,
        extra=lambda: {"h": kept[-1].grad if kept else None},
    )


@kind
def from_a_gradient_edge() -> Program:
    a = leaf()

    def roots() -> dict[str, Any]:
        return {"tensors": get_gradient_edge(a.sin().sum()), "grad_tensors": torch.tensor(1.0)}

    return from_roots(lambda: a.sin().sum(), [a], roots)


# ------------------------------------------------------------------------------------------- derivatives in the forward


@kind
def gradient_penalty() -> Program:
    critic, real, fake = mlp(), torch.randn(3, 4), torch.randn(3, 4)

    def loss() -> Tensor:  # the last bias cancels out of the difference
        between = (0.3 * real + 0.7 * fake).requires_grad_()
        (slope,) = autograd.grad(critic(between).sum(), between, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    return Program(loss, model=critic, has_unused=True)


@kind
def adversarial_example() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        attacked = x.clone().requires_grad_()
        (slope,) = autograd.grad(model(attacked).square().mean(), attacked)
        return model(attacked.detach() + 0.1 * slope.sign()).square().mean()

    return Program(loss, model=model)


@kind
def physics_informed() -> Program:
    model = mlp(inputs=1)

    def loss() -> Tensor:
        t = torch.linspace(0, 1, 5).reshape(-1, 1).requires_grad_()
        u = model(t)
        (first,) = autograd.grad(u.sum(), t, create_graph=True)
        (second,) = autograd.grad(first.sum(), t, create_graph=True)
        return (second + u).square().mean()

    return Program(loss, model=model)


@kind
def hessian_vector_product() -> Program:
    a = leaf()

    def loss() -> Tensor:
        (slope,) = autograd.grad(a.sin().prod(), a, create_graph=True)
        (product,) = autograd.grad(slope @ torch.ones(4), a, create_graph=True)
        return product.square().sum()

    return Program(loss, [a])


@kind
def backward_inside_the_forward() -> Program:
    model, inner = mlp(), leaf()

    def loss() -> Tensor:
        point = inner.detach().requires_grad_()
        point.sin().sum().backward()
        return model(point.grad).square().mean()

    return Program(loss, model=model)


# ---------------------------------------------------------------------------------------------------- views, in place


@kind
def views_written_in_place() -> Program:
    a = torch.randn(4, 4, requires_grad=True)

    def loss() -> Tensor:
        b = a.clone()
        rows = b[1:3]
        rows.mul_(2)
        b[0].sin_()
        b.t()[2].add_(1)
        halves = b.view(2, 8)
        halves[1].copy_(halves[0] * 3)
        return b.square().sum() + rows.exp().sum()

    return Program(loss, [a])


@kind
def written_into_a_buffer() -> Program:
    a = leaf()

    def loss() -> Tensor:
        buffer = torch.zeros(4)
        buffer[:2] = a[:2] * 2
        buffer[2:].copy_(a[2:] ** 2)
        buffer.index_add_(0, torch.tensor([0, 0, 1]), a[:3])
        return buffer.sum().sin()

    return Program(loss, [a])


@kind
def detached_in_place() -> Program:
    a = leaf()

    def loss() -> Tensor:
        h = a * 2
        h.detach_()
        h.requires_grad_()
        return (h * a).sum()

    return Program(loss, [a])


@kind
def outputs_without_a_gradient() -> Program:
    a = torch.randn(6, requires_grad=True)

    def loss() -> Tensor:
        return a.split(2)[1].sin().sum() + a.view(2, 3).unbind(0)[0].max(0)[0] + torch.var_mean(a)[1]

    return Program(loss, [a])


@kind
def written_by_numpy() -> Program:
    """The forward writes into a buffer through NumPy, past torch's version counter."""
    a, buffer = leaf(), torch.zeros(4)

    def loss() -> Tensor:
        buffer.numpy()[:] = torch.rand(4).numpy()
        return (a * buffer.clone()).sin().sum()

    return Program(loss, [a])


# --------------------------------------------------------------------------------------------------------- large graphs


@kind
def deep() -> Program:
    a = torch.randn(2, requires_grad=True)

    def loss() -> Tensor:
        h = a
        for _ in range(4_000):
            h = h + 0.0001
        return h.sum()

    return Program(loss, [a])


@kind
def wide() -> Program:
    leaves = [torch.randn(2, requires_grad=True) for _ in range(500)]
    return Program(lambda: torch.stack([each.sin() for each in leaves]).sum(), leaves)


@kind
def fan_out() -> Program:
    a = torch.randn(3, requires_grad=True)
    return Program(lambda: sum((a * factor).sin().sum() for factor in range(300)), [a])


@kind
def many_uses_of_one_layer() -> Program:
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    return Program(lambda: sum(layer(x * factor).square().mean() for factor in range(20)), model=layer)


@kind
def unused_parameter() -> Program:
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})
    x = torch.randn(3, 4)
    return Program(lambda: model["used"](x).square().mean(), model=model, has_unused=True)
