"""The programs whose memory is metered: a builder each, in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

Step = Callable[[], object]
Builder = Callable[[], "Program"]

PROGRAMS: dict[str, Builder] = {}


@dataclass
class Program:
    """A program that is ready to run.

    Attributes:
        make_loss: runs the forward.
        step: runs a whole training step.
        leaves: tensors whose .grad is set to None before each measured forward.
        fits: the arguments of `ts.fits` but for the memory: make_model, make_batch, make_optimizer, loss_of. None:
            its step is not the one that `ts.fits` runs.
        retain_graph: as in `torch.autograd.backward`.
        model_bytes: of a model that the forward makes, which verbs leave out, as other models.
        batch: gives what is trained on; what it made is kept until its cache is cleared, as before each step.
        has_older: whether it holds what its steps can't be told of: neither model, gradients, state nor batch.
        held: what else belongs to the program and has to live as long.
        close: undoes what the builder did to the process.
    """

    make_loss: Callable[[], Tensor]
    step: Step
    leaves: Sequence[Tensor]
    fits: tuple[Any, ...] | None = None
    retain_graph: bool | None = None
    model_bytes: int = 0
    batch: Any = None
    has_older: bool = False
    held: list[Any] = field(default_factory=list)
    close: Callable[[], object] = lambda: None

    def train(self) -> None:
        """Train on a new batch: one older than a recording could not be counted as a batch by any verb."""
        if self.batch is not None:
            self.batch.cache_clear()
        self.step()


def program(build: Builder) -> Builder:
    PROGRAMS[build.__name__] = build
    return build


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)


def adam(parameters: Any) -> Optimizer:
    return torch.optim.Adam(parameters, 1e-3)


def square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def mlp(width: int = 128, *more: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), *more, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 32)
    )


def batch_of(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def usual_step(optimizer: Optimizer, make_loss: Callable[[], Tensor]) -> Step:
    """Like most loops: the previous step's loss is alive until the next one is computed."""
    loss: Tensor | None = None

    def step() -> None:
        nonlocal loss
        optimizer.zero_grad()
        loss = make_loss()
        loss.backward()
        optimizer.step()

    return step


def trained(
    make_model: Callable[[], nn.Module] = mlp,
    make_batch: Callable[[], Any] = lambda: torch.randn(64, 64),
    loss_of: Callable[[Any, Any], Tensor] = square,
    make_optimizer: Callable[[Any], Optimizer] = sgd,
) -> Program:
    """A model, an optimizer, and a batch, which is made as the first forward asks for it."""
    model, batch = make_model(), cache(make_batch)
    parameters = [each for each in model.parameters() if each.requires_grad]

    def make_loss() -> Tensor:
        return loss_of(model, batch())

    fits = make_model, make_batch, make_optimizer, loss_of
    step = usual_step(make_optimizer(parameters), make_loss)
    return Program(make_loss, step, parameters, fits, batch=batch)


# -- usual models


@program
def perceptron() -> Program:
    return trained()


@program
def adam_and_cross_entropy() -> Program:
    return trained(
        make_batch=lambda: (torch.randn(64, 64), torch.randint(32, (64,))),
        loss_of=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        make_optimizer=adam,
    )


@program
def convolution_and_batch_norm() -> Program:
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3)
        )

    return trained(net, batch_of(8, 3, 32, 32))


@program
def channels_last() -> Program:
    def net() -> nn.Module:
        made = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.GroupNorm(4, 16), nn.Conv2d(16, 8, 1))
        return made.to(memory_format=torch.channels_last)

    return trained(net, lambda: torch.randn(8, 4, 24, 24).to(memory_format=torch.channels_last))


@program
def recurrent() -> Program:
    return trained(
        lambda: nn.LSTM(32, 64, 2, batch_first=True),
        batch_of(8, 12, 32),
        lambda model, batch: model(batch)[0].square().mean(),
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


@program
def attention() -> Program:
    return trained(lambda: nn.Sequential(Attention(), nn.LayerNorm(64), Attention()), batch_of(4, 48, 64))


@program
def dropout() -> Program:
    return trained(lambda: mlp(128, nn.Dropout(0.3)))


@program
def tied_weights() -> Program:
    def net() -> nn.Module:
        made = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 300, bias=False))
        made[3].weight = made[0].weight
        return made

    return trained(net, lambda: torch.randint(300, (8, 16)), lambda model, batch: model(batch).logsumexp(-1).mean())


@program
def sparse_embedding() -> Program:
    return trained(
        lambda: nn.Sequential(nn.Embedding(2000, 32, sparse=True), nn.Linear(32, 32)),
        lambda: torch.randint(2000, (64,)),
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, 1e-3),
    )


@program
def mixed_precision() -> Program:
    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch)
        return out.float().square().mean()

    return trained(loss_of=loss_of)


@program
def autocast_around_all() -> Program:
    """One autocast is open around the whole loop, and caches its casts of the weights."""
    model, batch, autocast = mlp(), cache(batch_of(64, 64)), torch.autocast("cpu", torch.bfloat16)
    autocast.__enter__()
    make_loss = partial(loss_at, model, batch)
    step = usual_step(sgd(model.parameters()), make_loss)
    return Program(
        make_loss,
        step,
        [*model.parameters()],
        batch=batch,
        has_older=True,  # the casts
        close=lambda: autocast.__exit__(None, None, None),
    )


@program
def complex_numbers() -> Program:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(33, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.filter)

    return trained(Spectral, batch_of(128, 64))


@program
def multiplied_by_numbers() -> Program:
    """The graph keeps each number as a tensor, a complex one of 16 bytes, until the backward has read it."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.filter = nn.Linear(64, 64), nn.Parameter(torch.randn(33, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            z = torch.fft.rfft(self.inner(x) * 2 * 0.5 / 3) * self.filter
            return torch.fft.irfft(z * 2 * 2j * 0.5 / 3)

    return trained(Scaled)


@program
def views_between_real_and_complex() -> Program:
    """Views of views: a complex one of a real one, and a real one of a conjugated one."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 128), nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            z = torch.fft.fft(self.inner(x))
            again = torch.view_as_complex(torch.view_as_real(z.tanh()))
            part = z.sin().conj().imag
            return self.outer((again * again).abs()[:, :64] + (part * part)[:, :64])

    return trained(Turned)


@program
def views_and_expand() -> Program:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(64, 128)), nn.Parameter(torch.randn(1, 1, 64))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ self.weight).unflatten(0, (4, 16)) * self.scale.expand(4, 16, 64).repeat(1, 1, 2)
            first, second = y.chunk(2, -1)
            return torch.cat([first.transpose(0, 1), second.transpose(0, 1).sin()], -1)[1:]

    return trained(Views)


@program
def frozen_base_with_adapters() -> Program:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(64, 256).requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 256, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.base(x) + self.up(self.down(x)))

    return trained(lambda: nn.Sequential(Adapted(), nn.Linear(256, 16).requires_grad_(False)), make_optimizer=adam)


@program
def mixture_of_experts() -> Program:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                token, place = (chosen == number).nonzero(as_tuple=True)
                out = out.index_add(0, token, expert(x[token]) * weights[token, place, None])
            return out

    return trained(Experts, batch_of(96, 64))


# -- leaves that the forward makes


def critic_penalty(model: nn.Module, x: Tensor, scale: float = 10.0) -> Tensor:
    (gradient,) = grad(model(x).sum(), x, create_graph=True)
    return scale * (gradient.flatten(1).norm(dim=1) - 1).square().mean()


@program
def interpolated_penalty() -> Program:
    """WGAN-GP: at points between real and made samples."""

    def loss_of(model: nn.Module, real: Tensor) -> Tensor:
        fake = torch.randn_like(real)
        between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
        return model(fake).mean() - model(real).mean() + critic_penalty(model, between)

    return trained(loss_of=loss_of)


@program
def penalty_at_real_samples() -> Program:
    """R1: a clone of the batch is the leaf."""

    def loss_of(model: nn.Module, real: Tensor) -> Tensor:
        leaf = real.clone().requires_grad_()
        out = model(leaf)
        (gradient,) = grad(out.sum(), leaf, create_graph=True)
        return out.square().mean() + gradient.square().sum(1).mean()

    return trained(loss_of=loss_of)


@program
def penalty_of_parameters() -> Program:
    """The leaves are parameters: the norm of their gradients is part of the loss."""

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        loss = square(model, batch)
        return loss + sum(each.square().sum() for each in grad(loss, [*model.parameters()], create_graph=True))

    return trained(loss_of=loss_of)


@program
def fast_gradient_sign() -> Program:
    """FGSM: the attacked batch is computed from a separate gradient."""

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        attacked = batch.clone().requires_grad_()
        (gradient,) = grad(square(model, attacked), attacked)
        return square(model, attacked + 0.1 * gradient.sign())

    return trained(loss_of=loss_of)


@program
def projected_gradient_descent() -> Program:
    """PGD: three steps on a perturbation, which is a leaf to the end."""

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        delta = torch.zeros_like(batch, requires_grad=True)
        for _ in range(3):
            (gradient,) = grad(square(model, batch + delta), delta)
            delta = (delta.detach() + 0.1 * gradient.sign()).clamp(-0.3, 0.3).requires_grad_()
        return square(model, batch + delta)

    return trained(loss_of=loss_of)


@program
def physics_informed() -> Program:
    """PINN: points are made in the forward, and the loss has second derivatives at them."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        points = torch.rand(256, 2, requires_grad=True)
        u = model(points)
        (first,) = grad(u.sum(), points, create_graph=True)
        (second,) = grad(first[:, 0].sum(), points, create_graph=True)
        return (first[:, 1] - second[:, 0]).square().mean() + square(model, batch)

    return trained(net, batch_of(32, 2), loss_of)


@program
def double_backward() -> Program:
    """The loss is a gradient's norm alone."""

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        return critic_penalty(model, batch.detach().requires_grad_())

    return trained(loss_of=loss_of)


# -- checkpoints


def blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)))


@program
def checkpoints() -> Program:
    def loss_of(model: nn.Sequential, batch: Tensor) -> Tensor:
        x = batch
        for block in model:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()

    return trained(blocks, loss_of=loss_of)


@program
def reentrant_checkpoints() -> Program:
    def loss_of(model: nn.Sequential, batch: Tensor) -> Tensor:
        x = model[0](batch)
        for block in [*model][1:]:
            x = x + checkpoint(block, x, use_reentrant=True)
        return x.square().mean()

    return trained(blocks, loss_of=loss_of)


@program
def selective_checkpoints() -> Program:
    def keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def loss_of(model: nn.Sequential, batch: Tensor) -> Tensor:
        x, contexts = batch, partial(create_selective_checkpoint_contexts, keep_products)
        for block in model:
            x = x + checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        return x.square().mean()

    return trained(blocks, loss_of=loss_of)


@program
def sequential_checkpoints() -> Program:
    def loss_of(model: nn.Sequential, batch: Tensor) -> Tensor:
        return checkpoint_sequential(model, 2, batch, use_reentrant=False).square().mean()

    return trained(blocks, loss_of=loss_of)


@program
def checkpoint_around_everything() -> Program:
    return trained(blocks, loss_of=lambda model, batch: checkpoint(square, model, batch, use_reentrant=False))


# -- what is held beside the graph


@program
def held_constant() -> Program:
    """The program holds a constant that a node has saved."""
    held: list[Tensor] = []

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        held.append(torch.randn(64, 32))
        return (model(batch) * held[-1]).sin().sum()

    made = trained(loss_of=loss_of)
    made.has_older = True  # the constants of the steps before
    return made


@program
def auxiliary_output_kept() -> Program:
    """The auxiliary outputs of all forwards are kept with their grad_fn, which the loss does not reach."""
    body, head, auxiliary, batch = mlp(), nn.Linear(32, 8), nn.Linear(32, 64), cache(batch_of(64, 64))
    kept: list[Tensor] = []

    def make_loss() -> Tensor:
        hidden = body(batch())
        kept.append(auxiliary(hidden).sigmoid())
        return head(hidden).square().mean()

    parameters = [each for module in (body, head, auxiliary) for each in module.parameters()]
    return Program(make_loss, usual_step(sgd(parameters), make_loss), parameters, batch=batch, has_older=True)


@program
def auxiliary_context_kept() -> Program:
    """Like `auxiliary_output_kept`, with a custom Function that stores a tensor on its ctx."""
    body, head, batch = mlp(), nn.Linear(32, 8), cache(batch_of(64, 64))
    kept: list[Tensor] = []

    def make_loss() -> Tensor:
        hidden = body(batch())
        kept.append(KeepsExponential.apply(hidden))
        return head(hidden).square().mean()

    parameters = [each for module in (body, head) for each in module.parameters()]
    return Program(make_loss, usual_step(sgd(parameters), make_loss), parameters, batch=batch, has_older=True)


class KeepsExponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.exp()
        return x + ctx.kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (ctx.kept + 1)


@program
def model_made_inside() -> Program:
    """The forward makes the model and the batch."""
    model_bytes = sum(each.nbytes for each in mlp().parameters())
    return Program(lambda: square(mlp(), torch.randn(64, 64)), _inside_step, (), model_bytes=model_bytes)


def _inside_step() -> None:
    model = mlp()
    usual_step(sgd(model.parameters()), lambda: square(model, torch.randn(64, 64)))()


@program
def retained_graph() -> Program:
    made = trained()
    made.retain_graph, made.fits, optimizer = True, None, sgd(made.leaves)

    def step() -> None:
        optimizer.zero_grad()
        loss = made.make_loss()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()

    made.step = step
    return made


# -- whole steps of their own


def loss_at(model: nn.Module, batch: Callable[[], Tensor]) -> Tensor:
    return square(model, batch())


@program
def distributed_data_parallel() -> Program:
    return distributed(False)


@program
def gradients_as_bucket_views() -> Program:
    return distributed(True)


def distributed(as_views: bool) -> Program:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, batch = mlp(), cache(batch_of(64, 64))
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=as_views)
    make_loss = partial(loss_at, parallel, batch)
    step = usual_step(sgd(model.parameters()), make_loss)
    return Program(
        make_loss, step, [*model.parameters()], batch=batch, has_older=True, close=dist.destroy_process_group
    )


@program
def main_gradients() -> Program:
    """Megatron's: what .grad gets is added to a flat buffer, whose views are .grad while the optimizer steps."""
    model, batch = mlp(), cache(batch_of(64, 64))
    parameters = [*model.parameters()]
    flat = torch.zeros(sum(each.numel() for each in parameters))
    views = [
        part.view_as(each)
        for part, each in zip(flat.split([each.numel() for each in parameters]), parameters, strict=True)
    ]
    make_loss, optimizer = partial(loss_at, model, batch), sgd(parameters)

    def step() -> None:
        flat.zero_()
        make_loss().backward()
        for parameter, view in zip(parameters, views, strict=True):
            view.add_(parameter.grad)
            parameter.grad = view
        optimizer.step()
        optimizer.zero_grad()

    return Program(make_loss, step, parameters, batch=batch)


@program
def attached_gradients() -> Program:
    """DeepSpeed's: .grad is a view of a flat buffer, attached anew before each backward."""
    model, batch = mlp(), cache(batch_of(64, 64))
    parameters = [*model.parameters()]
    flat = torch.zeros(sum(each.numel() for each in parameters))
    views = flat.split([each.numel() for each in parameters])
    make_loss, optimizer = partial(loss_at, model, batch), sgd(parameters)

    def step() -> None:
        flat.zero_()
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view.view_as(parameter)
        make_loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(make_loss, step, parameters, batch=batch)


@program
def moving_average() -> Program:
    """An average of the weights beside the model, as EMA."""
    made = trained()
    model = made.fits[0]()
    average = copy.deepcopy(model)
    parameters, batch = [*model.parameters()], cache(batch_of(64, 64))
    make_loss = partial(loss_at, model, batch)
    usual = usual_step(sgd(parameters), make_loss)

    def step() -> None:
        usual()
        with torch.no_grad():
            torch._foreach_lerp_([*average.parameters()], parameters, 0.01)

    return Program(make_loss, step, parameters, batch=batch, has_older=True, held=[average])


@program
def sharpness_aware() -> Program:
    """SAM: .data is put back after the second backward of each step, so that parameters move to new blocks."""
    model, batch = mlp(), cache(batch_of(64, 64))
    parameters = [*model.parameters()]
    make_loss, optimizer, before = partial(loss_at, model, batch), sgd(parameters), {}

    def step() -> None:
        make_loss().backward()
        with torch.no_grad():
            norm = torch.stack([each.grad.norm() for each in parameters]).norm()
            for each in parameters:
                before[each] = each.data.clone()
                each.add_(each.grad * (0.05 / norm))
        optimizer.zero_grad()
        make_loss().backward()
        for each in parameters:
            each.data = before[each]
        optimizer.step()
        optimizer.zero_grad()

    return Program(make_loss, step, parameters, batch=batch)


@program
def reloaded_state() -> Program:
    """The optimizer's state is replaced between steps, as by load_state_dict."""
    model, batch = mlp(), cache(batch_of(64, 64))
    parameters = [*model.parameters()]
    make_loss, optimizer = partial(loss_at, model, batch), adam(parameters)

    def step() -> None:
        make_loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    return Program(make_loss, step, parameters, batch=batch)


@program
def adversarial_networks() -> Program:
    """GAN: two models with an optimizer each."""
    batch = cache(lambda: (torch.randn(64, 64), torch.randn(64, 32)))  # noise and real samples
    maker, judge = mlp(), nn.Sequential(nn.Linear(32, 96), nn.LeakyReLU(), nn.Linear(96, 1))
    makers, judges = adam(maker.parameters()), adam(judge.parameters())

    def step() -> None:
        judges.zero_grad()
        (judge(maker(batch()[0]).detach()).mean() - judge(batch()[1]).mean()).backward()
        judges.step()
        makers.zero_grad()
        (-judge(maker(batch()[0])).mean()).backward()
        makers.step()

    return Program(
        lambda: -judge(maker(batch()[0])).mean(), step, [*maker.parameters(), *judge.parameters()], batch=batch
    )


@program
def accumulated_gradients() -> Program:
    model, batches = mlp(), cache(batch_of(4, 64, 64))
    optimizer = sgd(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        for batch in batches():
            (square(model, batch) / 4).backward()
        optimizer.step()

    return Program(lambda: square(model, batches()[0]), step, [*model.parameters()], batch=batches)


@program
def optimizer_in_backward() -> Program:
    """Each parameter has its own optimizer, which steps as soon as the gradient is complete."""
    model, batch = mlp(), cache(batch_of(64, 64))
    optimizers = {each: sgd([each]) for each in model.parameters()}

    def step_now(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step_now)
    make_loss = partial(loss_at, model, batch)
    return Program(make_loss, lambda: make_loss().backward(), [*model.parameters()], batch=batch)


@program
def closure_of_lbfgs() -> Program:
    model, batch = mlp(), cache(batch_of(64, 64))
    optimizer = torch.optim.LBFGS(model.parameters(), 1e-3, max_iter=3, history_size=4)
    make_loss = partial(loss_at, model, batch)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = make_loss()
        loss.backward()
        return loss

    return Program(make_loss, lambda: optimizer.step(closure), [*model.parameters()], batch=batch)
