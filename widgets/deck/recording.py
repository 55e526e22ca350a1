"""A backward that has run, played again in a notebook: `run.deck()`."""

from __future__ import annotations

from ...engine.mirroring.plan import MirrorPlan
from ...engine.trace.run import Run
from .played import Played
from .run_document import other_policies, run_document
from .still import Moment


class Recording(Played):
    """A run, played again in a notebook. The page does all of it: nothing is executed.

    It is an ipywidgets widget as `Deck` is; its traits `selection` (the id of the task that is looked at, or None) and
    `breakpoints` (ids) can be observed, linked and set.

    Args:
        mirroring: the plan by which its forward was mirrored.
    """

    def __init__(self, run: Run, title: str = "", mirroring: MirrorPlan | None = None) -> None:
        self._run = run
        others = list(other_policies(run))
        document = run_document(run, title, others, mirroring)
        self._timelines = {name: timeline for name, _, timeline in others if timeline is not None}
        self._planned: list[int] = document.content["schedules"][0]["order"]
        self._packed = document.packed()
        super().__init__(run.graph, document.content["title"], _is_live=False)

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """As it ended, or was left."""
        run = self._run
        timelines = {} if run.timeline is None else {run.policy: run.timeline, **self._timelines}
        return Moment(run.policy, len(run.order), len(self._planned), timelines, self._planned)
