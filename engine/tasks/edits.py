"""Gradients that a person puts in the place of others, at a stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ...inspector.arguments import a_kind
from ...inspector.graph.graph import Graph, Task
from .task_hooks import Gradients


def as_gradients(given: object) -> tuple[Any, ...]:
    """One gradient or several as a tuple.

    Raises:
        TypeError: it is neither a tensor nor a sequence.
    """
    if given is None or isinstance(given, Tensor):
        return (given,)
    if not isinstance(given, Iterable) or type(given).__module__ == "numpy":
        raise TypeError(f"expected a gradient or a sequence of them, one per input, not {a_kind(given)}")
    return tuple(given)


def check_edit(graph: Graph, task: Task, before: Gradients, after: Gradients) -> None:
    """Says what is wrong with gradients that are to replace those in a task's input buffer.

    Raises:
        ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
        TypeError: one is no tensor.
    """
    where = graph.describe(task)
    if len(after) != len(before):
        raise ValueError(f"{where} takes {len(before)} gradients, not {len(after)}")
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if new is None:
            continue
        if not isinstance(new, Tensor):
            raise TypeError(f"gradient {number} of {where} must be a tensor or None, not {a_kind(new)}")
        if old is None:
            raise ValueError(f"no gradient came to input {number} of {where}, so none can be replaced")
        for what in ("shape", "dtype", "device", "layout"):
            if getattr(new, what) != getattr(old, what):
                raise ValueError(
                    f"gradient {number} of {where} has {what} {getattr(old, what)}; the new one has "
                    f"{getattr(new, what)}"
                )
