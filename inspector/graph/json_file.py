"""JSON with columns: written as a stream, read with limits, a column at a time."""

from __future__ import annotations

import json
import math
import re
from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ..files import check_format

_DEEPEST = 3  # maximum depth of nested objects
_MOST_LISTS = 2**16  # and one more for each _LIST_CHARACTERS: an empty list takes three characters and 64 bytes
_LIST_CHARACTERS = 64
_PIECE = 2**16  # characters of a list that are read at once

_SPACE = re.compile(rb"[ \t\r\n]*+")
_TEXT = re.compile(rb'"(?>[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]{1,5000}")
_UP_TO_BRACKET = re.compile(rb'(?>[^"\[\]{}]++|"(?>[^"\\]++|\\.)*+")*+', re.DOTALL)
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}

Content: TypeAlias = "bytes | bytearray"


class Span(NamedTuple):
    """The position of a value: from its first character to the one after its last."""

    start: int
    end: int


Entries = dict[str, "Span | Entries"]
"""The entries of a JSON object: nested objects as mappings, all other values as spans."""


def count_of(content: Content, span: Span) -> int:
    """Return the number of entries of a list of numbers."""
    empty = _skip(content, span.start + 1) == span.end - 1
    return 0 if empty else content.count(b",", span.start, span.end) + 1


class _Scan:
    def __init__(self, content: Content) -> None:
        self._content = content
        self._lists_left = _MOST_LISTS + len(content) // _LIST_CHARACTERS

    def object(self, at: int, depth: int) -> tuple[Entries, int]:
        """Return the entries of the object that begins here, and its end."""
        content = self._content
        found: Entries = {}
        at = _skip(content, self._expect(at, "{"))
        if content[at] == ord("}"):
            return found, at + 1
        while True:
            end = self._text(at)
            key = json.loads(content[at:end])
            at = _skip(content, self._expect(_skip(content, end), ":"))
            if content[at] == ord("{") and depth < _DEEPEST:
                found[key], at = self.object(at, depth + 1)
            else:
                end = self._value(at)
                found[key], at = Span(at, end), end
            at = _skip(content, at)
            if content[at] == ord("}"):
                return found, at + 1
            at = _skip(content, self._expect(at, ","))

    def _value(self, at: int) -> int:
        """Return the end of the value that begins here."""
        first = self._content[at]
        if first in _CLOSING:
            return self._brackets(at)
        if first == ord('"'):
            return self._text(at)
        scalar = _SCALAR.match(self._content, at)
        if scalar is None:
            raise _wrong("a value is expected", at)
        json.loads(scalar[0])
        return scalar.end()

    def _brackets(self, at: int) -> int:
        content = self._content
        open_ = bytearray()
        while True:
            character = content[at]
            if character in _CLOSING:
                open_.append(_CLOSING[character])
                self._lists_left -= 1
                if self._lists_left < 0:
                    raise ValueError("it has more lists than a file of its size should have")
            elif not open_ or character != open_.pop():
                raise _wrong("another bracket is expected", at)
            at += 1
            if not open_:
                return at
            between = _UP_TO_BRACKET.match(content, at)
            at = at if between is None else between.end()

    def _text(self, at: int) -> int:
        text = _TEXT.match(self._content, at)
        if text is None:
            raise _wrong("a text is expected", at)
        return text.end()

    def _expect(self, at: int, character: str) -> int:
        if self._content[at] != ord(character):
            raise _wrong(f"{character} is expected", at)
        return at + 1


def _wrong(what: str, at: int) -> json.JSONDecodeError:
    return json.JSONDecodeError(what, "", at)


def _skip(content: Content, at: int) -> int:
    space = _SPACE.match(content, at)
    assert space is not None
    return space.end()


_CHUNK = 16_384  # entries encoded at once
_MOST_ENTRIES = 2**26  # per column
_MOST_IN_I = 2**31  # numbers below fit the type code "i"
_LONGEST = 2**25  # characters outside of columns of numbers; the Python objects take up to twelve times as much
_INFINITE = {math.inf: "inf", -math.inf: "-inf"}
_NO_NUMBER = {"inf": math.inf, "-inf": -math.inf, None: math.nan}

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ColumnWriter:
    """Writes a JSON object, one entry per line."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._separator = ""

    @contextmanager
    def object(self, key: str | None = None) -> Iterator[None]:
        """Write the entries of a nested object; `key` is None for the outermost one."""
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
        """Write a list of any length. Numbers must be finite and, for readers in JavaScript, below 2**53."""
        self._key(key)
        self._write("[")
        remaining = iter(entries)
        separator = ""
        while chunk := list(islice(remaining, _CHUNK)):
            self._write(separator + _encode(chunk)[1:-1])
            separator = ","
        self._write("]")

    def floats(self, key: str, entries: Iterable[float]) -> None:
        """Write a column of numbers. JSON has no NaN or infinity, so they become null, "inf" and "-inf"."""
        self.column(key, (entry if math.isfinite(entry) else _INFINITE.get(entry) for entry in entries))

    def _key(self, key: str) -> None:
        self._write(f"{self._separator}{_encode(key)}:")
        self._separator = ",\n"


class Section:
    """An object of an untrusted file. Each method returns an entry, or raises a ValueError that says what is wrong.

    An entry is parsed when it is read; entries that are never read take no memory.

    Args:
        content: the text of the file.
        entries: the position of each entry in it.
        where: the section's name in errors: "graph".
    """

    def __init__(self, content: Content, entries: Entries, where: str) -> None:
        self._content = content
        self._entries = entries
        self._where = where

    def __contains__(self, key: str) -> bool:
        found = self._entries.get(key)
        if isinstance(found, Span):
            return self._content[found.start : min(found.end, found.start + 5)] != b"null"
        return found is not None

    def check_format(self, name: str, newest: int) -> None:
        found = self.text("format") if "format" in self else None
        check_format(found, None if found is None else self.number("version"), name, newest)

    def section(self, key: str) -> Section:
        found = self._entry(key)
        if isinstance(found, Span):
            raise self.wrong(key, "is not an object")
        return Section(self._content, found, f"{self._where}.{key}" if self._where else key)

    def text(self, key: str) -> str:
        found: str = self._typed(key, str, "a string")
        return found

    def one_of(self, key: str, known: Sequence[str]) -> Any:
        """Return a text that must be one of the known ones."""
        found = self.text(key)
        if found not in known:
            raise self.wrong(key, f"is {found!r:.80}; expected one of {', '.join(known)}")
        return found

    def number(self, key: str, low: int = 0, high: int = 2**63) -> int:
        found: int = self._typed(key, int, "a whole number")
        if not low <= found < high:
            raise self.wrong(key, f"is {found!r:.80}, which is not from {low} to {high - 1}")
        return found

    def rows(self, key: str) -> list[Any]:
        """Return a list of any entries, which the caller checks."""
        found: list[Any] = self._typed(key, list, "a list")
        return found

    def count(self, key: str) -> int:
        """Count the entries of a list of numbers and strings without parsing them; -1 if it is not a list."""
        found = self._entry(key)
        is_list = isinstance(found, Span) and self._content[found.start] == ord("[")
        return count_of(self._content, found) if isinstance(found, Span) and is_list else -1

    def texts(self, key: str) -> list[str]:
        found = self.rows(key)
        if not all(isinstance(entry, str) for entry in found):
            raise self.wrong(key, "has an entry that is not a string")
        return found

    def integers(
        self, key: str, high: int, *, low: int = 0, length: int | None = None, distinct: bool = False, code: str = "i"
    ) -> array[int]:
        """Return a column of integers in [low, high) as an array of this type code, or of a wider one if needed."""
        found = array("q" if high > _MOST_IN_I else code)
        for piece in self._pieces(key, length, "whole numbers"):
            if any(type(each) is not int for each in piece):
                raise self.wrong(key, "is not a list of whole numbers")
            if not low <= min(piece) <= max(piece) < high:
                ends = f"{min(piece)!r:.40} to {max(piece)!r:.40}"
                raise self.wrong(key, f"has entries from {ends}, not from {low} to below {high}")
            found.extend(piece)
        if distinct and has_twice(found, low, high):
            raise self.wrong(key, "has an entry twice")
        return found

    def floats(self, key: str, length: int) -> array[float]:
        found = array("d")
        try:
            for piece in self._pieces(key, length, "numbers"):
                found.extend(_NO_NUMBER[each] if each is None or isinstance(each, str) else each for each in piece)
        except (TypeError, KeyError, OverflowError) as error:
            raise self.wrong(key, f"has an entry that is not a number: {error!s:.80}") from None
        return found

    def _pieces(self, key: str, length: int | None, of_what: str) -> Iterator[list[Any]]:
        """Yield the entries of a column, piece by piece, so that they need little memory."""
        content, span = self._content, self._entry(key)
        if not isinstance(span, Span) or content[span.start] != ord("["):
            raise self.wrong(key, f"is not a list of {of_what}")
        count = count_of(content, span)
        if length is not None and count != length:
            raise self.wrong(key, f"has {count} entries, not {length}")
        if count > _MOST_ENTRIES:
            raise self.wrong(key, f"has {count} entries; at most {_MOST_ENTRIES} are read")
        at, end = span.start + 1, span.end - 1
        while count and at < end:
            stop = end if end - at <= _PIECE else content.rfind(b",", at, at + _PIECE)
            try:
                piece = json.loads(b"[" + content[at:stop] + b"]") if stop >= 0 and content[end] == ord("]") else None
            except (ValueError, RecursionError):  # such as a list that crosses the end of a piece
                piece = None
            if piece is None:
                raise self.wrong(key, f"is not a list of {of_what}")
            yield piece
            at = stop + 1

    def wrong(self, key: str, reason: str) -> ValueError:
        """Return the error for an entry that the caller found to be invalid."""
        return ValueError(f'"{self._where}{"." if self._where else ""}{key}" {reason}')

    def _entry(self, key: str) -> Span | Entries:
        if key not in self._entries:
            raise self.wrong(key, "is missing")
        return self._entries[key]

    def _typed(self, key: str, kind: type, called: str) -> Any:
        span = self._entry(key)
        if not isinstance(span, Span):
            raise self.wrong(key, f"is not {called}")
        size = span.end - span.start
        if size > _LONGEST:
            raise self.wrong(key, f"has {size} characters; at most {_LONGEST} are read")
        try:
            found = json.loads(self._content[span.start : span.end])
        except RecursionError:
            raise self.wrong(key, "is not JSON: its lists are nested too deeply") from None
        except ValueError as error:
            raise self.wrong(key, f"is not JSON: {error!s:.80}") from None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            raise self.wrong(key, f"is not {called}")
        return found


def has_twice(numbers: array[int], low: int, high: int) -> bool:
    """Return whether these numbers, in [low, high), have a duplicate."""
    if len(numbers) > high - low:
        return True
    if high - low > 64 * len(numbers):
        return len(set(numbers)) != len(numbers)
    seen = bytearray(high - low)
    for each in numbers:
        seen[each - low] = True
    return sum(seen) != len(numbers)


def read_section(content: str | Content) -> Section:
    """Read a JSON object and find the positions of its entries.

    Values are not parsed; only their brackets are matched.

    Raises:
        ValueError: the text is not a JSON object, is cut off, or has more lists than a file of its size should.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    if not content.isascii():
        decoder = getincrementaldecoder("utf-8")()
        for at in range(0, len(content), _PIECE):
            decoder.decode(content[at : at + _PIECE], final=at + _PIECE >= len(content))
    try:
        entries, end = _Scan(content).object(_skip(content, 0), 1)
    except IndexError:
        raise ValueError("it is cut off") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not a JSON object: {error}") from None
    if _skip(content, end) != len(content):
        raise ValueError(f"it continues after its end, at character {end}")
    return Section(content, entries, "")
