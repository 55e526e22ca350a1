"""Programs of HIPS/autograd's issue #219, for torch and for NumPy with autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..session.hips.levels import find_autograd

ByHand = tuple[Tensor, dict[str, Tensor]]
Step = Callable[[], object]


class VanillaRNN(nn.Module):
    """One tanh layer, unrolled. Takes the first state (batch, width), gives one logit per row (batch, 1).

    All inputs are small, as in the original, so that no state saturates.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(width, width))
        self.bias = nn.Parameter(0.01 * torch.randn(width))
        self.weight_out = nn.Parameter(0.01 * torch.randn(width, 1))
        self.bias_out = nn.Parameter(0.01 * torch.randn(1))
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for _ in range(self.steps):
            h = torch.tanh(h @ self.weight + self.bias)
        return h @ self.weight_out + self.bias_out


def logistic_loss(logit: Tensor, label: Tensor) -> Tensor:
    """Return the summed logistic loss of logits and labels 0 or 1, both (batch, 1), written as in the original."""
    return -(label * logit - (logit + torch.log(1 + torch.exp(-logit)))).sum()


def rnn_by_hand(model: VanillaRNN, x: Tensor, label: Tensor, *, fused: bool, step: Step) -> ByHand:
    hs = [x]
    for _ in range(model.steps):
        hs.append(torch.addmm(model.bias, hs[-1], model.weight).tanh_())
    logit = torch.addmm(model.bias_out, hs[-1], model.weight_out)
    loss = logistic_loss(logit, label)
    step()

    g_logit = logit.sigmoid_().sub_(label)
    found = {"weight_out": hs[-1].T @ g_logit, "bias_out": g_logit.sum(0), "bias": torch.zeros_like(model.bias)}
    g_h = g_logit @ model.weight_out.T
    step()
    while len(hs) > 1:
        h = hs.pop()
        g_h.mul_(h.square_().neg_().add_(1))  # the state itself is not needed any more
        del h
        add_product(found, "weight", hs[-1].T, g_h, fused)
        found["bias"] += g_h.sum(0)
        if len(hs) > 1:
            g_h = g_h @ model.weight.T
        step()
    return loss, found


class FanOut(nn.Module):
    """One matrix, used `uses` times in a row. Takes z (width, width), gives x @ ... @ x @ z."""

    def __init__(self, width: int, uses: int) -> None:
        super().__init__()
        root = torch.randn(width, width)
        # The original's x is root @ root.T, whose hundredth power overflows. No eigenvalue of this one is far above 1.
        self.x = nn.Parameter(root @ root.T / (4 * width))
        self.uses = uses

    def forward(self, z: Tensor) -> Tensor:
        for _ in range(self.uses):
            z = self.x @ z
        return z


def fan_out_by_hand(model: FanOut, z: Tensor, *, fused: bool, step: Step) -> ByHand:
    zs = []
    for _ in range(model.uses):
        zs.append(z)
        z = model.x @ z
    loss = z.sum()
    g_z = torch.ones_like(z)
    del z
    step()

    found: dict[str, Tensor] = {}
    while zs:
        add_product(found, "x", g_z, zs.pop().T, fused)
        if zs:
            g_z = model.x.T @ g_z
        step()
    return loss, found


class Elementwise(nn.Module):
    """One matrix, multiplied element by element, `uses` times in a row. Takes z (width, width)."""

    def __init__(self, width: int, uses: int) -> None:
        super().__init__()
        self.x = nn.Parameter(1 + 0.01 * torch.randn(width, width))  # so that its hundredth power is finite
        self.uses = uses

    def forward(self, z: Tensor) -> Tensor:
        for _ in range(self.uses):
            z = self.x * z
        return z


def elementwise_by_hand(model: Elementwise, z: Tensor, *, fused: bool, step: Step) -> ByHand:
    zs = []
    for _ in range(model.uses):
        zs.append(z)
        z = model.x * z
    loss = z.sum()
    g_z = torch.ones_like(z)
    del z
    step()

    found: dict[str, Tensor] = {"x": torch.zeros_like(model.x)}
    while zs:
        if fused:
            found["x"].addcmul_(g_z, zs.pop())
        else:
            found["x"] += g_z * zs.pop()
        if zs:
            g_z.mul_(model.x)
        step()
    return loss, found


class NeedlessAdditions(nn.Module):
    """Additions of 1 to a matrix of zeros; their backward needs no saved values. Takes nothing."""

    def __init__(self, width: int, additions: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(width, width))
        self.additions = additions

    def forward(self) -> Tensor:
        x: Tensor = self.x
        for _ in range(self.additions):
            x = x + 1
        return x


def needless_by_hand(model: NeedlessAdditions, *, fused: bool, step: Step) -> ByHand:
    x: Tensor = model.x
    for _ in range(model.additions):
        x = x + 1
    loss = x.sum()
    del x
    step()
    found = {"x": torch.ones_like(model.x)}
    step()
    return loss, found


def add_product(found: dict[str, Tensor], name: str, left: Tensor, right: Tensor, fused: bool) -> None:
    """Add `left @ right` in place to the gradient of this name; the first product becomes the gradient."""
    if name not in found:
        found[name] = left @ right
    elif fused:
        found[name].addmm_(left, right)
    else:
        found[name] += left @ right


Program = tuple[Callable[..., Any], tuple[Any, ...]]


def rnn_program(model: VanillaRNN, x: Tensor, label: Tensor) -> Program:
    np = find_autograd().numpy

    def rnn(parameters: Any, x: Any, label: Any) -> Any:
        weight, bias, weight_out, bias_out = parameters
        h = x
        for _ in range(model.steps):
            h = np.tanh(np.dot(h, weight) + bias)
        logit = np.dot(h, weight_out) + bias_out
        return -np.sum(label * logit - (logit + np.log(1 + np.exp(-logit))))

    parameters = tuple(parameter.detach().numpy() for parameter in model.parameters())
    return rnn, (parameters, x.numpy(), label.numpy())


def fan_out_program(model: FanOut, z: Tensor) -> Program:
    np = find_autograd().numpy

    def fan_out(x: Any, z: Any) -> Any:
        for _ in range(model.uses):
            z = np.dot(x, z)
        return np.sum(z)

    return fan_out, (model.x.detach().numpy(), z.numpy())


def elementwise_program(model: Elementwise, z: Tensor) -> Program:
    np = find_autograd().numpy

    def elementwise(x: Any, z: Any) -> Any:
        for _ in range(model.uses):
            z = x * z
        return np.sum(z)

    return elementwise, (model.x.detach().numpy(), z.numpy())


def needless_program(model: NeedlessAdditions) -> Program:
    np = find_autograd().numpy

    def needless(x: Any) -> Any:
        for _ in range(model.additions):
            x = x + 1
        return np.sum(x)

    return needless, (model.x.detach().numpy(),)
