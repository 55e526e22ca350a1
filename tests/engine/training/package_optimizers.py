"""Small optimizers in the style of packages: signs of momentum, ratios of norms, roots of matrices, averages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lion(Optimizer):
    """Steps by the sign of an average of gradient and momentum."""

    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            mixed_by, kept_by = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = momentum.clone().mul_(mixed_by).add_(parameter.grad, alpha=1 - mixed_by).sign_()
                parameter.add_(update, alpha=-group["lr"])
                momentum.mul_(kept_by).add_(parameter.grad, alpha=1 - kept_by)


class Lamb(Optimizer):
    """Scales Adam's update by the ratio of two norms, which it compares with zero."""

    def __init__(self, parameters: Any, lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                update = state["mean"] / state["square"].sqrt().add_(group["eps"])
                weight, change = parameter.norm(), update.norm()
                ratio = (weight / change).item() if weight > 0 and change > 0 else 1.0
                parameter.add_(update, alpha=-group["lr"] * ratio)


class Shampoo(Optimizer):
    """Multiplies each dimension of a gradient with the inverse root of its statistics."""

    def __init__(self, parameters: Any, lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr, "eps": 1e-4})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["sums"] = [group["eps"] * torch.eye(size) for size in parameter.shape]
                update: Tensor = parameter.grad
                for place, statistics in enumerate(state["sums"]):
                    rows = update.transpose(0, place).reshape(update.shape[place], -1)
                    statistics.add_(rows @ rows.T)
                    values, vectors = torch.linalg.eigh(statistics)
                    root = (vectors * values.clamp(min=group["eps"]) ** (-1 / (2 * parameter.dim()))) @ vectors.T
                    shape = update.transpose(0, place).shape
                    update = (root @ rows).reshape(shape).transpose(0, place)
                parameter.add_(update, alpha=-group["lr"])


class ScheduleFree(Optimizer):
    """Averages the weights of SGD, and takes gradients between the average and the newest weights."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "beta": 0.9, "steps": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] += 1
            share = 1 / group["steps"]
            parameters = [each for each in group["params"] if each.grad is not None]
            for parameter in parameters:
                if "newest" not in self.state[parameter]:
                    self.state[parameter]["newest"] = torch.clone(parameter, memory_format=torch.preserve_format)
            newest = [self.state[parameter]["newest"] for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_lerp_(parameters, newest, weight=share)
            torch._foreach_add_(parameters, gradients, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
            torch._foreach_sub_(newest, gradients, alpha=group["lr"])
