"""Tab completion at the prompt."""

from __future__ import annotations

import re
import rlcompleter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any, Protocol

from ...engine.planning.policies import policy_names
from ...engine.schedule.ready_queue import ReadyTask
from ...inspector.text.sizes_and_counts import nth
from ..deck.task_and_stop_syntax import Running, run_of
from ..deck.verbs import ROWS


class Debugged(Running, Protocol):
    """A session, or a deck."""

    @property
    def ready(self) -> Sequence[ReadyTask]: ...


class Numbered(Protocol):
    """A breakpoint or watchpoint."""

    @property
    def number(self) -> int: ...


CONDITIONS = ("nan", "inf", "zero", "norm>", "norm<", "ratio>", "ratio<", "upcast", "shape", "missing")
DELIMITERS = " \t\n"  # module names, source lines and conditions are single words
_MOST = 1000

_TAKES = {verb.name: verb.takes for verb in ROWS}
_WORD = re.compile(r"[\w.]*$")


def completions(
    command: str,
    session: Debugged,
    stops: Iterable[Numbered],
    names: Callable[[], dict[str, Any]],
    word: str,
    before: str,
) -> list[str]:
    """Return the completions of a word.

    Args:
        command: full name of the command.
        session: the session or deck whose tasks and modules are offered.
        stops: its breakpoints and watchpoints.
        names: returns the variables that an expression may use.
        word: the word before the cursor.
        before: the text between the command and the word.
    """
    takes = _TAKES.get(command, "")
    if takes == "expression":
        return _expressions(word, names)
    if takes == "file":
        return _files(word)
    if takes == "place" and ("," in before or re.search(r"(^|\s)if\s", before)):
        return _expressions(word, names)
    if takes == "condition" and re.search(r"(^|\s)if\s", before) and not re.search(r"\sat\s*$", before):
        return [*_expressions(word, names), *(["at"] if "at".startswith(word) else [])]
    words = _words(takes, session, stops, word, before)
    found = {each for each in words if each.startswith(word)}
    # Numbers are sorted by value, so that 9th comes before 10th.
    parts = {each: [int(part) if part.isdecimal() else -1 for part in re.split(r"(\d+)", each)] for each in found}
    return with_space(sorted(found, key=lambda each: (parts[each], each))[:_MOST])


def with_space(words: list[str]) -> list[str]:
    """Append a space to a single completion, except to one that needs a number after it, such as `norm>`."""
    return [f"{words[0]} "] if len(words) == 1 and not words[0].endswith((">", "<")) else words


def _words(takes: str, session: Debugged, stops: Iterable[Numbered], word: str, before: str) -> Iterable[str]:
    match takes:
        case "ready task":
            places = {task_id: place for place, task_id in enumerate(run_of(session))}
            return (nth(places[entry.task.id] + 1) for entry in session.ready if entry.task.id in places)
        case "coming task":
            return map(nth, range(len(session.order) + 1, len(run_of(session)) + 1))
        case "task":
            return map(nth, range(1, len(run_of(session)) + 1))
        case "task or stops":
            return ("stops", *map(nth, range(1, len(run_of(session)) + 1)))
        case "policy":
            return policy_names()
        case "place":
            return _places(session, word)
        case "condition":
            if re.search(r"(^|\s)at\s*$", before):
                return (call.path for call in session.graph.calls if call.path)
            return (*CONDITIONS, *(("and", "or", "at") if before.strip() else ("if",)))
        case "stop":
            return (str(each.number) for each in stops)
        case "branch":
            return (str(branch.number) for branch in getattr(session, "branches", ()))
        case "name":
            return _names(session)
    return ()


def _places(session: Debugged, word: str) -> Iterable[str]:
    if re.fullmatch(r"\d[\d,]*[a-z]*", word):  # "0.weight" is the name of a parameter, not a position
        return map(nth, range(1, len(run_of(session)) + 1))
    prefix, colon, _ = word.partition(":")
    graph = session.graph
    found: dict[str, list[str]] = {
        "kind": [task.short_name for task in graph.tasks],
        "module": [call.path for call in graph.calls if call.path],
        "grad": [task.parameter for task in graph.tasks if task.parameter],
        "line": [task.source.short for task in graph.tasks if task.source],
        "task": [str(task.id) for task in graph.tasks],
    }
    if colon and prefix in found:
        return (f"{prefix}:{each}" for each in found[prefix])
    del found["task"]
    return (each for words in found.values() for each in words)


def _names(session: Debugged) -> Iterable[str]:
    for task in session.graph.tasks:
        yield task.short_name
        if task.parameter:
            yield task.parameter
    yield from (call.path for call in session.graph.calls if call.path)


def _expressions(word: str, names: Callable[[], dict[str, Any]]) -> list[str]:
    """Return completions of the name or attribute at the end of an expression."""
    match = _WORD.search(word)
    assert match is not None, "the pattern also matches an empty text"
    head, tail = word[: match.start()], match[0]
    completer = rlcompleter.Completer(names())
    found: list[str] = []
    with suppress(Exception):  # reading a user's attribute may raise anything
        while len(found) < _MOST and (each := completer.complete(tail, len(found))) is not None:
            found.append(each)
    # rlcompleter adds parentheses to callables, and returns a tab if there is nothing to complete.
    return [f"{head}{each.rstrip('()')}" for each in found if each.strip()]


def _files(word: str) -> list[str]:
    found = [f"{path}/" if Path(path).is_dir() else path for path in glob(f"{word}*")]
    if not word or "." in Path(word).name:
        return sorted(found)
    return [*sorted(found), *(f"{word}{ending}" for ending in (".json", ".html", ".svg", ".png"))]
