"""`make bench`: measures, and prints one table. A missed goal is printed, never an error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import accumulation
import batching
import capture_cost
import deck
import drawing
import echo
import fitting
import kernels
import loop_page
import many
import memory
import memory_cuda
import mirroring
import orders
import other_tools
import planning
import prediction
import starting
import stepping
import tracing
import training_loops
import two_devices
import walking
import watching
import whole_calls
import whole_steps
from measure import Effort, Row
from rich.console import Console
from table import as_json, render

from tapehead.engine.words.machine import this_machine

BENCHMARKS: dict[str, Callable[[Effort], Iterator[Row]]] = {
    "whole_calls": whole_calls.rows,
    "starting": starting.rows,
    "capture": capture_cost.rows,
    "stepping": stepping.rows,
    "drawing": drawing.rows,
    "walking": walking.rows,
    "many": many.rows,
    "tracing": tracing.rows,
    "watching": watching.rows,
    "memory": memory.rows,
    "memory_cuda": memory_cuda.rows,
    "prediction": prediction.rows,
    "fitting": fitting.rows,
    "whole_steps": whole_steps.rows,
    "training_loops": training_loops.rows,
    "loop_page": loop_page.rows,
    "kernels": kernels.rows,
    "orders": orders.rows,
    "two_devices": two_devices.rows,
    "planning": planning.rows,
    "accumulation": accumulation.rows,
    "batching": batching.rows,
    "batching_cuda": batching.rows_cuda,
    "mirroring": mirroring.rows,
    "mirroring_cuda": mirroring.rows_cuda,
    "echo": echo.rows,
    "deck": deck.rows,
    "other_tools": other_tools.rows,
}


def main(arguments: Sequence[str] | None = None, effort: Effort | None = None) -> None:
    options = _parser().parse_args(arguments)
    effort = effort or Effort(repetitions=5 if options.quick else 20)
    chosen = {name: BENCHMARKS[name] for name in options.only or BENCHMARKS}
    if options.quick:
        chosen = {"whole_calls": whole_calls.rows_quick}
    notes = Console(stderr=True, style="dim")  # no spinner: its thread would be measured, too
    rows: list[Row] = []
    for name, measure in chosen.items():
        notes.print(f"measuring {name}")
        rows.extend(measure(effort))
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
    parser.add_argument("--quick", action="store_true", help="whole calls alone, in less than a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single value, too")
    return parser


if __name__ == "__main__":
    main()
