"""`python tests/memory_meter`: compares every memory figure with a count of allocations below torch.

    python tests/memory_meter
    python tests/memory_meter --only "*checkpoint*" --verbs simulate plan

Prints what each verb says of each program, what was held, and how far the two are apart. Exits with 1 if a figure is
wrong: off, and not called an estimate that may be off in that direction.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])  # tests/, which has no package above it
from memory_meter.meter import COMPILER, build, metered

_COUNTED = "--counted"


def main(arguments: Sequence[str]) -> int:
    if _COUNTED in arguments:
        return count([each for each in arguments if each != _COUNTED])
    if COMPILER is None:
        print("a C++ compiler is needed to build the counter", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        return metered(build(Path(folder)), str(Path(__file__).parent), _COUNTED, *arguments, capture=False).returncode


def count(arguments: Sequence[str]) -> int:
    from memory_meter.verbs import PROGRAMS, VERBS, cell

    parser = argparse.ArgumentParser(prog="python tests/memory_meter", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help="programs; * stands for anything")
    parser.add_argument("--verbs", nargs="+", action="extend", choices=[*VERBS], help="all, if not given")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each cell")
    options = parser.parse_args(arguments)
    patterns = options.only or ["*"]
    chosen = [name for name in PROGRAMS if any(fnmatchcase(name, pattern) for pattern in patterns)]
    gc.collect()
    gc.freeze()  # what was imported is not looked through for each cell
    gc.get_freeze_count = lambda: 0  # nor has it hooks that a verb would have to see
    outcomes: Counter[str] = Counter()
    for name in chosen:
        for verb in options.verbs or VERBS:
            found = cell(name, verb)
            if found is None:
                continue
            outcomes[found.outcome] += 1
            if options.json:
                print(json.dumps(asdict(found)), flush=True)
            else:
                off = f"{100 * (found.said - found.held) / found.held:+.1f} %" if found.held else ""
                said, held = (f"{each:,}" if found.held else "" for each in (found.said, found.held))
                row = f"{name:32} {verb:21} {said:>12} {held:>12} {off:>9}  {found.outcome:8} {found.why[:160]}"
                print(row.rstrip(), flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()), file=sys.stderr)
    return 1 if outcomes["wrong"] or outcomes["error"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
