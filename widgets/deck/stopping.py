"""What stops a deck's backward, from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.stops.breakpoints import Breakpoint, Predicate, Where
from ...front_door import verbs_end_where_called
from .deck_traits import DeckTraits
from .stop_tables import StopsView

if TYPE_CHECKING:
    from ...engine.stops.conditions import GradientPredicate
    from ...engine.stops.watchpoints import Watchpoint


@verbs_end_where_called
class Stopping(DeckTraits):
    """Breakpoints and watchpoints, which can also be made while tasks run."""

    @property
    def stops(self) -> StopsView:
        """The breakpoints and watchpoints: a table; `deck.stops.disable(2)` and the like change them."""
        return StopsView(self._live.session.stops, self._asking.now)

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes what runs stop before a task, also while it runs; see `Verbs.break_at` for what `where` may be.

        deck.break_at("encoder.layer.3")                # where the backward enters a call of this module
        deck.break_at("AddmmBackward0", hit=3)

        Raises:
            ValueError: nothing is there by that name; it has the nearest ones.
        """
        return self._asking.now(lambda: self._live.session.break_at(where, hit=hit, when=when))

    def watch(
        self, *conditions: str | GradientPredicate, at: str | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Makes what runs stop after a task that gives a gradient of this kind; see `Verbs.watch` for the conditions.

        deck.watch("nan", "inf")                        # any of them
        deck.watch("norm>1e3 and upcast", at="encoder.*")

        Raises:
            ValueError: it is none of the conditions; or nothing is there by the name `at`.
        """
        return self._asking.now(lambda: self._live.session.watch(*conditions, at=at, synchronize=synchronize))
