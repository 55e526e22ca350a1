"""DistributedDataParallel: which leaf tasks share a bucket, and which task of an order completes it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from ..inspector.graph import Graph
from ..inspector.torch_internals import leaf_of, reducer_buckets


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that DistributedDataParallel (DDP) reduces together.

    Attributes:
        wrapper: which of the graph's DDP modules it belongs to, from 0.
        index: its place in that module's row of buckets, in which the all-reduces start.
        tasks: the leaf tasks that fill it.
        unused: how many of its parameters have no task in this graph. DDP never reduces such a bucket unless
            `awaits_unused` is False.
        awaits_unused: whether DDP waits for them; not so with `find_unused_parameters` or `static_graph`.
        nbytes: bytes that are reduced.
    """

    wrapper: int
    index: int
    tasks: tuple[int, ...]
    unused: int
    awaits_unused: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reduction:
    """One bucket in one order.

    Attributes:
        bucket: what is reduced.
        completed_by: the task that brings its last gradient; None if that never comes.
        started_by: the task at whose end its all-reduce starts, which is later where a bucket before it is not complete
            yet; None if that never is.
    """

    bucket: Bucket
    completed_by: int | None
    started_by: int | None


def buckets_of(graph: Graph) -> tuple[Bucket, ...]:
    """The buckets into which the leaves of a graph fall, between the forward and its backward.

    That is when they are right: DDP makes up its buckets anew in the forward of the second step, after the order in
    which the gradients came in the first. So a policy that is in force from the start gets buckets that suit it. The
    DDP modules are found among the objects which Python's garbage collector tracks.

    Known limitations: with `static_graph=True` the all-reduces of the very first backward all start at its end.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ()
    tasks = {id(leaf_of(graph.nodes[task.id])): task.id for task in graph.tasks if task.is_leaf}
    found: list[Bucket] = []
    wrappers = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    number = 0
    for wrapper in wrappers:
        if not wrapper.require_backward_grad_sync:  # no_sync()
            continue
        filled = []
        for index, (parameters, nbytes) in enumerate(reducer_buckets(wrapper)):
            in_graph = tuple(tasks[id(each)] for each in parameters if id(each) in tasks)
            awaits = not (wrapper.find_unused_parameters or wrapper.static_graph)
            filled.append(Bucket(number, index, in_graph, len(parameters) - len(in_graph), awaits, nbytes))
        if any(bucket.tasks for bucket in filled):
            found += filled
            number += 1
    return tuple(found)


def reductions(buckets: Iterable[Bucket], order: Sequence[int]) -> tuple[Reduction, ...]:
    """When each bucket is complete and when its all-reduce starts, if the tasks run in this order (reducer.cpp)."""
    place = {task: number for number, task in enumerate(order)}
    last_start: dict[int, int] = {}  # by wrapper: the place at which the bucket before starts
    first: dict[int, int] = {}  # by wrapper: the place of its first leaf, where unused parameters are counted in
    buckets = tuple(buckets)
    for bucket in buckets:
        for task in bucket.tasks:
            if task in place:
                first[bucket.wrapper] = min(first.get(bucket.wrapper, len(order)), place[task])
    found = []
    for bucket in buckets:
        never = len(order)
        ends = [place.get(task, never) for task in bucket.tasks]
        if bucket.unused:
            ends.append(never if bucket.awaits_unused else first.get(bucket.wrapper, never))
        completed = max(ends)
        started = last_start[bucket.wrapper] = max(completed, last_start.get(bucket.wrapper, -1))
        found.append(
            Reduction(
                bucket,
                None if completed == never else order[completed],
                None if started == never else order[started],
            )
        )
    return tuple(found)
