"""Hooks of tensors, modules, saved tensors and gradients."""

from __future__ import annotations

from typing import Any

import torch
from program import Program, kind, mlp, simple, within
from torch import Tensor, nn
from torch.autograd import graph as autograd_graph


@kind
def retained_gradient() -> Program:
    a = torch.randn(4, requires_grad=True)
    kept: list[Tensor] = []

    def loss() -> Tensor:
        h = (a * 2).sin()
        h.retain_grad()
        kept.append(h)
        return h.square().sum()

    return Program(
        loss,
        [a],
        has_optimizer=False,
        is_repeatable=False,
        extra=lambda: {"h": kept[-1].grad if kept else None},
    )


@kind
def module_hooks() -> Program:
    log: list[Any] = []
    model = mlp()
    model[0].register_full_backward_hook(lambda module, grads, outputs: log.append(("full", len(grads), len(outputs))))
    model[1].register_full_backward_hook(
        lambda module, grads, outputs: tuple(None if each is None else each * 2 for each in grads)
    )
    model[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))
    model[0].register_forward_hook(lambda module, inputs, output: output * 1.5)
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return simple(model, torch.randn(3, 4), log=log)


@kind
def old_backward_hook() -> Program:
    log: list[Any] = []
    model = mlp()
    model[1].register_backward_hook(lambda module, grads, outputs: log.append(len(grads)))
    return simple(model, torch.randn(3, 4), log=log)


@kind
def post_accumulate_hooks() -> Program:
    log: list[Any] = []
    model = mlp()
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda leaf, name=name: log.append((name, float(leaf.grad.sum()))))
    return simple(model, torch.randn(3, 4), log=log)


def stepping_in_backward(optimizer_of: Any) -> Program:
    """One optimizer per parameter, which steps as soon as the gradient is there."""
    model = mlp()
    optimizers = {parameter: optimizer_of([parameter]) for parameter in model.parameters()}

    def step(leaf: Tensor) -> None:
        optimizers[leaf].step()
        optimizers[leaf].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    program = simple(model, torch.randn(3, 4), has_optimizer=False, is_repeatable=False)
    program.optimizers = tuple(optimizers.values())
    return program


@kind
def sgd_in_backward() -> Program:
    return stepping_in_backward(lambda given: torch.optim.SGD(given, 0.05, momentum=0.9))


@kind
def adamw_in_backward() -> Program:
    return stepping_in_backward(lambda given: torch.optim.AdamW(given, 0.01))


@kind
def adamw_in_backward_with_a_tensor_as_rate() -> Program:
    return stepping_in_backward(lambda given: torch.optim.AdamW(given, torch.tensor(0.01), capturable=False))


@kind
def tensor_hooks() -> Program:
    log: list[Any] = []
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        h = a.sin()
        h.register_hook(lambda gradient: gradient * 2)
        h.register_hook(lambda gradient: log.append(float(gradient.sum())))
        h.grad_fn.register_prehook(lambda gradients: (gradients[0] + 1,))
        return h.exp().sum()

    return Program(loss, [a], log=log)


@kind
def multi_gradient_hook() -> Program:
    log: list[Any] = []
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        one, other = a.sin(), b.cos()
        autograd_graph.register_multi_grad_hook((one, other), lambda gradients: log.append(len(gradients)))
        return (one * other).sum()

    return Program(loss, [a, b], log=log)


@kind
def backward_in_hook() -> Program:
    a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    def hook(gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = gradient.detach().clone().requires_grad_()
            inner.exp().sum().backward()
        return gradient * inner.grad

    def loss() -> Tensor:
        h = a * b
        h.register_hook(hook)
        return h.sin().sum()

    return Program(loss, [a, b], is_repeatable=False)


@kind
def hook_keeps_a_gradient() -> Program:
    kept: dict[str, Tensor] = {}
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        h = a.sin()
        h.register_hook(lambda gradient: kept.__setitem__("h", gradient))
        return h.exp().sum()

    return Program(loss, [a], extra=lambda: {"h": kept.get("h")}, is_repeatable=False)


# ------------------------------------------------------------------------------------------ hooks of saved tensors


@kind
def saved_tensor_hooks_disabled() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        with autograd_graph.disable_saved_tensors_hooks("not here"):
            return model(x).square().mean()

    return Program(loss, model=model)


@kind
def under_saved_tensor_hooks_disabled() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    context = within(lambda: autograd_graph.disable_saved_tensors_hooks("not here"))
    return Program(lambda: model(x).square().mean(), model=model, call=context)


@kind
def under_saved_tensor_hooks() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    context = within(lambda: autograd_graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda kept: kept))
    return Program(lambda: model(x).square().mean(), model=model, call=context)


@kind
def saved_tensors_packed_as_numpy() -> Program:
    model, x = mlp(), torch.randn(3, 4)

    def loss() -> Tensor:
        with autograd_graph.saved_tensors_hooks(lambda tensor: tensor.detach().numpy().copy(), torch.from_numpy):
            return model(x).square().mean()

    return Program(loss, model=model)


@kind
def under_save_on_cpu() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    return Program(lambda: model(x).square().mean(), model=model, call=within(autograd_graph.save_on_cpu))


@kind
def save_on_cpu_in_the_forward() -> Program:
    model, x = mlp(nn.ReLU(), nn.Linear(8, 8)), torch.randn(3, 4)

    def loss() -> Tensor:
        with autograd_graph.save_on_cpu():
            return model(x).square().mean()

    return Program(loss, model=model)


@kind
def under_mutation_allowed() -> Program:
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        b = a.clone()
        out = (b * b).sum() + b.sin().sum()
        b.mul_(2)
        return out + b.sum()

    return Program(loss, [a], call=within(autograd_graph.allow_mutation_on_saved_tensors))
