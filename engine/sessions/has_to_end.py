"""Which backwards have to run to their end, once begun: the other ranks wait, and the model keeps what it gathered."""

from __future__ import annotations

from ...inspector.graph.graph import Graph
from ..queue.stages import is_sharded
from ..trace.buckets import buckets_of, is_reduced


def has_to_end(graph: Graph) -> bool:
    """Whether it is a backward of `fully_shard` (FSDP2), FullyShardedDataParallel or DistributedDataParallel.

    These end their step in callbacks at the end of the backward, which the engine calls if nothing is raised. Else
    parameters stay gathered, so that later steps reduce nothing, and a reducer waits for the rest of its buckets.
    """
    return is_sharded(graph) or (is_reduced() and bool(buckets_of(graph)))
