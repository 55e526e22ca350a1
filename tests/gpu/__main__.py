"""`make gpu`: runs the tests and benchmarks that want CUDA or any accelerator, and prints one table.

It needs torch and pytest alone, and no installed tapehead; benchmarks are left out, by name, where rich is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = "memory_cuda", "batching_cuda", "mirroring_cuda", "watching", "two_devices"
ON_ANY = ("two_devices",)
_NEEDED = "torch", "pytest"


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        what: a file of tests, or a row of a benchmark.
        found: what came of it.
        good: whether it is as it should be; None where that is not asked.
    """

    what: str
    found: str
    good: bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__)
    parser.add_argument("--no-benchmarks", action="store_true", help="the tests alone")
    parser.add_argument(
        "--second-device", action="store_true", help="what runs on any accelerator, on the host's: a GPU is not needed"
    )
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="tests of this file or folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table, too")
    options = parser.parse_args(arguments)
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        print(f"make gpu needs {' and '.join(missing)} in {sys.executable}", file=sys.stderr)
        return 2
    import torch

    if not options.second_device and not torch.cuda.is_available():
        why = "no GPU is found" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        print(f"nothing to run: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(Path(folder))
        lines = list(_tests(Path(folder), environment, options.only, options.second_device))
        if not options.no_benchmarks:
            lines += _benchmarks(Path(folder), environment, ON_ANY if options.second_device else BENCHMARKS)
    device = "the second device" if options.second_device else torch.cuda.get_device_name()
    title = f"torch {torch.__version__}, {2 if options.second_device else torch.cuda.device_count()} × {device}"
    print("\n".join([title, *table(lines)]))
    if options.json:
        text = json.dumps({"machine": title, "lines": [vars(line) for line in lines]}, indent=1, ensure_ascii=False)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return int(any(line.good is False for line in lines))


def table(lines: Sequence[Line]) -> list[str]:
    width = max((len(line.what) for line in lines), default=0)
    sign = {True: "✓", False: "✗", None: " "}
    return [f"{sign[line.good]} {line.what:{width}}  {line.found}" for line in lines]


def counted(report: Path) -> list[Line]:
    """A line for each file of tests in pytest's report, and one for each test that failed."""
    by_file: dict[str, Counter[str]] = {}
    failed: list[Line] = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("classname", "").split(".Test")[0].replace(".", "/")
        wrong = case.find("failure") if case.find("error") is None else case.find("error")
        outcome = "failed" if wrong is not None else "skipped" if case.find("skipped") is not None else "passed"
        by_file.setdefault(name, Counter())[outcome] += 1
        if wrong is not None:
            said = (wrong.get("message") or "").partition("\n")[0]
            failed.append(Line(f"{name}: {case.get('name')}", said[:200], False))
    told = [
        Line(name, ", ".join(f"{count} {outcome}" for outcome, count in found.most_common()), not found["failed"])
        for name, found in sorted(by_file.items())
    ]
    return told + failed


def _environment(folder: Path) -> dict[str, str]:
    """In which a checkout of any name can be imported as tapehead."""
    (folder / "packages").mkdir()
    (folder / "packages" / "tapehead").symlink_to(ROOT, target_is_directory=True)
    paths = [str(folder / "packages"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _tests(folder: Path, environment: dict[str, str], only: Sequence[str], second_device: bool) -> Iterator[Line]:
    report = folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu or accelerator", "-p", "no:cacheprovider"]
    command += ["--second-device", "-p", "no:xdist"] if second_device else []
    ran = subprocess.run([*command, f"--junitxml={report}", *only], cwd=ROOT, env=environment)
    if not report.exists():
        yield Line("tests", f"pytest ended with {ran.returncode} and no report", False)
        return
    yield from counted(report)


def _benchmarks(folder: Path, environment: dict[str, str], names: Sequence[str]) -> Iterator[Line]:
    if importlib.util.find_spec("rich") is None:
        yield Line("benchmarks", "left out: rich is not installed", None)
        return
    values = folder / "benchmarks.json"
    command = [sys.executable, "tests/benchmarks", *(f"--only={name}" for name in names), f"--json={values}"]
    ran = subprocess.run(command, cwd=ROOT, env=environment)
    if ran.returncode:
        yield Line("benchmarks", f"ended with {ran.returncode}", False)
        return
    for row in json.loads(values.read_text())["rows"]:
        measured, goal = row["measured"], row["goal"]
        found = row["outcome"] or "" if measured is None else f"{measured:.3g} {row['unit']}"
        good = None
        if goal is not None and measured is not None:
            good = measured >= goal if row["at_least"] else measured <= goal
            found += f" (goal {goal:g})"
        yield Line(row["what"], found, good)


if __name__ == "__main__":
    raise SystemExit(main())
