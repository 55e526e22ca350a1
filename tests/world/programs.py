"""Programs in whose world there is something that a verb could change without a word."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle


@dataclass
class Program:
    """A model and its loss.

    Attributes:
        more: further tensors of the user's, by name.
        optimizers: whose state is looked at, too.
        counts: what the program counts in Python; nobody can put that back.
    """

    model: nn.Module
    make_loss: Callable[[], Tensor]
    more: Mapping[str, Tensor] = field(default_factory=dict)
    generators: Mapping[str, torch.Generator] = field(default_factory=dict)
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def tensors(self) -> dict[str, Tensor]:
        found = {**self.model.state_dict(keep_vars=True), **self.more}
        for number, optimizer in enumerate(self.optimizers):
            for place, state in enumerate(optimizer.state.values()):
                found.update((f"optimizer {number}.{place}.{name}", each) for name, each in state.items())
        return found

    def modules(self) -> list[nn.Module]:
        return list(self.model.modules())


HANDLES: list[RemovableHandle] = []
"""Of the hooks that programs have registered, for who removes them."""


class Acts(Function):
    """Its backward counts, writes into a buffer, draws a random number and communicates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor, counts: Counter[str]) -> Tensor:
        ctx.buffer, ctx.counts = buffer, counts
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.counts["backward"] += 1
        ctx.buffer.add_(1)
        torch.rand(())
        gradient = gradient * 2
        if dist.is_initialized():
            dist.all_reduce(gradient)
        return gradient, None, None


class ActsInPlace(Function):
    """Hidden in a CopySlices, where it is applied to a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Counter[str]) -> Tensor:
        ctx.mark_dirty(x)
        ctx.counts = counts
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counts["backward"] += 1
        return gradient * 2, None


class BackwardInside(Function):
    """Its backward runs another one, to a leaf that is in no graph of the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaves: list[Tensor]) -> Tensor:
        ctx.leaves = leaves
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            torch.autograd.backward(sum((leaf * gradient.sum()).sum() for leaf in ctx.leaves))
        return gradient, None


class Net(nn.Module):
    """Two layers, a batch norm and dropout; buffers that are written and bound anew; regions under checkpoints.

    Args:
        reentrant: of the checkpoints, one inside the other; None: none.
    """

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.2)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))
        self.reentrant = reentrant

    def inner(self, x: Tensor) -> Tensor:
        return self.drop(self.second(x)).tanh()

    def outer(self, x: Tensor) -> Tensor:
        return self._region(self.inner, self.first(x).relu())

    def _region(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return run(x) if self.reentrant is None else checkpoint(run, x, use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.norm(self._region(self.outer, x * (1 + self.mean))).sum()


def _x() -> Tensor:
    return torch.randn(4, 6, requires_grad=True)


def _net(reentrant: bool | None) -> Program:
    model, x = Net(reentrant), _x()
    return Program(model, lambda: model(x * 1), {"x": x})


def plain() -> Program:
    return _net(None)


def checkpoints() -> Program:
    return _net(False)


def reentrant_checkpoints() -> Program:
    return _net(True)


def functions_that_act() -> Program:
    model, x, counts = Net(), _x(), Counter[str]()

    def make_loss() -> Tensor:
        counts["forward"] += 1
        return Acts.apply(model(Acts.apply(x, model.mean, counts)), model.steps, counts)

    return Program(model, make_loss, {"x": x}, counts=counts)


def functions_in_place() -> Program:
    model, x, counts = nn.Linear(6, 6), _x(), Counter[str]()

    def make_loss() -> Tensor:
        y = x.clone()
        ActsInPlace.apply(y[:2], counts)
        return model(y).sum()

    return Program(model, make_loss, {"x": x}, counts=counts)


def backward_inside() -> Program:
    model, x, hidden = nn.Linear(6, 6), _x(), torch.ones(3, requires_grad=True)
    hidden.grad = torch.full((3,), 5.0)
    return Program(model, lambda: BackwardInside.apply(model(x), [hidden]).sum(), {"x": x, "hidden": hidden})


def hooks_that_count() -> Program:
    model, x, counts = Net(), _x(), Counter[str]()

    def count(name: str) -> Callable[..., None]:
        return lambda *told: counts.update([name])

    HANDLES.append(model.register_full_backward_hook(count("module")))
    HANDLES.append(model.first.register_full_backward_pre_hook(count("before a module")))
    HANDLES.append(model.second.register_forward_hook(count("forward")))
    HANDLES.append(model.first.weight.register_hook(count("leaf")))
    HANDLES.append(model.second.weight.register_post_accumulate_grad_hook(count("accumulated")))

    def make_loss() -> Tensor:
        y = x * 2
        HANDLES.append(y.register_hook(count("tensor")))
        HANDLES.append(y.grad_fn.register_prehook(count("node")))
        return model(y)

    return Program(model, make_loss, {"x": x}, counts=counts)


def optimizer_in_a_hook() -> Program:
    model, x = Net(), _x()
    optimizer = torch.optim.AdamW(model.norm.parameters(), lr=0.1)

    def step(parameter: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    HANDLES.append(model.norm.bias.register_post_accumulate_grad_hook(step))
    return Program(model, lambda: model(x * 1), {"x": x}, optimizers=(optimizer,))


def retained_gradients() -> Program:
    model, x = nn.Linear(6, 6), _x()
    shared = x.exp()  # of a graph that other losses have, too
    shared.retain_grad()

    def make_loss() -> Tensor:
        y = model(shared.detach().requires_grad_())
        y.retain_grad()
        return y.tanh().sum()

    shared.sum().backward(retain_graph=True)
    return Program(model, make_loss, {"x": x, "shared": shared})


def sparse_gradients() -> Program:
    model = nn.Embedding(20, 6, sparse=True)
    words = torch.randint(20, (5,))
    return Program(model, lambda: model(words).tanh().sum())


def gradients_in_one_buffer() -> Program:
    model, x = Net(), _x()
    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters))
    for parameter, part in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return Program(model, lambda: model(x * 1), {"x": x, "flat": flat})


def zeroes_its_gradients() -> Program:
    model, x = Net(True), _x()

    def make_loss() -> Tensor:
        model.zero_grad(set_to_none=False)
        x.grad = None
        return model(x * 1)

    return Program(model, make_loss, {"x": x})


def random_numbers() -> Program:
    model, x, generator = Net(), _x(), torch.Generator().manual_seed(3)

    def make_loss() -> Tensor:
        noise = torch.rand(4, 6, generator=generator) + torch.randn(4, 6)
        return model(x * noise) * random.random() * float(numpy.random.rand())

    return Program(model, make_loss, {"x": x}, {"a generator": generator})


def momentum_encoder() -> Program:
    """The forward writes parameters."""
    model, x = nn.ModuleDict({"online": nn.Linear(6, 6), "target": nn.Linear(6, 6)}), _x()
    model["target"].requires_grad_(False)

    def make_loss() -> Tensor:
        with torch.no_grad():
            for target, online in zip(model["target"].parameters(), model["online"].parameters(), strict=True):
                target.lerp_(online, 0.1)
        return (model["online"](x) - model["target"](x)).square().sum()

    return Program(model, make_loss, {"x": x})


class Rebinds(nn.Module):
    """Its forward binds buffers and parameters anew, and sets `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.scale = nn.Parameter(torch.ones(6))
        self.clipped, self.target = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.detach().mean(0)
        self.scale = nn.Parameter(self.scale.detach() * 0.5)
        self.clipped.data = self.clipped.data.clamp(-0.1, 0.1)
        self.target.data = self.target.data * 0.9 + self.clipped.data * 0.1
        y: Tensor = x * self.scale * self.clipped * self.target - self.mean
        return y


def binds_anew() -> Program:
    model, x = Rebinds(), _x()
    return Program(model, lambda: model(x * 1).square().sum(), {"x": x})


def sets_data_in_a_hook() -> Program:
    model, x = Net(), _x()

    def descend(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.data = parameter.data - 0.1 * parameter.grad

    for parameter in model.parameters():
        HANDLES.append(parameter.register_post_accumulate_grad_hook(descend))
    return Program(model, lambda: model(x * 1), {"x": x})


def distributed_data_parallel() -> Program:
    model, x = DistributedDataParallel(Net(), gradient_as_bucket_view=True), _x()
    return Program(model, lambda: model(x * 1), {"x": x})


def fully_sharded() -> Program:
    return _fully_sharded(True)


def fully_sharded_without_reduction() -> Program:
    """Its gradients add up where no parameter shows them."""
    return _fully_sharded(False)


def _fully_sharded(reduces: bool) -> Program:
    from torch.distributed.fsdp import fully_shard

    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), _x()
    fully_shard(model[0])
    fully_shard(model)
    model.set_requires_gradient_sync(reduces)
    return Program(model, lambda: model(x * 1).sum(), {"x": x})


PROGRAMS = [
    plain,
    checkpoints,
    reentrant_checkpoints,
    functions_that_act,
    functions_in_place,
    backward_inside,
    hooks_that_count,
    optimizer_in_a_hook,
    retained_gradients,
    sparse_gradients,
    gradients_in_one_buffer,
    zeroes_its_gradients,
    random_numbers,
    momentum_encoder,
    binds_anew,
    sets_data_in_a_hook,
]
DISTRIBUTED = [functions_that_act, distributed_data_parallel, fully_sharded, fully_sharded_without_reduction]
"""In a process group of one."""


def built(build: Callable[[], Program]) -> Program:
    """The program after two steps, in which .grad and its optimizer's state have come; the same each time."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    program = build()
    for _ in range(2):  # in the second one DistributedDataParallel makes up its buckets anew
        program.make_loss().backward()
    return program
