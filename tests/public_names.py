"""All names that users reach from `tapescope`, those of its namespaces too: "profile", "types.Timeline"."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import tapescope as ts

NAMESPACES = {name for name in ts.__all__ if isinstance(getattr(ts, name), ModuleType)}
PUBLIC_NAMES = sorted(
    {*ts.__all__} - NAMESPACES | {f"{space}.{name}" for space in NAMESPACES for name in getattr(ts, space).__all__}
)


def public(name: str) -> Any:
    """Return the object with a public name."""
    space, _, its_name = name.rpartition(".")
    return getattr(getattr(ts, space) if space else ts, its_name)
