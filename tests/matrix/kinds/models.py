"""Modules and operators of every family."""

from __future__ import annotations

from typing import Any

import torch
from program import Program, kind, mlp, simple
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


@kind
def plain() -> Program:
    return simple(mlp(), torch.randn(3, 4))


@kind
def dropout() -> Program:
    return simple(mlp(nn.Dropout(0.4)), torch.randn(3, 4))


@kind
def weight_norm() -> Program:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    return simple(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4))


@kind
def spectral_norm() -> Program:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
    return simple(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 1)), torch.randn(3, 4))


@kind
def tied_weights() -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    model[2].weight = model[0].weight
    return simple(model, torch.randn(3, 4))


@kind
def frozen_base() -> Program:
    model = mlp(nn.Linear(8, 8), nn.Tanh())
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return simple(model, torch.randn(3, 4), has_unused=True)


@kind
def batch_norm() -> Program:
    return simple(mlp(nn.BatchNorm1d(8)), torch.randn(5, 4))


@kind
def batch_norm_cumulative() -> Program:
    return simple(mlp(nn.BatchNorm1d(8, momentum=None)), torch.randn(5, 4))


@kind
def batch_norm_in_evaluation() -> Program:
    return simple(mlp(nn.BatchNorm1d(8)).eval(), torch.randn(5, 4))


class Average(nn.Module):
    """Its forward rebinds a buffer and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        self.calls += 1
        return y - self.average


@kind
def buffer_rebound() -> Program:
    return simple(Average(), torch.randn(3, 4))


class Recurrence(nn.Module):
    """Truncated backpropagation through time: the state is an attribute, detached at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        state = None if self.state is None else self.state.detach()
        self.state = self.cell(x, state)
        return self.state


@kind
def state_in_an_attribute() -> Program:
    return simple(Recurrence(), torch.randn(3, 4), has_optimizer=False, carries_state=True, has_unused=True)


@kind
def state_outside_of_modules() -> Program:
    cell, x = nn.GRUCell(4, 4), torch.randn(3, 4)
    memory: dict[str, Tensor] = {}

    def loss() -> Tensor:
        memory["state"] = cell(x, memory["state"].detach() if memory else None)
        return memory["state"].square().mean()

    return Program(loss, model=cell, carries_state=True, has_unused=True)  # the first state is zero


@kind
def own_generator() -> Program:
    model, x, generator = mlp(), torch.randn(3, 4), torch.Generator().manual_seed(3)

    def loss() -> Tensor:
        return model(x + torch.randn(3, 4, generator=generator)).square().mean()

    return Program(loss, model=model, buffers={"generator": generator.get_state()}, carries_state=True)


def recurrent(rnn: nn.Module, is_packed: bool = False) -> Program:
    x = torch.randn(3, 5, 4)

    def loss() -> Any:
        if not is_packed:
            return rnn(x)[0].square().mean()
        out, _ = rnn(pack_padded_sequence(x, [5, 3, 2], batch_first=True))
        return pad_packed_sequence(out, batch_first=True)[0].square().mean()

    return Program(loss, model=rnn)


@kind
def rnn() -> Program:
    return recurrent(nn.RNN(4, 3, batch_first=True))


@kind
def gru() -> Program:
    return recurrent(nn.GRU(4, 3, num_layers=2, batch_first=True, dropout=0.2))


@kind
def lstm() -> Program:
    return recurrent(nn.LSTM(4, 3, batch_first=True, bidirectional=True))


@kind
def lstm_packed() -> Program:
    return recurrent(nn.LSTM(4, 3, batch_first=True), is_packed=True)


@kind
def transformer_layer() -> Program:
    return simple(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8))


@kind
def attention() -> Program:
    module, x = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1), torch.randn(2, 5, 8)
    return Program(lambda: module(x, x, x)[0].square().mean(), model=module)


@kind
def scaled_dot_product() -> Program:
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    return Program(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum(), [q, k, v])


@kind
def convolutions() -> Program:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2),
        nn.GroupNorm(1, 2),
        nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d(1),
    )
    return simple(model, torch.randn(2, 3, 8, 8))


@kind
def embedding_bags() -> Program:
    bags = nn.ModuleList(
        [
            nn.EmbeddingBag(10, 4, mode="sum"),
            nn.EmbeddingBag(10, 4, mode="mean", sparse=True),
            nn.EmbeddingBag(10, 4, mode="max"),
            nn.EmbeddingBag(10, 4, mode="sum", padding_idx=0),
        ]
    )
    words, offsets = torch.tensor([1, 2, 2, 5, 0]), torch.tensor([0, 2])
    return Program(lambda: sum(bag(words, offsets).square().sum() for bag in bags), model=bags)


class Experts(nn.Module):
    """A mixture in which one expert gets no token."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.tensor([0, 0, 1])
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out.index_add(0, (chosen == number).nonzero()[:, 0], expert(x[chosen == number]))
        return out


@kind
def expert_without_tokens() -> Program:
    return simple(Experts(), torch.randn(3, 4), has_unused=True)


@kind
def averaged_weights() -> Program:
    model, x = mlp(), torch.randn(3, 4)
    average = torch.optim.swa_utils.AveragedModel(model)

    def loss() -> Tensor:
        with torch.no_grad():
            target = average(x)
        return (model(x) - target).square().mean()  # zero, as the average begins with the model's weights

    return Program(loss, model=model, has_unused=True)


@kind
def model_made_in_the_forward() -> Program:
    a = torch.randn(4, requires_grad=True)

    def loss() -> Tensor:
        torch.manual_seed(1)
        return mlp()(a).square().mean()

    return Program(loss, [a])


# --------------------------------------------------------------------------------------------------------- operators


@kind
def linear_algebra() -> Program:
    a = torch.randn(4, 4, requires_grad=True)

    def loss() -> Tensor:
        symmetric = a @ a.T + 3 * torch.eye(4)
        _, singular, _ = torch.linalg.svd(a + 2 * torch.eye(4))
        eigenvalues, _ = torch.linalg.eigh(symmetric)
        _, upper = torch.linalg.qr(a + 3 * torch.eye(4))
        lower = torch.linalg.cholesky(symmetric)
        solved = torch.linalg.solve(symmetric, a)
        return singular.sum() + eigenvalues.sum() + upper.sum() + lower.sum() + solved.sum() + symmetric.logdet()

    return Program(loss, [a])


@kind
def fourier() -> Program:
    a, window = torch.randn(8, requires_grad=True), torch.ones(4)

    def loss() -> Tensor:
        short = torch.stft(a, 4, window=window, return_complex=True).abs().sum()
        return torch.fft.rfft(a).abs().sum() + torch.fft.ifft(torch.fft.fft(a)).real.square().sum() + short

    return Program(loss, [a])


@kind
def scatters() -> Program:
    a, b = torch.randn(5, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    rows, zeros = torch.tensor([0, 0]), torch.zeros(2, 3, dtype=torch.long)

    def loss() -> Tensor:
        return (
            a.index_put((rows,), b, accumulate=True).sin().sum()
            + a.scatter_add(0, zeros, b).cos().sum()
            + torch.zeros(4).scatter_reduce(0, torch.tensor([0, 0, 1]), a[0], "amax").sum()
            + a.gather(0, zeros[:1]).sum()
        )

    return Program(loss, [a, b])


@kind
def connectionist_loss() -> Program:
    logits, targets = torch.randn(10, 2, 5, requires_grad=True), torch.tensor([[1, 2, 3], [2, 2, 1]])
    lengths = torch.tensor([10, 9]), torch.tensor([3, 2])
    return Program(lambda: functional.ctc_loss(logits.log_softmax(2), targets, *lengths), [logits])


@kind
def sampled_grid() -> Program:
    x, theta = torch.randn(1, 2, 4, 4, requires_grad=True), torch.randn(1, 2, 3, requires_grad=True)

    def loss() -> Tensor:
        grid = functional.affine_grid(theta, [1, 2, 4, 4], align_corners=False)
        return functional.grid_sample(x, grid, align_corners=False).sum()

    return Program(loss, [x, theta])
