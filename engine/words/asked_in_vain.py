"""An attribute that somebody looks for in the wrong place: the error says where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def asked_in_vain(asked: object, name: str, what: str, elsewhere: Mapping[str, str]) -> Any:
    """For a `__getattr__`: raises what Python would, but of names of which it is known where they are.

    Args:
        asked: whose attribute.
        name: which.
        what: what it is, in the midst of a sentence: "a session".
        elsewhere: by name what to do instead; `{name}` in it is the name.

    Raises:
        AttributeError: always, unless it is a property, whose own AttributeError is raised again.
    """
    if hasattr(type(asked), name):
        return object.__getattribute__(asked, name)
    if name in elsewhere:
        raise AttributeError(f"{what} has no {name}: {elsewhere[name].format(name=name)}")
    raise AttributeError(f"{type(asked).__name__!r} object has no attribute {name!r}", name=name, obj=asked)
