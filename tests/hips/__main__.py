"""`make hips`: autograd's own test suite, with each gradient computed from a tape, too, under dfs, bfs and heap.

The tests belong to autograd's source distribution at the installed version, which `make hips` gets by
`pip download --no-binary autograd`; `make hips AUTOGRAD_TESTS=FOLDER` takes those of a checkout. See `recorded.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hips", description=__doc__)
    parser.add_argument("tests", type=Path, metavar="FOLDER", help="autograd's tests, or one file of them")
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    options = parser.parse_args(arguments)
    tests = options.tests.resolve()
    if not tests.exists():
        parser.error(f"{options.tests} does not exist; expected the folder of autograd's tests")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "recorded", "-p", "no:cacheprovider", "-W", "ignore"),
                # Without autograd's settings, which need further plugins.
                *("-c", os.devnull, "--rootdir", str(tests if tests.is_dir() else tests.parent)),
                *(("-k", options.keyword) if options.keyword else ()),
                str(tests),
            ],
            cwd=tests if tests.is_dir() else tests.parent,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
                "RECORDED_RESULTS": str(results),
            },
        )
        if not results.exists():
            return done.returncode or 1
        counts = json.loads(results.read_text(encoding="utf-8"))
    gradients, tasks = counts.pop("gradients", 0), counts.pop("tasks", 0)
    print(f"{gradients:,} gradients compared, each under dfs, bfs and heap; {tasks:,} tasks")
    for what, count in counts.items():
        print(f"{count:>7,} {what}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
