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


def given_part(node: Node) -> tuple[int, ...] | None:
    """The shape of this rank's part of the gradient which the node of a DTensor's own Function gives; None: of others.

    These are those behind `to_local` and `redistribute`, which know how the gradient is to be split.
    """
    kept = attributes_of(node)
    split = kept.get("dtensor_spec") or kept.get("current_spec")
    return None if split is None or type(split).__name__ != "DTensorSpec" else _part_of(split)


def _part_of(split: Any) -> tuple[int, ...] | None:
    try:
        shape, _ = torch.distributed.tensor._utils.compute_local_shape_and_global_offset(
            split.shape, split.mesh, split.placements
        )
    except (RuntimeError, ValueError, NotImplementedError):  # placements of somebody's own
        return None
    return tuple(shape)


def gives_on(node: Node) -> bool:
    """Whether a node behind `redistribute` gives the gradient on as it comes: the forward has completed sums."""
    split: Any = attributes_of(node).get("current_spec")
    return type(split).__name__ == "DTensorSpec" and any(each.is_partial() for each in split.placements)


def is_partly_here(tensor: Tensor) -> bool:
    """Return whether it is a DTensor of which this rank has only a part, or one summand."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    placements: Any = getattr(tensor, "placements", ())
    return mesh is not None and mesh.size() > 1 and not all(each.is_replicate() for each in placements)


def reducer_buckets(wrapper: DistributedDataParallel) -> list[tuple[list[Tensor], int]]:
    """The buckets of a DistributedDataParallel by their index: the parameters, and the bytes of their gradients.

    torch tells of them in copies filled with zeros, as large as all gradients. Here they are not copied.
    """
    with _NoZeros():  # type: ignore[no-untyped-call]
        buckets = wrapper.reducer._get_zeros_like_grad_buckets()
    buckets.sort(key=lambda bucket: bucket.index())
    return [(bucket.parameters(), bucket.buffer().nbytes) for bucket in buckets]


_known: WeakSet[DistributedDataParallel] = WeakSet()


def wrappers_of(leaves: Set[int]) -> list[DistributedDataParallel]:
    """The DDP modules that may hold these leaves, given by their `id`.

    Looked for among the objects which Python's garbage collector tracks (0.1 s for 300,000 of them), unless those that
    are known hold all the leaves.
    """
    if not leaves <= {id(each) for wrapper in _known for each in wrapper.parameters()}:
        with all_objects() as tracked:
            kinds = {kind for kind in set(map(type, tracked)) if issubclass(kind, DistributedDataParallel)}
            _known.update(each for each in tracked if type(each) in kinds)
    return list(_known)


Bucketed = Literal["no", "beside", "view"]
"""A gradient's place in a DistributedDataParallel bucket: none, beside its .grad, or as the base of a view."""


def bucketed(leaves: Mapping[int, Tensor]) -> dict[int, Bucketed]:
    """Return, by task, the leaves whose gradients DistributedDataParallel is going to copy to a bucket."""
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
    """Meanwhile a forward in this thread prepares no reduction of DistributedDataParallel, and synchronises nothing.

    `replicate` calls these two from hooks of the module, without DistributedDataParallel's own forward.
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
    """Whether a DistributedDataParallel is about to learn its static graph, and reduces all at the backward's end."""
    return wrapper.static_graph and not wrapper._static_graph_delay_allreduce_enqueued


def world() -> Any | None:
    """The default process group; None where there is none, or no other rank in it. A "fake" one has none either."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    group: Any = torch.distributed.distributed_c10d._get_default_group()
    return None if group.size() < 2 or torch.distributed.get_backend(group) == "fake" else group


def world_store() -> Any | None:
    """The store through which the ranks of the default process group found each other; None: it has none (MPI)."""
    return torch.distributed.distributed_c10d._get_default_store()


def part_of(store: Any, prefix: str) -> Any:
    """A store whose keys are those of another one under a prefix."""
    distributed: Any = torch.distributed
    return distributed.PrefixStore(prefix, store)


def collectives_issued() -> list[tuple[int, int]]:
    """Of each process group of this rank its size, and how many collectives this rank has begun in it; sorted."""
    found = []
    groups: list[Any] = list(torch.distributed.distributed_c10d._world.pg_map)
    for group in groups:
        try:
            found.append((group.size(), group._get_sequence_number_for_group()))
        except RuntimeError:  # of a backend that doesn't count
            found.append((group.size(), -1))
    return sorted(found)


class ShardedParameter(NamedTuple):
    """A parameter under `fully_shard`: its name below the outermost sharded module, this rank's shard, which is what
    the user's optimizer has, and the leaf of the graph, which is gathered for the forward; None before the first."""

    name: str | None
    shard: Tensor
    gathered: Tensor | None


def sharded_parameters() -> list[ShardedParameter]:
    """All parameters under `fully_shard` (FSDP2) in this process."""
    return [
        ShardedParameter(each._param_fqn, each.sharded_param, getattr(each, "_unsharded_param", None))
        for state in _sharded_states()
        for group in _groups_of(state)
        for each in group.fsdp_params
    ]


def flat_names(leaf: Tensor) -> tuple[str, ...]:
    """The names of the parameters of which `FullyShardedDataParallel` (FSDP1) has made the leaf, below the module that
    it wraps; none for any other leaf."""
    package = sys.modules.get(_FLAT_PARAMETERS)
    if package is None or not isinstance(leaf, package.FlatParameter):
        return ()
    return tuple(leaf._fqns)


def has_flat_parameters() -> bool:
    """Whether there may be such leaves in this process."""
    return _FLAT_PARAMETERS in sys.modules


_FLAT_PARAMETERS = "torch.distributed.fsdp._flat_param"


def flattens() -> bool:
    """Whether `FullyShardedDataParallel` (FSDP1) may be at work: its module is loaded, and ranks have met."""
    loaded = "torch.distributed.fsdp.fully_sharded_data_parallel" in sys.modules
    return loaded and torch.distributed.is_initialized()


def is_flattened(module: torch.nn.Module) -> bool:
    """Whether it is a `FullyShardedDataParallel` (FSDP1)."""
    package = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return package is not None and isinstance(module, package.FullyShardedDataParallel)


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` manages the module."""
    package = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    return package is not None and package._get_module_fsdp_state(module) is not None


def _sharded_states() -> list[Any]:
    """What `fully_shard` keeps of each of its modules, in the order in which they were made."""
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
    """What `fully_shard` keeps of a step under way, all modules' of this process: to be put back after a step of ours.

    Until then gradients that were there are copies, so that a backward adds to these, and no hook hears of them.
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
        """All is as before. `gather`: what was gathered, too, which waits for the other ranks; else that is freed, but
        where it is still as it was: it may be of an earlier step, which PyTorch would go on with."""
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
        group.wait_for_unshard()  # of what was fetched ahead
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
    """The groups in the order of the forward, in which the backward fetches them ahead; none before the first."""
    found: list[Any] = getattr(state._comm_ctx, "post_forward_order", [])
    return found


def _leaves_of(parameter: Any) -> list[Tensor]:
    """A parameter's shard, and the leaf of the graph once there has been a forward."""
    return [parameter.sharded_param, *([parameter._unsharded_param] if hasattr(parameter, "_unsharded_param") else [])]


class _NoZeros(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this mode is open, `zeros_like` returns its argument."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.zeros_like.default:
            return args[0]
        return operator(*args, **(kwargs or {}))
