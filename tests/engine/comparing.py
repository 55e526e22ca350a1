"""Holding a backward against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import tapescope as ts

ENGINES = ("native", "direct")
_PACKAGES = tuple(Path(ts.__file__).parent / name for name in ("inspector", "engine", "widgets"))


def is_ours(path: Path) -> bool:
    """Return whether the file is tapescope's, so that an error raised there is not a message from inside torch or
    Python."""
    return any(path.is_relative_to(package) for package in _PACKAGES)


def gradients_of(leaves: Sequence[Tensor], backward: Callable[[], object]) -> list[Tensor | None]:
    """Return the gradients that `backward` accumulates into .grad, which is empty before and after."""
    for leaf in leaves:
        leaf.grad = None
    backward()
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def assert_equal(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], bitwise: bool) -> None:
    largest = max(
        [1.0, *(float(each.detach().to_dense().abs().max()) for each in expected if each is not None and each.numel())]
    )
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.dtype, one.layout, one.shape) == (other.dtype, other.layout, other.shape)
            one, other = one.to_dense(), other.to_dense()
            if bitwise:
                assert torch.equal(one, other)
            else:
                # Sums in another order: what cancels out leaves errors of the size of what was summed.
                usual = one.dtype in (torch.float32, torch.complex64)
                torch.testing.assert_close(
                    one, other, rtol=1e-5 if usual else None, atol=1e-5 * largest if usual else None
                )


def engine_order(graph: ts.Graph, backward: Callable[[], object]) -> list[int]:
    """The order in which PyTorch runs the graph, as pre-hooks see it."""
    order: list[int] = []
    handles = [
        node.register_prehook(lambda gradients, task=task: order.append(task)) for task, node in enumerate(graph.nodes)
    ]
    backward()
    for handle in handles:
        handle.remove()
    return order


@cache
def second_time() -> str:
    """Return PyTorch's own message for a second backward through a freed graph."""
    loss = torch.ones(1, requires_grad=True).exp()
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("PyTorch ran it twice")


def compiled_loss(x: Tensor) -> Tensor:
    return (torch.compile(lambda x: x.sin().exp() * 2, backend="aot_eager")(x) + x).sum()
