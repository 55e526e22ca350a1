"""`make gpu`: runs the tests and benchmarks that need CUDA or any accelerator, in stages, and prints one table.

A GPU may be there for minutes only. Each stage has a limit of its own, and `--minutes` bounds all of them; a stage that
fails or is stopped does not end the rest. With `--out DIR` each stage writes its results as it ends (`STAGE.json`, its
output in `STAGE.log`, all tables so far in `table.txt`), and `--from STAGE` goes on from there in another run.

It needs torch, pytest and hypothesis, and no installed tapescope; stages that need more are left out by name.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = "torch", "pytest", "hypothesis"
_TO_STOP_S = 15.0  # from Ctrl-C, after which pytest writes its report, to the end of a process that does not stop


@dataclass(frozen=True)
class Stage:
    """One part of a run.

    Attributes:
        name: its name; of a benchmark that of `python tests/benchmarks --only`.
        limit_s: the seconds after which it is stopped.
        folders: where its tests are, less those of the stages before it; none for a benchmark.
        needs: packages without which it is left out.
        needs_cuda: whether no other accelerator can take part.
    """

    name: str
    limit_s: float
    folders: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_cuda: bool = False


STAGES = (
    Stage("devices", 120, ("tests/second_device",)),
    Stage("memory", 180, ("tests/engine/memory", "tests/engine/recording")),
    Stage("sessions", 180, ("tests/engine/session", "tests/engine/api")),
    Stage("engine", 180, ("tests/engine", "tests/inspector")),
    Stage("widgets", 60, ("tests/widgets",), needs=("IPython",)),
    Stage("two_devices", 60, needs=("rich",)),
    Stage("memory_cuda", 60, needs=("rich",), needs_cuda=True),
    Stage("recompute_cuda", 90, needs=("rich",), needs_cuda=True),
    Stage("batching_cuda", 60, needs=("rich",), needs_cuda=True),
    Stage("watching", 60, needs=("rich",), needs_cuda=True),
    Stage("others", 120, ("tests",), needs=("IPython", "playwright")),
)


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        what: a file of tests, or a row of a benchmark.
        found: its result.
        good: whether that is as it should be; None where no goal is set.
    """

    what: str
    found: str
    good: bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        print(f"make gpu needs {' and '.join(missing)} in {sys.executable}", file=sys.stderr)
        return 2
    import torch

    if not options.second_device and not torch.cuda.is_available():
        why = "no GPU is found" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        print(f"nothing to run: {why}", file=sys.stderr)
        return 2
    device = "the second device" if options.second_device else torch.cuda.get_device_name()
    title = f"torch {torch.__version__}, {2 if options.second_device else torch.cuda.device_count()} × {device}"
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "out"
        out.mkdir(parents=True, exist_ok=True)
        lines = _run(options, out, title, _environment(Path(folder)))
    if options.json:
        text = json.dumps({"machine": title, "lines": [asdict(line) for line in lines]}, indent=1, ensure_ascii=False)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return int(any(line.good is False for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--no-benchmarks", action="store_true", help="the tests alone")
    parser.add_argument(
        "--second-device", action="store_true", help="what runs on any accelerator, on the host's: a GPU is not needed"
    )
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="tests of this file or folder")
    parser.add_argument("--minutes", type=float, default=60.0, help="the limit of the whole run")
    parser.add_argument(
        "--from", dest="start", choices=[stage.name for stage in STAGES], metavar="STAGE", help="leave out those before"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write each stage's results as it ends")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table, too")
    return parser


def _run(options: argparse.Namespace, out: Path, title: str, environment: dict[str, str]) -> list[Line]:
    """Run the stages one after the other; each one's table is printed, and written, as it ends."""
    deadline = time.monotonic() + options.minutes * 60
    print(title, flush=True)
    tables = [title]
    lines: list[Line] = []
    for stage in chosen(options):
        begun = time.monotonic()
        limit_s = min(stage.limit_s, deadline - begun - _TO_STOP_S)
        found = list(_stage(stage, options, out, environment, limit_s))
        seconds = time.monotonic() - begun
        head = f"{stage.name}: {seconds:.0f} s"
        result = {"machine": title, "stage": stage.name, "seconds": round(seconds, 1), "lines": [*map(asdict, found)]}
        text = json.dumps(result, indent=1, ensure_ascii=False)
        (out / f"{stage.name}.json").write_text(f"{text}\n", encoding="utf-8")
        part = [head, *(f"  {line}" for line in table(found))]
        print("\n".join(part), flush=True)
        tables += part
        (out / "table.txt").write_text("\n".join([*tables, ""]), encoding="utf-8")
        lines += found
    return lines


def chosen(options: argparse.Namespace) -> list[Stage]:
    """Return the stages that a run is to have."""
    if options.only:
        return [Stage("only", 600, tuple(options.only))]
    names = [stage.name for stage in STAGES]
    stages = STAGES[names.index(options.start) :] if options.start else STAGES
    return [
        stage
        for stage in stages
        if not (options.second_device and stage.needs_cuda) and (stage.folders or not options.no_benchmarks)
    ]


def _stage(
    stage: Stage, options: argparse.Namespace, out: Path, environment: dict[str, str], limit_s: float
) -> Iterator[Line]:
    missing = [name for name in stage.needs if importlib.util.find_spec(name) is None]
    if missing:
        yield Line(stage.name, f"left out, not installed: {', '.join(missing)}", None)
        return
    if limit_s <= 0:
        yield Line(
            stage.name, f"left out: the {options.minutes:g} minutes are over; go on with --from {stage.name}", None
        )
        return
    run = _tests if stage.folders else _benchmark
    try:
        yield from run(stage, options, out, environment, limit_s)
    except Exception as error:  # a report cut in two, say: the stages after it run
        yield Line(stage.name, f"{type(error).__name__}: {error}", False)


def table(lines: Sequence[Line]) -> list[str]:
    width = max((len(line.what) for line in lines), default=0)
    sign = {True: "✓", False: "✗", None: " "}
    return [f"{sign[line.good]} {line.what:{width}}  {line.found}" for line in lines]


def counted(report: Path) -> list[Line]:
    """A line for each file of tests in pytest's report, and one for each test that failed."""
    by_file: dict[str, Counter[str]] = {}
    failed: list[Line] = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = (case.get("classname") or case.get("name", "")).split(".Test")[0].replace(".", "/")
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


def files_of(stage: Stage, marks: Callable[[str], bool]) -> list[str]:
    """Return the stage's files of tests whose text has a mark, less those of the stages before it.

    Other files are not even imported: they may need packages that are not there.
    """
    before = [folder for each in STAGES[: STAGES.index(stage)] for folder in each.folders] if stage in STAGES else []
    found = {
        path.relative_to(ROOT).as_posix(): path
        for folder in stage.folders
        for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("test_*.py"))
    }
    left = {name: path for name, path in found.items() if not any(name.startswith(f"{folder}/") for folder in before)}
    return sorted(name for name, path in left.items() if marks(path.read_text(encoding="utf-8")))


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which a checkout of any name can be imported as tapescope."""
    (folder / "packages").mkdir()
    (folder / "packages" / "tapescope").symlink_to(ROOT, target_is_directory=True)
    paths = [str(folder / "packages"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}


def _limited(command: list[str], log: Path, environment: dict[str, str], limit_s: float) -> str:
    """Run a command, its output into a file. Return how it was stopped, if it was; else ""."""
    with log.open("w", encoding="utf-8") as written:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=written, stderr=subprocess.STDOUT)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_TO_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            last = next((line for line in reversed(lines) if "::" in line), lines[-1] if lines else "no output")
            return f"stopped after {limit_s:.0f} s, at {last[:120]}"
        finally:
            if process.poll() is None:  # Ctrl-C here
                process.kill()
                process.wait()
    return "" if process.returncode == 0 else f"ended with {process.returncode}; see {log.name}"


def _tests(
    stage: Stage, options: argparse.Namespace, out: Path, environment: dict[str, str], limit_s: float
) -> Iterator[Line]:
    report = out / f"{stage.name}.xml"
    report.unlink(missing_ok=True)
    files = files_of(stage, lambda text: "accelerator" in text or "mark.gpu" in text)
    if not files:
        yield Line(stage.name, "no file asks for an accelerator", None)
        return
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu or accelerator", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--continue-on-collection-errors", f"--junitxml={report}"]
    command += ["--second-device"] if options.second_device else []
    ended = _limited([*command, *files], out / f"{stage.name}.log", environment, limit_s)
    lines = counted(report) if report.exists() else []
    yield from lines
    if ended.startswith("ended with 5;"):
        yield Line(stage.name, "no test asks for an accelerator", None)
    elif ended and not (ended.startswith("ended") and any(line.good is False for line in lines)):
        yield Line(stage.name, ended, False)


def _benchmark(
    stage: Stage, options: argparse.Namespace, out: Path, environment: dict[str, str], limit_s: float
) -> Iterator[Line]:
    values = out / f"{stage.name}.rows.json"
    values.unlink(missing_ok=True)
    command = [sys.executable, "tests/benchmarks", f"--only={stage.name}", f"--json={values}"]
    ended = _limited(command, out / f"{stage.name}.log", environment, limit_s)
    if ended:
        yield Line(stage.name, ended, False)
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
