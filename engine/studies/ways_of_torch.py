"""What PyTorch has to save memory, around a model as it is: checkpoints by block, selective ones, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ...inspector.torch_internals.compiled import activation_memory_budget

PRODUCTS = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        *("mm", "bmm", "addmm", "baddbmm", "convolution"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)
"""What the selective checkpoint saves: products, convolutions and attention. The rest runs again."""

_COMPILED_BUDGET = 0.5


def selective() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    first, again = create_selective_checkpoint_contexts(list(PRODUCTS))  # type: ignore[no-untyped-call]
    return first, again


_Contexts = Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]]


@contextmanager
def checkpointed(
    model: nn.Module, blocks: tuple[type[nn.Module], ...], contexts: _Contexts | None = None
) -> Iterator[None]:
    """Meanwhile each call of a block, the outermost of nested ones, is under torch.utils.checkpoint."""
    found = list(_outermost(model, blocks))
    how: dict[str, Any] = {"use_reentrant": False} | ({} if contexts is None else {"context_fn": contexts})
    for block in found:
        block.forward = partial(checkpoint, block.forward, **how)
    try:
        yield
    finally:
        for block in found:
            del block.__dict__["forward"]


def _outermost(model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> Iterator[nn.Module]:
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, blocks):
            yield module
        else:
            waiting.extend(module.children())


@contextmanager
def compiled(model: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    with activation_memory_budget(_COMPILED_BUDGET):
        model.forward = forward
        try:
            yield
        finally:
            del model.__dict__["forward"]
