"""The programs on which HIPS/autograd's issue #219 measured memory, each with its gradient written by hand.

Programs and sizes are those of the thread and of what came of it, benchmarks/bench_rnn.py and bench_mem.py of
HIPS/autograd, 2017. By hand a gradient takes no graph: what the backward needs is in a list, and let go when used.

Each gradient takes the model, its inputs and its targets, and gives the loss and the gradients by parameter. `fused`: a
product is added to the sum by the call that computes it. Else it is a tensor of its own first, as it must be where a
gradient is passed from node to node: that is one more, as large as the parameter. `step` is called when the forward is
done, and after each step of the backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ByHand = tuple[Tensor, dict[str, Tensor]]
Step = Callable[[], object]


class VanillaRNN(nn.Module):
    """One tanh layer, unrolled. Takes the first state (batch, width), gives one logit per row (batch, 1).

    All that enters is small, as in the original: so no state saturates.
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
    """Of logits and labels 0 or 1, both (batch, 1), summed; written out as in the original."""
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
        self.x = nn.Parameter(1 + 0.01 * torch.randn(width, width))  # else gradients vanish, or are chaos
        self.uses = uses

    def forward(self, z: Tensor) -> Tensor:
        for _ in range(self.uses):
            z = torch.sin(self.x * z)
        return z


def elementwise_by_hand(model: Elementwise, z: Tensor, *, fused: bool, step: Step) -> ByHand:
    zs = []
    for _ in range(model.uses):
        zs.append(z)
        z = (model.x * z).sin_()
    loss = z.sum()
    g_z = torch.ones_like(z)
    del z
    step()

    found: dict[str, Tensor] = {"x": torch.zeros_like(model.x)}
    while zs:
        z = zs.pop()
        g_z.mul_((model.x * z).cos_())
        if fused:
            found["x"].addcmul_(g_z, z)
        else:
            found["x"] += g_z * z
        del z
        if zs:
            g_z.mul_(model.x)
        step()
    return loss, found


class NeedlessAdditions(nn.Module):
    """Adds 1 again and again to a matrix of zeros: nodes of which the backward needs no value. Takes nothing."""

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
    """Adds `left @ right` to the gradient of this name, in place; the first one is that gradient."""
    if name not in found:
        found[name] = left @ right
    elif fused:
        found[name].addmm_(left, right)
    else:
        found[name] += left @ right
