"""`ts.trace_ready`: a handler of torch.profiler that writes a table of the backward's tasks beside Kineto's trace."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

from ...inspector.files import path_of, write_file
from ...inspector.graph.graph import Graph
from ...inspector.torch_private.allocators import profiled_range

FORMAT, VERSION = "tapescope.profile", 1

_FORWARD, _BACKWARD = 0, 1  # at::RecordScope: FUNCTION and BACKWARD_FUNCTION
_ENGINE = "autograd::engine::evaluate_function: "
_TASK = "tapescope: "


def task_range(graph: Graph, task_id: int) -> AbstractContextManager[None]:
    """Return a context that is a task's range in the trace of the user's profiler, if one is running."""
    task = graph.tasks[task_id]
    return profiled_range(lambda: f"{_TASK}{graph.module(task) or task.parameter or ''}: {task.name}")


def trace_ready(folder: str | os.PathLike[str]) -> Callable[[profile], None]:
    """Return a handler for `torch.profiler.profile(on_trace_ready=...)`.

    It writes two files for each profiled window: Kineto's trace, which Perfetto and TensorBoard open, and a table of
    the backward's tasks (`*.tapescope.json`). A task's module is the innermost `record_function` range around the
    operation that created it. In a session, and in a run with `trace=`, each task has a range of its own in Kineto's
    trace, named by its module.

    The table has one entry per task in each column: `name`, `module` (""  if unknown), `operation` of the forward,
    `sequence_nr` (-1 for leaves), `started_us` since the start of the profiler, `elapsed_us`, `device_us` of kernels,
    and with `profile_memory=True` `cpu_bytes` and `device_bytes`, allocated less freed.

    Args:
        folder: the folder of the files, which is created when the first is written. Names begin with the host, the rank
            if there are several, and the process.

    Raises:
        TypeError: folder is not a path.
    """
    path = path_of(folder, "ts.trace_ready")

    def write(profiler: profile) -> None:
        path.mkdir(parents=True, exist_ok=True)
        rank = f"_rank{os.environ['RANK']}" if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ else ""
        stem = f"{socket.gethostname()}{rank}_{os.getpid()}.{time.time_ns()}"
        # TensorBoard's plugin looks for files with this ending.
        kineto = path / f"{stem}.pt.trace.json"
        profiler.export_chrome_trace(str(kineto))
        content = {"format": FORMAT, "version": VERSION, "kineto": kineto.name, "tasks": _tasks_of(profiler)}
        write_file(path / f"{stem}.tapescope.json", json.dumps(content))

    return write


def _tasks_of(profiler: profile) -> dict[str, list[Any]]:
    events: list[FunctionEvent] = list(profiler.events() or ())  # type: ignore[no-untyped-call]
    # Sequence numbers are per thread. Nested operations may share one; the last of them creates the node.
    made_by: dict[tuple[int | None, int], FunctionEvent] = {
        (each.thread, each.sequence_nr): each for each in events if _is_forward(each)
    }
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("name", "module", "operation", "sequence_nr", "started_us", "elapsed_us", "device_us")
        + (("cpu_bytes", "device_bytes") if profiler.profile_memory else ())
    }
    for node in events:
        if node.scope != _BACKWARD or node.name == "[memory]":
            continue
        parent = node.cpu_parent
        task = parent if parent is not None and parent.name.startswith(_ENGINE) else node
        operation = made_by.get((node.fwd_thread, node.sequence_nr))
        row = {
            "name": node.name.removeprefix("torch::autograd::"),
            "module": _module_of(task, operation),
            "operation": "" if operation is None else operation.name,
            "sequence_nr": node.sequence_nr,
            "started_us": task.time_range.start,
            "elapsed_us": task.time_range.elapsed_us(),  # type: ignore[no-untyped-call]
            "device_us": task.device_time_total,
            "cpu_bytes": task.cpu_memory_usage,
            "device_bytes": task.device_memory_usage,
        }
        for name, column in columns.items():
            column.append(row[name])
    return columns


def _is_forward(event: FunctionEvent) -> bool:
    return event.scope == _FORWARD and event.sequence_nr >= 0 and not event.name.startswith(_ENGINE)


def _module_of(task: FunctionEvent, operation: FunctionEvent | None) -> str:
    """Return the module in a stepped task's own range, or else the innermost range around the forward's operation."""
    own = next((each for each in _ranges_around(task) if each.startswith(_TASK)), None)
    if own is not None:
        return own.removeprefix(_TASK).rpartition(": ")[0]
    return next((each for each in _ranges_around(operation) if not each.startswith("ProfilerStep")), "")


def _ranges_around(event: FunctionEvent | None) -> Iterator[str]:
    """Yield the names of the `record_function` ranges around an event, the innermost first."""
    while event is not None:
        if event.is_user_annotation:
            yield event.name
        event = event.cpu_parent
