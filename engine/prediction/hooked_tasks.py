"""Which tasks have hooks, of which a dry run calls none."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals.hooks import hooks_registered, leaf_hooks, node_hooks, post_accumulate_hooks
from ..tasks.tensor_hooks import TensorHooks


def hooked_tasks(graph: Graph, leaves: Mapping[int, Tensor], of_tensors: TensorHooks) -> list[int]:
    """The ids of the tasks with hooks of nodes, of tensors that are at hand, or of leaves."""
    if not hooks_registered():
        return []
    found = []
    for task_id, node in enumerate(graph.nodes):
        hooks: list[object] = [hook for kind in node_hooks(node) for hook in kind]
        hooks += [hook for hook in of_tensors.of(task_id) if hook.kind == "tensor"]
        if task_id in leaves:
            hooks += [*leaf_hooks(leaves[task_id]), *post_accumulate_hooks(leaves[task_id])]
        if hooks:
            found.append(task_id)
    return found
