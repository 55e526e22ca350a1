"""`make versions`: runs tapescope's tests on each supported version of PyTorch, and prints one table.

Each version has its own environment, `.venv/versions/2.15`, which is made if it is missing; delete the folder to make
it again. Results are kept in `out/versions.json`, by version; `--write-docs` writes all of them into
docs/reference/versions.md. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "out" / "versions.json"
PAGE = ROOT / "docs" / "reference" / "versions.md"
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")
_STAMP = "tapescope.stamp"
_LIMIT_S = 3600.0  # of one part
_OPERATORS = 130  # of which at least 120 have a gradient with each version

_QUICK = "not slow and not e2e and not heavy"


@dataclass
class Part:
    """The result of one part of the tests on one version.

    Attributes:
        name: the part.
        passed, failed: counts of tests, or of operators.
        skipped: by reason the count.
        seconds: wall time.
        failures: each failed test, with the first line of its error.
    """

    name: str
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


@dataclass
class Result:
    """The results of one version: its full name, the day, the commit, and the parts."""

    torch: str
    date: str
    commit: str
    parts: list[Part]

    @property
    def failed(self) -> int:
        return sum(part.failed for part in self.parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="versions", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=VERSIONS, help="this version; may be repeated")
    parser.add_argument("--write-docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--no-run", action="store_true", help="run nothing: take the results that are kept")
    options = parser.parse_args(arguments)
    results = kept_results()
    for version in () if options.no_run else options.only or VERSIONS:
        results[version] = run_version(version)
        RESULTS.parent.mkdir(exist_ok=True)
        text = json.dumps({name: asdict(results[name]) for name in sorted(results)}, indent=1)
        RESULTS.write_text(f"{text}\n", encoding="utf-8")
    shown = {name: results[name] for name in options.only or VERSIONS if name in results}
    print("\n".join(table(shown)))
    for result in shown.values():
        for part in result.parts:
            print(*(f"torch {result.torch}: {failure}" for failure in part.failures), sep="\n")
    if options.write_docs:
        PAGE.write_text(page(results), encoding="utf-8")
    return int(any(result.failed for result in shown.values()))


def kept_results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        version: Result(**{**result, "parts": [Part(**part) for part in result["parts"]]})
        for version, result in kept.items()
    }


def run_version(version: str) -> Result:
    """Run all parts on a version, in an environment that is made if there is none."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    result = Result(version, today, found.stdout.strip(), [])
    python = environment_of(version)
    if isinstance(python, str):
        result.parts.append(Part("environment", failed=1, failures=[python]))
        return result
    result.torch = installed_torch(python.parents[1]) or version
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tapescope").symlink_to(ROOT, target_is_directory=True)  # a checkout may be called anything
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        for name, command, report in commands(python, Path(folder)):
            part = run_part(name, command, report, environment)
            print(f"torch {result.torch}, {name}: {part.passed} passed, {part.failed} failed", flush=True)
            result.parts.append(part)
    return result


def environment_of(version: str) -> Path | str:
    """Return the Python of a version's environment, or why there is none. Development's own serves its version."""
    for folder, stamp in ((ROOT / ".venv", "dev.stamp"), (ROOT / ".venv" / "versions" / version, _STAMP)):
        if (folder / stamp).exists() and (installed_torch(folder) or "").startswith(f"{version}."):
            return folder / "bin" / "python"
    free = ROOT / ".venv" / "versions" / "constraints.txt"
    free.parent.mkdir(parents=True, exist_ok=True)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    free.write_text("".join(line for line in lines if not re.match(r"(torch|setuptools)==", line)), encoding="utf-8")
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--no-cache-dir", "-c", str(free)]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, f"torch=={version}.*"],
        [*pip, f"torch=={version}.*", "-e", ".[dev]"],
        [*pip, "--no-deps", "timm"],  # it asks for torchvision, see the Makefile
    ):
        print(*command, flush=True)
        if subprocess.run(command, cwd=ROOT).returncode:
            return f"could not be made: {' '.join(command)}"
    (folder / _STAMP).touch()
    return folder / "bin" / "python"


def installed_torch(folder: Path) -> str | None:
    """The version of torch in an environment, read without starting its Python."""
    for found in folder.glob("lib/python*/site-packages/torch-*.dist-info"):
        return found.name.removeprefix("torch-").removesuffix(".dist-info").partition("+")[0]
    return None


def commands(python: Path, folder: Path) -> Iterator[tuple[str, list[str], Path]]:
    """Each part's name, its command and the report that it writes."""

    def pytest(name: str, *arguments: str) -> tuple[str, list[str], Path]:
        report = folder / f"{name}.xml"
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            f"--junitxml={report}",
        ]
        return name, [*command, *arguments], report

    quick = "--warnings-of-torch-are-errors", "-m", _QUICK
    yield pytest("engine and inspector", *quick, "tests/engine", "tests/inspector")
    yield pytest("side effects", "-m", _QUICK, "tests/test_leftovers.py", "tests/world")
    report = folder / "operators.json"
    sample = [f"--sample={_OPERATORS}", "--direct", "--jobs=1", f"--json={report}"]
    yield "operators", [str(python), "tests/conformance", *sample], report
    asking = sorted(
        str(path) for path in (ROOT / "tests").rglob("test_*.py") if "accelerator" in path.read_text("utf-8")
    )
    yield pytest("second device", "--second-device", "-m", "accelerator and not slow", *asking)


def run_part(name: str, command: list[str], report: Path, environment: dict[str, str]) -> Part:
    begun = time.monotonic()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT_S
        )
        said = f"ended with {ended.returncode}: {ended.stdout[-500:].decode(errors='replace').strip()}"
    except subprocess.TimeoutExpired:
        said = f"took longer than {_LIMIT_S:.0f} s"
    part = Part(name)
    if report.exists():
        part = counted(name, report) if report.suffix == ".xml" else operators(name, report)
    if not part.passed and not part.failed:
        part = Part(name, failed=1, failures=[f"{name}: {said}"])
    part.seconds = round(time.monotonic() - begun)
    return part


def counted(name: str, report: Path) -> Part:
    """Read pytest's report."""
    part, skipped = Part(name), Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next((found for kind in ("error", "failure") if (found := case.find(kind)) is not None), None)
        left_out = case.find("skipped")
        if wrong is not None:
            part.failed += 1
            said = (wrong.get("message") or "").partition("\n")[0][:200]
            part.failures.append(f"{case.get('classname', '').replace('.', '/')}: {case.get('name')}: {said}")
        elif left_out is not None:
            skipped[(left_out.get("message") or "").partition("\n")[0]] += 1
        else:
            part.passed += 1
    part.skipped = dict(skipped.most_common())
    return part


def operators(name: str, report: Path) -> Part:
    """Read the report of `python tests/conformance`."""
    found = json.loads(report.read_text(encoding="utf-8"))
    wrong = [each for each in found["unexplained"] if each["outcome"] != "not compared"]
    skipped = {
        "a known exception": set(found["explained"]),
        "no gradient to compare": {each["entry"] for each in found["unexplained"] if each not in wrong},
    }
    failed = {each["entry"] for each in wrong}
    passed = set(found["entries"]).difference(failed, *skipped.values())
    counts = {reason: len(entries - failed) for reason, entries in skipped.items() if entries - failed}
    failures = [f"{each['program']}, {each['check']}: {each['reason'][:200]}" for each in wrong]
    return Part(name, len(passed), len(failed), counts, failures=failures)


def table(results: dict[str, Result]) -> list[str]:
    """The lines of a table in Markdown."""
    rows = [("torch", "tests", "passed", "failed", "skipped", "seconds")]
    for result in results.values():
        for part in result.parts:
            skipped = "; ".join(f"{count} ({why})" for why, count in part.skipped.items()) or "0"
            rows.append(
                (result.torch, part.name, f"{part.passed:,}", f"{part.failed:,}", skipped, f"{part.seconds:,.0f}")
            )
    return [f"| {' | '.join(row)} |" for row in (rows[0], ("---",) * 6, *rows[1:])]


def page(results: dict[str, Result]) -> str:
    """The text of the page in the docs."""
    known = {version: results[version] for version in VERSIONS if version in results}
    days = sorted({result.date for result in known.values()})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"
    return f"""# Supported versions

tapescope supports PyTorch {VERSIONS[0]} to {VERSIONS[-1]} on Python 3.11 or newer. `make versions` runs these
tests on the newest patch release of each, on the CPU, and `python tests/versions --write-docs` writes this page. The
results are of {when}.

{chr(10).join(table(known))}

- **engine and inspector**: the quick tests of both packages. **side effects**: what each call leaves behind.
- **operators**: a sample of PyTorch's own operator database, run backward by the direct engine and compared with
  `loss.backward()` bit for bit, second derivatives included.
- **second device**: the tests that need an accelerator, on a device of their own on the host's memory.

On a newer PyTorch tapescope runs untested, and `tapescope --version` says so. tapescope uses private names of PyTorch.
If a release has dropped one, the capability that needs it raises an error that gives the name, the version of PyTorch
and what still works.
"""


if __name__ == "__main__":
    raise SystemExit(main())
