"""Files: atomic writing, and reading of untrusted files within limits."""

from __future__ import annotations

import errno
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
_READ_AT_ONCE = 2**20  # bytes; reading up to the limit at once would allocate that much memory


def path_of(path: object, asked_by: str) -> Path:
    """Return a path passed by the user as a Path.

    Raises:
        TypeError: `path` is not a str or Path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{asked_by} takes the path of a file (str or Path), got {a_kind(path)}")
    return Path(path)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. Readers of `path` see the old file until the block ends, and the whole new one after.

    The block writes to a file in the same folder, which replaces `path` at its end and is deleted if the block raises.
    Links are followed. Special files such as /dev/stdout are written directly.

    Raises:
        OSError: The file cannot be written. The error names `path`, not the temporary file.
    """
    target, exists = Path(os.path.realpath(path)), os.path.exists(path)
    is_stream = exists and (
        not os.path.isfile(path) or os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    )
    # A writable file in a folder that is not writable cannot be replaced, only written.
    is_replaced = not is_stream and (not exists or os.access(target.parent, os.W_OK))
    unfinished = target.with_name(f".{token_hex(8)}.part") if is_replaced else target
    try:
        if exists and not is_stream and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        # /dev/stdout may lead to a log, which must not be truncated. Its resolved name may not exist (a pipe).
        with open(path, "ab") if is_stream else unfinished.open("xb" if is_replaced else "wb") as file:
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
    """Write a text (as UTF-8) or bytes; see `atomic_write`."""
    with atomic_write(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return Path(path)


def write_svg(path: str | Path, svg: str) -> Path:
    """Write an SVG file.

    Raises:
        ValueError: The name ends as that of another kind of file, such as .pdf.
    """
    suffix = Path(path).suffix
    if suffix.lower() not in ("", ".svg"):
        raise ValueError(
            f"save_svg() writes SVG, but {path} ends in {suffix}; expected a name that ends in .svg. "
            "graph.to_graphviz().render(format=...) writes PDF and PNG files"
        )
    return write_file(path, svg)


@contextmanager
def open_untrusted(path: Path, what: str, *, follow_link: bool = True) -> Iterator[IO[bytes]]:
    """Open an untrusted file. Errors of the block about its contents become a ValueError.

    Args:
        path: the file.
        what: the expected kind of file, such as "a run".
        follow_link: whether `path` may be a link to another file.

    Raises:
        ValueError: `path` is not a regular file, or its contents are invalid. The message names `path`.
        OSError: The file cannot be read.
    """
    # O_NONBLOCK: do not wait for the writer of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
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
            try:
                yield file
            except OSError as error:  # zipfile seeks by offsets in the file, which may be negative
                if error.errno != errno.EINVAL:
                    raise
                raise ValueError("its structure is damaged") from None
    except _WRONG_CONTENT as error:
        raise ValueError(f"{path} is not {what} that this tapescope can load: {_reason(error)}") from None


_WRONG_CONTENT = (
    *(ValueError, TypeError, KeyError, AttributeError, OverflowError, EOFError, BadZipFile),
    *(RuntimeError, MemoryError),  # includes RecursionError (nested lists) and NotImplementedError (zipfile)
)
"""Errors that parsers raise for invalid data."""


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it does not fit into memory"
    if isinstance(error, RecursionError):
        return "its lists are nested too deeply"
    if isinstance(error, KeyError | TypeError | AttributeError):
        return "something in it is missing or of another type"
    return str(error)


def load_file(
    path: Path, what: str, most_bytes: int, parse: Callable[[bytearray], Loaded], *, follow_link: bool = True
) -> Loaded:
    """Read an untrusted file, decompress it if needed, and parse it.

    Args:
        path, what, follow_link: as in `open_untrusted`.
        most_bytes: maximum size of the file, compressed and decompressed.
        parse: function that converts the bytes to the result.

    Raises:
        ValueError: The file is empty, truncated, too large, or invalid. The message names it.
        OSError: The file cannot be read.
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
            raise ValueError(f"it has, or unpacks to, more than {most_bytes:,} bytes, the limit")
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
    """Check the `format` and `version` of a file.

    Raises:
        ValueError: The format is not `name`, or the version is later than `newest`.
    """
    if found not in (name, name.replace("tapescope", "tapehead", 1)):  # the project's former name
        raise ValueError(f'"format" is not {name}')
    if type(version) is not int:
        raise ValueError('"version" is not a whole number')
    if not 1 <= version <= newest:
        later = ": it was written by a newer one" if version > newest else ""
        raise ValueError(f'"version" is {version}, and this tapescope reads up to {newest}{later}')
