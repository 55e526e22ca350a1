"""What the direct engine refuses before it runs anything: what it would not do as PyTorch does."""

from __future__ import annotations

import torch

from ...inspector.graph.graph import Graph
from ...inspector.torch_private.compiled import compiled_autograd_is_on
from ...inspector.torch_private.thread_state import functorch_is_active
from ..schedule.fsdp_stages import is_sharded


def refuse_tasks(graph: Graph) -> None:
    """Says what can't be run before anything is."""
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


def refuse_surroundings() -> None:
    """Says where no backward can be run."""
    refuse_transforms()
    if compiled_autograd_is_on():
        raise cannot("run under compiled autograd")


def refuse_transforms(verb: str | None = None) -> None:
    """Refuse to run a backward inside a transform of torch.func, before anything runs.

    Args:
        verb: the function that runs its own backward, `ts.find_nan`; None: it is the user's, which PyTorch refuses in
            these words.

    Raises:
        RuntimeError: this is inside one.
    """
    if not functorch_is_active():
        return
    if verb is None:
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use functorch.grad or "
            "functorch.vjp instead or call backward() outside of functorch transforms."
        )
    raise RuntimeError(
        f"{verb}() was called inside a transform of torch.func (grad, vmap, jvp, ...), where PyTorch can't run a "
        "backward; call it outside of the transform, which the function that it runs may use"
    )


def cannot(what: str) -> NotImplementedError:
    """The error for what the direct engine would not do as PyTorch does."""
    return NotImplementedError(f'the direct engine cannot {what}; use engine="native"')
