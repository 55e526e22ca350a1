"""`make matrix`: kinds of programs crossed with verbs, each cell held against plain PyTorch.

    python tests/matrix                                  every cell, a process per kind
    python tests/matrix compare_ layouts                 kinds by name, or whole topics
    python tests/matrix --verbs compare,find_nan --prefilled

A cell is "right"; "refused", by an error that tapescope raises itself and that leaves everything as it was; "crash", by
any other error; or "wrong": a gradient, a result or the user's state differs from plain PyTorch. Exits with 1 if any
is a crash or wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TAPESCOPE_TRACEBACKS"] = "full"  # the innermost frame tells whether tapescope raised an error itself

from kinds import TOPICS
from program import KINDS
from refusals import PAGE, page
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from run import HUNG_S, Result, in_process, run_cells
from verbs import VERBS

MARKS = {"right": ".", "refused": "r", "crash": "[bold red]X[/]", "wrong": "[bold red]W[/]", "none": " "}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/matrix", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="kinds or topics (all)")
    parser.add_argument("--verbs", default="", help="names with commas between (all)")
    parser.add_argument("--prefilled", action="store_true", help="each leaf has a gradient already")
    parser.add_argument("--sample", type=int, help="so many cells, drawn by --seed, in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--write-docs", action="store_true", help=f"write the table of refusals, {PAGE.name}")
    parser.add_argument("--list", action="store_true", help="print kinds and verbs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    kinds = [name for each in options.kinds for name in TOPICS.get(each, [each])] or list(KINDS)
    verbs = [each for each in options.verbs.split(",") if each] or list(VERBS)
    unknown = [each for each in kinds if each not in KINDS] + [each for each in verbs if each not in VERBS]
    if unknown:
        parser.error(f"unknown kind or verb {unknown[0]!r}; --list prints them")
    if options.write_docs and (len(kinds), len(verbs)) != (len(KINDS), len(VERBS)):
        parser.error("--write-docs writes the whole table: it takes all kinds and verbs")
    if options.list:
        for topic, names in TOPICS.items():
            print(f"{topic}:", *names)
        print("verbs:", *map(repr, VERBS))
        return 0
    cells = [(name, each) for name in kinds for each in verbs]
    if options.sample is not None:
        cells = sorted(random.Random(options.seed).sample(cells, min(options.sample, len(cells))), key=cells.index)
    if options.child or options.sample is not None:
        return _here(cells, options.prefilled, options.child)
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda name: in_process(name, verbs, options.prefilled), kinds):
            counted = Counter(each.outcome for each in row)
            print(
                f"{row[0].kind}: {dict(counted)}, {sum(each.seconds for each in row):.0f} s",
                file=sys.stderr,
                flush=True,
            )
            results += row
    if options.json:
        options.json.write_text(json.dumps([each._asdict() for each in results], indent=1))
    if options.write_docs:
        PAGE.write_text(page(results, TOPICS))
    return report(results, kinds, verbs)


def _here(cells: list[tuple[str, str]], is_prefilled: bool, is_child: bool) -> int:
    failed, results = 0, []
    for result in run_cells(cells, is_prefilled, HUNG_S):
        if is_child:
            print("@@" + json.dumps(result._asdict()), flush=True)
        results.append(result)
        failed += result.outcome in ("crash", "wrong")
    if not is_child:
        return report([each for each in results if each.outcome != "begun"], [], [])
    return int(failed > 0)


def report(results: list[Result], kinds: list[str], verbs: list[str]) -> int:
    """Print the table and what is refused, crashed or wrong; return 1 if anything is."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    outcomes = {(each.kind, each.verb): each for each in results}
    if kinds and verbs:
        table = Table("", *(str(number) for number in range(len(verbs))), box=None, padding=(0, 1, 0, 0))
        for name in kinds:
            marks = (MARKS[outcomes[name, each].outcome] if (name, each) in outcomes else "?" for each in verbs)
            table.add_row(escape(name), *marks)
        console.print(table)
        console.print("  ".join(f"{number} {escape(each)}" for number, each in enumerate(verbs)))
    for outcome in ("refused", "crash", "wrong"):
        for each in results:
            if each.outcome == outcome:
                console.print(f"{outcome} {each.kind}, {each.verb}: {each.text}", markup=False)
    counted = Counter(each.outcome for each in results)
    console.print(", ".join(f"{counted[each]} {each}" for each in ("right", "refused", "crash", "wrong")))
    return int(bool(counted["crash"] or counted["wrong"]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())
