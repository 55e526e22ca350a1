"""What the widgets of a live session and of a recorded run have in common: the page, and what it shares."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display

from ...inspector.graph.graph import Graph
from .display import is_held, names_of
from .page import CODE
from .still import Moment, Still


def _packed(_: bytes, widget: Played) -> bytes:
    return widget.packed()


class Played(anywidget.AnyWidget):
    """A widget whose page plays one backward.

    selection: the id of the task that is looked at, or None.
    breakpoints: the ids of the tasks before which playing stops.

    Displayed, it also leaves a picture of the graph, for where no page runs. When the last view of it is closed and no
    variable of the user's holds it, it closes itself.
    """

    # As text: of a path anywidget makes an object that refers to each widget there ever was.
    _esm = CODE.read_text(encoding="utf-8")
    _id = traitlets.Unicode().tag(sync=True)
    # A page that is loaded anew asks for everything: it gets what is so today.
    _document = traitlets.Bytes().tag(sync=True, to_json=_packed)
    _is_live = traitlets.Bool().tag(sync=True)
    selection = traitlets.Int(None, allow_none=True).tag(sync=True)
    breakpoints = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, graph: Graph, title: str, **traits: Any) -> None:
        self._shown = False
        super().__init__(_id=uuid.uuid4().hex, **traits)
        self._still = Still(self._id, title, replace(graph, nodes=()))  # a picture needs none, and may live long
        self.on_msg(self._hear)

    def packed(self) -> bytes:
        """The page's data, see `document.py`."""
        raise NotImplementedError

    def moment(self) -> Moment:
        """What the still picture tells of it now."""
        raise NotImplementedError

    @property
    def is_shown(self) -> bool:
        """Whether it has been displayed, by itself or inside another widget."""
        return self._shown or is_held(self)

    def _ipython_display_(self, **kwargs: Any) -> None:
        self._shown = True
        if self.comm is None:  # closed: ipywidgets has taken _repr_mimebundle_ away
            display({"text/plain": repr(self)}, raw=True)
            return
        data, metadata = self._repr_mimebundle_(**kwargs)
        display(data, metadata=metadata, raw=True)
        self._still.show(self.moment(), repr(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self._shown = True
        return super()._repr_mimebundle_(**kwargs)

    def _hear(self, _: ipywidgets.Widget, message: Any, buffers: object) -> None:
        """A message of the page. May be called in any thread."""
        if message == {"kind": "unseen"} and not names_of(self):
            self.close_unseen()

    def close_unseen(self) -> None:
        """Its last view is gone, and nobody can get at it any more."""
        self.close()
