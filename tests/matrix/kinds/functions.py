"""Custom Functions, custom operators and checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from program import Program, kind, mlp, simple
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class OneOfTwo(Function):
    """Its second output gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * factor, y * 1

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor | None) -> tuple[Tensor, None, None]:
        assert second is None
        return first * 3, None, None


@kind
def function_without_some_gradients() -> Program:
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    return Program(
        lambda: OneOfTwo.apply(a * 2, b * 2, 3)[0].sum(), [a, b], has_optimizer=False, refuses_gradients=True
    )


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@kind
def function_in_place() -> Program:
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: InPlace.apply(a.clone()).sin().sum(), [a])


class WithIndices(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        indices = x.argsort()
        ctx.mark_non_differentiable(indices)
        return x * 2, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        return gradient * 2


@kind
def function_with_integer_output() -> Program:
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        doubled, indices = WithIndices.apply(a * 1)
        return doubled[indices].sin().sum()

    return Program(loss, [a])


class WithMask(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        return gradient * ctx.saved_tensors[0]


@kind
def function_with_bool_output() -> Program:
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        kept, mask = WithMask.apply(a * 1)
        return (kept * mask).sin().sum()

    return Program(loss, [a])


class Exponential(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0]


@kind
def function_under_vmap() -> Program:
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: torch.vmap(Exponential.apply)(a).sum() + Exponential.apply(a * 2).sum(), [a])


class Counting(Function):
    """Its backward changes its ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 2.0
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.factor += 1
        return gradient * (ctx.factor - 1)


@kind
def function_that_changes_its_ctx() -> Program:
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: Counting.apply(a).sin().sum(), [a], is_repeatable=False)


class OnCtx(Function):
    """Keeps tensors as attributes of ctx, past `save_for_backward`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x, ctx.pair = x.detach(), (x.detach().cos(), "name")
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.pair[0]


@kind
def function_keeps_tensors_on_ctx() -> Program:
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: OnCtx.apply(a * 2).sum(), [a])


@kind
def custom_operator_without_fake() -> Program:
    if not hasattr(torch.ops.tests_matrix, "tripled"):

        @torch.library.custom_op("tests_matrix::tripled", mutates_args=())
        def tripled(x: Tensor) -> Tensor:
            return x * 3

        tripled.register_autograd(lambda ctx, gradient: gradient * 3)
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: torch.ops.tests_matrix.tripled(a * 1).sin().sum(), [a])


@kind
def custom_operator() -> Program:
    if not hasattr(torch.ops.tests_matrix, "squared"):

        @torch.library.custom_op("tests_matrix::squared", mutates_args=())
        def squared(x: Tensor) -> Tensor:
            return x * x

        def setup(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(inputs[0])

        squared.register_fake(torch.empty_like)
        squared.register_autograd(lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0], setup_context=setup)
    a = torch.randn(4, requires_grad=True)
    return Program(lambda: torch.ops.tests_matrix.squared(a * 1).sin().sum(), [a])


# ------------------------------------------------------------------------------------------------------ checkpoints


def checkpointed(**how: Any) -> Program:
    first, last = nn.Linear(4, 4), nn.Linear(4, 1)
    middle = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh(), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    return Program(
        lambda: last(checkpoints.checkpoint(middle, first(x), **how)).square().mean(),
        model=nn.ModuleDict({"first": first, "middle": middle, "last": last}),
    )


@kind
def checkpoint() -> Program:
    return checkpointed(use_reentrant=False)


@kind
def checkpoint_reentrant() -> Program:
    program = checkpointed(use_reentrant=True)
    program.is_repeatable = False
    return program


@kind
def checkpoint_without_early_stop() -> Program:
    program = checkpointed(use_reentrant=False)
    early = program.make_loss

    def loss() -> Tensor:
        with checkpoints.set_checkpoint_early_stop(False):
            return early()

    program.make_loss = loss
    return program


@kind
def checkpoint_selective() -> Program:
    def keep(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        matmul = operation == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if matmul else CheckpointPolicy.PREFER_RECOMPUTE

    return checkpointed(use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, keep))


def nested(use_reentrant: bool, **others: Any) -> Program:
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
    x = torch.randn(3, 4, requires_grad=use_reentrant)

    def inner(y: Tensor) -> Tensor:
        return model[2](model[1](y).tanh()).tanh()

    def outer(y: Tensor) -> Tensor:
        return checkpoints.checkpoint(inner, model[0](y).sin(), use_reentrant=use_reentrant)

    leaves = dict(model.named_parameters()) | ({"x": x} if use_reentrant else {})
    return Program(
        lambda: model[3](checkpoints.checkpoint(outer, x, use_reentrant=use_reentrant)).sum(), leaves, model, **others
    )


@kind
def checkpoint_nested() -> Program:
    return nested(use_reentrant=False)


@kind
def checkpoint_nested_reentrant() -> Program:
    return nested(use_reentrant=True, is_repeatable=False)


@kind
def checkpoint_sequential() -> Program:
    model, x = mlp(nn.ReLU(), nn.Linear(8, 8), nn.Tanh()), torch.randn(3, 4)
    return Program(
        lambda: checkpoints.checkpoint_sequential(model, 2, x, use_reentrant=False).square().mean(), model=model
    )


@kind
def checkpoint_of_everything() -> Program:
    program = simple(mlp(), torch.randn(3, 4))
    whole = program.make_loss
    program.make_loss = lambda: checkpoints.checkpoint(whole, use_reentrant=False)
    return program
