"""Which backwards have to run to their end, once begun: the other ranks wait, and the model keeps what it gathered."""

from __future__ import annotations

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals import flat_names, sharded_parameters
from ..programs.make_loss import is_reduced
from ..queue.stages import has_stages
from ..trace.buckets import buckets_of


def has_to_end(graph: Graph) -> bool:
    """Whether it is a backward of `fully_shard` (FSDP2), FullyShardedDataParallel or DistributedDataParallel.

    These end their step in callbacks at the end of the backward, which the engine calls if nothing is raised. Else
    parameters stay gathered, so that later steps reduce nothing, and a reducer waits for the rest of its buckets.
    """
    return is_sharded(graph) or (is_reduced() and bool(buckets_of(graph)))


def is_sharded(graph: Graph) -> bool:
    """Whether it is one of `fully_shard` or FullyShardedDataParallel."""
    gathered = {id(each.gathered) for each in sharded_parameters()}
    leaves = graph.leaves.values()
    return has_stages(graph) or any(id(leaf) in gathered or flat_names(leaf) for leaf in leaves)
