"""What stands behind a command of the prompt."""

from __future__ import annotations

from ..deck.typed_tasks import is_typed_task


def nothing(arg: str, usage: str) -> None:
    if arg:
        raise ValueError(f"{usage} takes nothing behind it, so not {arg!r}")


def something(arg: str, usage: str) -> str:
    if not arg.strip():
        raise ValueError(f"{usage}: something is missing")
    return arg.strip()


def count(arg: str) -> int:
    return number(arg, "back N") if arg else 1


def number(arg: str, usage: str) -> int:
    if not arg.isdecimal():
        raise ValueError(f"{usage}: {arg!r} is no number")
    return int(arg)


def numbers(arg: str, usage: str) -> list[int]:
    return [number(word, usage) for word in something(arg, usage).replace(",", " ").split()]


def split_task(text: str) -> list[str]:
    """An expression, and behind it the task that is meant, `53rd` or `#26`, if one is."""
    expression, _, last = text.rpartition(" ")
    named = last.startswith("#") or last.endswith(("st", "nd", "rd", "th"))
    return [expression, last] if expression and named and is_typed_task(last) else [text]
