"""A backward that has run, played again in a notebook: `run.deck()`."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from ..engine.run import Run
from .run_document import other_policies, run_document
from .still import Moment, Still


class Recording(anywidget.AnyWidget):
    """A run, played again in a notebook. The page does all of it: nothing is executed.

    It is an ipywidgets widget as `Deck` is; its traits `selection` (the id of the task that is looked at, or None) and
    `breakpoints` (ids) can be observed, linked and set.
    """

    _esm = Path(__file__).parent / "static" / "deck.js"
    _id = traitlets.Unicode().tag(sync=True)
    _document = traitlets.Bytes().tag(sync=True)
    _is_live = traitlets.Bool(False).tag(sync=True)
    selection = traitlets.Int(None, allow_none=True).tag(sync=True)
    breakpoints = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, run: Run, title: str = "") -> None:
        self._run = run
        document = run_document(run, title)
        super().__init__(_id=uuid.uuid4().hex, _document=document.packed())
        self._still = Still(self._id, document.content["title"], run.graph)

    def _ipython_display_(self, **kwargs: Any) -> None:
        data, metadata = self._repr_mimebundle_(**kwargs)
        display(data, metadata=metadata, raw=True)
        self._still.show(lambda: _moment(self._run), repr(self))

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"


def _moment(run: Run) -> Moment:
    """As it ended."""
    timelines = {}
    if run.timeline is not None:
        others = ((name, timeline) for name, _, timeline in other_policies(run) if timeline is not None)
        timelines = {run.policy: run.timeline, **dict(others)}
    return Moment(run.policy, len(run.order), len(run.order), timelines)
