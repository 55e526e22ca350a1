"""Buckets of DistributedDataParallel: their leaf tasks, and the task of an order that completes each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch

from ...inspector.graph.graph import Graph
from ...inspector.torch_private.distributed import (
    reducer_buckets,
    reductions_are_delayed,
    unprepared_reducers,
    wrappers_of,
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that DistributedDataParallel (DDP) reduces together.

    Attributes:
        wrapper: the number of its DDP module in the graph, from 0.
        index: its place in that module's list of buckets, which is the order of the all-reduces.
        tasks: the leaf tasks that fill it.
        missing: the number of its parameters without a task in this graph, for which DDP waits forever. 0 with
            `find_unused_parameters` or `static_graph`.
        delayed: whether all all-reduces wait for the end of the backward, as in the first one with `static_graph`.
        nbytes: the bytes that are reduced.
    """

    wrapper: int
    index: int
    tasks: tuple[int, ...]
    missing: int
    delayed: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of one bucket in one order.

    Attributes:
        bucket: the bucket.
        completed_by: the task that computes its last gradient; None if that never arrives.
        started_by: the task at whose end its all-reduce starts, which is later than `completed_by` if an earlier bucket
            was not complete. None if no task's end starts it.
    """

    bucket: Bucket
    completed_by: int | None
    started_by: int | None


def buckets_of(graph: Graph) -> tuple[Bucket, ...]:
    """Return the buckets of a graph's leaves. Must be called between the forward and its backward.

    DDP rebuilds its buckets in the second step's forward, in the order in which the first step's gradients arrived, so
    they fit a policy that is used from the start. Its order must be the same in all processes.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ()
    tasks = {id(leaf): task_id for task_id, leaf in graph.leaves.items()}
    rows = []
    for wrapper in wrappers_of(tasks.keys()):
        if not wrapper.require_backward_grad_sync:  # no_sync()
            continue
        delayed = reductions_are_delayed(wrapper)
        waits = not (wrapper.find_unused_parameters or wrapper.static_graph)
        row = []
        for index, (parameters, nbytes) in enumerate(reducer_buckets(wrapper)):
            filled_by = tuple(tasks[id(each)] for each in parameters if id(each) in tasks)
            missing = len(parameters) - len(filled_by) if waits else 0
            row.append(Bucket(0, index, filled_by, missing, delayed, nbytes))
        if any(bucket.tasks for bucket in row):
            rows.append(row)
    rows.sort(key=lambda row: min(task for bucket in row for task in bucket.tasks))
    return tuple(replace(bucket, wrapper=number) for number, row in enumerate(rows) for bucket in row)


def reductions(buckets: Sequence[Bucket], order: Sequence[int]) -> tuple[Reduction, ...]:
    """Return when each bucket is complete and its all-reduce starts if the tasks end in this order (reducer.cpp)."""
    never = len(order)
    place = {task: number for number, task in enumerate(order)}
    first: dict[int, int] = {}  # by wrapper: the place of its first leaf; no bucket is complete before it
    for bucket in buckets:
        places = (place.get(task, never) for task in bucket.tasks)
        first[bucket.wrapper] = min((first.get(bucket.wrapper, never), *places))
    found = []
    start: dict[int, int] = {}  # by wrapper: the place at which the previous bucket starts
    for bucket in buckets:
        completed = max((place.get(task, never) for task in bucket.tasks), default=first[bucket.wrapper])
        if bucket.missing:
            completed = never
        started = start[bucket.wrapper] = max(completed, start.get(bucket.wrapper, completed))
        found.append(
            Reduction(
                bucket,
                None if completed == never else order[completed],
                None if started == never or bucket.delayed else order[started],
            )
        )
    return tuple(found)


@contextmanager
def nothing_reduced() -> Iterator[None]:
    """Make DistributedDataParallel and `replicate` only call the modules they wrap, inside this context. They do not
    prepare a reduction, which would wait for a backward or for other ranks, and which would raise an error after a
    backward that skipped parameters."""
    token = _is_reduced.set(False)
    try:
        with unprepared_reducers():
            yield
    finally:
        _is_reduced.reset(token)


_is_reduced: ContextVar[bool] = ContextVar("is_reduced", default=True)


def is_reduced() -> bool:
    """Return whether DistributedDataParallel prepares reductions in its forward: not inside `nothing_reduced`."""
    return _is_reduced.get()
