"""The nodes of custom Functions and of what is made like one: Python calls their `apply`, and sorts what that gives."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...inspector.arguments import a_kind
from ...inspector.graph.graph import Task
from ...inspector.graph.kinds import Kind
from .task_hooks import Gradients

APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK, Kind.COMPILED}  # Python nodes: not callable themselves


def by_edge(task: Task, node: Any, outputs: tuple[Any, ...]) -> Gradients:
    """Sorts what a custom Function gives, one per argument of its forward, to its edges (python_function.cpp)."""
    needed = node.needs_input_grad
    while len(outputs) > len(needed) and outputs[-1] is None:
        outputs = outputs[:-1]
    if len(outputs) != len(needed):
        raise RuntimeError(
            f"function {task.name} returned an incorrect number of gradients "
            f"(expected {len(needed)}, got {len(outputs)})"
        )
    unwanted = sum(output is not None and not need for output, need in zip(outputs, needed, strict=True))
    if unwanted > sum(child is None for child, _ in node.next_functions):
        raise RuntimeError(
            f"function {task.name} returned a gradient different than None for an argument of its forward that was "
            "not a Variable"
        )
    wanted = iter([output for output, need in zip(outputs, needed, strict=True) if need])
    found = [next(wanted, None) if child is not None else None for child, _ in node.next_functions]
    for output in found:
        if output is not None and not isinstance(output, Tensor):
            raise TypeError(f"function {task.name} returned {a_kind(output)} as a gradient; expected a Tensor or None")
    return found
