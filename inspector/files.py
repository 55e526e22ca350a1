"""Files: written whole or not at all, and read within limits where anybody may have written them."""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from shutil import copymode
from typing import IO, Any, TypeVar
from zipfile import BadZipFile

from .validation import a_kind

Loaded = TypeVar("Loaded")

_GZIP = b"\x1f\x8b"
_READ_AT_ONCE = 2**20  # bytes: reading the most that is allowed at once would take that much memory


def path_of(path: object, asked_by: str) -> Path:
    """The path that a user gave.

    Raises:
        TypeError: it is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{asked_by} takes the path of a file, a str or a Path, not {a_kind(path)}")
    return Path(path)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. Readers of `path` see the old file until the block ends, and the whole new one after.

    The block writes to a file in the same folder, which replaces `path` at its end and is deleted if the block raises.
    A link is followed. What is not a regular file, such as /dev/stdout, is written to directly.

    Raises:
        OSError: it can't be written. The error names `path`, not the file beside it.
    """
    target = Path(os.path.realpath(path))
    is_replaced = target.is_file() or not target.exists()
    unfinished = target.with_name(f".{token_hex(8)}.part") if is_replaced else target
    try:
        with unfinished.open("xb" if is_replaced else "wb") as file:
            yield file
        if is_replaced:
            if target.exists():
                copymode(target, unfinished)
            unfinished.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if is_replaced:
            unfinished.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes) -> Path:
    """Write a text, as UTF-8, or bytes, see `atomic_write`."""
    with atomic_write(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def open_untrusted(path: Path, what: str, *, follow_link: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that anybody may have written. What the block raises about its content becomes one ValueError.

    Args:
        path: the file.
        what: what it should be: "a run".
        follow_link: whether `path` may be a link to another file.

    Raises:
        ValueError: `path` is not a regular file, or the block raised an error of wrong data. The message names `path`.
        OSError: it can't be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # never waits for a pipe's writer
    if not follow_link:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        if not follow_link and path.is_symlink():
            raise ValueError("it is a link to another file")
        if path.is_dir():
            raise ValueError("it is a folder")
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("it is not a regular file")
            yield file
    except _WRONG_CONTENT as error:
        raise ValueError(f"{path} is not {what} that this tapescope can load: {_reason(error)}") from None


_WRONG_CONTENT = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError, EOFError, BadZipFile),
    *(RuntimeError, MemoryError),  # among them RecursionError, of lists in lists, and NotImplementedError, of zipfile
)
"""What parsing raises where data are wrong."""


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is too little memory for it"
    if isinstance(error, RecursionError):
        return "its lists are nested too deeply"
    if isinstance(error, KeyError | TypeError | AttributeError):
        return "something in it is missing or of another type"
    return str(error)


def load_file(
    path: Path, what: str, most_bytes: int, parse: Callable[[bytearray], Loaded], *, follow_link: bool = True
) -> Loaded:
    """Read a file that anybody may have written, unpack it if it is compressed, and parse it.

    Args:
        path, what, follow_link: as in `open_untrusted`.
        most_bytes: how many bytes it may have, or unpack to.
        parse: makes the result of these bytes.

    Raises:
        ValueError: the file is empty, cut off, too large, or not what it should be. The message names it.
        OSError: it can't be read.
    """
    with open_untrusted(path, what, follow_link=follow_link) as file:
        is_packed = file.read(2) == _GZIP
        content = bytearray()
        is_too_large = file.seek(0, 2) > most_bytes
        file.seek(0)
        unpacked = gzip.GzipFile(fileobj=file) if is_packed else file
        try:
            while not is_too_large and (piece := unpacked.read(_READ_AT_ONCE)):
                content += piece
                is_too_large = len(content) > most_bytes
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"the compressed data are damaged or cut off ({error})") from None
        if is_too_large:
            raise ValueError(f"it has or unpacks to more than {most_bytes:,} bytes, the most that is read")
        if not content:
            raise ValueError("it is empty")
        return parse(content)


def json_object(content: str | bytes | bytearray, name: str, newest: int) -> dict[str, Any]:
    """Parse a JSON object with a `format` and a `version`, see `check_format`."""
    try:
        found = json.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON, or is cut off: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    check_format(found.get("format"), found.get("version"), name, newest)
    return found


def check_format(found: object, version: object, name: str, newest: int) -> None:
    """Refuse what has another `format`, or a `version` later than the newest one that is read.

    Raises:
        ValueError: it has.
    """
    if found not in (name, name.replace("tapescope", "tapehead", 1)):  # as it was called formerly
        raise ValueError(f'"format" is not {name}')
    if type(version) is not int:
        raise ValueError('"version" is not a whole number')
    if not 1 <= version <= newest:
        later = ": it was written by a newer one" if version > newest else ""
        raise ValueError(f'"version" is {version}, and this tapescope reads up to {newest}{later}')
