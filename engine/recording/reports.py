"""Reports on runs from other packages, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...inspector.entry_points import load_entry_point
from ...inspector.validation import expect

if TYPE_CHECKING:
    from .run import Run

GROUP = "tapescope.reports"


class Report(Protocol):
    """A report on a run, from a package with an entry point in the group `tapescope.reports`."""

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Return the report of a run. The run may come from a file, so that it has no tensors."""

    def render(self, out: Path) -> object:
        """Write the report to a file."""


def report_of(run: Run, name: str) -> Any:
    """Return the report of a run with this name. See `Run.report`."""
    expect(name, str, "name", f"the name of an entry point in {GROUP}")
    found = load_entry_point(GROUP, name, "report")
    missing = [each for each in ("from_run", "render") if not callable(getattr(found, each, None))]
    if missing:
        raise TypeError(f"report {name!r} has no method {missing[0]}(); expected from_run(run) and render(out)")
    return found.from_run(run)
