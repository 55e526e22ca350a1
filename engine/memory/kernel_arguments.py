"""Real tensors on which a kernel is run alone, in place of fake ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...inspector.torch_private.operators import Operator, schema_writes
from ...inspector.torch_private.tensors import View, on_storage

_CPU = torch.device("cpu")


def real_arguments(
    operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], fill: int, tiny: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with each tensor replaced by a real one, see `real_like`.

    Inside `zeros_shared`, floating-point tensors that the operator only reads are zeros on one storage. A kernel could
    spoil indices there, with a write that its schema does not declare, and then read outside a tensor.
    """
    positions, names = schema_writes(operator)

    def real(tensor: Tensor) -> Tensor:
        return real_like(tensor, fill, tiny)

    def read_only(tensor: Tensor) -> Tensor:
        can_share = _shared_zeros.depth > 0 and not tiny and tensor.is_floating_point()
        return _on_shared_zeros(tensor) if can_share else real(tensor)

    return (
        [tree_map_only(Tensor, real if place in positions else read_only, each) for place, each in enumerate(args)],
        {name: tree_map_only(Tensor, real if name in names else read_only, each) for name, each in kwargs.items()},
    )


def real_like(tensor: Tensor, fill: int, tiny: bool = False) -> Tensor:
    """Return a CPU tensor of the same shape, strides and dtype, filled with a number; if tiny, of one element."""
    view = View.of(tensor)._replace(offset=0)
    if tiny:
        view = view._replace(shape=(1,) * tensor.dim(), strides=(1,) * tensor.dim())
    storage = torch.full((span(view),), fill, dtype=tensor.dtype, device=_CPU).untyped_storage()
    return on_storage(storage, view)


def span(view: View) -> int:
    """Return the number of elements from the first to the last in memory."""
    if not prod(view.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


class _SharedZeros(threading.local):
    """Zeros that the kernels of this thread read in turn, since writing new ones took half of a run's time."""

    storage: torch.UntypedStorage | None = None
    depth = 0


_shared_zeros = _SharedZeros()


@contextmanager
def zeros_shared() -> Iterator[None]:
    """Keep the zeros of one kernel run for the next ones of this thread. They are freed in the end."""
    _shared_zeros.depth += 1
    try:
        yield
    finally:
        _shared_zeros.depth -= 1
        if not _shared_zeros.depth:
            _shared_zeros.storage = None


def _on_shared_zeros(tensor: Tensor) -> Tensor:
    """Return a CPU tensor of the same shape, strides and dtype on the shared zeros."""
    view = View.of(tensor)._replace(offset=0)
    nbytes = span(view) * tensor.element_size()
    storage = _shared_zeros.storage
    if storage is None or storage.nbytes() < nbytes:
        _shared_zeros.storage = storage = torch.zeros(nbytes, dtype=torch.uint8, device=_CPU).untyped_storage()
    return on_storage(storage, view)
