"""The users' names of leaves that FSDP has made: gathered parameters (`fully_shard`) and flat ones (FSDP1)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..torch_internals.ranks import flat_names, has_flat_parameters, sharded_parameters

_WRAPPED = "_fsdp_wrapped_module"  # what FullyShardedDataParallel puts into the paths of what it wraps
_FLAT = "_flat_param"

Namer = Callable[[Tensor], str | None]


def through_sharding(named: Namer) -> Namer:
    """The same namer, which knows these leaves, too.

    A gathered parameter has the name of its shard, which is in the model; where that is not known, the one below the
    outermost module under `fully_shard`. A flat parameter is called by the first of those that it holds.
    """
    sharded = {id(each.gathered): each for each in sharded_parameters() if each.gathered is not None}
    if not sharded and not has_flat_parameters():
        return named

    def found(leaf: Tensor) -> str | None:
        name = named(leaf)
        if names := flat_names(leaf):
            return _flat_name(name or "", names)
        if name is None and (parameter := sharded.get(id(leaf))) is not None:
            return named(parameter.shard) or parameter.name
        return name

    return found


def _flat_name(path: str, names: tuple[str, ...]) -> str:
    """`blocks.0.weight and 3 more`."""
    around = [part for part in path.split(".") if part and part not in (_WRAPPED, _FLAT)]
    first = ".".join([*around, *(part for part in names[0].split(".") if part != _WRAPPED)])
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
