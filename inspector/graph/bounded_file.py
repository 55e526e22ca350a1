"""A file's content, as far as there may be of it."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import IO

from ..arguments import a_kind

_GZIP = b"\x1f\x8b"
_PIECE = 2**20  # bytes that are read at once


def path_of(path: object, asked_by: str) -> Path:
    """The path that a user gave.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{asked_by} takes the path of a file, a str or a Path, not {a_kind(path)}")
    return Path(path)


def content_of(path: Path, most: int, why: str) -> bytearray:
    """The bytes of a file, unpacked if it is compressed.

    Args:
        path: the file.
        most: how many bytes it may have, or unpack to.
        why: what is to be said of more: "which is more than any plan needs".

    Raises:
        ValueError: there are more, or the compressed data are damaged or cut off.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
        nbytes = file.seek(0, 2)
        file.seek(0)
        if nbytes > most:
            raise _too_large(most, why)
        try:
            return _all_of(gzip.GzipFile(fileobj=file) if packed else file, most, why)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"the compressed data are damaged or cut off ({error})") from None


def _all_of(file: IO[bytes] | gzip.GzipFile, most: int, why: str) -> bytearray:
    """What can be read, piece by piece: to ask for the most that is allowed would take that much memory."""
    content = bytearray()
    while piece := file.read(_PIECE):
        content += piece
        if len(content) > most:
            raise _too_large(most, why)
    return content


def _too_large(most: int, why: str) -> ValueError:
    return ValueError(f"it has or unpacks to more than {most} bytes, {why}")
