"""A deck's breakpoints, watchpoints and branches as tables, in a notebook and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...engine.session.branches import Branch
from ...engine.session.breakpoints.stop_list import Entry, Stops
from ...inspector.text.text_columns import lines_of
from ..pages.report_html import cells_html

_NUMBERS = ("number", "hits", "tasks", "ran", "edits")


class StopsView:
    """The breakpoints and watchpoints of a deck: `deck.stops`.

    Iterate over it, or index it by number: `deck.stops[2]`. Changes run in the deck's thread, between two tasks if one
    is running.

    Args:
        stops: the stops of the session.
        do: runs a function in the deck's thread and waits for it.
    """

    def __init__(self, stops: Stops, do: Callable[[Callable[[], None]], None]) -> None:
        self._stops = stops
        self._do = do

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._stops)

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, number: int) -> Entry:
        return self._stops[number]

    def enable(self, number: int) -> None:
        """Enable a breakpoint or watchpoint again.

        Raises:
            ValueError: if there is none with this number.
        """
        self._do(lambda: self._stops.enable(number))

    def disable(self, number: int) -> None:
        """Disable a breakpoint or watchpoint; it keeps its number and stops nothing."""
        self._do(lambda: self._stops.disable(number))

    def delete(self, number: int) -> None:
        """Delete a breakpoint or watchpoint. Its number is not used again."""
        self._do(lambda: self._stops.delete(number))

    @property
    def cells(self) -> list[list[str]]:
        """The table, its headings first."""
        found = [["number", "stops", "enabled", "hits", "tasks"]]
        for entry in self:
            tasks = "any" if entry.tasks is None else f"{len(entry.tasks):,}"
            what = "before" if entry.kind == "break" else "after"
            enabled = "yes" if entry.enabled else "no"
            found.append([str(entry.number), f"{what} {entry.text}", enabled, f"{entry.hits:,}", tasks])
        return found

    def __repr__(self) -> str:
        return "\n".join(lines_of(self.cells, numbers=_NUMBERS)) if len(self) else "no breakpoints, no watchpoints"

    def _repr_html_(self) -> str:
        return cells_html(self.cells, [] if len(self) else ["There are no breakpoints and no watchpoints."], _NUMBERS)


class BranchesView(Sequence[Branch]):
    """The branches of a deck's session at the time of the call: `deck.branches`."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._branches = branches

    def __getitem__(self, index: int) -> Branch:  # type: ignore[override]
        return self._branches[index]

    def __len__(self) -> int:
        return len(self._branches)

    @property
    def cells(self) -> list[list[str]]:
        """The table, its headings first."""
        found = [["branch", "policy", "ran", "forked", "edits"]]
        for branch in self:
            found.append(
                [
                    f"{branch.number}{' (current)' if branch.is_current else ''}",
                    branch.policy,
                    f"{len(branch.order):,}" + (f" (+{branch.ahead:,} undone)" if branch.ahead else ""),
                    "" if branch.parent is None else f"from {branch.parent} after {branch.forked_at:,}",
                    str(len(branch.edits) or ""),
                ]
            )
        return found

    def __repr__(self) -> str:
        return (
            "\n".join(lines_of(self.cells, numbers=_NUMBERS))
            if len(self)
            else "no branches, because no history is kept"
        )

    def _repr_html_(self) -> str:
        return cells_html(
            self.cells, [] if len(self) else ["There are no branches, because no history is kept."], _NUMBERS
        )
