"""The growth of each verb's time and memory with the number of tasks, over graphs of several shapes."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf, log
from pathlib import Path
from typing import Any

import torch
from loop_page import long_loop
from measure import Effort, Row
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.task_outputs import of_shapes
from tapescope.engine.planning.local_search import search
from tapescope.engine.planning.lower_bound import lower_bound
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.inspector.drawing.fold import MOST_DRAWN
from tapescope.inspector.drawing.layout import layout
from tapescope.tests.engine.graph_shapes import chain, fan

_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_FEWER = (200, 400, 800)  # an LSTM creates fifteen tasks for each step; below 200, gradcheck takes most of the time
_MOST_SECONDS = 12.0  # a size is left out if the last one and the growth so far predict more than this
_GOAL = 1.1
_STACK_BYTES = 1 << 30  # torch frees a long chain that Python has seen by recursion
_STATUS = Path("/proc/self/status")  # Linux only; elsewhere no memory is reported


def layers(tasks: int) -> Tensor:
    """Layers of 32 products, each of two random results of the layer before, with a parameter for each column."""
    draw = random.Random(0)
    weights = [torch.ones(4, requires_grad=True) for _ in range(32)]
    row = [weight.sin() for weight in weights]
    for _ in range(tasks // 64):
        row = [draw.choice(row) * draw.choice(row) * weight for weight in weights]
    return torch.stack(row).sum()


SHAPES: dict[str, Callable[[int], Tensor]] = {"chain": chain, "fan": fan, "layers": layers}


def rows(effort: Effort) -> Iterator[Row]:
    """Yield the exponent of each verb and shape, with the seconds and the memory of each size."""
    for shape in (*SHAPES, *_OTHERS):
        sizes = _FEWER if shape in ("LSTM", "retain_grad") else _SIZES
        yield from _grown(shape, (sizes[0] // 10, sizes[0] // 5) if effort.tiny else sizes)


def rows_quick(effort: Effort) -> Iterator[Row]:
    """Yield the same up to 10,000 tasks, in about a minute."""
    for shape in (*SHAPES, *_OTHERS):
        yield from _grown(shape, (_FEWER if shape in ("LSTM", "retain_grad") else _SIZES)[:2])


def _grown(shape: str, sizes: Sequence[int]) -> Iterator[Row]:
    """Measure one shape. Each size is a process of its own, which leaves out verbs that would take too long."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for size in sizes:
        too_long = [verb for verb, points in found.items() if _predicted(points, size) > _MOST_SECONDS]
        command = [sys.executable, __file__, shape, str(size), *too_long]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            verb, count, taken, megabytes = json.loads(line)
            found.setdefault(verb, []).append((count, taken, megabytes))
    for verb, points in found.items():
        note = "; ".join(f"{count:,}: {taken:.3g} s, {megabytes:.0f} MB" for count, taken, megabytes in points)
        values = (_exponent(points),) if len(points) > 1 else ()
        yield Row(f"{shape}: {verb}", "power", values, _GOAL, note=note)


def _exponent(points: Sequence[tuple[int, float, float]]) -> float:
    """Return the growth of the time between the last two sizes, as a power of the number of tasks."""
    (count, taken, _), (more, longer, _) = points[-2:]
    return log(longer / taken) / log(more / count)


def _predicted(points: Sequence[tuple[int, float, float]], size: int) -> float:
    count, taken, _ = points[-1]
    return taken * (size / count) ** (max(1.0, _exponent(points)) if len(points) > 1 else 1.0)


class _Meter:
    """Measures a verb: the processor's seconds, which other processes do not lengthen, and the memory it adds."""

    def __init__(self, left_out: Sequence[str] = (), is_silent: bool = False) -> None:
        self._left_out = left_out
        self._is_silent = is_silent

    def __call__(self, verb: str, count: int, call: Callable[[], Any]) -> Any:
        """Print a line with the verb, its size, its seconds and its megabytes, and return its result."""
        if verb in self._left_out:
            return None
        gc.collect()
        gc.disable()  # a collection walks all that torch has loaded, and comes in whichever verb is running
        before = _resident("VmRSS")
        if before:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
        start = time.process_time()
        result = call()
        taken = time.process_time() - start
        gc.enable()
        if not self._is_silent:
            print(json.dumps([verb, count, max(taken, 1e-6), max(0.0, _resident("VmHWM") - before)]), flush=True)
        return result


def _resident(what: str) -> float:
    """Return a row of the process's status in megabytes; 0 where the system has none."""
    if not _STATUS.exists():
        return 0.0
    [line] = [each for each in _STATUS.read_text().splitlines() if each.startswith(what)]
    return int(line.split()[1]) * 1024 / 1e6


def _measure_tasks(make_loss: Callable[[], Tensor], meter: _Meter, folder: Path) -> None:
    def captured() -> Tensor:
        with ts.capture():
            return make_loss()

    loss = captured()
    count = len(graph := ts.graph(loss))
    meter("capture", count, captured)
    meter("capture and graph", count, lambda: ts.graph(captured()))
    meter("order of BFS", count, lambda: schedule(graph, "bfs"))
    order = schedule(graph, "heap")
    footprints = meter("dry run", count, lambda: dry_run(graph)) or of_shapes(graph)
    meter("simulate", count, lambda: ts.simulate(graph, order, footprints))
    meter("order of LPMF", count, lambda: schedule(graph, "lpmf", footprints=footprints))
    meter("lower bound", count, lambda: lower_bound(Problem(graph, footprints)))
    meter("plan_order", count, lambda: ts.plan_order(graph, footprints=footprints))
    problem = Problem(graph, footprints)
    meter("search, 100 moves", count, lambda: search(problem, order, seconds=inf, evaluations=100))
    meter("layout, folded", count, lambda: layout(graph))
    if count <= MOST_DRAWN:
        meter("layout, open", count, lambda: layout(graph, fold="none"))
    meter("SVG", count, graph.to_svg)
    meter("makespan", count, lambda: ts.makespan(graph, durations=[1] * count))
    for verb, backward in (("plain backward", Tensor.backward), ("native backward, BFS", _backward_bfs)):
        loss = make_loss()
        meter(verb, count, lambda loss=loss, backward=backward: backward(loss))
    run = meter("capture and direct backward", count, lambda: ts.backward(captured(), engine="direct", trace="cheap"))
    if run is not None:
        meter("save", count, lambda: run.save(folder / "run.tape.json"))
        meter("load", count, lambda: ts.load(folder / "run.tape.json"))
        meter("Perfetto trace", count, lambda: run.save_perfetto(folder / "run.perfetto.json"))
        meter("diff", count, lambda: ts.diff(run, run))
        meter("deck's page", count, lambda: run.save_html(folder / "run.html"))


def _backward_bfs(loss: Tensor) -> None:
    ts.backward(loss, policy="bfs")


def _measure_steps(steps: int, meter: _Meter, folder: Path) -> None:
    training = long_loop(steps, 10)
    meter("training page", steps, lambda: training.save_html(folder / "loop.html"))


def _measure_checks(steps: int, meter: _Meter, folder: Path) -> None:
    model = torch.nn.LSTM(3, 4, proj_size=2)  # with a projection, oneDNN does not run all steps as one task
    with ts.capture(model, keep_inputs=True):
        loss = model(torch.randn(steps, 1, 3))[0].square().sum()
    with ts.debug(loss) as session:
        meter("check of each task", steps, lambda: [session.check(task) for task in session.graph.tasks])


def _measure_retained(tensors: int, meter: _Meter, folder: Path) -> None:
    weight, hidden, retained = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), []
    for _ in range(tensors):
        hidden = (hidden @ weight).tanh()
        hidden.retain_grad()
        retained.append(hidden)
    graph = ts.graph(hidden.sum())
    meter("dry run", tensors, lambda: dry_run(graph))


_OTHERS: dict[str, Callable[[int, _Meter, Path], None]] = {
    "steps": _measure_steps,
    "LSTM": _measure_checks,
    "retain_grad": _measure_retained,
}


def _measure(shape: str, size: int, left_out: Sequence[str]) -> None:
    """Measure once on a small graph, which loads modules and fills torch's caches, and then the graph of this size."""
    with tempfile.TemporaryDirectory() as folder:
        for tasks, meter in ((50, _Meter(is_silent=True)), (size, _Meter(left_out))):
            if shape in _OTHERS:
                _OTHERS[shape](tasks, meter, Path(folder))
            else:
                _measure_tasks(lambda tasks=tasks: SHAPES[shape](tasks), meter, Path(folder))
    sys.stdout.flush()
    os._exit(0)  # skip the release of a million nodes


if __name__ == "__main__":
    torch.set_num_threads(1)
    threading.stack_size(_STACK_BYTES)
    measuring = threading.Thread(target=_measure, args=(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
    measuring.start()
    measuring.join()
    sys.exit(1)  # it has raised
