"""The option `--json` of every command: its result as one JSON object.

With `--json`, standard output has only the object, and text for people goes to standard error. With `--json FILE`, the
object is written to the file, and other output is unchanged. The exit code is the same in both cases.
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

ENVELOPE = ("tapescope", "schema", "exit_code", "error")
"""Keys of every object: tapescope's version, the schema with its version, the exit code, and the error or null."""

SCHEMAS: dict[str, tuple[str, ...]] = {
    "demo/1": (
        "workload",
        "size",
        "tasks",
        "edges",
        "right",
        "picture",
        "page",
        "devices_page",
        "pytorch_ns",
        "results",
    ),
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
    "bench batching/1": ("rows", "refused", "sentences", "machine", "interrupted"),
    "workloads/1": ("workloads",),
    "graph/1": ("picture", "tasks", "edges"),
    "debug/1": ("printed",),
    "run/1": ("steps", "findings", "notes", "step_time", "sentences", "page", "profile_page", "peak_bytes"),
    "replay/1": ("folder", "step", "same", "differences", "losses", "raised", "sentences", "nan"),
    "diff/1": ("differs", "sentences", "rows"),
    "view/1": ("page",),
}
"""Additional keys by schema, present unless there is an error. A change of meaning needs a new version number."""

STDOUT = "-"


def of_this_rank(path: Path) -> Path:
    """Return the file of this process: `found-rank1.json` if torchrun started several, which would overwrite it."""
    rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "1")
    return path.with_stem(f"{path.stem}-rank{rank}") if rank and count != "1" else path


@dataclass
class JsonAnswer:
    """The result of the running command so far."""

    schema: str = "tapescope/1"  # until the command is known
    content: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None


_current: list[JsonAnswer] = []
"""The answer of the running command, if JSON was requested. A list, because the parser and the command nest."""


def tell(content: Callable[[], Mapping[str, Any]]) -> None:
    """Add content to the answer. It is computed only if JSON was requested."""
    for answer in _current:
        answer.content.update(content())


def tell_error(sentence: object, traceback: str | None = None) -> None:
    """Set the error of the answer. If there are several errors, the first one is kept."""
    for answer in _current:
        answer.error = answer.error or {"sentence": str(sentence), "traceback": traceback}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json [FILE]`."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        type=_file,
        metavar="FILE",
        help="print only one JSON object (--json as the last argument, or --json=-), or write it to FILE",
    )


def _file(text: str) -> str:
    if text == STDOUT or (text.endswith(".json") and not text.endswith(".tape.json")):
        return text
    raise argparse.ArgumentTypeError(
        f"expected the name of a .json file, got {text!r}; to print the object, put --json last or use --json=-"
    )


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether unparsed arguments, which may be invalid, request the object on standard output."""
    words = list(arguments)
    after = (words[place + 1 :] for place, each in enumerate(words) if each == "--json")
    return f"--json={STDOUT}" in words or any(not rest or rest[0].startswith("-") for rest in after)


@contextmanager
def answering() -> Iterator[JsonAnswer]:
    """Collect the answer of `tell` and `tell_error` in the `with` block."""
    answer = JsonAnswer()
    _current.append(answer)
    try:
        yield answer
    finally:
        _current.remove(answer)


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """Redirect standard output to standard error, including output of C code and child processes."""
    # Text in the buffer was printed before, and belongs to standard output.
    sys.stdout.flush()
    try:
        kept = os.dup(1) if sys.stdout.fileno() == 1 else None
    except (OSError, ValueError):  # standard output is not a file
        kept = None
    if kept is not None:
        os.dup2(2, 1)  # child processes and C code write to descriptor 1, not to sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


@contextmanager
def printed() -> Iterator[None]:
    """Add the lines that Python prints in the `with` block to the answer: output of the prompt and the script."""
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
    """A file wrapper that also keeps the text written to it."""

    def __init__(self, file: TextIO) -> None:
        self.text = ""
        self._file = file

    def write(self, text: str) -> int:
        self.text += text
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def answered(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a command, and print or write its JSON object if requested. Return the exit code."""
    if options.json is None:
        return run(options)
    with answering() as answer:
        answer.schema = options.schema
        if options.json != STDOUT:
            return _write_answer(of_this_rank(Path(options.json)), answer, lambda: run(options))
        code = 1
        with nothing_on_stdout():
            try:
                code = run(options)
            except SystemExit as end:
                code = exit_code_of(end)
            except KeyboardInterrupt:
                code = 130
            except Exception as error:  # raised by a script that runs as a program
                sys.excepthook(type(error), error, error.__traceback__)
                tell_error(f"the script raised {type(error).__name__}: {error}")
        print(as_json(answer, code))
    return code


def _write_answer(path: Path, answer: JsonAnswer, run: Callable[[], int]) -> int:
    """Write the answer to a file, also if the user's script ends with an exception, which is raised unchanged.

    Create the file's folder first, so that an error is reported before the command runs.
    """
    path, process = path.absolute(), os.getpid()  # the script may change the folder, or fork
    code = 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
    except OSError as error:
        return _cannot_write(path, error)
    try:
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except BaseException as error:  # raised by a script that runs as a program
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        tell_error(f"the script raised {type(error).__name__}: {error}")
        raise
    finally:
        if os.getpid() == process:
            code = _write_object(path, answer, code)
    return code


def _write_object(path: Path, answer: JsonAnswer, code: int) -> int:
    from ..inspector.files import write_file  # imports torch, which `tapescope run` must not do before the script

    try:
        write_file(path, f"{as_json(answer, code)}\n")
    except OSError as error:
        return _cannot_write(path, error)
    print(f"tapescope: written to {path}", file=sys.stderr)
    return code


def _cannot_write(path: Path, error: OSError) -> int:
    print(f"tapescope: --json: cannot write {path}: {error.strerror}", file=sys.stderr)
    return 2


def exit_code_of(end: SystemExit) -> int:
    """Return the exit code that Python uses for a SystemExit. A code that is not a number is printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    tell_error(end.code)
    return 1


def as_json(answer: JsonAnswer, exit_code: int) -> str:
    """Return the object as one line of JSON."""
    from .. import __version__

    content = {"tapescope": __version__, "schema": answer.schema, "exit_code": exit_code, "error": answer.error}
    return json.dumps(content | plain(answer.content), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value to JSON types. Numbers that JSON does not support become "nan", "inf" and "-inf"."""
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
