"""Checks of the direct engine before it runs anything: it refuses backwards that it would run differently."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...inspector.graph.graph import Graph
from ...inspector.torch_private.thread_state import functorch_is_active
from ..schedule.fsdp_stages import is_sharded


def refuse_tasks(graph: Graph) -> None:
    """Raise an error for graphs that the direct engine cannot run."""
    nested = [task for task in graph.tasks for meta in task.inputs if meta.shape is None]
    if nested:
        raise cannot(f"check the nested gradients of {graph.describe(nested[0])}")
    if is_sharded(graph):
        raise cannot(
            "gather parameters and reduce gradients as fully_shard (FSDP2) and FullyShardedDataParallel do, in hooks "
            "and at the end of a backward"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise cannot(
            "run the C++ hooks that DistributedDataParallel may have in any graph, as torch.distributed is initialised"
        )


def refuse_transforms(verb: str | None = None) -> None:
    """Refuse to run a backward inside a transform of torch.func, or one of our own in the capture of a CUDA graph.

    Args:
        verb: the function that runs its own backward, such as `ts.find_nan`; None for the user's backward, with
            PyTorch's own message.

    Raises:
        RuntimeError: If called inside a transform, or while a CUDA graph is captured.
    """
    cuda_is_initialized: Callable[[], bool] = torch.cuda.is_initialized
    if verb is not None and cuda_is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{verb}() was called while a CUDA graph is captured (torch.cuda.graph), which allows no synchronization, "
            "and which would replay its backward; call it on the same step before the capture"
        )
    if not functorch_is_active():
        return
    if verb is None:
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use functorch.grad or "
            "functorch.vjp instead or call backward() outside of functorch transforms."
        )
    raise RuntimeError(
        f"{verb}() was called inside a transform of torch.func (grad, vmap, jvp, ...), where PyTorch cannot run "
        "a backward; call it outside the transform (the function passed to it may use transforms)"
    )


def cannot(what: str) -> NotImplementedError:
    """Return the error for something that the direct engine cannot do as PyTorch does."""
    return NotImplementedError(f'the direct engine cannot {what}; use engine="native"')
