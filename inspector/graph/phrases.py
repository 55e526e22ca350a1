"""Phrases for sentences about graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .graph import Graph, Task, module_name

MOST_NAMED = 3  # of each kind; the others are only counted


def module_title(graph: Graph, path: str | None) -> str:
    """Return a name for the module of this path; the model itself, whose path is empty, is named by its class."""
    if path is None:
        return "outside any module" if was_captured(graph) else "module not known"
    return module_name(path) or next((call.class_name for call in graph.calls if not call.path), "the model")


def was_captured(graph: Graph) -> bool:
    """Return whether a capture recorded any of the forward, so that modules and lines are known."""
    return bool(graph.calls) or any(task.operation is not None for task in graph.tasks)


def task_name(task: Task) -> str:
    """Return a task's name without its namespace: `AddmmBackward0`, `AccumulateGrad`."""
    return task.short_name if task.is_leaf else task.name


def pattern(path: str) -> str:
    """Return the path with `*` for each number, which equal modules of a list have in common."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def folded(paths: Iterable[str]) -> str:
    """Return one path for several of the same pattern, with `*` where they differ: `blocks.*.mlp.0`."""
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def operation_title(name: str) -> str:
    """Return an operation's short name: `linear` for `torch.nn.functional.linear`."""
    return name.rsplit(".", 1)[-1] if name.startswith("torch.") else name


def joined(parts: Sequence[str], most: int = MOST_NAMED) -> str:
    """Join parts as text: `a`, `a and b`, `a, b, c and 4 more`."""
    shown = list(parts[:most])
    if len(parts) > most:
        return f"{', '.join(shown)} and {len(parts) - most:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def as_sentence(line: str) -> str:
    """Return the line with a capital letter and a full stop; a leading name keeps its case."""
    first = line.partition(" ")[0]
    return f"{line if '.' in first else line[0].upper() + line[1:]}."


def uncapitalized(line: str) -> str:
    """Return the line for the middle of a sentence; a leading name keeps its case."""
    first = line.partition(" ")[0]
    return line if "." in first else line[0].lower() + line[1:]
