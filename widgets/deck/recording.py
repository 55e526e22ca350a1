"""A backward that has run, played again in a notebook: `run.deck()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine.mirroring.plan import RecomputePlan
from ...engine.trace.run import Run
from ...engine.words.asked_in_vain import asked_in_vain
from ...front_door import ending_where_called
from .played import Played
from .run_document import other_policies, run_document
from .still import Moment

_ELSEWHERE = {
    **dict.fromkeys(
        ["step", "run", "run_to", "step_over", "step_out", "back", "goto", "switch", "replace", "watch", "break_at"],
        "nothing is executed here, its page plays; ts.debug(loss) steps a backward that is yet to run",
    ),
    **dict.fromkeys(
        ["save_html", "save_perfetto", "save", "order", "peak", "timeline", "trace", "policy", "to_pandas"],
        "the run that it plays has {name}",
    ),
}


class Recording(Played):
    """A run, played again in a notebook. The page does all of it: nothing is executed.

    It is an ipywidgets widget as `Deck` is; its traits `selection` (the id of the task that is looked at, or None) and
    `breakpoints` (ids) can be observed, linked and set.

    Args:
        recompute: the plan by which its forward was mirrored.
    """

    def __init__(self, run: Run, title: str = "", recompute: RecomputePlan | None = None) -> None:
        self._run = run
        others = list(other_policies(run))
        document = run_document(run, title, others, recompute)
        self._timelines = {name: timeline for name, _, timeline in others if timeline is not None}
        self._planned: list[int] = document.content["schedules"][0]["order"]
        self._packed = document.packed()
        super().__init__(run.graph, document.content["title"], _is_live=False)

    if not TYPE_CHECKING:  # a name that is not there would be of any type

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return asked_in_vain(self, name, "a run that is played again", _ELSEWHERE)

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """As it ended, or was left."""
        run = self._run
        timelines = {} if run.timeline is None else {run.policy: run.timeline, **self._timelines}
        return Moment(run.policy, len(run.order), len(self._planned), timelines, self._planned)
