"""JSON that nobody vouches for: where its values are, found without making anything of them."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

_DEEPEST = 3  # objects in objects whose entries are found
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
    """Where a value is: from its first character to behind its last one."""

    start: int
    end: int


Entries = dict[str, "Span | Entries"]


def entries_of(content: Content) -> Entries:
    """The entries of a JSON object: those of objects by name, the others by where they are.

    What the values are is not looked at, but that their brackets match.

    Raises:
        ValueError: it is no JSON object, is cut off, or of more lists than a file of its size should be.
    """
    _check_text(content)
    try:
        found, end = _Scan(content).object(_skip(content, 0), 1)
    except (IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"is no JSON object, or is cut off: {error}") from None
    if _skip(content, end) != len(content):
        raise ValueError(f"goes on after its end, at character {end}")
    return found


def value_of(content: Content, span: Span) -> Any:
    """What the value is.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(content[span.start : span.end])
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None


def pieces_of(content: Content, span: Span) -> Iterator[list[Any]]:
    """The entries of a list of numbers, so many at once that they need little memory.

    Raises:
        ValueError: it is no JSON list, or has lists in it that end in another piece.
    """
    at, end = span.start + 1, span.end - 1
    if content[span.start] != ord("[") or content[end] != ord("]"):
        raise ValueError("it is no list")
    while at < end:
        stop = end if end - at <= _PIECE else content.rfind(b",", at, at + _PIECE)
        if stop < 0:
            raise ValueError(f"it has an entry of more than {_PIECE} characters")
        yield json.loads(b"[" + content[at:stop] + b"]")
        at = stop + 1


def count_of(content: Content, span: Span) -> int:
    """How many entries a list of numbers has."""
    empty = _skip(content, span.start + 1) == span.end - 1
    return 0 if empty else content.count(b",", span.start, span.end) + 1


def _check_text(content: Content) -> None:
    decoder = getincrementaldecoder("utf-8")()
    if not content.isascii():
        for at in range(0, len(content), _PIECE):
            decoder.decode(content[at : at + _PIECE], final=at + _PIECE >= len(content))


class _Scan:
    def __init__(self, content: Content) -> None:
        self._content = content
        self._lists_left = _MOST_LISTS + len(content) // _LIST_CHARACTERS

    def object(self, at: int, depth: int) -> tuple[Entries, int]:
        """The entries of the object that begins here, and where it ends."""
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
        """Where the value ends that begins here."""
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
                    raise ValueError("has more lists in it than a file of its size should have")
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
