"""Advice of messages in the form of a command line: `--engine native` for `engine="native"`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAMES: ContextVar[Collection[str]] = ContextVar("names of the options", default=())

_ARGUMENT = r"""\b(\w+)=(?:(["'])([\w .:-]*)\2|(?=[\s),.;]|$))"""
_CALL = re.compile(rf"ts\.\w+\((?:\.\.\., )?{_ARGUMENT}\)")
_ALONE = re.compile(_ARGUMENT)


@contextmanager
def options_named(names: Collection[str]) -> Iterator[None]:
    """Make `as_options` write these arguments as options in the `with` block."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def as_options(text: object) -> str:
    """Return a message with arguments such as `queues="per device"` written as options of the running command.

    Messages are written for Python; `options_named` names the arguments that the command also has. Others stay.
    """
    names = _NAMES.get()
    if not names:
        return str(text)

    def option(found: re.Match[str]) -> str:
        name, _, value = found.groups()
        words = (f"--{name}".replace("_", "-"), (value or "").replace(" ", "-"))
        return " ".join(filter(None, words)) if name in names else found[0]

    return _ALONE.sub(option, _CALL.sub(option, str(text)))
