"""`make bench`: measures, and prints one table. A missed goal is printed, never an error."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import measure
from measure import Effort, Row
from rich.console import Console
from table import as_json, render

from tapescope.engine.api.environment import this_machine


def _rows(module: str, function: str = "rows") -> Callable[[Effort], Iterator[Row]]:
    """Rows of a module that is imported when they are measured: some need a browser, or Jupyter."""
    return lambda effort: getattr(import_module(module), function)(effort)


BENCHMARKS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "whole_calls": _rows("whole_calls"),
    "starting": _rows("starting"),
    "capture": _rows("capture_cost"),
    "stepping": _rows("stepping"),
    "drawing": _rows("drawing"),
    "walking": _rows("walking"),
    "many": _rows("many"),
    "growth": _rows("growth"),
    "tracing": _rows("tracing"),
    "watching": _rows("watching"),
    "memory": _rows("memory"),
    "memory_cuda": _rows("memory_cuda"),
    "prediction": _rows("prediction"),
    "fitting": _rows("fitting"),
    "whole_steps": _rows("whole_steps"),
    "training_loops": _rows("training_loops"),
    "loop_page": _rows("loop_page"),
    "compare_page": _rows("compare_page"),
    "kernels": _rows("kernels"),
    "orders": _rows("orders"),
    "two_devices": _rows("two_devices"),
    "planning": _rows("planning"),
    "accumulation": _rows("accumulation"),
    "batching": _rows("batching"),
    "batching_cuda": _rows("batching", "rows_cuda"),
    "recompute": _rows("recompute"),
    "recompute_cuda": _rows("recompute", "rows_cuda"),
    "echo": _rows("echo"),
    "deck": _rows("deck"),
    "other_tools": _rows("other_tools"),
}
_QUICK = ("whole_calls", "growth")
"""Benchmarks with rows that are measured in about a minute."""


def main(arguments: Sequence[str] | None = None, effort: Effort | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    effort = effort or Effort(repetitions=5 if options.quick else 20)
    if options.cpu_time:
        measure.clock = time.thread_time
    chosen = {name: BENCHMARKS[name] for name in options.only or BENCHMARKS}
    if options.quick:
        chosen = {name: _rows(name, "rows_quick") for name in options.only or _QUICK[:1]}
        if others := chosen.keys() - set(_QUICK):
            parser.error(f"--quick measures {' or '.join(_QUICK)}, not {', '.join(sorted(others))}")
    notes = Console(stderr=True, style="dim")  # no spinner: its thread would be measured, too
    rows: list[Row] = []
    for name, rows_of in chosen.items():
        notes.print(f"measuring {name}")
        rows.extend(rows_of(effort))
    console = Console()
    if not console.is_terminal:
        console.width = 120
    machine = this_machine()
    console.print(render(rows))
    console.print(f"[dim]{machine}; shared machine, noisy: compare ratios[/dim]", highlight=False)
    if options.json:
        text = json.dumps(as_json(rows, machine), indent=1, ensure_ascii=False)
        options.json.write_text(f"{text}\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="measure this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="whole calls, or --only growth, in about a minute")
    help_cpu_time = "the thread's processor time, which a busy machine disturbs less; set OMP_NUM_THREADS=1"
    parser.add_argument("--cpu-time", action="store_true", help=help_cpu_time)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single value, too")
    return parser


if __name__ == "__main__":
    main()
