"""Modules are there when they are asked for: `tapescope.engine.trace.run` after nothing but `import tapescope`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any


def open_room(name: str) -> None:
    """From here on the modules of a folder, and of the folders in it, are attributes that load them."""
    room = import_module(name)
    vars(room)["__getattr__"] = _modules_of(name, vars(room).get("__getattr__"))
    for found in iter_modules(room.__path__):
        if found.ispkg:
            open_room(f"{name}.{found.name}")


def _modules_of(room: str, others: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """`__getattr__` for a room, which may have names from elsewhere, too."""

    def get(name: str) -> Any:
        if not name.startswith("_") and find_spec(f"{room}.{name}") is not None:
            return import_module(f"{room}.{name}")
        if others is None:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return others(name)

    return get
