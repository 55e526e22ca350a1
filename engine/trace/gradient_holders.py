"""Which hooks may hold the gradient that a task takes, and where each was registered, as far as that can be known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.marks import hooks_noted
from ...inspector.graph.source import Source
from ...inspector.torch_internals.hooks import leaf_hooks, node_hooks, post_accumulate_hooks
from ...inspector.torch_internals.nodes import leaf_of
from ..memory.timeline import Category, Timeline
from ..tasks.task_hooks import hook_name
from ..words.phrases import module_title

_WORDS = "_hook_words"  # an attribute of a graph: by task id the words on its hooks
_MODULES_HOOK = "BackwardHookFunctionBackward"  # the node which `register_full_backward_hook` puts into the graph


def keep_holders(timeline: Timeline) -> None:
    """Reads the hooks while the nodes exist, if any gradient is held by one."""
    graph = timeline.graph
    held = Category.HELD in timeline.born_as or any(category is Category.HELD for _, _, category in timeline.changes)
    if held and graph.nodes:
        words = {task.id: found for task in graph.tasks if (found := holders(graph, task))}
        vars(graph)[_WORDS] = words


def holders(graph: Graph, task: Task) -> list[str]:
    """The hooks in words: "`list.append`, registered at train.py:41".

    Of a tensor's hook a capture of the forward knows the line that registered it; of a leaf's or a node's own, which
    may be older than the forward, the hook itself tells where it was written. Where there are no nodes of torch, as in
    a graph from a file, none is known.
    """
    words: dict[int, list[str]] = vars(graph).get(_WORDS, {})
    if task.id in words:
        return words[task.id]
    node = graph.nodes[task.id] if graph.nodes else None
    return list(dict.fromkeys(_holders(graph, task, node))) if isinstance(node, Node) else []


def _holders(graph: Graph, task: Task, node: Node) -> Iterator[str]:
    for note in hooks_noted(node):
        source = note.operation.source
        by = note.hook if note.hook == "retain_grad()" else f"`{note.hook}`"
        how = "called" if note.hook == "retain_grad()" else "registered"
        yield by if source is None else f"{by}, {how} at {source.short}"
    if task.is_leaf:
        leaf = leaf_of(node)
        yield from map(_written, [*leaf_hooks(leaf), *post_accumulate_hooks(leaf)])
    before, after = node_hooks(node)
    if task.name == _MODULES_HOOK:
        yield f"a full backward hook of {module_title(graph, _hooked(graph, task))}"
    else:
        yield from map(_written, [*before, *after])


def _hooked(graph: Graph, task: Task) -> str | None:
    """The path of the module whose hook's node this is: that of its outputs was made after its call had ended."""
    for edge in graph.out_edges[task.id]:
        call = graph.tasks[edge.next_task].call
        while call is not None:
            if graph.calls[call].parent == task.call:
                return graph.calls[call].path
            call = graph.calls[call].parent
    return graph.module(task)


def _written(hook: Any) -> str:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    name = f"`{hook_name(hook)}`"
    return name if code is None else f"{name}, written at {Source(code.co_filename, code.co_firstlineno, '').short}"
