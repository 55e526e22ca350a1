"""Assertions on texts that hold whatever the wording is: a text has facts, and stands whole in tests/snapshots."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

SNAPSHOTS = Path(__file__).parent / "snapshots"
_TORCH = "2.13"  # from constraints.txt: other versions have other operations and messages
_TITLE = re.compile(r"^=== (.+)$", re.MULTILINE)


def says(text: object, *facts: object) -> None:
    """Assert that a text, or the text of an error, has each of these facts: names, `file:line`, numbers, an API to use.

    A fact that begins or ends with a letter or a digit has to stand there as a whole: 2 is not in "12 tasks", nor in
    "2.5 MiB". Facts are no prose: a test that repeats a sentence has to be changed with each better wording.
    """
    shown = str(text)
    missing = [fact for fact in map(str, facts) if not _pattern(fact).search(shown)]
    assert not missing, f"not said: {', '.join(map(repr, missing))}; the text is:\n{shown}"


def says_none_of(text: object, *facts: object) -> None:
    """Assert that a text has none of these facts."""
    shown = str(text)
    found = [fact for fact in map(str, facts) if _pattern(fact).search(shown)]
    assert not found, f"said: {', '.join(map(repr, found))}; the text is:\n{shown}"


@contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...], *facts: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` of an error that says these facts, see `says`."""
    with pytest.raises(error) as raised:
        yield raised
    says(raised.value, *facts)


def _pattern(fact: str) -> re.Pattern[str]:
    before = r"(?<![\w])(?<!\d[.,])" if fact[:1].isalnum() else ""
    after = r"(?![\w])(?![.,]\d)" if fact[-1:].isalnum() else ""
    return re.compile(before + re.escape(fact) + after)


class Snapshots:
    """The whole texts of one test, compared with those in tests/snapshots, one file per verb.

    `pytest --update-snapshots` writes what the tests that it runs say instead; `git diff` then shows each changed text.
    """

    def __init__(self, test: str, update: bool) -> None:
        self._test, self._update = test, update
        self._counts: dict[str, int] = {}

    def __call__(self, verb: str, text: object) -> None:
        """Compare a text with the one that is stored for this test, or store it."""
        self._counts[verb] = count = self._counts.get(verb, 0) + 1
        title = self._test if count == 1 else f"{self._test} #{count}"
        path, said = SNAPSHOTS / f"{verb}.txt", _settled(str(text))
        if self._update:
            _store(path, title, said)
            return
        if not torch.__version__.startswith(_TORCH):
            return
        stored = entries(path).get(title)
        assert stored is not None, f"tests/snapshots/{verb}.txt has no entry {title!r}: run pytest --update-snapshots"
        assert said == stored, f"the text in tests/snapshots/{verb}.txt differs; pytest --update-snapshots stores it"


def entries(path: Path) -> dict[str, str]:
    """The texts of a file of snapshots, by title."""
    if not path.exists():
        return {}
    parts = _TITLE.split(path.read_text(encoding="utf-8"))
    return {title: text.strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def _store(path: Path, title: str, text: str) -> None:
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several processes run tests
        found = entries(path)
        found[title] = text
        file.seek(0)
        file.truncate()
        file.write("\n".join(f"=== {name}\n{found[name]}\n" for name in sorted(found)))


def _settled(text: str) -> str:
    """A text without what differs from run to run: folders, lines of tests, numbers of cells, addresses, times."""
    text = re.sub(r"(?<![\w.])/[\w./+-]*/", "", text)
    text = re.sub(r"\b(test_\w+\.py):\d+", r"\1:LINE", text)
    text = re.sub(r"\b0x[0-9a-f]+\b", "0xADDRESS", text)
    text = re.sub(r"\bIn\[\d+\]", "In[N]", text)
    text = re.sub(r"\b\d[\d,]*(\.\d+)? (ns|µs|ms|s|min)\b(?: ± \d+ %)?", "TIME", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
