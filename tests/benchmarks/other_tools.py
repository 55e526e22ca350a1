"""The same models drawn by other tools, each in a separate process that may be killed.

torchviz draws the backward as `ts.graph` does. torchview and torchvista draw the forward and run it themselves, which
is measured with them. torchvista lays the graph out in the browser: its time is that of tracing and writing the page.
`python tests/benchmarks/other_tools.py torchviz gpt2` draws one and prints the seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from measure import Effort, Row, seconds
from models import DRAWN

from tapescope.engine.studies.ready_workload import Parts

STARTED = "drawing"


def _torchviz(parts: Parts) -> Callable[[], object]:
    from torchviz import make_dot

    loss = parts.criterion(parts.model(*parts.inputs), *parts.targets)
    names = dict(parts.model.named_parameters())
    return lambda: make_dot(loss, params=names).pipe("svg")


def _torchview(parts: Parts) -> Callable[[], object]:
    from torchview import draw_graph

    return lambda: draw_graph(parts.model, parts.inputs, expand_nested=True).visual_graph.pipe("svg")


def _torchvista(parts: Parts) -> Callable[[], object]:
    from torchvista import trace_model

    return lambda: trace_model(parts.model, parts.inputs, export_path="model.html")


TOOLS = {
    "torchviz": ("torchviz + dot", _torchviz),
    "torchview": ("torchview + dot", _torchview),
    "torchvista": ("torchvista, no layout", _torchvista),
}


def rows(effort: Effort) -> Iterator[Row]:
    for tool, (title, _) in TOOLS.items():
        for name, drawn in DRAWN.items():
            yield _row(f"{title}, {drawn.title}", tool, name, effort)


def _row(what: str, tool: str, name: str, effort: Effort) -> Row:
    if find_spec(tool) is None:
        return Row(what, "s", outcome="not installed")
    if "dot" in what and which("dot") is None:
        return Row(what, "s", outcome="needs dot")
    command = [sys.executable, str(Path(__file__).resolve()), tool, name] + ["tiny"] * effort.tiny
    outcome = run_limited(command, effort.limit_s)
    return Row(what, "s", (outcome,)) if isinstance(outcome, float) else Row(what, "s", outcome=outcome)


def run_limited(command: list[str], limit_s: float) -> float | str:
    """Runs a command that prints `STARTED` and later its seconds. Gives them, or a sentence about what came instead.

    The limit counts from the start of the drawing. The command's working folder is empty, and goes with it.
    """
    expired = threading.Event()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, cwd=folder, text=True, start_new_session=True
        )
        timer = threading.Timer(limit_s, lambda: (expired.set(), _kill(process)))
        assert process.stdout is not None
        try:
            process.stdout.readline()
            timer.start()
            output = process.stdout.read()
            status = process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.stdout.close()
        if expired.is_set():
            return f"timeout > {limit_s:g} s"
        if status == 0:
            return float(output)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
        return f"error: {lines[-1] if lines else f'ended by {status}'}"


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends the process with its whole group: dot is a grandchild."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(tool: str, name: str, tiny: bool) -> None:
    draw = TOOLS[tool][1](DRAWN[name].parts(tiny))
    print(STARTED, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):  # a tool may talk
        elapsed = seconds(draw)
    print(elapsed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "tiny" in sys.argv[3:])
