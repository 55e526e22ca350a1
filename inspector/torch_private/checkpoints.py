"""Regions under `torch.utils.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, cast

from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from .saved_variables import saved_variables, unpacking


@contextmanager
def watching_reentrant_checkpoints(before: Callable[[], None]) -> Iterator[None]:
    """Call `before` before each region under `checkpoint(use_reentrant=True)` in any thread."""
    forward = vars(CheckpointFunction)["forward"]

    def watched(ctx: Any, *args: Any) -> Any:
        before()
        return forward.__func__(ctx, *args)

    CheckpointFunction.forward = staticmethod(watched)  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckpointFunction.forward = forward  # type: ignore[method-assign]


_users_hooks: Callable[[], object] | None = getattr(checkpoint, "_current_user_saved_tensors_hooks", None)  # torch 2.14


@contextmanager
def hidden_from_checkpoints(hooks: saved_tensors_hooks) -> Iterator[None]:
    """Hide our saved-tensor hooks from selective checkpoints.

    From torch 2.14 on, selective checkpoints warn about surrounding hooks, and may pass them tensors kept outside of
    the graph. They skip hooks whose pack function is marked as belonging to a checkpoint, and continue with the
    surrounding hooks that it names (checkpoint.py, _current_user_saved_tensors_hooks).
    """
    if _users_hooks is None:
        yield
        return
    pack: Any = hooks.pack_hook
    pack._checkpoint_internal = True
    pack._user_hooks = _users_hooks()
    try:
        yield
    finally:
        del pack._user_hooks


def region_of(node: Node) -> Hashable:
    """Return the object that represents the node's region under `checkpoint(use_reentrant=False)`, or None.

    The region's nodes keep this object, and with it the region's inputs, until all have freed their saved tensors.
    """
    for raw in saved_variables(node):
        for cell in getattr(raw.unpack_hook, "__closure__", None) or ():
            if type(cell.cell_contents).__name__ == "_CheckpointFrame":
                return cell.cell_contents  # type: ignore[no-any-return]
    return None


def regions_around(node: Node) -> list[Hashable]:
    """Return the region of a node and those around it, which are recomputed first since they made its inputs."""
    found: dict[Hashable, None] = {}
    hooks = list(unpacking(node))
    while hooks:
        hook = hooks.pop()
        for region in _variables(hook).values() if isinstance(hook, FunctionType) and _is_checkpoints(hook) else ():
            if isinstance(region, FunctionType):  # with debug=True torch wraps the hook
                hooks.append(region)
            elif type(region).__name__ == "_CheckpointFrame" and region not in found:
                found[region] = None
                hooks += [getattr(each, "unpack_hook", None) for each in _region_saved(region)]
    return list(found)


def region_code(region: Any) -> list[object]:
    """Return the functions that a region calls when it is recomputed, and their keyword arguments."""
    variables = _variables(region.recompute_fn)
    function = variables.get("fn")
    if isinstance(function, FunctionType) and _is_checkpoints(function):  # the function of checkpoint_sequential
        function = list(_variables(function).values())
    return [function, variables.get("kwargs")]


def is_recomputed(region: Any, number: int) -> bool:
    """Return whether a region has been recomputed in the backward with this number."""
    return bool(region.is_recomputed.get(number))


def is_selective(region: Any) -> bool:
    """Return whether a region is selective (`create_selective_checkpoint_contexts`); it can be recomputed only once."""
    return isinstance(_variables(region.recompute_fn).get("recompute_context"), checkpoint._CachedTorchDispatchMode)


def _is_checkpoints(function: FunctionType) -> bool:
    return function.__module__ == "torch.utils.checkpoint"


def _variables(function: FunctionType) -> dict[str, object]:
    """Return the variables of a function's closure by name."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that was never set
            found[name] = cell.cell_contents
    return found


def _region_saved(region: Any) -> Sequence[Any]:
    saver = getattr(region, "input_saver", None)  # torch < 2.13
    saved: Sequence[Any] = region.saved_args if saver is None else saver.grad_fn._raw_saved_tensors
    return saved


def region_inputs(region: Any) -> list[Tensor]:
    """Return the tensors a region is recomputed from, except those that an outer region's hooks have packed."""
    found = [each.data for each in _region_saved(region) if hasattr(each, "unpack_hook") and each.unpack_hook is None]
    found += tree_leaves(_variables(region.recompute_fn).get("kwargs"))
    return [each for each in found if isinstance(each, Tensor)]


def random_states(region: Any) -> list[Tensor]:
    """Return the random generator states restored for a recomputation; empty if they are not preserved."""
    variables = _variables(region.recompute_fn)
    found = [variables.get("fwd_cpu_state"), *cast("Sequence[object]", variables.get("fwd_device_states") or ())]
    return [each for each in found if isinstance(each, Tensor)]


def cached_results(region: Any) -> list[Tensor]:
    """Return the results that a selective checkpoint keeps instead of recomputing them."""
    context = _variables(region.recompute_fn).get("recompute_context")
    if not isinstance(context, checkpoint._CachedTorchDispatchMode):
        return []
    by_operator: list[Any] = list(context.storage.values())
    entries = [each if isinstance(each, list) else list(each.values()) for each in by_operator]  # torch < 2.13: a list
    found = [getattr(each, "val", None) for each in tree_leaves(entries)]
    return [each for each in found if isinstance(each, Tensor)]
