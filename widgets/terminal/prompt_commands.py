"""What groups of commands have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .debuggee import Debuggee

Command = Callable[[str], "bool | None"]
"""Gets what stands behind it; whether it leaves the prompt. Its docstring is its help."""


class Commands:
    """A group of commands, a method `do_` each."""

    def __init__(self, at: Debuggee) -> None:
        self.at = at


def commands_of(groups: Iterable[object]) -> dict[str, Command]:
    """By name the commands of these groups."""
    return {
        name.removeprefix("do_"): getattr(group, name)
        for group in groups
        for name in dir(group)
        if name.startswith("do_")
    }
