"""Process groups, DistributedDataParallel, FSDP and DTensors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.utils._python_dispatch import TorchDispatchMode

from ..garbage_collector import all_objects
from .saved_variables import attributes_of


def local_gradient_shape(node: Node) -> tuple[int, ...] | None:
    """Return the shape of this rank's part of the gradient that a DTensor's Function returns; None for other nodes.

    These Functions implement `to_local` and `redistribute`, and know how the gradient is split.
    """
    attributes = attributes_of(node)
    split: Any = attributes.get("dtensor_spec") or attributes.get("current_spec")
    if split is None or type(split).__name__ != "DTensorSpec":
        return None
    try:
        shape, _ = torch.distributed.tensor._utils.compute_local_shape_and_global_offset(
            split.shape, split.mesh, split.placements
        )
    except (RuntimeError, ValueError, NotImplementedError):  # custom placements
        return None
    return tuple(shape)


def passes_gradient_on(node: Node) -> bool:
    """Return whether a node of `redistribute` returns its gradient unchanged, since the forward completed the sums."""
    split: Any = attributes_of(node).get("current_spec")
    return type(split).__name__ == "DTensorSpec" and any(each.is_partial() for each in split.placements)


def is_partly_here(tensor: Tensor) -> bool:
    """Return whether the tensor is a DTensor of which this rank has only a part, or one summand."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    placements: Any = getattr(tensor, "placements", ())
    return mesh is not None and mesh.size() > 1 and not all(each.is_replicate() for each in placements)


def reducer_buckets(wrapper: DistributedDataParallel) -> list[tuple[list[Tensor], int]]:
    """Return the buckets of a DistributedDataParallel by index: the parameters, and the bytes of their gradients.

    torch returns them as zero-filled copies, as large as all gradients. `_NoZeros` avoids the copies.
    """
    with _NoZeros():  # type: ignore[no-untyped-call]
        buckets = wrapper.reducer._get_zeros_like_grad_buckets()
    buckets.sort(key=lambda bucket: bucket.index())
    return [(bucket.parameters(), bucket.buffer().nbytes) for bucket in buckets]


_known: WeakSet[DistributedDataParallel] = WeakSet()


def wrappers_of(leaves: Set[int]) -> list[DistributedDataParallel]:
    """Return the DDP modules that may contain these leaves, passed as their `id`.

    The objects tracked by Python's garbage collector are searched (0.1 s for 300,000), unless the known modules contain
    all the leaves.
    """
    if not leaves <= {id(each) for wrapper in _known for each in wrapper.parameters()}:
        with all_objects() as tracked:
            kinds = {kind for kind in set(map(type, tracked)) if issubclass(kind, DistributedDataParallel)}
            _known.update(each for each in tracked if type(each) in kinds)
    return list(_known)


Bucketed = Literal["no", "beside", "view"]
"""A gradient's place in a DistributedDataParallel bucket: none, beside its .grad, or as the base of a view."""


def bucketed(leaves: Mapping[int, Tensor]) -> dict[int, Bucketed]:
    """Return by task the leaves whose gradients DistributedDataParallel will copy to a bucket."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    found: dict[int, Bucketed] = {}
    for wrapper in wrappers_of({id(leaf) for leaf in leaves.values()}):
        own = {id(parameter) for parameter in wrapper.parameters()} if wrapper.require_backward_grad_sync else ()
        kind: Bucketed = "view" if wrapper.gradient_as_bucket_view else "beside"
        found |= {task: kind for task, leaf in leaves.items() if id(leaf) in own}
    return found


@contextmanager
def unprepared_reducers() -> Iterator[None]:
    """Keep forwards in this thread from preparing DistributedDataParallel reductions and from synchronising.

    `replicate` calls the two methods from module hooks, without DistributedDataParallel's forward, so both are
    replaced.
    """
    before, after = DistributedDataParallel._pre_forward, DistributedDataParallel._post_forward
    thread = threading.get_ident()

    def pre_forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return before(self, *inputs, **kwargs)  # type: ignore[no-untyped-call]
        if self.device_ids:
            (inputs,), (kwargs,) = scatter_kwargs(inputs, kwargs, self.device_ids)
        return inputs, kwargs

    def post_forward(self: DistributedDataParallel, output: Any) -> Any:
        return output if threading.get_ident() == thread else after(self, output)  # type: ignore[no-untyped-call]

    DistributedDataParallel._pre_forward = pre_forward  # type: ignore[method-assign]
    DistributedDataParallel._post_forward = post_forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel._pre_forward = before  # type: ignore[method-assign]
        DistributedDataParallel._post_forward = after  # type: ignore[method-assign]


def reductions_are_delayed(wrapper: DistributedDataParallel) -> bool:
    """Return whether a DistributedDataParallel is recording its static graph and reduces at the backward's end."""
    return wrapper.static_graph and not wrapper._static_graph_delay_allreduce_enqueued


def world() -> Any | None:
    """Return the default process group; None if there is none, if it has a single rank, or if it is a "fake" one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    group: Any = torch.distributed.distributed_c10d._get_default_group()
    return None if group.size() < 2 or torch.distributed.get_backend(group) == "fake" else group


def world_store() -> Any | None:
    """Return the store of the default process group's rendezvous; None if it has none (MPI)."""
    return torch.distributed.distributed_c10d._get_default_store()


def part_of(store: Any, prefix: str) -> Any:
    """Return a view of a store that prefixes its keys."""
    distributed: Any = torch.distributed
    return distributed.PrefixStore(prefix, store)


def collectives_issued() -> list[tuple[int, int]]:
    """Return (size, number of collectives begun by this rank) of each process group of this rank, sorted."""
    found = []
    groups: list[Any] = list(torch.distributed.distributed_c10d._world.pg_map)
    for group in groups:
        try:
            found.append((group.size(), group._get_sequence_number_for_group()))
        except RuntimeError:  # a backend that does not count
            found.append((group.size(), -1))
    return sorted(found)


class ShardedParameter(NamedTuple):
    """A parameter under `fully_shard`.

    Its name is relative to the outermost sharded module. The shard is this rank's part, as seen by the optimizer. The
    leaf of the graph is gathered for the forward; it is None before the first forward.
    """

    name: str | None
    shard: Tensor
    gathered: Tensor | None


def sharded_parameters() -> list[ShardedParameter]:
    """Return all parameters under `fully_shard` (FSDP2) in this process."""
    return [
        ShardedParameter(each._param_fqn, each.sharded_param, getattr(each, "_unsharded_param", None))
        for state in _sharded_states()
        for group in _groups_of(state)
        for each in group.fsdp_params
    ]


def flat_names(leaf: Tensor) -> tuple[str, ...]:
    """Return the names of the parameters that `FullyShardedDataParallel` (FSDP1) flattened into the leaf.

    The names are relative to the wrapped module. Any other leaf has none.
    """
    package = sys.modules.get(_FLAT_PARAMETERS)
    if package is None or not isinstance(leaf, package.FlatParameter):
        return ()
    return tuple(leaf._fqns)


def has_flat_parameters() -> bool:
    """Return whether this process may have leaves flattened by FSDP1."""
    return _FLAT_PARAMETERS in sys.modules


_FLAT_PARAMETERS = "torch.distributed.fsdp._flat_param"


def flattens() -> bool:
    """Return whether `FullyShardedDataParallel` (FSDP1) may be in use: it is imported, and a process group exists."""
    loaded = "torch.distributed.fsdp.fully_sharded_data_parallel" in sys.modules
    return loaded and torch.distributed.is_initialized()


def is_flattened(module: torch.nn.Module) -> bool:
    """Return whether the module is a `FullyShardedDataParallel` (FSDP1)."""
    package = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return package is not None and isinstance(module, package.FullyShardedDataParallel)


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Return whether `fully_shard` manages the module."""
    package = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    return package is not None and package._get_module_fsdp_state(module) is not None


def _sharded_states() -> list[Any]:
    """Return the states of all modules under `fully_shard`, in order of creation."""
    package = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if package is None:
        return []
    modules = list(sys.modules["torch.distributed._composable_state"]._module_state_mapping)
    found = {id(state): state for module in modules if (state := package._get_module_fsdp_state(module)) is not None}
    return list(found.values())


def _groups_of(state: Any) -> list[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # torch < 2.13


class Sharding:
    """The state of `fully_shard` in the current step, for all modules of this process, restored after a step of ours.

    Until then gradients are replaced by copies, so that our backward does not add to the user's, and post-accumulate
    hooks are removed.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, Any]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._gathered: dict[int, Any] = {}
        for state in _sharded_states():
            order = _order_of(state)
            self._lists.append((order, list(order)))
            self._keep(state._state_ctx, "iter_forward_root", "post_backward_final_callback_queued")
            self._keep(state, "_training_state")
            for group in _groups_of(state):
                self._gathered[id(group)] = group._sharded_state
                self._lists.append((group._post_forward_indices, list(group._post_forward_indices)))
                self._keep(group, "_training_state", "_partial_reduce_output")
                for each in group.fsdp_params:
                    if _ACCUMULATED in vars(each):
                        self._keep(each, _ACCUMULATED)
                    for leaf in _leaves_of(each):
                        self._keep(leaf, "grad", "_post_accumulate_grad_hooks")
                        leaf._post_accumulate_grad_hooks = None  # type: ignore[assignment]

    def _keep(self, of: Any, *names: str) -> None:
        for name in names:
            value = getattr(of, name)
            self._kept.append((of, name, value))
            if isinstance(value, Tensor):
                setattr(of, name, value.detach().clone())

    def put_back(self, gather: bool) -> None:
        """Restore the state of `fully_shard`.

        Args:
            gather: Whether to gather parameters again that were gathered before; this is a collective and waits for the
                other ranks. Otherwise parameters whose state has changed are resharded.
        """
        for state in _sharded_states():
            state._state_ctx.iter_forward_root = None
            state._state_ctx.post_backward_final_callback_queued = False
            _order_of(state).clear()
            for group in _groups_of(state):
                self._put_back_group(group, gather)
            state._training_state = type(state._training_state).IDLE
        for of, name, value in self._kept:
            setattr(of, name, value)
        for found, before in self._lists:
            found[:] = before

    def _put_back_group(self, group: Any, gather: bool) -> None:
        kinds = type(group._sharded_state)
        before = self._gathered.get(id(group), kinds.SHARDED)
        group._training_state = type(group._training_state).IDLE
        group._post_forward_indices.clear()
        group._partial_reduce_output = None
        group.wait_for_unshard()  # prefetched parameters
        if before is kinds.SHARDED or (not gather and group._sharded_state is not before):
            group._to_sharded()
        elif group._sharded_state is not before:
            group.unshard()
            group.wait_for_unshard()
            if before is kinds.SHARDED_POST_FORWARD:
                group._to_sharded_post_forward()
        for each in group.fsdp_params:
            if _ACCUMULATED in vars(each):
                each.unsharded_accumulated_grad = None
            for leaf in _leaves_of(each):
                leaf.grad = None


_ACCUMULATED = "unsharded_accumulated_grad"  # from torch 2.15 on a property: the .grad of the graph's leaf


def _order_of(state: Any) -> list[Any]:
    """Return the groups in forward order, from which the backward prefetches; empty before the first forward."""
    found: list[Any] = getattr(state._comm_ctx, "post_forward_order", [])
    return found


def _leaves_of(parameter: Any) -> list[Tensor]:
    """Return a parameter's shard and, after the first forward, the leaf of the graph."""
    return [parameter.sharded_param, *([parameter._unsharded_param] if hasattr(parameter, "_unsharded_param") else [])]


class _NoZeros(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this mode is open, `zeros_like` returns its argument."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.zeros_like.default:
            return args[0]
        return operator(*args, **(kwargs or {}))
