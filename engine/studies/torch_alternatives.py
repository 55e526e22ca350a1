"""PyTorch's own ways to save memory (checkpoints, selective checkpoints, torch.compile), for a user's model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ...inspector.capture.build_graph import read_graph
from ...inspector.torch_private.compiled import activation_memory_budget
from ..api.make_loss import real_loss_of
from ..api.restore_state import AsFound

_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True, slots=True)
class OwnModules:
    """The modules of a user's program.

    Attributes:
        model: the module that its forward calls; if it calls several, an `nn.ModuleList` of them.
        is_one: whether it calls a single module.
        leaves: the leaves of its graph that are not parameters of the model.
        device: the device of the loss.
    """

    model: nn.Module
    is_one: bool
    leaves: tuple[Tensor, ...]
    device: torch.device

    @staticmethod
    def of(world: AsFound) -> OwnModules:
        """Run forward and backward once and find the modules that the forward calls.

        Raises:
            TypeError, ValueError: if the program does not return a loss.
        """
        world.watch()
        with world.run():
            loss = real_loss_of(world.make_loss())
            leaves, device = list(read_graph(loss).leaves.values()), loss.device
            del loss
        called = world.modules
        within = {id(below) for each in called for below in each.modules() if below is not each}
        outermost = [each for each in called if id(each) not in within]
        model = outermost[0] if len(outermost) == 1 else nn.ModuleList(outermost)
        known = {id(parameter) for parameter in model.parameters()}
        others = tuple(leaf for leaf in leaves if id(leaf) not in known)
        return OwnModules(model, len(outermost) == 1, others, device)

    @property
    def blocks(self) -> tuple[type[nn.Module], ...]:
        """The classes a user would checkpoint: modules with children, of which a list or Sequential has several."""
        found: list[type[nn.Module]] = []
        for holder in self.model.modules():
            if isinstance(holder, _HOLDERS):
                counts = Counter(type(each) for each in holder.children() if any(True for _ in each.children()))
                found += (kind for kind, count in counts.items() if count > 1 and not issubclass(kind, _HOLDERS))
        return tuple(dict.fromkeys(found))


PRODUCTS = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        *("mm", "bmm", "addmm", "baddbmm", "convolution"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)
"""The operations whose results the selective checkpoint saves: products, convolutions and attention."""

_COMPILED_BUDGET = 0.5


_Contexts = Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]]

selective: _Contexts = partial(create_selective_checkpoint_contexts, list(PRODUCTS))
"""Creates the two context managers of a selective checkpoint that saves the results of `PRODUCTS`."""


@contextmanager
def checkpointed(
    model: nn.Module, blocks: tuple[type[nn.Module], ...], contexts: _Contexts | None = None
) -> Iterator[None]:
    """Run each call of a block under torch.utils.checkpoint; of nested blocks, the outermost."""
    found: list[nn.Module] = []
    ahead = [model]
    while ahead:
        module = ahead.pop()
        if isinstance(module, blocks):
            found.append(module)
        else:
            ahead.extend(module.children())
    how: dict[str, Any] = {"use_reentrant": False} | ({} if contexts is None else {"context_fn": contexts})
    for block in found:
        block.forward = partial(checkpoint, block.forward, **how)
    try:
        yield
    finally:
        for block in found:
            del block.__dict__["forward"]


@contextmanager
def compiled(model: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the model's forward by a compiled one, which keeps half of the saved tensors' bytes."""
    with activation_memory_budget(_COMPILED_BUDGET):
        model.forward = forward
        try:
            yield
        finally:
            del model.__dict__["forward"]
