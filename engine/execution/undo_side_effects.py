"""Side effects of PyTorch's nodes, hooks and checkpoints besides gradients, recorded for undo."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from time import thread_time
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from ...inspector.torch_private.checkpoints import is_recomputed, is_selective, regions_around
from ...inspector.torch_private.hooks import hook_dicts, post_accumulate_hooks
from ...inspector.torch_private.nodes import function_of, leaf_of
from ...inspector.torch_private.saved_variables import function_is_freed, is_packed, unpacking
from ...inspector.torch_private.tensors import version_of
from ...inspector.torch_private.thread_state import without_torch_function
from .find_hooks import Registry, look_through, made_by, node_of, of_tensors
from .graph_task import GraphTask
from .node_runner import APPLIED, CodeChanges
from .undo_history import Ran, RecomputedBuffers
from .undo_python_state import HookState

_SAMPLES = 3


class NodeChanges(CodeChanges):
    """The side effects of one backward's tasks, found through PyTorch's nodes and their hooks.

    Args:
        graph: the graph.
        graph_task: the graph task of this backward, which has the callbacks for its end.
    """

    graph_task: GraphTask

    def __init__(self, graph: Graph, graph_task: GraphTask) -> None:
        self._graph = graph
        self.graph_task = graph_task
        self._recomputed: WeakKeyDictionary[Hashable, RecomputedBuffers] = WeakKeyDictionary()
        self._other_hooks: list[ref[Registry]] = []  # of tensors, which torch does not list
        self._selective = False  # whether a region of a selective checkpoint was recomputed

    def seconds_of_history(self) -> float:
        codes = [code for task in self._graph.tasks if (code := list(self._code_of(task)))]
        seconds = [0.0]
        for code in codes[:: max(1, len(codes) // _SAMPLES)][:_SAMPLES]:
            began = thread_time()
            HookState(code)
            seconds.append(thread_time() - began)
        # The median, because the first one may load modules; this thread's time, because the cores may be busy.
        return sorted(seconds)[len(seconds) // 2] * len(codes)

    def begin(self, entry: Ran) -> None:
        if self._graph.tasks[entry.task].is_leaf:
            leaf = leaf_of(self._graph.nodes[entry.task])
            entry.version = version_of(leaf)
            entry.values = leaf.detach().clone() if post_accumulate_hooks(leaf) else None
        entry.packed = is_packed(self._graph.nodes[entry.task])
        entry.kept = HookState(self._code_of(self._graph.tasks[entry.task]))
        self.graph_task.accumulated_inside = False
        number = self.graph_task.number
        regions = regions_around(self._graph.nodes[entry.task])
        self._selective = self._selective or any(map(is_selective, regions))
        due = [] if number is None else [each for each in regions if not is_recomputed(each, number)]
        entry.recomputed = RecomputedBuffers(due, self._recomputed, number) if due and number is not None else None

    def end(self, entry: Ran) -> None:
        if entry.recomputed is not None:
            entry.recomputed.end()
        if entry.kept is not None and not entry.kept.end():
            entry.kept = None if entry.kept.unrestorable is None else entry.kept

    def why_not_back(self, entry: Ran) -> str | None:
        task, node = self._graph.tasks[entry.task], self._graph.nodes[entry.task]
        if task.kind is Kind.COMPILED:
            return "is a compiled region, which can run only once because it gives away the memory of its saved tensors"
        if entry.packed and self._selective:
            return (
                "unpacks saved tensors of a selective checkpoint (create_selective_checkpoint_contexts), which can "
                "recompute its region only once"
            )
        if self.graph_task.accumulated_inside:
            return "ran a nested backward, which added to .grad"
        if entry.kept is not None and entry.kept.unrestorable is not None:
            return entry.kept.unrestorable
        if task.is_leaf:
            leaf, values = leaf_of(node), entry.values
            entry.values = None
            written = values is not None and not torch.equal(values, leaf.detach())  # through .data, for instance
            if written or version_of(leaf) != entry.version:
                return "had a hook that modified the parameter itself, as an optimizer's step does"
        elif not self.graph_task.keep_graph and task.kind in APPLIED and function_is_freed(node):
            return "has freed its saved tensors itself"
        return None

    def retaining(self) -> dict[int, list[ref[Tensor]]]:
        ids: dict[Node | None, int] = {node: task_id for task_id, node in enumerate(self._graph.nodes)}
        with without_torch_function():
            found, hooks = look_through()
            tensors = made_by(self._graph.nodes, found)
        del found
        here = {id(each) for task in self._graph.tasks for each in self._hooks_of(task)} if hooks else ()
        # In place: of_tensors() asks gc.get_referrers, and a second list would be one more holder of every dict.
        hooks[:] = [each for each in hooks if id(each) not in here]
        self._other_hooks = of_tensors(hooks)
        by_task: dict[int, list[ref[Tensor]]] = {}
        for each in tensors:
            tensor = each()
            if tensor is not None and (task_id := ids.get(node_of(tensor))) is not None:
                by_task.setdefault(task_id, []).append(each)
        return by_task

    def _code_of(self, task: Task) -> Iterator[Any]:
        """Yield the functions that a task may call: hooks, its Function, unpack hooks of its saved tensors."""
        node = self._graph.nodes[task.id]
        yield from self._hooks_of(task)
        if isinstance(node, BackwardCFunction):
            yield vars(node)
            yield from function_of(node).__mro__
            yield function_of(node).backward
        yield from unpacking(node)
        yield from filter(None, [each() for each in self._other_hooks])

    def _hooks_of(self, task: Task) -> Iterator[dict[int, Any]]:
        """Yield the hooks that torch lists."""
        node = self._graph.nodes[task.id]
        yield from hook_dicts(node)
        if task.is_leaf:
            leaf = leaf_of(node)
            yield from filter(None, (leaf._backward_hooks, leaf._post_accumulate_grad_hooks))
