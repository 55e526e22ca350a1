"""Function transforms, forward-mode derivatives, compiled regions and higher-order operators."""

from __future__ import annotations

import warnings

import torch
from program import Program, kind, mlp, simple, within
from torch import Tensor, func, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.autograd import forward_ad


@kind
def func_grad_in_the_forward() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        slope = func.grad(lambda point: model(point).sum())(x)
        return slope.square().sum() + model(x).sum()

    return Program(loss, model=model)


@kind
def func_vmap_in_the_forward() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    return Program(lambda: func.vmap(lambda row: model(row).sin())(x).sum(), model=model)


@kind
def func_jvp_in_the_forward() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        out, tangent = func.jvp(model, (x,), (torch.ones_like(x),))
        return (out * tangent).sum()

    return Program(loss, model=model)


@kind
def func_hessian_in_the_forward() -> Program:
    a, x = torch.randn(3, requires_grad=True), torch.randn(3)
    return Program(lambda: func.hessian(lambda point: (point * a).sin().prod())(x).square().sum(), [a])


@kind
def func_jacrev_in_the_forward() -> Program:
    model, x = mlp(), torch.randn(4)
    # The Jacobian does not depend on the last bias.
    return Program(lambda: func.jacrev(model)(x).square().sum(), model=model, has_unused=True)


@kind
def per_sample_gradients() -> Program:
    """The parameters get no gradient through these, as torch.func detaches them."""
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        parameters = dict(model.named_parameters())
        grad = func.grad(lambda given, row: func.functional_call(model, given, (row,)).sum())
        return sum(each.square().mean() for each in func.vmap(grad, (None, 0))(parameters, x).values())

    return Program(loss, model=model, has_unused=True)


@kind
def ensemble_by_vmap() -> Program:
    models, x = [mlp() for _ in range(3)], torch.randn(3, 4)
    parameters, buffers = func.stack_module_state(models)
    empty = mlp().to("meta")

    def loss() -> Tensor:
        run = func.vmap(lambda given, others: func.functional_call(empty, (given, others), (x,)))
        return run(parameters, buffers).square().mean()

    return Program(loss, parameters)


@kind
def under_dual_level() -> Program:
    w, x = torch.randn(4, requires_grad=True), torch.randn(4)

    def loss() -> Tensor:
        dual = forward_ad.make_dual(x, torch.ones(4))
        primal, tangent = forward_ad.unpack_dual((dual * w).sin())
        return (primal * tangent).sum()

    return Program(loss, [w], call=within(forward_ad.dual_level))


def compiled(backend: str) -> Program:
    model, x = mlp(), torch.randn(3, 4)
    region = torch.compile(model, backend=backend)
    return Program(lambda: region(x).square().mean(), model=model, is_repeatable=False)


@kind
def compiled_by_aot_eager() -> Program:
    return compiled("aot_eager")


@kind
def compiled_by_eager() -> Program:
    return compiled("eager")


@kind
def scripted() -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(mlp(), torch.randn(3, 4))
    x = torch.randn(3, 4)
    return Program(lambda: module(x).square().mean(), dict(module.named_parameters()))


@kind
def conditional() -> Program:
    w, x = torch.randn(4, requires_grad=True), torch.randn(4)

    def loss() -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: (a * 2).sin(), lambda a: (a * 3).cos(), (w,)).sum()

    return Program(loss, [w])


@kind
def scan() -> Program:
    w = torch.randn(4, 3, requires_grad=True)
    return Program(lambda: associative_scan(torch.mul, w, 0, combine_mode="generic").sum(), [w])


@kind
def parametrized_orthogonal() -> Program:
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 1))
    return simple(model, torch.randn(3, 4))
