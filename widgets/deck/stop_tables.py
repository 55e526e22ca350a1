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

    Iterating gives them all, `deck.stops[2]` the one of this number. What changes them is done in the deck's thread,
    between two tasks if one runs.

    Args:
        stops: the session's.
        do: has the deck's thread do something, and waits for it.
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
        """Lets it stop runs again.

        Raises:
            ValueError: there is none of this number.
        """
        self._do(lambda: self._stops.enable(number))

    def disable(self, number: int) -> None:
        """It stays, and stops nothing."""
        self._do(lambda: self._stops.disable(number))

    def delete(self, number: int) -> None:
        """Takes it away; its number is not given again."""
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
    """The ways in which a deck's session went, as they were when they were asked for: `deck.branches`."""

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
                    f"{len(branch.order):,}" + (f" (+{branch.ahead:,} taken back)" if branch.ahead else ""),
                    "" if branch.parent is None else f"from {branch.parent} after {branch.forked_at:,}",
                    str(len(branch.edits) or ""),
                ]
            )
        return found

    def __repr__(self) -> str:
        return "\n".join(lines_of(self.cells, numbers=_NUMBERS)) if len(self) else "no branches: no history is kept"

    def _repr_html_(self) -> str:
        return cells_html(self.cells, [] if len(self) else ["There are no branches: no history is kept."], _NUMBERS)
