"""`make conformance`: PyTorch's own databases of operators and modules, run backward by PyTorch and by both engines.

The direct engine under "heap" must give PyTorch's gradients bit for bit, other orders the same but for rounding; where
PyTorch raises, both must raise the same. Exits with 1 if anything differs that exceptions.py does not explain.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from checks import CHECKS
from databases import ModuleInfo, entries
from report import as_json, report
from rich.console import Console
from selection import sample, selected
from sweep import sweep_all

SAMPLES = 6
SLICE_SAMPLES = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    limit = None if options.all else SLICE_SAMPLES if options.slice or options.sample else SAMPLES
    names = selected(entries()) if options.slice else list(entries())
    if options.sample:
        names = sample((name for name, info in entries().items() if not isinstance(info, ModuleInfo)), options.sample)
    checks = [check for check in CHECKS if check.engine == "direct" or not options.direct]
    if options.only:
        names = [name for name in names if any(fnmatchcase(name, pattern) for pattern in options.only)]
    started = time.monotonic()
    notes = Console(stderr=True, style="dim")
    swept = []
    for each in sweep_all(names, limit, options.jobs, checks):
        swept.append(each)
        if len(swept) % 100 == 0:
            notes.print(f"{len(swept)} of {len(names)} entries, {time.monotonic() - started:.0f} s")
    console = Console()
    if not console.is_terminal:
        console.width = 120
    if options.json:
        options.json.write_text(json.dumps(as_json(swept)), encoding="utf-8")
    good = report(swept, console, whole=len(names) == len(entries()))
    samples = "all" if limit is None else f"at most {limit}"
    console.print(
        f"[dim]torch {torch.__version__}, samples of each variant and dtype: {samples}, "
        f"{time.monotonic() - started:.0f} s in {options.jobs} process(es)[/dim]",
        highlight=False,
    )
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--all", action="store_true", help=f"all samples, not {SAMPLES} of each variant and dtype")
    parser.add_argument("--slice", action="store_true", help="what `make test` runs: some entries of each kind")
    parser.add_argument("--sample", type=int, metavar="COUNT", help="so many operators, the same with each torch")
    parser.add_argument("--direct", action="store_true", help="the checks of the direct engine alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write which entries are equal, too")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="entries of these names; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
