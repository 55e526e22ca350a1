"""Stages of a backward under `fully_shard` (FSDP2): constraints without edges that every order must keep.

`fully_shard` puts a Function before each of its groups, `RegisterPostBackwardFunction`. Its backward reduces the
gradients that the group's leaves have by then, and frees the group's gathered parameters. A leaf that runs later is
never reduced, and a task that runs later reads freed memory, but no edge leads from either to the Function. In
PyTorch's own order (HEAP) they all run before it, because they were created later. So each such task is a separate
stage: tasks that HEAP runs before it run before it in any order, and tasks that HEAP runs after it run after it.

This is stricter than a single group needs. In return, a module that is called several times is not used while its other
call gathers or frees its parameters, and all ranks reduce the same groups in the same order under any policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast
from weakref import WeakKeyDictionary

from torch.autograd.function import BackwardCFunction

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from ...inspector.torch_private.distributed import flat_names, has_flat_parameters, sharded_parameters
from ...inspector.torch_private.nodes import function_of

POST_BACKWARD = "RegisterPostBackwardFunctionBackward"
"""The task in which `fully_shard` reduces a group's gradients (_fsdp_param_group.py), and `replicate` as well."""

_PACKAGE = "torch.distributed.fsdp._fully_shard"
_KNOWN = (POST_BACKWARD, "RegisterPreBackwardFunctionBackward")


def unknown_task(graph: Graph) -> Task | None:
    """Return a task of `fully_shard` whose constraints are unknown; None if there is none."""
    functions = (task for task in graph.tasks if task.kind is Kind.FUNCTION and task.name not in _KNOWN)
    for task in functions if graph.nodes else ():
        if function_of(cast(BackwardCFunction, graph.nodes[task.id])).__module__.startswith(_PACKAGE):
            return task
    return None


def has_stages(graph: Graph) -> bool:
    """Return whether a backward of this graph runs in stages."""
    if graph not in _known:
        _known[graph] = POST_BACKWARD in [task.name for task in graph.tasks]
    return _known[graph]


_known: WeakKeyDictionary[Graph, bool] = WeakKeyDictionary()


def stage_edges(stages: Sequence[int], nexts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return edges to add to `nexts` so that each stage waits for the previous one, as pairs (first, then) of task ids.

    They lead from the last tasks of a stage, which have no next task in it, to the first tasks of the next stage. One
    of two adjacent stages is a single task, so there are fewer edges than tasks.
    """
    last: dict[int, list[int]] = {}
    first: dict[int, list[int]] = {}
    led_to = {then for task, tasks in enumerate(nexts) for then in tasks if stages[then] == stages[task]}
    for task, stage in enumerate(stages):
        if stage < 0:
            continue
        if task not in led_to:
            first.setdefault(stage, []).append(task)
        if all(stages[then] != stage for then in nexts[task]):
            last.setdefault(stage, []).append(task)
    found = []
    numbers = sorted(first)
    for before, after in pairwise(numbers):
        for task in last[before]:
            known = set(nexts[task])
            found += [(task, then) for then in first[after] if then not in known]
    return found


def is_sharded(graph: Graph) -> bool:
    """Return whether the graph is of `fully_shard` or FullyShardedDataParallel."""
    gathered = {id(each.gathered) for each in sharded_parameters()}
    if not gathered and not has_flat_parameters():
        return has_stages(graph)
    leaves = graph.leaves.values()
    return has_stages(graph) or any(id(leaf) in gathered or flat_names(leaf) for leaf in leaves)
