"""`--json` of every command: what it found, as one JSON object for machines that read.

`--json` alone: standard output holds nothing but the object, and what people read goes to standard error.
`--json FILE`: what people read stays where it is, and the object is written to the file. The exit code is the same
either way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from ..inspector.files import write_file

ENVELOPE = ("tapescope", "schema", "exit_code", "error")
"""What each object has: the version, the schema and its version, the exit code, and what went wrong, or null."""

SCHEMAS: dict[str, tuple[str, ...]] = {
    "demo/1": ("workload", "size", "tasks", "edges", "right", "picture", "page", "pytorch_ns", "results"),
    "compare/1": ("title", "tasks", "policies", "sentences", "highest", "peak", "page"),
    "advise/1": ("title", "sentences", "peak_bytes", "forward_peak_bytes", "items"),
    "fits/1": (
        *("fits", "memory_bytes", "device", "reserve_bytes", "peak_bytes", "batch_size", "largest_batch", "phases"),
        *("estimates", "direction", "sentences"),
    ),
    "bench orders/1": (
        *("format", "version", "machine", "device", "policies", "reference", "repetitions", "workloads", "refused"),
        *("rows", "interrupted"),
    ),
    "bench accumulation/1": ("studies", "interrupted"),
    "bench recompute/1": ("studies", "interrupted"),
    "workloads/1": ("workloads",),
    "graph/1": ("picture", "tasks", "edges"),
    "debug/1": ("printed",),
    "replay/1": ("folder", "step", "same", "differences", "losses", "raised", "sentences", "nan"),
    "diff/1": ("differs", "sentences", "rows"),
    "view/1": ("page",),
}
"""By schema what an object has beside the envelope, unless there is an error. Another meaning is another number."""

STDOUT = "-"


@dataclass
class JsonAnswer:
    """What a command that runs has told so far."""

    schema: str = "tapescope/1"  # until it is known which command is meant
    content: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None


_current: list[JsonAnswer] = []
"""The answer of the command that runs, if it is asked for."""


def tell(content: Callable[[], Mapping[str, Any]]) -> None:
    """What the command found, of its schema. It is worked out only where somebody reads it."""
    for answer in _current:
        answer.content.update(content())


def tell_error(sentence: object, traceback: str | None = None) -> None:
    """Why the command did not do what was asked. The first of several is what matters."""
    for answer in _current:
        answer.error = answer.error or {"sentence": str(sentence), "traceback": traceback}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds `--json [FILE]`."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        type=_file,
        metavar="FILE",
        help="print one JSON object and nothing else (as the last word, or --json=-); with FILE, write it there, too",
    )


def _file(text: str) -> str:
    if text == STDOUT or (text.endswith(".json") and not text.endswith(".tape.json")):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not the name of a .json file; to print the object, --json is the last word, or --json=-"
    )


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether the object is to be printed, of arguments that nobody has read yet: these may be wrong."""
    given = list(arguments)
    after = (given[place + 1 :] for place, each in enumerate(given) if each == "--json")
    return f"--json={STDOUT}" in given or any(not rest or rest[0].startswith("-") for rest in after)


@contextmanager
def answering() -> Iterator[JsonAnswer]:
    """Meanwhile what is told is kept."""
    answer = JsonAnswer()
    _current.append(answer)
    try:
        yield answer
    finally:
        _current.remove(answer)


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """What is printed meanwhile, also by other processes and from C, goes to standard error."""
    sys.stdout.flush()
    try:
        kept = os.dup(1) if sys.stdout.fileno() == 1 else None
    except (OSError, ValueError):  # it is no file
        kept = None
    if kept is not None:
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


@contextmanager
def printed() -> Iterator[None]:
    """What Python prints meanwhile is part of the answer, as lines: a prompt's words, and those of the script."""
    if not _current:
        yield
        return
    kept = _Copied(sys.stdout)
    try:
        with redirect_stdout(cast(TextIO, kept)):
            yield
    finally:
        tell(lambda: {"printed": kept.text.splitlines()})


class _Copied:
    """A file to which what is written goes on, and is kept."""

    def __init__(self, file: TextIO) -> None:
        self.text = ""
        self._file = file

    def write(self, text: str) -> int:
        self.text += text
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def answered(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Runs a command, and gives its object where it was asked for; gives the exit code."""
    if options.json is None:
        return run(options)
    with answering() as answer:
        answer.schema = options.schema
        if options.json != STDOUT:
            return _into(Path(options.json), answer, lambda: run(options))
        code = 1
        with nothing_on_stdout():
            try:
                code = run(options)
            except SystemExit as end:
                code = exit_code_of(end)
            except KeyboardInterrupt:
                code = 130
            except Exception as error:  # of a script that runs as a program
                sys.excepthook(type(error), error, error.__traceback__)
                tell_error(f"the script raised {type(error).__name__}: {error}")
        print(as_json(answer, code))
    return code


def _into(path: Path, answer: JsonAnswer, run: Callable[[], int]) -> int:
    """Its folder is made first: better told now than when all is measured that there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        code = run()
        write_file(path, f"{as_json(answer, code)}\n")
    except OSError as error:
        print(f"tapescope: --json: {path} can't be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"tapescope: written to {path}", file=sys.stderr)
    return code


def exit_code_of(end: SystemExit) -> int:
    """As the interpreter has it, which prints what is no number."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    tell_error(end.code)
    return 1


def as_json(answer: JsonAnswer, exit_code: int) -> str:
    """The whole object, on one line."""
    from .. import __version__

    content = {"tapescope": __version__, "schema": answer.schema, "exit_code": exit_code, "error": answer.error}
    return json.dumps(content | plain(answer.content), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The same of what JSON knows. Numbers that JSON has no word for are "nan", "inf" and "-inf"."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    return str(value)
