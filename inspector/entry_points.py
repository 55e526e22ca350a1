"""Objects that installed packages offer by name, through entry points."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from .validation import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """Return a group's entry points by name. Packages installed later are not found."""
    from importlib.metadata import entry_points  # slow to import

    return {each.name: each for each in entry_points(group=group)}


def load_entry_point(group: str, name: str, what: str, others: Iterable[str] = ()) -> Any:
    """Import the object of an entry point.

    Args:
        group: the group.
        name: the name.
        what: the kind of object, for messages.
        others: other known names.

    Raises:
        ValueError: no package has such an entry point, or importing its object raised, which is the cause.
    """
    found = entry_points_of(group)
    if name not in found:
        known = [*others, *found]
        raise ValueError(
            f"unknown {what} {name!r}{did_you_mean(name, known)} expected one of {', '.join(known)}"
            if known
            else f"unknown {what} {name!r}: no installed package has an entry point in the group {group}"
        )
    try:
        return found[name].load()
    except Exception as error:
        package = "" if found[name].dist is None else f" of {found[name].dist.name}"  # type: ignore[union-attr]
        raise ValueError(
            f"{what} {name!r}{package} cannot be loaded from {found[name].value}: {type(error).__name__}: {error}"
        ) from error
