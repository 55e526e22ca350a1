"""Random programs of all that a backward may meet: hooks, checkpoints, modules, sparse gradients, chance."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from backward_programs import random_program
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint

import tapescope as ts

FEATURES = (
    *("tensor hooks", "node hooks", "retained gradients", "multi-gradient hooks", "module hooks", "accumulation hooks"),
    *("checkpoint", "reentrant checkpoint", "sparse", "dropout", "batch norm", "several roots", "a grad before"),
    *("inputs=", "retain_graph", "create_graph"),
)
"""What a program may have besides its operations. Each can be left out by itself, to shrink one that fails."""

OPERATIONS = (4, 12, 25)


@dataclass(frozen=True)
class Recipe:
    """All that decides what a program does; equal recipes make equal programs.

    Attributes:
        seed: of the operations, and of all chance.
        operations: how many there are at most.
        features: which of FEATURES it has.
    """

    seed: int
    operations: int
    features: frozenset[str]

    @classmethod
    def of(cls, seed: int) -> Recipe:
        chance = random.Random(seed)
        features = frozenset(feature for feature in FEATURES if chance.random() < 0.25)
        return cls(seed, chance.choice(OPERATIONS), features)


@dataclass(eq=False)
class Forward:
    """One forward, with the arguments of its backward."""

    roots: list[Tensor]
    gradients: list[Tensor | None]
    leaves: list[Tensor]
    options: dict[str, Any]

    @property
    def call(self) -> ts.types.BackwardCall:
        return ts.types.BackwardCall(self.roots, self.gradients, **self.options)


@dataclass(eq=False)
class World:
    """The modules of a program, which are kept over its steps, and the calls of its hooks.

    Attributes:
        log: by hook, in order, its name and what it got.
    """

    recipe: Recipe
    log: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.recipe.seed)
        self.linear = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.embedding = nn.Embedding(8, 4, sparse=True)
        self.modules = nn.ModuleList([self.linear, self.norm, self.embedding])
        self._handles: list[Any] = []
        if self.has("module hooks"):
            for name, module in self.linear.named_modules():
                module.register_full_backward_hook(lambda module, given, taken, name=name: self.note(name, given))
                module.register_full_backward_pre_hook(lambda module, taken, name=name: self.note(name, taken))
        if self.has("accumulation hooks"):
            for name, parameter in self.modules.named_parameters():
                parameter.register_post_accumulate_grad_hook(lambda leaf, name=name: self.note(name, leaf.grad))

    def has(self, feature: str) -> bool:
        return feature in self.recipe.features

    def note(self, name: str, told: Any) -> None:
        tensors = told if isinstance(told, tuple | list) else (told,)
        self.log.append((name, [None if each is None else each.detach().to_dense().clone() for each in tensors]))

    def forward(self) -> Forward:
        """Equal for equal states of torch's generator and of the modules."""
        recipe, chance, count = self.recipe, random.Random(self.recipe.seed + 1), iter(range(10_000))
        way = list[Tensor]()

        def visit(tensor: Tensor) -> None:
            way.append(tensor)
            name = f"tensor {next(count)}"
            if not tensor.requires_grad:
                return
            if self.has("tensor hooks") and chance.random() < 0.2:
                factor = chance.choice([None, 0.5])
                tensor.register_hook(lambda gradient: self._hook(name, gradient, factor))
            if self.has("retained gradients") and chance.random() < 0.2:
                tensor.retain_grad()
            if self.has("node hooks") and chance.random() < 0.2 and tensor.grad_fn is not None:
                tensor.grad_fn.register_hook(lambda given, taken: self.note(f"post {name}", taken))
                tensor.grad_fn.register_prehook(lambda taken: self.note(f"pre {name}", taken))

        leaves, loss = random_program(recipe.seed, chance.randint(1, recipe.operations), visit)
        self._keep_one_dtype(way)
        parts = [loss]
        x = leaves[0]
        if self.has("checkpoint"):
            parts.append(checkpoint(self._region, x * 2, use_reentrant=False).sum())
        if self.has("reentrant checkpoint"):
            parts.append(checkpoint(self._region, x.sin(), use_reentrant=True).sum())
        parts.append(self.linear(leaves[1]).square().sum())
        if self.has("sparse"):
            words = torch.tensor([[1, 3, 3], [0, 2, 7]])
            parts.append((self.embedding(words).sum(1) @ x).sum())
            parts.append(self.embedding(words[0]).tanh().sum())
        if self.has("dropout"):
            parts.append(nn.functional.dropout(x * x, 0.4).sum())
        if self.has("batch norm"):
            parts.append(self.norm(x).square().sum())
        leaves += self.modules.parameters()
        if self.has("multi-gradient hooks"):
            some = [each for each in (*way[:3], leaves[1]) if each.requires_grad]
            self._handles.append(register_multi_grad_hook(some, lambda gradients: self.note("multi", gradients)))
        return Forward(*self._roots(parts, way, chance), leaves, self._options(leaves, chance))

    def _hook(self, name: str, gradient: Tensor, factor: float | None) -> Tensor | None:
        self.note(name, gradient)
        return None if factor is None else gradient * factor

    def _region(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x.exp().sin(), 0.3) * x

    def _keep_one_dtype(self, way: list[Tensor]) -> None:
        way[:] = [each for each in way if each.dtype == torch.float32]

    def _roots(
        self, parts: list[Tensor], way: list[Tensor], chance: random.Random
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        total = torch.stack(parts).sum()
        if not self.has("several roots"):
            return [total], [None]
        more = [each for each in chance.sample(way, min(2, len(way))) if each.requires_grad]
        return [total, *more], [None, *(torch.full_like(each, 0.5).detach() for each in more)]

    def _options(self, leaves: list[Tensor], chance: random.Random) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.has("inputs=") and not self.has("reentrant checkpoint"):
            options["inputs"] = chance.sample(leaves, 3)
        if self.has("retain_graph"):
            options["retain_graph"] = True
        if self.has("create_graph") and not self.has("sparse"):
            options["create_graph"] = True
        if self.has("a grad before"):
            for leaf in leaves:
                if chance.random() < 0.5:
                    leaf.grad = torch.ones_like(leaf)
        return options

    def close(self) -> None:
        """Remove the hooks that torch would keep."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
