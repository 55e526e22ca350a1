"""`tapescope run`: runs a training script unchanged, and reports what `ts.training` finds in it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .command_arguments import Commands, ProgressLine, place_for, print_misplaced, refuse
from .json_output import of_this_rank, tell
from .run_script import run_module, run_script, script_path

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.training.findings import FindingKind
    from .watch_script import ScriptWatch

FOUND = 70
"""Exit code if a kind of `--fail-on` was found and the script itself succeeded; EX_SOFTWARE of sysexits.h."""

FAILURES: dict[str, tuple[FindingKind, ...]] = {
    "leaks": ("leak",),
    "nan": ("non-finite",),
    "wrong-gradients": ("silent write", "second backward", "stale cast", "never cleared", "cleared early"),
}
"""The kinds of findings for each word of `--fail-on`."""


def add_run(commands: Commands) -> None:
    """Add `tapescope run`."""
    run = commands.add_parser(
        "run",
        help="run your training script unchanged, and report leaks, wrong gradients and non-finite values",
        usage="tapescope run [OPTION ...] (SCRIPT.py | -m MODULE) [ARGUMENT ...]",
        examples=(
            "tapescope run train.py --epochs 1",
            "tapescope run --fail-on leaks,nan --no-page -m project.train",
            "tapescope run --profile 3 --black-box bad_steps train.py",
            "torchrun --nproc-per-node 2 -m tapescope run train.py",
        ),
        optional_numbers=("--profile",),
        allow_abbrev=False,
    )
    run.add_argument("-m", action="store_true", dest="is_module", help="run a module, as `python -m MODULE` does")
    run.add_argument(
        "--out", type=Path, metavar="FILE", help="the page with losses, norms and findings (tapescope-SCRIPT.html)"
    )
    run.add_argument("--no-page", action="store_true", help="write no page")
    run.add_argument(
        "--profile",
        nargs="?",
        type=_positive,
        const=1,
        metavar="STEP",
        help="record the memory of this step, counted from 0, and write its backward as a deck (1: the second step)",
    )
    run.add_argument("--black-box", metavar="DIR", help="keep non-finite and failed steps in this folder, for replay")
    run.add_argument(
        "--steps",
        type=_steps,
        default=(0, None),
        metavar="A:B",
        help="report only steps A to B - 1, and stop watching at step B",
    )
    run.add_argument(
        "--every", type=_positive, default=10, metavar="N", help="the interval of expensive measurements, in steps (10)"
    )
    run.add_argument(
        "--fail-on",
        type=_failures,
        default=(),
        metavar="KINDS",
        help=f"exit with {FOUND} for findings of these kinds: {','.join(FAILURES)}",
    )
    run.add_argument(
        "script",
        nargs=argparse.PARSER,
        metavar="SCRIPT.py",
        help="the script and its arguments, which are passed unchanged",
    )
    run.set_defaults(command=_run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, got {text!r}")
    return int(text)


def _steps(text: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if found is None or (found[2] and int(found[2]) <= int(found[1] or 0)):
        raise argparse.ArgumentTypeError(f"expected a range of steps such as 100:200, 100: or :200, got {text!r}")
    return int(found[1] or 0), int(found[2]) if found[2] else None


def _failures(text: str) -> tuple[str, ...]:
    words = text.split(",")
    if unknown := [each for each in words if each not in FAILURES]:
        raise argparse.ArgumentTypeError(f"unknown kind {unknown[0]!r}; expected some of {', '.join(FAILURES)}")
    return tuple(kind for each in words for kind in FAILURES[each])


def _run(options: argparse.Namespace, console: Console) -> int:
    name, *arguments = [each for place, each in enumerate(options.script) if place or each != "--"] or [""]
    path = Path()
    page = of_this_rank(
        (options.out or Path(f"tapescope-{name if options.is_module else Path(name).stem}.html")).absolute()
    )
    try:
        if not options.is_module:
            path = script_path(name)
        if not options.no_page:
            place_for("--out", page)
    except (ValueError, OSError) as error:
        return refuse(error)
    watched = _Watched(options, name, None if options.no_page else page)
    watched.begin()
    try:
        if options.is_module:
            run_module(name, arguments)
        else:
            run_script(path, name, arguments)
    except BaseException as error:
        has_failed = watched.finish(error)
        if isinstance(error, SystemExit) and error.code == 2:  # of argparse, in the script
            print_misplaced([f"--{each.replace('_', '-')}" for each in vars(options)], arguments, "run", name)
        if isinstance(error, SystemExit) and error.code in (None, 0) and has_failed:
            return FOUND
        raise
    return FOUND if watched.finish(None) else 0


class _Watched(MetaPathFinder):
    """Watches the script once it has imported torch, and reports at its end.

    Importing torch earlier would read environment variables that the script may set first (OMP_NUM_THREADS).
    """

    def __init__(self, options: argparse.Namespace, name: str, page: Path | None) -> None:
        self._options = options
        self._name = name
        self._page = page
        self._process = os.getpid()
        self._watch: ScriptWatch | None = None

    def begin(self) -> None:
        """Watch now if torch has been imported, by a `.pth` file for example, or else after its import."""
        if "torch" in sys.modules:
            self._start()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find torch as Python does, with a loader that starts watching when it has run torch's code."""
        if name != "torch" or self._watch is not None:
            return None
        # An editable install of torch has a finder of its own.
        others = [each for each in sys.meta_path if each is not self]
        spec = next((found for each in others if (found := each.find_spec(name, path, target))), None)
        if spec is None or spec.loader is None:
            return None
        # A loader of this spec alone: finding torch, as importlib.util.find_spec does, need not import it.
        loader: Any = spec.loader
        execute: Callable[[ModuleType], None] = loader.exec_module

        def execute_and_watch(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._start()

        loader.exec_module = execute_and_watch
        return spec

    def _start(self) -> None:
        from .watch_script import ScriptWatch

        options = self._options
        folder = None if options.black_box is None else os.path.abspath(options.black_box)
        self._watch = ScriptWatch(self._name, options.every, folder, options.steps, options.profile)
        self._watch.start()

    def finish(self, error: BaseException | None) -> bool:
        """Stop watching, print the report and write the pages. Return whether a kind of `--fail-on` was found."""
        if os.getpid() != self._process:  # a forked process has no report
            return False
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            return self._report(error)
        except Exception as failure:  # the script's own end must not be hidden
            with suppress(Exception):
                print(f"tapescope: no report: {type(failure).__name__}: {failure}", file=sys.stderr)
            return False

    def _report(self, error: BaseException | None) -> bool:
        watch = self._watch
        if watch is None:
            sentences = [f"{self._name} did not import torch, so no step was watched"]
            content: dict[str, Any] = {"steps": 0, "findings": [], "notes": [], "step_time": None, "peak_bytes": None}
        else:
            watch.stop(error)
            sentences, content = watch.sentences(error), watch.content()
        for each in sentences:
            print(f"tapescope: {each}", file=sys.stderr)
        pages = (None, None) if watch is None else self._write_pages(watch)
        for page in pages:
            if page is not None:
                print(f"tapescope: written to {page}", file=sys.stderr)
        tell(lambda: content | {"sentences": sentences, "page": pages[0], "profile_page": pages[1]})
        return watch is not None and any(each.kind in self._options.fail_on for each in watch.findings)

    def _write_pages(self, watch: ScriptWatch) -> tuple[Path | None, Path | None]:
        """Write the pages. A page that cannot be written must not hide the findings or their exit code."""
        page = profile_page = None
        if self._page is None:
            return page, profile_page
        progress = ProgressLine()
        progress.show(f"tapescope: writing {self._page.name}")
        try:
            if watch.training.steps:
                page = watch.training.save_html(self._page, f"Training loop of {self._name}")
            if watch.profiled is not None:
                profile_page = watch.profiled.save_html(self._page.with_stem(f"{self._page.stem}-memory"))
        except Exception as error:
            refuse(error)
        finally:
            progress.clear()
        return page, profile_page
