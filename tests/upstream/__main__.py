"""`make upstream TEST_AUTOGRAD=FILE`: PyTorch's own test/test_autograd.py, with `.backward()` redirected.

Runs it as it is, and with every `.backward()` led to `ts.backward` under a policy. Prints which tests pass as
they are and fail redirected, and why where that is known; exits with 1 where it is not. The file belongs to a checkout
of PyTorch at the installed version (`git clone -b v2.13.0 --depth 1`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from known import reason_for
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
REFUSAL = "the direct engine cannot"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test: passed, failed, skipped or crashed; its traceback; redirected backwards."""

    outcome: str
    text: str
    backwards: int


def run_tests(file: Path, redirect: str, pytest_arguments: Sequence[str], limit_s: float) -> dict[str, Result]:
    """Run the file's tests in a separate process, and again without those that end the process."""
    crashed: dict[str, Result] = {}
    while True:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.jsonl"
            results.touch()
            process = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "-p", "redirected", "-p", "no:cacheprovider"),
                    *("-W", "ignore::pytest.PytestWarning", "--rootdir", str(file.parent), "-c", os.devnull),
                    *(part for test in crashed for part in ("--deselect", test)),
                    *(*pytest_arguments, file.name),
                ],
                cwd=file.parent,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
                    "TAPESCOPE_REDIRECT": redirect,
                    "TAPESCOPE_RESULTS": str(results),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
            )
            lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        found = {line["test"]: Result(line["outcome"], line["text"], line["backwards"]) for line in lines}
        if process.returncode in (0, 1) and found:
            return found | crashed
        last = lines[-1]["test"] if lines and lines[-1]["outcome"] == "started" else None
        if last is None:
            raise RuntimeError(f"pytest ended with {process.returncode} outside a test:\n{process.stdout[-3000:]}")
        crashed[last] = Result("crashed", process.stdout[-3000:], 0)


def last_line(text: str) -> str:
    """The error at the end of a traceback."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return errors[0] if errors else text.strip().splitlines()[-1] if text.strip() else ""


def compare(plain: dict[str, Result], redirected: dict[str, Result], redirect: str, console: Console) -> int:
    """Prints what fails for the redirect alone; gives how many of them nobody has explained."""
    passing = [test for test, result in plain.items() if result.outcome == "passed"]
    worse = {test: redirected[test] for test in passing if redirected[test].outcome not in ("passed", "skipped")}
    reasons = {test: _reason(test, redirect, result) for test, result in worse.items()}
    backwards = sum(result.backwards for result in redirected.values())
    console.print(f"{redirect}: {backwards} backwards redirected, {len(worse)} of {len(passing)} tests differ")
    if not worse:
        return 0
    table = Table()
    table.add_column("test")
    table.add_column("error", overflow="fold")
    table.add_column("reason", overflow="fold")
    for test in sorted(worse, key=lambda test: (reasons[test] is not None, test)):
        name = test.partition("::")[2]
        table.add_row(name, last_line(worse[test].text)[:300], reasons[test] or "[bold red]unexplained[/bold red]")
    console.print(table)
    return sum(reason is None for reason in reasons.values())


def _reason(test: str, redirect: str, result: Result) -> str | None:
    if redirect.endswith("direct") and REFUSAL in result.text:
        return "refused: " + result.text.partition(REFUSAL)[2].partition(";")[0].strip()
    return reason_for(test.partition("::")[2], redirect)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    file = options.test_autograd.resolve()
    console = Console(width=None if sys.stdout.isatty() else 180)
    extra = ["-k", options.keyword] if options.keyword else []
    plain = run_tests(file, "plain", extra, options.limit)
    console.print("plain:", dict(Counter(result.outcome for result in plain.values())), highlight=False)
    unexplained = 0
    for redirect in options.redirect or ["heap native", "bfs native"]:
        redirected = run_tests(file, redirect, extra, options.limit)
        unexplained += compare(plain, redirected, redirect, console)
        if options.keep:
            target = options.keep / f"{redirect.replace(' ', '_')}.json"
            texts = {test: result.text for test, result in redirected.items() if result.text}
            target.write_text(json.dumps(texts, indent=1), encoding="utf-8")
    return int(unexplained > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="upstream", description=__doc__)
    parser.add_argument("test_autograd", type=Path, metavar="FILE", help="test/test_autograd.py of a PyTorch checkout")
    parser.add_argument("--redirect", action="append", metavar="'POLICY ENGINE [TRACE]'", help="default: heap and bfs")
    parser.add_argument("-k", dest="keyword", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="for one run of the file")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the tracebacks there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
