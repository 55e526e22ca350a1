"""Task lookup: the tasks that a name, a pattern or a source line refers to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.source_lines import Source
from ...inspector.text.sizes_and_counts import dtype_name, shape_text
from ...inspector.validation import a_kind
from .ready_queue import ReadyTask

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")
_SHOWN = 3  # names in an error
_MEANINGS = "line", "kind", "module", "grad", "task"

Where = str | int | Task | ReadyTask | Tensor
"""A place in a backward, see `tasks_at`."""


def tasks_at(graph: Graph, where: Where) -> frozenset[int]:
    """Return the ids of the tasks to which `where` refers.

    It may be a task or its number; a tensor of the forward, for the task that receives its gradient; the name of a node
    ("Addmm", "AddmmBackward0"); a module's path, for its calls and the calls in them; a parameter's name, for the task
    that accumulates its gradient; or a line ("model.py:120") of the forward, or of a custom Function's backward. Names
    may be patterns ("encoder.layer.*", "*Norm*"). An ambiguous name is interpreted as the first of: line, kind, module,
    parameter, task. The str "2" is therefore the module "2" of an nn.Sequential, and a task only if there is no such
    module; the int 2 is always a task. A prefix ("task:", "line:", "kind:", "module:", "grad:") selects one.

    Raises:
        ValueError: If nothing has that name; the message suggests the nearest names.
        TypeError: If `where` has another type.
    """
    return _found(graph, where)[1]


def tasks_and_calls_at(graph: Graph, where: Where) -> tuple[frozenset[int], dict[int, int] | None]:
    """Return the tasks as `tasks_at` does and, for modules, the outermost call that created each task, else None.

    Raises:
        ValueError, TypeError: as `tasks_at`.
    """
    meaning, tasks = _found(graph, where)
    if meaning != "module":
        return tasks, None
    calls = calls_at(graph, str(where).strip().removeprefix("module:").strip())
    return tasks, {task_id: [call for call in calls_of(graph, task_id) if call in calls][-1] for task_id in tasks}


def _found(graph: Graph, where: Where) -> tuple[str, frozenset[int]]:
    """Return how `where` was interpreted (module, line, parameter, ...), and the ids of its tasks."""
    if isinstance(where, ReadyTask):
        where = where.task
    if isinstance(where, Tensor):
        return "task", frozenset((_task_of(graph, where),))
    if isinstance(where, Task | int) and not isinstance(where, bool):
        return "task", frozenset((graph.task(where).id,))
    if not isinstance(where, str):
        raise TypeError(
            "a place in the backward must be a task, its number, a tensor, or a str (the name of a node, a module, a "
            f"parameter, or a line as in model.py:120), got {a_kind(where)}"
        )
    prefix, _, rest = where.partition(":")
    meanings: Collection[str] = _MEANINGS
    text = where.strip()
    if prefix in _MEANINGS and rest.strip():
        meanings, text = (prefix,), rest.strip()
    for meaning in meanings:
        if found := frozenset(_tasks_called(graph, meaning, text)):
            return meaning, found
    raise ValueError(_nothing_there(graph, where, text, meanings))


def _task_of(graph: Graph, tensor: Tensor) -> int:
    """Return the id of the task that receives a tensor's gradient."""
    node = tensor.grad_fn
    if node is not None:
        found = next((task_id for task_id, each in enumerate(graph.nodes) if each is node), None)
    else:
        found = next((task_id for task_id, leaf in graph.leaves.items() if leaf is tensor), None)
    if found is None:
        why = "is not part of this backward" if tensor.requires_grad else "does not require grad"
        raise ValueError(
            f"the tensor ({shape_text(tensor.shape)} {dtype_name(tensor.dtype)}) {why}, so no task receives its "
            "gradient; pass a tensor that the loss was computed from"
        )
    return found


def calls_of(graph: Graph, task_id: int) -> list[int]:
    """Return the ids of the module calls that created the task's node, innermost first. Empty if no capture saw one."""
    found = []
    call = graph.tasks[task_id].call
    while call is not None:
        found.append(call)
        call = graph.calls[call].parent
    return found


def tasks_of_call(graph: Graph, call: int) -> set[int]:
    """Return the ids of the tasks of a module call and of the calls in it."""
    inside: dict[int | None, bool] = {None: False}
    found = set()
    for task in graph.tasks:
        if task.call not in inside:
            inside[task.call] = call in calls_of(graph, task.id)
        if inside[task.call]:
            found.add(task.id)
    return found


def calls_at(graph: Graph, pattern: str) -> frozenset[int]:
    """Return the ids of the calls of modules with this path or below it, and of the calls in them."""
    chosen: set[int] = set()
    pending = []
    for call in graph.calls:  # a call's number may be lower than that of the enclosing call
        if fnmatchcase(call.path, pattern) or fnmatchcase(call.path, f"{pattern}.*"):
            chosen.add(call.id)
        else:
            pending.append(call)
    for call in pending:
        around, passed = call.parent, [call.id]
        while around is not None and around not in chosen:
            passed.append(around)
            around = graph.calls[around].parent
        if around is not None:
            chosen.update(passed)
    return frozenset(chosen)


def _tasks_called(graph: Graph, meaning: str, text: str) -> Iterable[int]:
    """Return the ids of the tasks that `text` names if it is interpreted as a task, line, kind, module or parameter."""
    match meaning:
        case "task":
            return (int(text),) if text.isdecimal() and int(text) < len(graph) else ()
        case "kind":
            return (
                each.id for each in graph.tasks if fnmatchcase(each.name, text) or fnmatchcase(each.short_name, text)
            )
        case "module":
            calls = calls_at(graph, text)
            return (task.id for task in graph.tasks if task.call in calls)
        case "grad":
            return (each.id for each in graph.tasks if each.parameter is not None and fnmatchcase(each.parameter, text))
    if (match := _LINE.fullmatch(text)) is None:
        return ()
    file, line = match["file"], int(match["line"])
    found = [task.id for task in graph.tasks if (source := task.source) and _is_at(source, text, file, line)]
    return found or [task_id for task_id, node in enumerate(graph.nodes) if _runs_line(node, text, file, line)]


def _is_at(source: Source, text: str, file: str, line: int) -> bool:
    """Return whether a source is at this line; the file may be given with any number of its folders."""
    parts = PurePath(file).parts
    return source.line == line and (source.short == text or PurePath(source.file).parts[-len(parts) :] == parts)


def _runs_line(node: Node, text: str, file: str, line: int) -> bool:
    """Return whether a custom Function's backward has this line."""
    if not isinstance(node, BackwardCFunction):
        return False
    function: Any = type(node)._forward_cls
    code = getattr(function.backward, "__code__", None)
    lines = () if code is None else {each for _, _, each in code.co_lines()}
    return code is not None and line in lines and _is_at(Source(code.co_filename, line, ""), text, file, line)


def _nothing_there(graph: Graph, where: str, text: str, meanings: Collection[str]) -> str:
    """Return the error text for a name without tasks: similar names, or the first known ones."""
    said = f'nothing in this graph is called "{where}"'
    if text.isdecimal() and "task" in meanings:
        return f"{said}: it has tasks 0 to {len(graph) - 1}"
    kinds = [kinds for meaning, kinds in (("module", "modules"), ("line", "lines")) if meaning in meanings]
    said_more = ""
    if kinds and not knows_forward(graph):
        said_more = f"; the {kinds[0]} of this graph are not known: run the forward under `with ts.capture():`"
    found: dict[str, None] = {}
    for task in graph.tasks:
        if "line" in meanings and task.source is not None:
            found[task.source.short] = None
        if "kind" in meanings:
            found[task.short_name] = None
        if "grad" in meanings and task.parameter is not None:
            found[task.parameter] = None
    if "module" in meanings:
        found.update((call.path, None) for call in graph.calls if call.path)
    names = list(found)
    lower = {name.lower(): name for name in names}
    near = [lower[name] for name in get_close_matches(text.lower(), lower, _SHOWN, cutoff=0.5)]
    if near:
        return f"{said}; similar names: {', '.join(near)}{said_more}"
    if "module" in meanings:  # the outermost modules give the best overview
        names = list(dict.fromkeys(call.path for call in graph.calls if call.path and "." not in call.path)) or names
    if names:
        more = ", ..." if len(names) > _SHOWN else ""
        return f"{said}; known names: {', '.join(names[:_SHOWN])}{more}{said_more}"
    return f"{said}, which has no such names{said_more}"


def knows_forward(graph: Graph) -> bool:
    """Return whether a capture saw the forward: all of it, or module calls in it."""
    return bool(graph.calls) or all(task.operation is not None or task.is_leaf for task in graph.tasks)
