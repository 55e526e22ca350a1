"""The cost of a trace: recording each task, and recording, saving and loading a million tasks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import torch
from measure import Effort, Row

import tapescope as ts
from tapescope.engine.planning.policies import POLICIES
from tapescope.engine.recording.recorder import Recorder
from tapescope.engine.recording.statistics import Level
from tapescope.engine.recording.task_records import Trace
from tapescope.inspector.graph.graph import Root, TensorMeta
from tapescope.inspector.graph.kinds import Kind

_ARRIVE_TOGETHER = 100
_META = TensorMeta((4, 4), torch.float32, torch.device("cpu"))


def rows(effort: Effort) -> Iterator[Row]:
    tasks = 200 if effort.tiny else 10_000
    chain = chain_graph(tasks)
    goals: dict[Level, float | None] = {"off": 1.5, "cheap": None, "full": None}
    for level, goal in goals.items():
        values = tuple(record(chain, level)[0] / tasks * 1e6 for _ in range(effort.repetitions))
        yield Row(f"start() and end() of a task, trace={level}", "µs", values, goal)
    many = 2000 if effort.tiny else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        for step in ("save", "load"):  # a separate process for each, to measure its memory alone
            command = [sys.executable, __file__, step, str(many), str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for what, (unit, value) in json.loads(done.stdout).items():
                yield Row(f"{many:,} tasks: {what}", unit, (value,))


def chain_graph(tasks: int) -> ts.Graph:
    """A chain without torch nodes, from the last task to task 0."""
    return ts.Graph(
        tuple(ts.Task(number, "MulBackward0", Kind.CPP, number, (_META,)) for number in range(tasks)),
        tuple(ts.types.Edge(number, 0, number - 1, 0) for number in range(1, tasks)),
        (Root(tasks - 1, 0),),
    )


def record(graph: ts.Graph, level: Level) -> tuple[float, Trace]:
    """The processor's seconds for all start() and end() calls of a backward that does nothing, and the trace."""
    recorder = Recorder(graph, POLICIES["heap"], level)
    gradients = (torch.ones(4, 4),)
    order = list(reversed(range(len(graph))))
    recorder.arrive(order[0], f"#{order[0]}")
    elapsed_s = 0.0
    for begin in range(0, len(order), _ARRIVE_TOGETHER):  # no clock between a task and the next
        some = order[begin : begin + _ARRIVE_TOGETHER]
        for task_id in some:
            if task_id:
                recorder.arrive(task_id - 1, f"#{task_id - 1}")
        start = time.process_time()
        for task_id in some:
            recorder.start(task_id, gradients)
            recorder.end(gradients if task_id else ())
        elapsed_s += time.process_time() - start
    return elapsed_s, recorder.trace()


def _peak_mib() -> float:
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _measured(call: Callable[[], object]) -> tuple[float, float, object]:
    """Seconds, MiB by which the process grew at its peak (a page at least), and the result."""
    before, start = _peak_mib(), time.perf_counter()
    result = call()
    return time.perf_counter() - start, max(_peak_mib() - before, 2**-8), result


def _save(tasks: int, path: Path) -> dict[str, tuple[str, float]]:
    graph = chain_graph(tasks)
    graph.out_edges  # noqa: B018  an engine has looked at them, too
    seconds, _, recorded = _measured(lambda: record(graph, "off")[1])
    assert isinstance(recorded, Trace)
    columns = [getattr(recorded.columns, column.name) for column in fields(recorded.columns)]
    order = recorded.order
    run = ts.Run(graph, "heap", "direct", order, order, 0, recorded)
    save_s, save_mib, _ = _measured(lambda: run.save(path))
    return {
        "recorded": ("s", seconds),
        "the trace in memory": ("MiB", sum(len(column) * column.itemsize for column in columns) / 2**20),
        "saved": ("s", save_s),
        "memory while saving": ("MiB", save_mib),
        "file": ("MiB", path.stat().st_size / 2**20),
    }


def _load(tasks: int, path: Path) -> dict[str, tuple[str, float]]:
    seconds, memory, run = _measured(lambda: ts.load(path))
    assert isinstance(run, ts.Run) and run.trace is not None and len(run.trace) == tasks
    start = time.perf_counter()
    for each in run.trace:
        last = each.queue_before
    assert last[0] == (0, "#0")
    return {
        "loaded": ("s", seconds),
        "memory of the loaded run at its peak": ("MiB", memory),
        "queue of each looked at": ("s", time.perf_counter() - start),
    }


if __name__ == "__main__":
    step, tasks, path = sys.argv[1:]
    print(json.dumps({"save": _save, "load": _load}[step](int(tasks), Path(path))))
