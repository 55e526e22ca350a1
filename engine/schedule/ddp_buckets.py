"""DistributedDataParallel: which leaf tasks share a bucket, and which task of an order completes it."""

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
        wrapper: which of the graph's DDP modules it belongs to, from 0.
        index: its place in that module's row of buckets, in which the all-reduces start.
        tasks: the leaf tasks that fill it.
        missing: how many of its parameters have no task in this graph and are waited for in vain. DDP waits for none
            with `find_unused_parameters` or `static_graph`.
        delayed: whether all all-reduces wait for the end of the backward: so the first with `static_graph`.
        nbytes: bytes that are reduced.
    """

    wrapper: int
    index: int
    tasks: tuple[int, ...]
    missing: int
    delayed: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Reduction:
    """One bucket in one order.

    Attributes:
        bucket: what is reduced.
        completed_by: the task that brings its last gradient; None if that never comes.
        started_by: the task at whose end its all-reduce starts: later than `completed_by` where a bucket before it was
            not complete yet. None if no task's end starts it.
    """

    bucket: Bucket
    completed_by: int | None
    started_by: int | None


def buckets_of(graph: Graph) -> tuple[Bucket, ...]:
    """The buckets into which the leaves of a graph fall, if asked between the forward and its backward.

    DDP makes up its buckets anew in the forward of the second step, after the order in which the gradients came in the
    first: under a policy that is in force from the start they suit it. Its order must be the same in all processes.
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
    """When each bucket is complete and its all-reduce starts, if the tasks end in this order (reducer.cpp)."""
    never = len(order)
    place = {task: number for number, task in enumerate(order)}
    first: dict[int, int] = {}  # by wrapper: the place of its first leaf, before which nothing counts as complete
    for bucket in buckets:
        places = (place.get(task, never) for task in bucket.tasks)
        first[bucket.wrapper] = min((first.get(bucket.wrapper, never), *places))
    found = []
    start: dict[int, int] = {}  # by wrapper: the place at which the bucket before starts
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
    """Meanwhile DistributedDataParallel and `replicate`, its other face, only call what they wrap: no reduction is
    prepared, which would wait for a backward, and no rank waits for another. It would even raise, after a backward that
    left parameters out."""
    token = _is_reduced.set(False)
    try:
        with unprepared_reducers():
            yield
    finally:
        _is_reduced.reset(token)


_is_reduced: ContextVar[bool] = ContextVar("is_reduced", default=True)


def is_reduced() -> bool:
    """Whether DistributedDataParallel prepares reductions in its forward: it does but in `nothing_reduced`."""
    return _is_reduced.get()
