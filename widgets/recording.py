"""A backward that has run, played again in a notebook: `run.deck()`."""

from __future__ import annotations

import uuid
from pathlib import Path

import anywidget
import traitlets

from ..engine.run import Run
from .run_document import run_document


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
        super().__init__(_id=uuid.uuid4().hex, _document=run_document(run, title).packed())

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"
