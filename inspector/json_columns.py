"""JSON with columns: written in a stream and read column by column, so that a million entries need little memory."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

_CHUNK = 16_384  # entries that become text at once
_DEEPEST = 3  # objects in objects that are read entry by entry
_SPACE = re.compile(r"[ \t\r\n]*")
_NO_NUMBER = {"inf": math.inf, "-inf": -math.inf, None: math.nan}

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decoder = json.JSONDecoder()


class ColumnWriter:
    """Writes one JSON object, entry by entry, one a line."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._separator = ""

    @contextmanager
    def object(self, key: str | None = None) -> Iterator[None]:
        """What is written meanwhile are the entries of an object; `key` is None for the outermost."""
        if key is not None:
            self._key(key)
        self._write("{\n")
        self._separator = ""
        yield
        self._write("\n}")
        self._separator = ",\n"

    def value(self, key: str, value: Any) -> None:
        self._key(key)
        self._write(_encode(value))

    def column(self, key: str, entries: Iterable[Any]) -> None:
        """A list of any length. Numbers must be finite and, for readers in JavaScript, below 2**53."""
        self._key(key)
        self._write("[")
        remaining = iter(entries)
        separator = ""
        while chunk := list(islice(remaining, _CHUNK)):
            self._write(separator + _encode(chunk)[1:-1])
            separator = ","
        self._write("]")

    def floats(self, key: str, entries: Iterable[float]) -> None:
        """A column of numbers: NaN as null, the infinite ones as "inf" and "-inf", which JSON has no numbers for."""
        self.column(key, (entry if math.isfinite(entry) else _in_words(entry) for entry in entries))

    def _key(self, key: str) -> None:
        self._write(f"{self._separator}{_encode(key)}:")
        self._separator = ",\n"


def _in_words(number: float) -> str | None:
    return None if math.isnan(number) else "inf" if number > 0 else "-inf"


class Section:
    """An object of a file that nobody vouches for. Each method gives an entry, or a ValueError that says what is wrong.

    `where` is how errors name the section: "graph".
    """

    def __init__(self, entries: dict[str, Any], where: str) -> None:
        self._entries = entries
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._entries.get(key) is not None

    def section(self, key: str) -> Section:
        return Section(self._typed(key, dict, "an object"), f"{self._where}.{key}" if self._where else key)

    def text(self, key: str) -> str:
        found: str = self._typed(key, str, "a text")
        return found

    def one_of(self, key: str, known: Sequence[str]) -> Any:
        """A text of which the known ones are allowed."""
        found = self.text(key)
        if found not in known:
            raise self.wrong(key, f"is {found!r:.80}; known are {', '.join(known)}")
        return found

    def number(self, key: str, low: int = 0, high: int = 2**63) -> int:
        found: int = self._typed(key, int, "a whole number")
        if not low <= found < high:
            raise ValueError(f"{self._name(key)} is {found}, which is not from {low} to {high - 1}")
        return found

    def rows(self, key: str) -> list[Any]:
        """A list of anything, which the caller looks at."""
        found = self._entry(key)
        if isinstance(found, array):
            return found.tolist()
        if not isinstance(found, list):
            raise ValueError(f"{self._name(key)} is not a list")
        return found

    def texts(self, key: str) -> list[str]:
        found = self.rows(key)
        if not all(isinstance(entry, str) for entry in found):
            raise ValueError(f"{self._name(key)} has an entry that is no text")
        return found

    def integers(
        self, key: str, high: int, *, low: int = 0, length: int | None = None, distinct: bool = False, code: str = "i"
    ) -> array[int]:
        """A column of integers from `low` to below `high`, as an array of this type code."""
        found = self._entry(key)
        if isinstance(found, list) and not found:
            found = array("q")
        if not isinstance(found, array):
            raise ValueError(f"{self._name(key)} is not a list of whole numbers")
        if length is not None and len(found) != length:
            raise ValueError(f"{self._name(key)} has {len(found)} entries, not {length}")
        if found and not (low <= min(found) and max(found) < high):
            raise ValueError(f"{self._name(key)} has entries from {min(found)} to {max(found)}, not below {high}")
        if distinct and len(set(found)) != len(found):
            raise ValueError(f"{self._name(key)} has an entry twice")
        return array(code, found)

    def floats(self, key: str, length: int) -> array[float]:
        found = self._entry(key)
        if not isinstance(found, list | array) or len(found) != length:
            raise ValueError(f"{self._name(key)} is not a list of {length} numbers")
        try:
            return array("d", (_NO_NUMBER[each] if each is None or isinstance(each, str) else each for each in found))
        except (TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"{self._name(key)} has an entry that is no number: {error}") from None

    def wrong(self, key: str, reason: str) -> ValueError:
        """The error for an entry which the caller found to be wrong."""
        return ValueError(f"{self._name(key)} {reason}")

    def _name(self, key: str) -> str:
        return f'"{self._where}.{key}"' if self._where else f'"{key}"'

    def _entry(self, key: str) -> Any:
        if key not in self._entries:
            raise ValueError(f"{self._name(key)} is missing")
        return self._entries[key]

    def _typed(self, key: str, kind: type, called: str) -> Any:
        found = self._entry(key)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            raise ValueError(f"{self._name(key)} is not {called}")
        return found


def read_section(text: str) -> Section:
    """Reads a JSON object. Lists of integers become arrays one by one, of 8 bytes an entry instead of 40.

    Raises:
        ValueError: it is no JSON object, or cut off.
    """
    try:
        entries, end = _object(text, _skip(text, 0), 1)
    except (json.JSONDecodeError, IndexError, RecursionError) as error:
        raise ValueError(f"is no JSON object, or is cut off: {error}") from None
    if _skip(text, end) != len(text):
        raise ValueError(f"goes on after its end, at character {end}")
    return Section(entries, "")


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """The object that begins at this character, and the character behind it."""
    found: dict[str, Any] = {}
    at = _skip(text, _expect(text, at, "{"))
    if text[at] == "}":
        return found, at + 1
    while True:
        key, at = _decoder.raw_decode(text, at)
        if not isinstance(key, str):
            raise json.JSONDecodeError("a name is expected", text, at)
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        if text[at] == "{" and depth < _DEEPEST:
            found[key], at = _object(text, at, depth + 1)
        else:
            value, at = _decoder.raw_decode(text, at)
            found[key] = _packed(value)
        at = _skip(text, at)
        if text[at] == "}":
            return found, at + 1
        at = _skip(text, _expect(text, at, ","))


def _packed(value: Any) -> Any:
    if isinstance(value, list) and value and type(value[0]) is int:
        try:
            return array("q", value)
        except (TypeError, OverflowError):
            return value
    return value


def _expect(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise json.JSONDecodeError(f"{character} is expected", text, at)
    return at + 1


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
