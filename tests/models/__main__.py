"""`make models`: what nobody here wrote goes through everything: models and training loops of well-known libraries.

    python tests/models
    python tests/models --only "timm *" --only "transformers gpt2"

Prints a row for each and a column for each verb. Exits with 1 if a gradient, a finding or an unflagged prediction is
wrong, if something is left behind, or if anything is raised that is not a refusal in a sentence of ours.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from rich.console import Console

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "engine")]

from loop_verbs import VERBS as LOOP_VERBS
from sweep import names, put_all_through
from table import report
from verbs import VERBS

_WIDTH = 230


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/models", description=__doc__.splitlines()[0])
    help_text = "strangers of these names; * stands for anything; may be repeated"
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help=help_text)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    options = parser.parse_args(arguments)
    chosen = names()
    if options.only:
        chosen = [name for name in chosen if any(fnmatchcase(name, pattern) for pattern in options.only)]
    if not chosen:
        parser.error("no stranger has such a name; there are: " + ", ".join(names()))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TAPESCOPE_TRACEBACKS"] = "full"  # where an error is raised tells whose it is
    started, rows = time.monotonic(), []
    for row in put_all_through(chosen, options.jobs):
        rows.append(row)
        wrong = [f"; {verb}: {cell.text}" for verb, cell in row.cells.items() if cell.outcome == "wrong"]
        print(f"{row.name}, {row.seconds:.0f} s{''.join(wrong)}", file=sys.stderr, flush=True)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    good = report(
        sorted(rows, key=lambda row: chosen.index(row.name)), list(dict.fromkeys((*VERBS, *LOOP_VERBS))), console
    )
    console.print(
        f"[dim]torch {torch.__version__}, {time.monotonic() - started:.0f} s in {options.jobs} process(es)[/dim]",
        highlight=False,
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
